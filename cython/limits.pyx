"""The machine's own limits: C loops that reach no slab through Farpool, to compare Farpool with.

Each loop writes one sample, the nanoseconds of one timed block, into the caller's int64 array, and returns
how many it wrote: it ends when its ``seconds`` are over or the array is full. Nothing is allocated while a
loop runs. The GIL is released for the whole loop, and taken to run signal handlers when a socket's call was
interrupted.
"""

from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, strerror

from farpool.native.clock cimport now_ns, to_ns
from farpool.native.libatomics cimport fetch_add_word, load_word
from farpool.native.libfcntl cimport (
    F_GETFL, O_CLOEXEC, O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_RDWR, fallocate, fcntl, openat,
    unlinkat,
)
from farpool.native.libmman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap
from farpool.native.libsocket cimport (
    MSG_NOSIGNAL, MSG_WAITALL, SO_RCVTIMEO, SO_SNDTIMEO, SOL_SOCKET, close_fd, recv, send,
    setsockopt, timeval,
)

from farpool.protocol.errors import DeadlineExceeded, InvalidArgument, OutOfBounds, ServerLost

cdef extern from *:
    """
    /* The compiler must not drop a copy or a load that nothing uses. */
    #define fp_keep() __asm__ volatile("" ::: "memory")
    """
    void keep "fp_keep"() noexcept nogil

# Seconds that a loop over memory may run: Ctrl-C is seen only at its end.
cdef double LONGEST = 60.0

# Bytes that a pipelined ping-pong may have waiting in its lesser direction: socket buffers always hold that.
cdef int64_t SMALL_SIDE = 64 << 10


# Memory ------------------------------------------------------------------------------------------------

cdef void empty_block(Walk *walk) noexcept nogil:
    keep()


cdef void read_block(Walk *walk) noexcept nogil:
    cdef size_t _call
    for _call in range(walk.calls):
        memcpy(walk.buffer + walk.part * walk.nbytes, walk.memory + walk.offsets[walk.place], walk.nbytes)
        keep()
        step(walk)


cdef void write_block(Walk *walk) noexcept nogil:
    cdef size_t _call
    for _call in range(walk.calls):
        memcpy(walk.memory + walk.offsets[walk.place], walk.buffer + walk.part * walk.nbytes, walk.nbytes)
        keep()
        step(walk)


cdef void add_block(Walk *walk) noexcept nogil:
    cdef size_t _call
    for _call in range(walk.calls):
        fetch_add_word(<uint64_t *> (walk.memory + walk.offsets[walk.place]), 1)
        step(walk)


cdef void load_block(Walk *walk) noexcept nogil:
    cdef size_t _call
    for _call in range(walk.calls):
        load_word(<const uint64_t *> (walk.memory + walk.offsets[walk.place]))
        keep()
        step(walk)


cdef inline void step(Walk *walk) noexcept nogil:
    walk.place = walk.place + 1 if walk.place + 1 < walk.places else 0
    walk.part = walk.part + 1 if walk.part + 1 < walk.parts else 0


cdef Py_ssize_t time_blocks(Block block, Walk *walk, int64_t[::1] samples, double seconds) except -1:
    """Time one block after the other; return the samples written."""
    if not 0 < seconds <= LONGEST:
        raise InvalidArgument(f"a loop over memory runs up to {LONGEST:g} seconds, not {seconds:g}")
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t most = samples.shape[0]
    cdef int64_t *sample = first_of(samples)
    cdef int64_t begin
    cdef int64_t now = 0
    cdef int64_t end = now_ns() + to_ns(seconds)
    with nogil:
        while count < most and now < end:
            begin = now_ns()
            block(walk)
            now = now_ns()
            sample[count] = now - begin
            count += 1
    return count


