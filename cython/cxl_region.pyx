"""A slab in memory that this process maps: the client's own loads and stores are the transport.

Two words are read before and after each access: the slab's generation, so that bytes of a freed slab are never
presented as good, and the session's, so that one that has ended begins no store to what others have, whether it has
heard of its end or not. A long write looks at them again between its pieces.
The GIL is released around work on ``LARGE_COPY`` bytes and more, and nowhere else.

Where the memory is shared with hosts whose caches are not coherent with ours, every read drops the cache lines it is
about to load, and every write writes back the lines it has stored to; views leave both to ``flush`` and ``invalidate``.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memmove

from farpool.native.cache_lines cimport LINE, drop, drop_words, write_back
from farpool.native.checks cimport (
    LARGE_COPY,
    as_addend,
    as_offset,
    as_word,
    check_timeout,
    get_source,
    get_target,
    outside,
    raise_closed,
    raise_forked,
    raise_misaligned,
    raise_out_of_bounds,
    raise_read_only,
    raise_stale,
    raise_stale_after,
    raise_wrong_domain,
    successor,
)
from farpool.native.clock cimport now_ns, to_ns
from farpool.native.equal_parts cimport EqualParts, take_parts
from farpool.native.fork cimport forks
from farpool.native.libatomics cimport (
    acquire_fence,
    add_count,
    compare_swap_word,
    fetch_add_word,
    load_count,
    load_word,
    store_word,
)
from farpool.native.libfutex cimport futex_wait, futex_wake
from farpool.native.libmman cimport usleep
from farpool.native.line_model cimport LineModel
from farpool.native.watched_word cimport wake_waiters

from farpool.native import cache_lines

from farpool.protocol.errors import InvalidArgument, RegionInUse, StaleSlab

cdef enum:
    FIRST_PAUSE_NS = 20000      # of a waiter between two looks; twice as long each time
    LONGEST_PAUSE_NS = 1000000
    SIGNALS_NS = 50000000       # how long Ctrl-C may wait
    PIECE = LARGE_COPY          # most bytes that are stored after one look at the words; a power of two

cdef str COHERENT = "hardware"
cdef str INCOHERENT = "software"


@cython.final
cdef class CxlRegion:
    """One attached slab, reached by loads and stores; see ``farpool.transports.contract.Region``.

    ``mapping`` holds the slab, and is closed with the region; word *slot* of ``generations`` must hold
    *generation* for an access to be good, and the word at offset *session_word* there, unless that is 0, *session*.
    ``on_close()`` is called once the memory is let go. Thread-safe. ``timeout`` is checked and not needed: a copy waits
    for nobody. *coherence* is ``"hardware"`` or ``"software"``; with a *model* of incoherent caches the region works on
    that instead (tests alone do).
    """

    def __init__(self, Mapping mapping not None, Py_ssize_t nbytes, Mapping generations not None, Py_ssize_t slot,
                 uint64_t generation, bint writable, bint atomics, str label not None, on_close,
                 str coherence="hardware", LineModel model=None, Py_ssize_t watched=0,
                 Py_ssize_t session_word=0, uint64_t session=0):
        if nbytes < 0 or nbytes > <Py_ssize_t> mapping.nbytes:
            raise InvalidArgument(f"the mapping has {mapping.nbytes} bytes, the slab {nbytes}")
        if writable and not mapping.writable:
            raise InvalidArgument("a writable region needs a writable mapping")
        if coherence not in (COHERENT, INCOHERENT):
            raise InvalidArgument(f'coherence is "hardware" or "software", not {coherence!r}')
        if coherence == INCOHERENT:
            cache_lines.instructions()  # raises where there are none
        self.generation_word = generations.word(slot * 8)
        self.session_word = generations.word(session_word) if session_word else self.generation_word
        self.session = session if session_word else generation
        self.watched = generations.word(watched + slot * 8) if watched else NULL
        self.mapping = mapping
        self.generations = generations
        self.incoherent = coherence == INCOHERENT or model is not None
        self.model = model
        self.base = mapping.base if model is None else model.cache
        self.nbytes = nbytes
        self.generation = generation
        self.writable = writable
        self.atomics = atomics
        self.label = label
        self.on_close = on_close
        self.born = forks

    def __dealloc__(self):
        if self.base != NULL and self.mapping is not None and self.mapping.base != NULL:
            self.settle()

    cdef void settle(self) noexcept nogil:
        """Write back what views stored: it must not come out of our caches later, over the bytes of the next slab."""
        if self.incoherent and self.viewed and self.writable and self.born == forks:
            self.publish(self.base, self.nbytes)

    cdef inline bint serves(self, Py_ssize_t offset, Py_ssize_t nbytes) noexcept nogil:
        """Whether a range can be reached now; ``elsewhere`` says what stands in the way if not."""
        return (
            self.base != NULL
            and self.born == forks
            and not outside(offset, nbytes, self.nbytes)
            and self.is_current()
        )

    cdef inline bint is_current(self) noexcept nogil:
        """Whether the memory is the slab's still, and the session lives."""
        acquire_fence()     # what was read before stays before
        if self.incoherent and self.model is None:
            drop_words(self.generation_word, self.session_word)
        return load_word(self.generation_word) == self.generation and load_word(self.session_word) == self.session

    cdef int check(self, Py_ssize_t offset, Py_ssize_t nbytes) except -1:
        """Raise why a range cannot be reached."""
        if self.born != forks:
            return raise_forked()
        if self.base == NULL:
            return raise_closed(self.label)
        if outside(offset, nbytes, self.nbytes):
            return raise_out_of_bounds(offset, nbytes, self.nbytes, self.label)
        return self.check_generation()

    cdef int check_generation(self) except -1:
        return 0 if self.is_current() else raise_stale(self.label)

    cdef inline int check_written(self) except -1:
        """Raise ``StaleSlab`` for a store that may have come too late; it must not be made again elsewhere."""
        return 0 if self.is_current() else raise_stale_after(self.label)

    cdef object elsewhere(self, Py_ssize_t offset, Py_ssize_t nbytes, object timeout):
        """Return the region of the memory that has replaced ours; raise why a range cannot be reached."""
        try:
            self.check(offset, nbytes)
            raise_stale(self.label)
        except StaleSlab as error:
            stale = error
        return successor(self.follow, stale, timeout)

    # Bytes and the caches in front of them -----------------------------------------------------------

    # Another thread may close the region while the GIL is let go of: ``busy`` keeps the memory mapped, and the address
    # is taken before.

    cdef void observe(self, const uint8_t *at, Py_ssize_t nbytes) noexcept nogil:
        """Drop the lines of a range, so that the next load of it asks the memory."""
        if self.model is None:
            drop(at, nbytes)
        else:
            self.model.drop(at - self.model.cache, nbytes)

    cdef void observe_edges(self, const uint8_t *at, Py_ssize_t nbytes) noexcept nogil:
        """Drop the lines that a write covers in part: the rest of each is written back with it, and must be fresh."""
        if <size_t> at & (LINE - 1):
            self.observe(at, 1)
        if <size_t> (at + nbytes) & (LINE - 1):
            self.observe(at + nbytes, 1)

    cdef void publish(self, uint8_t *at, Py_ssize_t nbytes) noexcept nogil:
        """Write back the lines of a range; they are in memory when this returns."""
        if self.model is None:
            write_back(at, nbytes)
        else:
            self.model.write_back(at - self.model.cache, nbytes)

    cdef inline void load_bytes(self, uint8_t *target, const uint8_t *source, Py_ssize_t nbytes) noexcept nogil:
        if self.incoherent:
            self.observe(source, nbytes)
        memmove(target, source, nbytes)

    cdef inline void store_bytes(self, uint8_t *target, const uint8_t *source, Py_ssize_t nbytes) noexcept nogil:
        if self.incoherent:
            self.observe_edges(target, nbytes)
        memmove(target, source, nbytes)
        if self.incoherent:
            self.publish(target, nbytes)

    cdef int copy_out(self, uint8_t *target, const uint8_t *source, Py_ssize_t nbytes) except -1:
        if nbytes < LARGE_COPY:
            self.load_bytes(target, source, nbytes)
            return 0
        self.busy += 1
        with nogil:
            self.load_bytes(target, source, nbytes)
        self.busy -= 1
        return 0

    cdef int copy_in(self, uint8_t *target, const uint8_t *source, Py_ssize_t nbytes) except -1:
        if nbytes < LARGE_COPY:
            self.store_bytes(target, source, nbytes)
            return 0
        self.busy += 1
        with nogil:
            self.store_pieces(target, source, nbytes)
        self.busy -= 1
        return 0

    cdef void store_pieces(self, uint8_t *target, const uint8_t *source, Py_ssize_t nbytes) noexcept nogil:
        """Store a long range piece by piece, as long as it is ours: who is stopped in it stores no more than one.

        The caller has looked before, and looks after it. Pieces share no line: each begins where its address is a
        multiple of ``PIECE``.
        """
        cdef Py_ssize_t size, done = 0, shift = target - source
        cdef bint upwards = shift <= 0 or shift >= nbytes   # else the source is of the slab too, and overlaps
        while True:
            if upwards:
                size = min(PIECE - (<Py_ssize_t> (target + done) & (PIECE - 1)), nbytes - done)
                self.store_bytes(target + done, source + done, size)
            else:
                size = min((<Py_ssize_t> (target + nbytes - done - 1) & (PIECE - 1)) + 1, nbytes - done)
                self.store_bytes(target + nbytes - done - size, source + nbytes - done - size, size)
            done += size
            if done == nbytes or not self.is_current():
                return

    cdef inline void wake(self, Py_ssize_t start, Py_ssize_t nbytes) noexcept nogil:
        """Wake those who wait for a word that was just stored to."""
        cdef uint64_t watched = 0 if self.watched == NULL else load_word(self.watched)
        if watched:
            wake_waiters(self.mapping.base, watched, start, nbytes)

    # Bytes ------------------------------------------------------------------------------------------

    def read_into(self, buffer, offset=0, timeout=None):
        """Fill *buffer* from the slab and return the bytes read."""
        check_timeout(timeout)
        cdef Py_ssize_t start = as_offset(offset)
        cdef Py_buffer view
        get_target(buffer, &view)
        try:
            if self.serves(start, view.len):
                self.copy_out(<uint8_t *> view.buf, self.base + start, view.len)
                if self.is_current():
                    return view.len
            return self.elsewhere(start, view.len, timeout).read_into(buffer, start, timeout)
        finally:
            PyBuffer_Release(&view)

    def read(self, nbytes, offset=0, timeout=None):
        """Return new bytes from the slab."""
        check_timeout(timeout)
        cdef Py_ssize_t start = as_offset(offset), length = as_offset(nbytes)
        cdef bytes result
        if self.serves(start, length):
            result = PyBytes_FromStringAndSize(NULL, length)
            self.copy_out(<uint8_t *> PyBytes_AS_STRING(result), self.base + start, length)
            if self.is_current():
                return result
        return self.elsewhere(start, length, timeout).read(length, start, timeout)

    def write(self, buffer, offset=0, timeout=None):
        """Copy *buffer* into the slab and return the bytes written."""
        check_timeout(timeout)
        cdef Py_ssize_t start = as_offset(offset)
        cdef Py_buffer view
        get_source(buffer, &view)
        try:
            if not self.serves(start, view.len):
                return self.elsewhere(start, view.len, timeout).write(buffer, start, timeout)
            if not self.writable:
                raise_read_only(self.label)
            self.copy_in(self.base + start, <uint8_t *> view.buf, view.len)
            self.wake(start, view.len)
            self.check_written()
            return view.len
        finally:
            PyBuffer_Release(&view)

    def readv(self, parts, timeout=None):
        """Fill many buffers in one batch; every range is checked before a byte moves. Return the bytes read."""
        check_timeout(timeout)
        return self.batch(list(parts), False, timeout)

    def writev(self, parts, timeout=None):
        """Write many buffers in one batch; every range is checked before a byte moves. Return the bytes written."""
        check_timeout(timeout)
        return self.batch(list(parts), True, timeout)

    cdef object batch(self, list parts, bint writes, object timeout):
        try:
            return self.move(parts, writes)
        except StaleSlab as error:
            stale = error
        region = successor(self.follow, stale, timeout)
        return region.writev(parts, timeout) if writes else region.readv(parts, timeout)

    cdef object move(self, object parts, bint writes):
        cdef Py_ssize_t count = len(parts), held = 0, i, total = 0
        cdef Py_buffer *views = <Py_buffer *> malloc((count or 1) * sizeof(Py_buffer))
        cdef uint8_t *base
        cdef Py_ssize_t *starts = <Py_ssize_t *> malloc((count or 1) * sizeof(Py_ssize_t))
        try:
            if views == NULL or starts == NULL:
                raise MemoryError
            self.check(0, 0)
            if writes and not self.writable:
                raise_read_only(self.label)
            for offset, buffer in parts:
                starts[held] = as_offset(offset)
                if writes:
                    get_source(buffer, &views[held])
                else:
                    get_target(buffer, &views[held])
                held += 1
                self.check(starts[held - 1], views[held - 1].len)
            self.check(0, 0)        # getting a buffer may run Python code, which may have closed us
            self.busy += 1          # and so may other threads while a large part is copied: keep the memory
            base = self.base
            for i in range(count):
                if writes:
                    if not self.is_current():
                        break       # said below: who was stopped in a batch stores no more of it
                    self.copy_in(base + starts[i], <uint8_t *> views[i].buf, views[i].len)
                    self.wake(starts[i], views[i].len)
                else:
                    self.copy_out(<uint8_t *> views[i].buf, base + starts[i], views[i].len)
                total += views[i].len
            self.busy -= 1
            if writes:
                self.check_written()
            else:
                self.check_generation()
            return total
        finally:
            for i in range(held):
                PyBuffer_Release(&views[i])
            free(views)
            free(starts)

    def gather(self, offsets, nbytes, out, timeout=None):
        """Fill *out* with the *nbytes* at each of *offsets*; return the bytes read."""
        check_timeout(timeout)
        try:
            return self.move_all(self.describe(offsets, nbytes, out, True))
        except StaleSlab as error:
            stale = error
        return successor(self.follow, stale, timeout).gather(offsets, nbytes, out, timeout)

    def scatter(self, offsets, nbytes, source, timeout=None):
        """Write *source* to the *nbytes* at each of *offsets*; return the bytes written."""
        check_timeout(timeout)
        try:
            return self.move_all(self.describe(offsets, nbytes, source, False))
        except StaleSlab as error:
            stale = error
        return successor(self.follow, stale, timeout).scatter(offsets, nbytes, source, timeout)

    cpdef EqualParts describe(self, offsets, nbytes, buffer, bint inward):
        """Return parts of one size, all of which were found to be in reach, to be moved by ``move_parts``."""
        cdef EqualParts parts
        self.check(0, 0)
        if not inward and not self.writable:
            raise_read_only(self.label)
        parts = take_parts(offsets, nbytes, buffer, inward)
        parts.check(self.nbytes, self.label)
        return parts

    cdef object move_all(self, EqualParts parts):
        self.move_parts(parts, 0, parts.count)
        nbytes = parts.nbytes
        parts.release()         # now: whoever holds an error holds no buffer
        return nbytes

    def move_parts(self, EqualParts parts not None, Py_ssize_t first, Py_ssize_t count):
        """Read or write *count* parts from the number *first* on, or as many as there are."""
        cdef uint8_t *base
        count = min(count, parts.count - first)
        self.check(0, 0)        # getting a buffer may run Python code, which may have closed us
        self.busy += 1
        base = self.base
        if count * parts.part_nbytes < LARGE_COPY:
            self.copy_parts(base, parts, first, count)
        else:
            with nogil:
                self.copy_parts(base, parts, first, count)
        self.busy -= 1
        if parts.inward:
            self.check_generation()
        else:
            self.check_written()

    cdef void copy_parts(self, uint8_t *base, EqualParts parts, Py_ssize_t first, Py_ssize_t count) noexcept nogil:
        cdef const uint64_t *offsets = parts.offsets + first
        cdef uint8_t *data = parts.data + first * parts.part_nbytes
        cdef Py_ssize_t i, nbytes = parts.part_nbytes
        for i in range(count):
            if parts.inward:
                self.load_bytes(data + i * nbytes, base + offsets[i], nbytes)
                continue
            if not self.is_current():
                return          # as in a batch: who was stopped in the middle stores no more of it
            if nbytes <= PIECE:
                self.store_bytes(base + offsets[i], data + i * nbytes, nbytes)
            else:
                self.store_pieces(base + offsets[i], data + i * nbytes, nbytes)
            self.wake(<Py_ssize_t> offsets[i], nbytes)

    # Words ------------------------------------------------------------------------------------------

    cdef uint64_t *word(self, Py_ssize_t start, bint writes) except NULL:
        """Return where a word is that ``serves`` has found in reach."""
        if start & 7:
            raise_misaligned(start, self.label)
        if writes and not self.writable:
            raise_read_only(self.label)
        if self.incoherent:
            self.observe(self.base + start, 8)
        return <uint64_t *> (self.base + start)

    cdef uint64_t *atomic_word(self, Py_ssize_t start) except NULL:
        """Return where an atomic works: among the processes of one host, which share its caches."""
        cdef uint64_t *word = self.word(start, True)
        if not self.atomics:
            raise_wrong_domain(self.label, "rdma", "cpu")
        if self.model is None:
            return word
        return <uint64_t *> (self.mapping.base + (<uint8_t *> word - self.base))

    cdef int stored(self, Py_ssize_t start, bint atomically) except -1:
        """Publish a word that was just set, and check that it was still ours to set."""
        if self.incoherent:
            if atomically and self.model is not None:
                self.model.fetch(start, 8)
            else:
                self.publish(self.base + start, 8)
        self.wake(start, 8)
        return self.check_written()

    def load(self, offset, timeout=None):
        """Return the aligned unsigned 8-byte little-endian word at *offset*."""
        check_timeout(timeout)
        cdef Py_ssize_t start = as_offset(offset)
        cdef uint64_t value
        if self.serves(start, 8):
            value = load_word(self.word(start, False))
            if self.is_current():
                return value
        return self.elsewhere(start, 8, timeout).load(start, timeout)

    def store(self, offset, value, timeout=None):
        """Set the aligned word at *offset*; other readers see the old or the new value, never a mix."""
        check_timeout(timeout)
        cdef Py_ssize_t start = as_offset(offset)
        cdef uint64_t new = as_word(value)
        if not self.serves(start, 8):
            return self.elsewhere(start, 8, timeout).store(start, value, timeout)
        store_word(self.word(start, True), new)
        self.stored(start, False)

    def fetch_add(self, offset, value, timeout=None):
        """Add *value* (modulo 2**64) to the aligned word at *offset* atomically; return the old value."""
        check_timeout(timeout)
        cdef Py_ssize_t start = as_offset(offset)
        cdef uint64_t addend = as_addend(value), old
        if not self.serves(start, 8):
            return self.elsewhere(start, 8, timeout).fetch_add(start, value, timeout)
        old = fetch_add_word(self.atomic_word(start), addend)
        self.stored(start, True)
        return old

    def compare_swap(self, offset, expected, new, timeout=None):
        """Set the aligned word at *offset* to *new* if it is *expected*, atomically; return the old value."""
        check_timeout(timeout)
        cdef Py_ssize_t start = as_offset(offset)
        cdef uint64_t before = as_word(expected), after = as_word(new), old
        if not self.serves(start, 8):
            return self.elsewhere(start, 8, timeout).compare_swap(start, expected, new, timeout)
        old = compare_swap_word(self.atomic_word(start), before, after)
        self.stored(start, True)
        return old

    # Waiting ----------------------------------------------------------------------------------------

    def park(self, offset, expected, double seconds):
        """Return the aligned word at *offset* once it is not *expected*, or as it is after *seconds*.

        Stores of ours wake it, and it looks again by itself, after a millisecond at the latest.
        """
        cdef uint64_t before = as_word(expected), value = before
        cdef Py_ssize_t start = as_offset(offset)
        self.check(start, 8)
        cdef uint64_t *word = self.word(start, False)
        cdef int64_t deadline = now_ns() + to_ns(seconds), pause = FIRST_PAUSE_NS, look
        while True:
            look = min(deadline, now_ns() + SIGNALS_NS)
            self.busy += 1
            with nogil:
                while True:
                    if self.incoherent:
                        self.observe(<uint8_t *> word, 8)
                    value = load_word(word)
                    if value != before or self.base == NULL or not self.is_current():
                        break
                    if now_ns() >= look:
                        break
                    if self.incoherent:
                        usleep(<unsigned int> (pause // 1000))
                    else:
                        futex_wait(word, <uint32_t> before, pause)
                    pause = min(pause * 2, LONGEST_PAUSE_NS)
            self.busy -= 1
            PyErr_CheckSignals()
            self.check(0, 0)
            if value != before or now_ns() >= deadline:
                return value

    def notify(self, offset):
        """Let whoever waits for the aligned word at *offset* look at it now."""
        cdef Py_ssize_t start = as_offset(offset)
        self.check(start, 8)
        self.word(start, False)
        futex_wake(self.mapping.base + as_offset(offset))

    # Views ------------------------------------------------------------------------------------------

    def flush(self, offset=0, nbytes=None):
        """Make our stores through views visible to other hosts; nothing to do where the memory is coherent."""
        self.synchronize(offset, nbytes, True)

    def invalidate(self, offset=0, nbytes=None):
        """Make other hosts' stores visible to our views; nothing to do where the memory is coherent."""
        self.synchronize(offset, nbytes, False)

    cdef int synchronize(self, object offset, object nbytes, bint ours) except -1:
        try:
            start, length = self.check_span(offset, nbytes)
        except StaleSlab as error:
            stale = error
        else:
            if self.incoherent:
                self.sweep(start, length, ours)
            return 0
        region = successor(self.follow, stale, None)
        if ours:
            region.flush(offset, nbytes)
        else:
            region.invalidate(offset, nbytes)
        return 0

    cdef int sweep(self, Py_ssize_t start, Py_ssize_t nbytes, bint ours) except -1:
        cdef uint8_t *at = self.base + start
        self.busy += 1
        with nogil:
            if ours:
                self.publish(at, nbytes)
            else:
                self.observe(at, nbytes)
        self.busy -= 1
        return 0

    cdef tuple check_span(self, object offset, object nbytes):
        cdef Py_ssize_t start = as_offset(offset)
        cdef Py_ssize_t length = self.nbytes - start if nbytes is None else as_offset(nbytes)
        self.check(start, length)
        return start, length

    def view(self, offset=0, nbytes=None):
        """Return the slab's own memory, read-only on a read-only grant.

        The view keeps the mapping alive. Nothing checks the generation behind it: after the slab was freed it shows
        memory that belongs to nobody any more. Where hosts are not coherent it begins with what the memory holds; from
        then on ``invalidate`` shows what others stored, and ``flush`` shows them what was stored here.
        """
        try:
            start, length = self.check_span(offset, nbytes)
            if self.incoherent:
                self.sweep(start, length, False)
            return PyMemoryView_FromObject(self)[start:start + length]
        except StaleSlab as error:
            stale = error
        return successor(self.follow, stale, None).view(offset, nbytes)

    def __getbuffer__(self, Py_buffer *view, int flags):
        self.check(0, 0)
        PyBuffer_FillInfo(view, self, self.base, self.nbytes, not self.writable, flags)
        self.viewed = True
        add_count(&self.views, 1)

    def __releasebuffer__(self, Py_buffer *view):
        add_count(&self.views, -1)

    def retire(self):
        """Serve no operation any more, even while arrays or memoryviews keep the memory mapped."""
        self.base = NULL

    def close(self):
        """Unmap the slab. A second call does nothing; ``RegionInUse`` while arrays or memoryviews of it live."""
        if self.base == NULL:
            return
        if load_count(&self.views):
            raise RegionInUse(
                f"slab {self.label} is still used by arrays or memoryviews ({load_count(&self.views)}); "
                "delete them before it is let go",
                views=load_count(&self.views),
            )
        self.settle()
        self.base = NULL
        while self.busy:    # a copy of another thread ends by itself
            with nogil:
                usleep(20)
        self.mapping.close()
        if self.on_close is not None and self.born == forks:
            self.on_close()

    def leave_in_child(self):
        """Unmap in a forked child what no view shows there: the slab's bytes are not to wait for the child's end."""
        if self.base == NULL or self.busy or load_count(&self.views):
            return
        self.base = NULL
        self.mapping.close()
