"""Many parts of one size: the offsets in an array of integers, the bytes in one buffer, and no Python object a part.

What ``gather`` and ``scatter`` of every region are given, checked once. The offsets are copied, at 8 bytes a part, so
that no thread can change what was found to be within the slab.
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS,
    PyBUF_FORMAT,
    PyBUF_ND,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from farpool.native.checks cimport as_offset, get_source, get_target, outside

from farpool.protocol.errors import InvalidArgument, OutOfBounds, UnsuitableBuffer

cdef enum:
    OFFSET_BYTES = 8

cdef str ADVICE = "give them as numpy.asarray(offsets, numpy.int64), or as array.array(\"q\", offsets)"


cdef class EqualParts:
    """Parts of one size, and their bytes in a buffer that is borrowed; see the stub for the contract."""

    def __dealloc__(self):
        self.release()
        free(self.offsets)

    cdef void release(self) noexcept:
        """Give the buffer back; it is not touched after this."""
        self.data = NULL
        if self.held:
            self.held = False
            PyBuffer_Release(&self.view)

    cdef int check(self, Py_ssize_t limit, str label) except -1:
        """Raise ``OutOfBounds`` for the first part that is not within a slab of *limit* bytes."""
        cdef uint64_t largest = 0, offset
        cdef Py_ssize_t i
        for i in range(self.count):     # negative ones are large here
            offset = self.offsets[i]
            largest = offset if offset > largest else largest
        if self.count == 0 or (self.part_nbytes <= limit and largest <= <uint64_t> (limit - self.part_nbytes)):
            return 0
        i = 0
        while not outside(<Py_ssize_t> self.offsets[i], self.part_nbytes, limit):
            i += 1
        shown = int(self.offsets[i])
        if self.signed:
            shown = int(<int64_t> self.offsets[i])
        raise OutOfBounds(
            f"part {i} of {self.count}, {self.part_nbytes} bytes at offset {shown}, is not within slab {label} of "
            f"{limit} bytes; no byte was moved",
            part=i, offset=shown, nbytes=self.part_nbytes, limit=limit,
        )

    cdef void describe(self, Part *parts, Py_ssize_t first, Py_ssize_t count) noexcept nogil:
        """Write down some of the parts."""
        cdef Py_ssize_t i
        for i in range(count):
            parts[i].offset = self.offsets[first + i]
            parts[i].length = self.part_nbytes

    def listed(self):
        """Return each part as its offset and its bytes, for those who need Python objects."""
        cdef Py_ssize_t i, size = self.part_nbytes
        whole = memoryview(self)
        return [(<int64_t> self.offsets[i], whole[i * size:(i + 1) * size]) for i in range(self.count)]

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.nbytes, not self.inward, flags)

    def __releasebuffer__(self, Py_buffer *view):
        pass


cdef EqualParts take_parts(object offsets, object nbytes, object buffer, bint inward):
    """Copy the offsets, and borrow the buffer: to be filled if *inward*."""
    cdef EqualParts parts = EqualParts.__new__(EqualParts)
    parts.inward = inward
    parts.part_nbytes = as_offset(nbytes)
    if parts.part_nbytes < 0:
        raise InvalidArgument(f"a part has 0 bytes or more, not {parts.part_nbytes}")
    copy_offsets(parts, offsets)
    if inward:
        get_target(buffer, &parts.view)
    else:
        get_source(buffer, &parts.view)
    parts.held = True
    parts.data = <uint8_t *> parts.view.buf
    parts.nbytes = parts.view.len
    if not fits(parts):
        raise InvalidArgument(
            f"{parts.count} parts of {parts.part_nbytes} bytes are {parts.count * int(parts.part_nbytes)} bytes, and "
            f"the buffer has {parts.nbytes}; give one of that size, or a slice of it"
        )
    return parts


cdef bint fits(EqualParts parts) noexcept:
    """Whether the buffer has the bytes of all parts, and no more; no product can overflow."""
    if parts.count == 0 or parts.part_nbytes == 0:
        return parts.nbytes == 0
    return parts.nbytes % parts.count == 0 and parts.nbytes // parts.count == parts.part_nbytes


cdef int copy_offsets(EqualParts parts, object offsets) except -1:
    cdef Py_buffer view
    get_offsets(offsets, &view)
    try:
        parts.count = view.len // OFFSET_BYTES
        parts.signed = is_signed(view.format)
        parts.offsets = <uint64_t *> malloc(view.len or 1)
        if parts.offsets == NULL:
            raise MemoryError
        memcpy(parts.offsets, view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return 0


cdef int get_offsets(object offsets, Py_buffer *view) except -1:
    """Borrow an array of integers of 8 bytes in this machine's order."""
    if not PyObject_CheckBuffer(offsets):
        raise UnsuitableBuffer(f"offsets must be an array of 8-byte integers, not {type(offsets).__name__}; {ADVICE}")
    try:
        PyObject_GetBuffer(offsets, view, PyBUF_C_CONTIGUOUS | PyBUF_ND | PyBUF_FORMAT)
    except (BufferError, ValueError) as error:
        raise InvalidArgument(
            f"the offsets must be one C-contiguous array of integers ({error}); copy them: "
            "numpy.ascontiguousarray(offsets, numpy.int64)"
        ) from None
    if view.ndim == 1 and view.itemsize == OFFSET_BYTES and names_integer(view.format):
        return 0
    ndim, itemsize = view.ndim, view.itemsize
    form = "B" if view.format == NULL else (<bytes> view.format).decode(errors="replace")
    PyBuffer_Release(view)
    if ndim != 1:
        raise InvalidArgument(f"the array of offsets must have one dimension, not {ndim}; ravel() it")
    raise UnsuitableBuffer(
        f"the offsets must be integers of 8 bytes in this machine's order, not format \"{form}\" of {itemsize} bytes; "
        + ADVICE
    )


cdef bint names_integer(const char *form) noexcept nogil:
    """Whether a buffer's format is one integer in this machine's order, which is little-endian."""
    if form == NULL:
        return False
    if form[0] in (b"@", b"=", b"<"):
        form += 1
    return form[0] in (b"q", b"Q", b"l", b"L", b"n", b"N") and form[1] == 0


cdef bint is_signed(const char *form) noexcept nogil:
    """Whether a format that names an integer names one with a sign."""
    if form[0] in (b"@", b"=", b"<"):
        form += 1
    return form[0] in (b"q", b"l", b"n")


def list_parts(offsets, nbytes, buffer, Py_ssize_t limit, str label not None, *, bint inward):
    """Return each part as its offset and its bytes in *buffer*, all within *limit*; raise what is wrong with them."""
    cdef EqualParts parts = take_parts(offsets, nbytes, buffer, inward)
    parts.check(limit, label)
    return parts.listed()