cdef Walk make_walk(const uint8_t[::1] memory, const int64_t[::1] offsets, size_t nbytes,
                    size_t calls) except *:
    """Return a walk whose every place was checked; its buffer is still to be set."""
    cdef Walk walk
    cdef Py_ssize_t index
    if offsets.shape[0] == 0 or nbytes == 0 or calls == 0:
        raise InvalidArgument("a loop needs at least one offset, one byte and one call a block")
    for index in range(offsets.shape[0]):
        if offsets[index] < 0 or offsets[index] > memory.shape[0] - <Py_ssize_t> nbytes:
            raise OutOfBounds(f"{nbytes} bytes at {offsets[index]} reach outside {memory.shape[0]}")
    walk.memory = <uint8_t *> &memory[0]
    walk.offsets = &offsets[0]
    walk.places = offsets.shape[0]
    walk.place = 0
    walk.buffer = NULL
    walk.nbytes = nbytes
    walk.parts = 1
    walk.part = 0
    walk.calls = calls
    return walk


cdef int set_buffer(Walk *walk, const uint8_t[::1] buffer) except -1:
    walk.parts = <size_t> buffer.shape[0] // walk.nbytes
    if walk.parts == 0:
        raise InvalidArgument(f"the buffer of {buffer.shape[0]} bytes has no room for {walk.nbytes}")
    walk.buffer = <uint8_t *> &buffer[0]
    return 0


cdef int check_words(uint8_t[::1] memory, const int64_t[::1] offsets) except -1:
    cdef Py_ssize_t index
    for index in range(offsets.shape[0]):
        if (<size_t> &memory[0] + <size_t> offsets[index]) % 8:
            raise InvalidArgument(f"the word at offset {offsets[index]} is not aligned to 8 bytes")
    return 0


cdef int64_t *first_of(int64_t[::1] samples) except NULL:
    if samples.shape[0] == 0:
        raise InvalidArgument("the array of samples has no room for one")
    return &samples[0]


def clock_overhead(int64_t[::1] samples, double seconds):
    """Time nothing at all: what each sample of every other loop holds beside its block."""
    cdef Walk walk
    return time_blocks(empty_block, &walk, samples, seconds)


def read_memory(const uint8_t[::1] memory, const int64_t[::1] offsets, uint8_t[::1] buffer, size_t nbytes,
                size_t calls, int64_t[::1] samples, double seconds):
    """Copy with memcpy from *memory* at each offset in turn to *buffer*, *calls* copies a sample."""
    cdef Walk walk = make_walk(memory, offsets, nbytes, calls)
    set_buffer(&walk, buffer)
    return time_blocks(read_block, &walk, samples, seconds)


def write_memory(uint8_t[::1] memory, const int64_t[::1] offsets, const uint8_t[::1] buffer, size_t nbytes,
                 size_t calls, int64_t[::1] samples, double seconds):
    """Copy with memcpy from *buffer* to *memory* at each offset in turn, *calls* copies a sample."""
    cdef Walk walk = make_walk(memory, offsets, nbytes, calls)
    set_buffer(&walk, buffer)
    return time_blocks(write_block, &walk, samples, seconds)


def add_words(uint8_t[::1] memory, const int64_t[::1] offsets, size_t calls, int64_t[::1] samples,
              double seconds):
    """Add 1 atomically to the aligned word at each offset in turn, *calls* additions a sample."""
    cdef Walk walk = make_walk(memory, offsets, 8, calls)
    check_words(memory, offsets)
    return time_blocks(add_block, &walk, samples, seconds)


def load_words(uint8_t[::1] memory, const int64_t[::1] offsets, size_t calls, int64_t[::1] samples,
               double seconds):
    """Load the aligned word at each offset in turn, *calls* loads a sample."""
    cdef Walk walk = make_walk(memory, offsets, 8, calls)
    check_words(memory, offsets)
    return time_blocks(load_block, &walk, samples, seconds)


# Files -------------------------------------------------------------------------------------------------

