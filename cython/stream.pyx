"""Blocking transfers over a stream socket with a deadline, without the GIL.

The kernel's own timeouts (SO_RCVTIMEO, SO_SNDTIMEO) bound each wait, so that a transfer costs one system call when the
peer is quick, not three (try, poll, try again). The GIL is taken only to run signal handlers after EINTR. A cipher that
is not patient never waits in a call: it is used by several threads, and polls here.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, errno

from farpool.native.cipher cimport receive_through, send_through
from farpool.native.clock cimport now_ns
from farpool.native.libsocket cimport (
    MSG_NOSIGNAL,
    MSG_WAITALL,
    SO_RCVTIMEO,
    SO_SNDTIMEO,
    SOL_SOCKET,
    POLLIN,
    POLLOUT,
    msghdr,
    poll,
    pollfd,
    setsockopt,
    timeval,
)

cdef enum:
    MOST_PARTS = 512    # iovecs in one system call; the kernel takes 1,024 (IOV_MAX)
    MOST_MILLISECONDS = 1000000
    MOST_UNSEEN = 8388608   # bytes of an encrypted transfer between two looks for signals


cdef void stream_init(Stream *stream, int fd) noexcept nogil:
    stream.fd = fd
    stream.receive_wait = 0
    stream.send_wait = 0
    stream.cipher = NULL


cdef int bound_wait(Stream *stream, int option, int64_t *current, int64_t deadline) noexcept nogil:
    """Let the next wait end at the deadline, give or take a twentieth: most calls then need no system call here."""
    cdef int64_t left = deadline - now_ns()
    cdef timeval wait
    if left <= 0:
        return EXPIRED
    if stream.cipher != NULL and not stream.cipher.patient:
        return DONE
    if left - left // 20 <= current[0] <= left + left // 20:
        return DONE
    wait.tv_sec = left // 1000000000
    wait.tv_usec = left % 1000000000 // 1000
    if wait.tv_sec == 0 and wait.tv_usec == 0:
        wait.tv_usec = 1    # zero would mean for ever
    if setsockopt(stream.fd, SOL_SOCKET, option, &wait, sizeof(wait)) != 0:
        return CLOSED
    current[0] = left
    return DONE


cdef int after_error(Stream *stream, short event, int64_t deadline) except -3 nogil:
    """Decide what a failed call means: DONE says try again. *event* is what the call waits for by itself."""
    cdef pollfd waiting
    cdef int64_t left
    if errno == EINTR:
        with gil:
            PyErr_CheckSignals()
        return DONE
    if errno != EAGAIN:
        return CLOSED
    left = deadline - now_ns()
    if left <= 0:
        return EXPIRED
    if stream.cipher == NULL:
        return DONE
    waiting.fd = stream.fd
    waiting.events = stream.cipher.receive_wants if event == POLLIN else stream.cipher.send_wants
    if not stream.cipher.patient or waiting.events != event:
        left = left // 1000000 + 1
        if poll(&waiting, 1, <int> (left if left < MOST_MILLISECONDS else MOST_MILLISECONDS)) < 0:
            with gil:
                PyErr_CheckSignals()
    return DONE


cdef int receive_some(Stream *stream, iovec *parts, int count, int flags, int64_t deadline,
                      ssize_t *got) except -3 nogil:
    """Receive at least one byte; *got* says how many."""
    cdef msghdr message
    cdef int outcome
    message.msg_name = NULL
    message.msg_namelen = 0
    message.msg_control = NULL
    message.msg_controllen = 0
    message.msg_flags = 0
    message.msg_iov = parts
    message.msg_iovlen = count if count < MOST_PARTS else MOST_PARTS
    while True:
        outcome = bound_wait(stream, SO_RCVTIMEO, &stream.receive_wait, deadline)
        if outcome != DONE:
            return outcome
        got[0] = receive_through(stream.fd, stream.cipher, &message, flags)
        if got[0] > 0:
            return DONE
        if got[0] == 0:
            return CLOSED
        outcome = after_error(stream, POLLIN, deadline)
        if outcome != DONE:
            return outcome


cdef int advance(iovec **parts, int count, size_t done) noexcept nogil:
    """Step over *done* bytes; return how many parts are left."""
    cdef iovec *part = parts[0]
    while count and done >= part.iov_len:
        done -= part.iov_len
        part += 1
        count -= 1
    if done:
        part.iov_base = <char *> part.iov_base + done
        part.iov_len -= done
    parts[0] = part
    return count


cdef int receive_all(Stream *stream, iovec *parts, int count, int64_t deadline) except -3 nogil:
    """Fill every part. The parts are used up."""
    cdef ssize_t got = 0, unseen = 0
    cdef int outcome
    count = advance(&parts, count, 0)
    while count:
        outcome = receive_some(stream, parts, count, MSG_WAITALL, deadline, &got)
        if outcome != DONE:
            return outcome
        count = advance(&parts, count, got)
        unseen += got
        if count and got > 0 and (stream.cipher == NULL or unseen > MOST_UNSEEN):
            # A short count under MSG_WAITALL is a signal or the kernel's timeout: let handlers run.
            unseen = 0
            with gil:
                PyErr_CheckSignals()
    return DONE


cdef int send_all(Stream *stream, iovec *parts, int count, int64_t deadline) except -3 nogil:
    """Send every part. The parts are used up."""
    cdef msghdr message
    cdef ssize_t sent, unseen = 0
    cdef int outcome
    message.msg_name = NULL
    message.msg_namelen = 0
    message.msg_control = NULL
    message.msg_controllen = 0
    message.msg_flags = 0
    count = advance(&parts, count, 0)
    while count:
        outcome = bound_wait(stream, SO_SNDTIMEO, &stream.send_wait, deadline)
        if outcome != DONE:
            return outcome
        message.msg_iov = parts
        message.msg_iovlen = count if count < MOST_PARTS else MOST_PARTS
        sent = send_through(stream.fd, stream.cipher, &message, MSG_NOSIGNAL)
        if sent < 0:
            outcome = after_error(stream, POLLOUT, deadline)
            if outcome != DONE:
                return outcome
            continue
        count = advance(&parts, count, sent)
        unseen += sent
        if count and sent > 0 and (message.msg_iovlen < MOST_PARTS if stream.cipher == NULL else unseen > MOST_UNSEEN):
            unseen = 0
            with gil:
                PyErr_CheckSignals()
    return DONE if stream.cipher == NULL else push_all(stream, deadline)


cdef int push_all(Stream *stream, int64_t deadline) except -3 nogil:
    """Send what the cipher has taken and the socket has not."""
    cdef int outcome
    while stream.cipher.unsent:
        outcome = bound_wait(stream, SO_SNDTIMEO, &stream.send_wait, deadline)
        if outcome == DONE and stream.cipher.push(stream.cipher) != 0:
            outcome = after_error(stream, POLLOUT, deadline)
        if outcome != DONE:
            return outcome
    return DONE
