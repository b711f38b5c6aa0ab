"""One request of a pipelined data connection: what is still to be sent of it, and where its answer goes."""

from cpython.buffer cimport PyBuffer_Release
from libc.stdlib cimport calloc, free, malloc

from farpool.native.checks cimport as_offset, get_source, get_target


cdef class Pending:
    """One request in flight. Its pipeline alone touches it."""

    def __dealloc__(self):
        self.release()
        free(self.views)
        free(self.wire)
        free(self.pieces)

    cdef void release(self) noexcept:
        """Give the buffers back; they are not touched after this."""
        cdef Py_ssize_t i
        for i in range(self.count):
            PyBuffer_Release(&self.views[i])
        self.count = 0
        self.equal = None

    cdef int hold(self, list parts, bint vector) except -1:
        """Borrow the buffers and check each range."""
        cdef Py_ssize_t number = len(parts), start
        cdef Py_buffer *view
        self.views = <Py_buffer *> calloc(number or 1, sizeof(Py_buffer))
        self.wire = <Part *> malloc((number or 1) * sizeof(Part))
        self.pieces = <iovec *> malloc((number + 2) * sizeof(iovec))
        if self.views == NULL or self.wire == NULL or self.pieces == NULL:
            raise MemoryError
        for offset, buffer in parts:
            start = as_offset(offset)
            view = &self.views[self.count]
            if self.inward:
                get_target(buffer, view)
            else:
                get_source(buffer, view)
            self.wire[self.count].offset = start
            self.wire[self.count].length = view.len
            self.count += 1
            self.region.check(start, view.len, not self.inward)
            self.request.length += view.len
        if number:
            self.request.offset = self.wire[0].offset
        self.request.operand = number if vector else 0
        return 0

    cdef int hold_equal(self, EqualParts equal, Py_ssize_t first, Py_ssize_t number) except -1:
        """Borrow some parts of one size, which were found to be within the slab."""
        self.wire = <Part *> malloc(number * sizeof(Part))
        self.pieces = <iovec *> malloc(3 * sizeof(iovec))
        if self.wire == NULL or self.pieces == NULL:
            raise MemoryError
        equal.describe(self.wire, first, number)
        self.equal = equal
        self.whole.iov_base = equal.data + first * equal.part_nbytes
        self.whole.iov_len = number * equal.part_nbytes
        self.request.offset = self.wire[0].offset
        self.request.length = self.whole.iov_len
        self.request.operand = number
        return 0

    cdef void aim_out(self, bint vector) noexcept:
        """Line up what is to be sent."""
        cdef Py_ssize_t i
        self.pieces[0].iov_base = &self.request
        self.pieces[0].iov_len = sizeof(Request)
        self.pieces_left = 1
        if vector:
            self.pieces[1].iov_base = self.wire
            self.pieces[1].iov_len = self.request.operand * sizeof(Part)
            self.pieces_left = 2
        if not self.inward and self.equal is not None:
            self.pieces[self.pieces_left] = self.whole
            self.pieces_left += 1
        elif not self.inward:
            for i in range(self.count):
                self.pieces[self.pieces_left].iov_base = self.views[i].buf
                self.pieces[self.pieces_left].iov_len = self.views[i].len
                self.pieces_left += 1
        self.left = self.pieces

    cdef void aim_in(self) noexcept:
        """Line up where the answer's bytes go; nowhere, if nobody waits for them any more."""
        cdef Py_ssize_t i
        self.left = self.pieces
        if self.equal is not None:
            self.pieces[0] = self.whole
            self.pieces_left = 1
            return
        for i in range(self.count):
            self.pieces[i].iov_base = self.views[i].buf
            self.pieces[i].iov_len = self.views[i].len
        self.pieces_left = <int> self.count