def slab_files(int directory, bytes name, size_t nbytes, int64_t[::1] samples, double seconds):
    """Make file *name* in *directory* (a descriptor), reserve its pages, map, unmap, remove it: one sample.

    That is the kernel's whole share of an allocation and a free. Raises ``OSError``; no file is left behind.
    """
    if not 0 < seconds <= LONGEST:
        raise InvalidArgument(f"the loop runs up to {LONGEST:g} seconds, not {seconds:g}")
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t most = samples.shape[0]
    cdef int64_t *sample = first_of(samples)
    cdef int failed = 0
    cdef const char *path = name
    cdef int64_t begin
    cdef int64_t now = 0
    cdef int64_t end = now_ns() + to_ns(seconds)
    with nogil:
        while count < most and now < end and not failed:
            begin = now_ns()
            failed = one_file(directory, path, nbytes)
            now = now_ns()
            sample[count] = now - begin
            count += 1
    if failed:
        raise OSError(failed, f"the kernel refused a file of {nbytes} bytes: {strerror(failed).decode()}")
    return count


cdef int one_file(int directory, const char *name, size_t nbytes) noexcept nogil:
    """Return 0 or the errno."""
    cdef int failed = 0
    cdef void *base
    cdef int fd = openat(directory, name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0o600)
    if fd < 0:
        return errno
    if fallocate(fd, 0, 0, nbytes) != 0:
        failed = errno
    else:
        base = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
        if base == MAP_FAILED:
            failed = errno
        else:
            munmap(base, nbytes)
    close_fd(fd)
    if unlinkat(directory, name, 0) != 0 and not failed:
        failed = errno
    return failed


# Sockets -----------------------------------------------------------------------------------------------

def round_trips(int fd, const uint8_t[::1] request, uint8_t[::1] reply, int64_t[::1] samples, double seconds,
                double timeout, *, size_t ahead=1):
    """Send *request* and wait for *reply* over the blocking socket *fd*, again and again: one sample each.

    With *ahead* above 1 so many requests are always under way (a raw stream), and a sample is the time from
    one reply to the next. Raises ``ServerLost``, and ``DeadlineExceeded`` when nothing moves for *timeout*
    seconds, or when a round trip is not done after twice that.
    """
    cdef size_t request_nbytes = request.shape[0]
    cdef size_t reply_nbytes = reply.shape[0]
    cdef size_t lesser = min(request_nbytes, reply_nbytes)
    if lesser == 0 or ahead == 0 or not seconds > 0:
        raise InvalidArgument("a ping-pong needs a request, a reply, one request ahead and some time")
    if ahead > 1 and ahead * lesser > <size_t> SMALL_SIDE:
        raise InvalidArgument(f"{ahead} requests ahead leave over {SMALL_SIDE} bytes waiting both ways")
    prepare(fd, timeout)
    cdef const uint8_t *question = &request[0]
    cdef uint8_t *answer = &reply[0]
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t most = samples.shape[0]
    cdef int64_t *sample = first_of(samples)
    cdef size_t _index
    cdef int64_t wait = to_ns(timeout)
    cdef int64_t begin
    cdef int64_t now = 0
    cdef int64_t end = now_ns() + to_ns(seconds)
    with nogil:
        begin = now_ns()
        for _index in range(1, ahead):
            send_whole(fd, question, request_nbytes, begin + wait)
        while count < most and now < end:
            begin = now_ns()
            send_whole(fd, question, request_nbytes, begin + wait)
            receive_whole(fd, answer, reply_nbytes, begin + wait)
            now = now_ns()
            sample[count] = now - begin
            count += 1
        for _index in range(1, ahead):
            receive_whole(fd, answer, reply_nbytes, now + wait)
    return count


