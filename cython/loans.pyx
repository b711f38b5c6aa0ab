"""A bounded stack of connections: an operation borrows one, and gives it back or writes it off.

The GIL guards the stack; a condition is needed only by those who wait for a place.
"""

import threading

from farpool.native.clock cimport now_ns

from farpool.protocol.errors import DeadlineExceeded, StaleSlab


cdef class Loans:
    """A bounded stack of connections that operations borrow. Thread-safe."""

    def __init__(self, int limit):
        self.idle = []
        self.limit = limit
        self.returned = threading.Condition()

    cdef object borrow(self, int64_t deadline):
        """Return an idle connection, or None: then the caller has a place to open one, or to write off."""
        while True:
            if self.closed:
                raise StaleSlab("the pool is closed; connect again")
            item = self.take_idle()
            if item is not None:
                return item
            if self.opened < self.limit:
                self.opened += 1
                return None
            with self.returned:
                if self.latest is None and self.opened >= self.limit:
                    left = (deadline - now_ns()) / 1e9
                    if left <= 0 or not self.returned.wait(left):
                        raise DeadlineExceeded(
                            f"all {self.limit} data connections stayed busy until the deadline; raise timeout="
                        )

    cdef object take_idle(self):
        """Return the connection that was used last, or None if none is idle."""
        item = self.latest
        self.latest = self.idle.pop() if self.idle else None
        return item

    cdef void give_back(self, object item):
        """Return a connection that is between two operations."""
        if self.latest is not None:
            self.idle.append(self.latest)
        self.latest = item
        if self.opened >= self.limit:
            self.tell()

    cdef void write_off(self):
        """Give up the place of a connection that the caller has closed, or could not open."""
        self.opened -= 1
        self.tell()

    cdef int tell(self) except -1:
        """Wake one who waits for a place."""
        with self.returned:
            self.returned.notify()
        return 0
