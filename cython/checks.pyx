"""The checks that every region makes before a byte moves, and the one wording of what they raise."""

from cpython.buffer cimport (
    PyBUF_FORMAT,
    PyBUF_ND,
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.exc cimport PyErr_Clear
from cpython.long cimport PyLong_AsUnsignedLongLong, PyLong_CheckExact, PyLong_AsUnsignedLongLongMask
from cpython.number cimport PyNumber_Index

from farpool.protocol.errors import (
    ForkedSession,
    InvalidArgument,
    OutOfBounds,
    ReadOnly,
    StaleSlab,
    UnsuitableBuffer,
    WrongAtomicDomain,
)

cdef extern from "Python.h":
    int try_buffer "PyObject_GetBuffer"(object owner, Py_buffer *view, int flags) noexcept
    Py_ssize_t try_ssize "PyLong_AsSsize_t"(object number) noexcept
    Py_ssize_t PyNumber_AsSsize_t(object number, void *overflow) except? -1
    Py_ssize_t PY_SSIZE_T_MAX
    Py_ssize_t PY_SSIZE_T_MIN

cdef double MAX_SECONDS = 366 * 86400.0     # as in client/deadlines.py; a longer timeout is cut to it


# Buffers ------------------------------------------------------------------------------------------------------------

# An array of Python objects is a buffer too, of pointers: bytes read over them crash the process later, and bytes
# written from them tell its addresses. So the format is asked for, but of the types that have none of their own.

cdef int get_source(object buffer, Py_buffer *view) except -1:
    """Borrow the bytes of *buffer* for reading."""
    if get_numbers(buffer, view, PyBUF_SIMPLE):
        return 0
    try:
        get_plain(buffer, view, PyBUF_SIMPLE)
    except (BufferError, ValueError) as error:
        raise InvalidArgument(
            f"the buffer must be C-contiguous ({error}); copy it, for example with numpy.ascontiguousarray"
        ) from None
    except TypeError:
        raise UnsuitableBuffer(
            f"a buffer of bytes is needed (bytes, bytearray, numpy array, ...), not {type(buffer).__name__}"
        ) from None
    return 0


cdef int get_target(object buffer, Py_buffer *view) except -1:
    """Borrow the bytes of *buffer* for writing."""
    if get_numbers(buffer, view, PyBUF_WRITABLE):
        return 0
    try:
        get_plain(buffer, view, PyBUF_WRITABLE)
    except (BufferError, ValueError) as error:
        if is_contiguous(buffer):
            raise UnsuitableBuffer(
                f"a writable buffer is needed to read into, and this {type(buffer).__name__} is read-only ({error})"
            ) from None
        raise InvalidArgument(f"the buffer must be C-contiguous ({error})") from None
    except TypeError:
        raise UnsuitableBuffer(
            f"a writable buffer is needed (bytearray, numpy array, ...), not {type(buffer).__name__}"
        ) from None
    return 0


cdef bint get_numbers(object buffer, Py_buffer *view, int flags) noexcept:
    """Borrow the bytes of a buffer that clearly holds numbers: what nearly every call brings, and quicker."""
    if type(buffer) is not bytearray and type(buffer) is not bytes:
        flags |= PyBUF_ND | PyBUF_FORMAT
    if try_buffer(buffer, view, flags) != 0:
        PyErr_Clear()
        return False
    if view.format == NULL or (view.format[0] not in (b"\0", b"O") and view.format[1] == 0):
        return True
    PyBuffer_Release(view)
    return False


cdef int get_plain(object buffer, Py_buffer *view, int flags) except -1:
    """Borrow the bytes of a buffer that holds no Python objects."""
    try:
        PyObject_GetBuffer(buffer, view, flags | PyBUF_ND | PyBUF_FORMAT)
    except (BufferError, ValueError):
        # Some have no format that says what they hold (numpy's datetime64), and are bytes all the same.
        if getattr(getattr(buffer, "dtype", None), "hasobject", False):
            raise_objects(buffer)
        PyObject_GetBuffer(buffer, view, flags)
        return 0
    if view.format != NULL and names_objects(view.format):
        PyBuffer_Release(view)
        raise_objects(buffer)
    return 0


cdef bint names_objects(const char *format) noexcept nogil:
    """Whether a buffer's format has an ``O`` that is not within the name of a field, as in ``T{i:Offset:}``."""
    cdef bint in_name = False
    while format[0]:
        if format[0] == b":":
            in_name = not in_name
        elif format[0] == b"O" and not in_name:
            return True
        format += 1
    return False


cdef int raise_objects(object buffer) except -1:
    raise UnsuitableBuffer(
        f"this {type(buffer).__name__} holds Python objects, which are addresses of this process and not bytes; "
        "give it a dtype of numbers"
    )


cdef bint is_contiguous(object buffer):
    try:
        return memoryview(buffer).c_contiguous
    except (BufferError, ValueError, TypeError):
        return False


def buffer_extent(owner):
    """Return the address and the bytes of a contiguous buffer; (0, 0) for an object that shows none."""
    cdef Py_buffer view
    try:
        PyObject_GetBuffer(owner, &view, PyBUF_SIMPLE)
    except (BufferError, ValueError, TypeError):
        return 0, 0
    try:
        return <size_t> view.buf, view.len
    finally:
        PyBuffer_Release(&view)


# Numbers ------------------------------------------------------------------------------------------------------------

cdef inline bint is_plain(object value, Py_ssize_t *number) noexcept:
    """Read a plain integer that fits, nearly always the case and several times quicker; -1 is left to other ways."""
    if not PyLong_CheckExact(value):
        return False
    number[0] = try_ssize(value)
    if number[0] != -1:
        return True
    PyErr_Clear()
    return False


cdef Py_ssize_t as_offset(object offset) except? -1:
    """Return an offset or length; raises ``OutOfBounds`` for one that no 64-bit number holds."""
    cdef Py_ssize_t number
    if is_plain(offset, &number):
        return number
    number = PyNumber_AsSsize_t(offset, NULL)
    if number == PY_SSIZE_T_MAX or number == PY_SSIZE_T_MIN:
        raise OutOfBounds(
            f"{shown(offset)} is not within any slab: offsets and lengths are bytes of it; no byte was moved",
            offset=offset,
        )
    return number


cdef uint64_t as_word(object value) except? 0:
    """Return *value* as an unsigned 64-bit word."""
    cdef Py_ssize_t number
    if is_plain(value, &number) and number >= 0:
        return number
    try:
        return PyLong_AsUnsignedLongLong(PyNumber_Index(value))
    except OverflowError:
        raise InvalidArgument(f"a word is 0 to 2**64 - 1, not {shown(value)}") from None


cdef uint64_t as_addend(object value) except? 0:
    """Return *value* modulo 2**64, so that a negative number subtracts."""
    cdef Py_ssize_t number
    if is_plain(value, &number):
        return <uint64_t> number
    return PyLong_AsUnsignedLongLongMask(PyNumber_Index(value))


cdef double as_seconds(object timeout) except -1:
    """Return a timeout in seconds; raises ``InvalidArgument`` unless it is a number over 0."""
    cdef double seconds = 0
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        try:
            seconds = timeout
        except OverflowError:
            seconds = 0
    if seconds > 0:
        return min(seconds, MAX_SECONDS)
    raise InvalidArgument(f"timeout must be seconds, more than 0, not {shown(timeout)}")


def seconds_of(timeout, double default):
    """Return *timeout* in seconds, and *default* for None; raises ``InvalidArgument`` unless it is a number over 0."""
    return default if timeout is None else as_seconds(timeout)


cdef str shown(object value):
    """Return how a message shows what the caller gave: Python writes no number of thousands of digits."""
    try:
        return repr(value)
    except ValueError:
        return f"a number of {value.bit_length()} bits"


# What they raise ----------------------------------------------------------------------------------------------------

cdef int raise_out_of_bounds(Py_ssize_t offset, Py_ssize_t nbytes, Py_ssize_t limit, str label) except -1:
    raise OutOfBounds(
        f"{nbytes} bytes at offset {offset} are not within slab {label} of {limit} bytes; no byte was moved",
        offset=offset, nbytes=nbytes, limit=limit,
    )


cdef int raise_misaligned(Py_ssize_t offset, str label) except -1:
    raise InvalidArgument(f"a word of slab {label} begins at a multiple of 8, not at {offset}", offset=offset)


cdef int raise_read_only(str label) except -1:
    raise ReadOnly(f"slab {label} is attached read-only; open it with mode=\"rw\" to write")


cdef int raise_stale(str label) except -1:
    raise StaleSlab(f"slab {label} was freed, revoked or has expired; its bytes are gone: allocate or open another")


cdef int raise_stale_after(str label) except -1:
    raise StaleSlab(
        f"slab {label} was freed, revoked or replaced, or its session ended, while it was written to; whether that "
        "took effect is unknown",
        begun=True,
    )


cdef object successor(object follow, object error, object timeout):
    """Return the region that does an operation now that the slab's memory was replaced; raise *error* if there is none.

    From now on the operation has *timeout* in all, seconds or None.
    """
    if follow is None or error.details.get("begun"):
        raise error
    return follow(error, timeout)


cdef int raise_closed(str label) except -1:
    raise StaleSlab(f"this handle of slab {label} is closed or its slab was freed; open the slab again")


cdef int raise_wrong_domain(str label, str theirs, str ours) except -1:
    raise WrongAtomicDomain(
        f"the words of slab {label} belong to the atomics of {theirs}, and those of {ours} are not atomic with them; "
        f"attach it over {'rdma' if theirs == 'rdma' else 'cxl or tcp'}, or allocate it with atomics=\"{ours}\""
    )


cdef int raise_forked() except -1:
    raise ForkedSession("this slab's session belongs to the parent process; call farpool.connect in the child")