def serve_round_trips(int fd, uint8_t[::1] inbox, size_t request_nbytes, const uint8_t[::1] outbox,
                      size_t reply_nbytes, double timeout):
    """Answer each request on the blocking socket *fd* until the peer closes it; return how many there were.

    Requests are received into *inbox* and replies sent from *outbox*, a step further each time. Raises
    ``ServerLost`` if the connection ends inside a request, ``DeadlineExceeded`` after *timeout* seconds of
    silence.
    """
    if not 0 < request_nbytes <= <size_t> inbox.shape[0] or not 0 < reply_nbytes <= <size_t> outbox.shape[0]:
        raise InvalidArgument(
            f"a request of {request_nbytes} or a reply of {reply_nbytes} bytes does not fit its buffer"
        )
    prepare(fd, timeout)
    cdef uint8_t *inner = &inbox[0]
    cdef const uint8_t *outer = &outbox[0]
    cdef int64_t count = 0
    cdef int64_t for_ever = to_ns(1e9)
    cdef size_t read_at = 0
    cdef size_t write_at = 0
    with nogil:
        while receive_whole(fd, inner + read_at, request_nbytes, for_ever, True):
            send_whole(fd, outer + write_at, reply_nbytes, for_ever)
            read_at = next_place(read_at, request_nbytes, inbox.shape[0])
            write_at = next_place(write_at, reply_nbytes, outbox.shape[0])
            count += 1
    return count


cdef inline size_t next_place(size_t place, size_t nbytes, size_t room) noexcept nogil:
    return place + nbytes if place + 2 * nbytes <= room else 0


cdef int prepare(int fd, double timeout) except -1:
    """Bound each of the socket's waits, so that a stopped peer cannot hold us."""
    if not 0 < timeout <= 3600:
        raise InvalidArgument(f"timeout is over 0 and at most 3600 seconds, not {timeout:g}")
    cdef timeval wait
    wait.tv_sec = <long> timeout
    wait.tv_usec = max(<long> ((timeout - <long> timeout) * 1e6), 1)
    cdef int flags = fcntl(fd, F_GETFL)
    if flags < 0:
        PyErr_SetFromErrno(OSError)
    if flags & O_NONBLOCK:
        raise InvalidArgument("the limits need a blocking socket; call settimeout(None) on it first")
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) != 0
            or setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) != 0):
        PyErr_SetFromErrno(OSError)
    return 0


cdef int send_whole(int fd, const uint8_t *data, size_t nbytes, int64_t deadline) except -1 nogil:
    cdef ssize_t done = send(fd, data, nbytes, MSG_NOSIGNAL)
    while done != <ssize_t> nbytes:
        if done > 0:
            data += done
            nbytes -= done
        else:
            after_failure(done)
        check_deadline(deadline)
        done = send(fd, data, nbytes, MSG_NOSIGNAL)
    return 0


cdef int receive_whole(int fd, uint8_t *data, size_t nbytes, int64_t deadline,
                       bint may_end=False) except -1 nogil:
    """Return 1, or 0 if *may_end* and the peer has closed the connection before the first byte."""
    cdef ssize_t done = recv(fd, data, nbytes, MSG_WAITALL)
    while done != <ssize_t> nbytes:
        if done == 0 and may_end:
            return 0
        if done > 0:
            data += done
            nbytes -= done
            may_end = False
        else:
            after_failure(done)
        check_deadline(deadline)
        done = recv(fd, data, nbytes, MSG_WAITALL)
    return 1


cdef inline int check_deadline(int64_t deadline) except -1 nogil:
    """Only a call that fell short comes here, so the usual round trip pays for no clock."""
    if now_ns() >= deadline:
        raise_late()
    return 0


cdef int after_failure(ssize_t done) except -1 nogil:
    """Return if the call is worth another try; raise what it means otherwise."""
    cdef int number = errno if done < 0 else 0
    if number == EINTR:
        with gil:
            return -1 if PyErr_CheckSignals() != 0 else 0
    if number == EAGAIN:
        raise_late()
    raise_lost(number)
    return -1


cdef int raise_late() except -1 with gil:
    raise DeadlineExceeded("the peer of the raw ping-pong did not answer within its timeout; is it stopped?")


cdef int raise_lost(int number) except -1 with gil:
    raise ServerLost(f"the peer of the raw ping-pong closed the connection (errno {number})", errno=number)
