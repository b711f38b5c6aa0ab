"""The checks that every region makes before a byte moves, and the one wording of what they raise."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.long cimport PyLong_AsUnsignedLongLong, PyLong_AsUnsignedLongLongMask
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
    Py_ssize_t PyNumber_AsSsize_t(object number, void *overflow) except? -1


cdef int get_source(object buffer, Py_buffer *view) except -1:
    """Borrow the bytes of *buffer* for reading."""
    try:
        PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE)
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
    try:
        PyObject_GetBuffer(buffer, view, PyBUF_WRITABLE)
    except (BufferError, ValueError) as error:
        if is_contiguous(buffer):
            raise UnsuitableBuffer(
                f"read_into needs a writable buffer, and this {type(buffer).__name__} is read-only ({error})"
            ) from None
        raise InvalidArgument(f"the buffer must be C-contiguous ({error})") from None
    except TypeError:
        raise UnsuitableBuffer(
            f"a writable buffer is needed (bytearray, numpy array, ...), not {type(buffer).__name__}"
        ) from None
    return 0


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


cdef Py_ssize_t as_offset(object offset) except? -1:
    """Return an offset or length; one that no 64-bit number holds becomes the nearest, which is out of bounds."""
    return PyNumber_AsSsize_t(offset, NULL)


cdef uint64_t as_word(object value) except? 0:
    """Return *value* as an unsigned 64-bit word."""
    try:
        return PyLong_AsUnsignedLongLong(PyNumber_Index(value))
    except OverflowError:
        raise InvalidArgument(f"a word is 0 to 2**64 - 1, not {value}") from None


cdef uint64_t as_addend(object value) except? 0:
    """Return *value* modulo 2**64, so that a negative number subtracts."""
    return PyLong_AsUnsignedLongLongMask(PyNumber_Index(value))


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


cdef int raise_closed(str label) except -1:
    raise StaleSlab(f"this handle of slab {label} is closed or its slab was freed; open the slab again")


cdef int raise_wrong_domain(str label, str theirs, str ours) except -1:
    raise WrongAtomicDomain(
        f"the words of slab {label} belong to the atomics of {theirs}, and those of {ours} are not atomic with them; "
        f"attach it over {'rdma' if theirs == 'rdma' else 'cxl or tcp'}, or allocate it with atomics=\"{ours}\""
    )


cdef int raise_forked() except -1:
    raise ForkedSession("this slab's session belongs to the parent process; call farpool.connect in the child")
