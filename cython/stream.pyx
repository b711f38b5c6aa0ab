"""Blocking transfers over a stream socket with a deadline, without the GIL.

The kernel's own timeouts (SO_RCVTIMEO, SO_SNDTIMEO) bound each wait, so that a transfer costs one system call when the
peer is quick, not three (try, poll, try again). The GIL is taken only to run signal handlers after EINTR.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, errno

from farpool.native.clock cimport now_ns
from farpool.native.libsocket cimport (
    MSG_NOSIGNAL,
    MSG_WAITALL,
    SO_RCVTIMEO,
    SO_SNDTIMEO,
    SOL_SOCKET,
    msghdr,
    recvmsg,
    sendmsg,
    setsockopt,
    timeval,
)

cdef enum:
    MOST_PARTS = 512    # iovecs in one system call; the kernel takes 1,024 (IOV_MAX)


cdef void stream_init(Stream *stream, int fd) noexcept nogil:
    stream.fd = fd
    stream.receive_wait = 0
    stream.send_wait = 0


cdef int bound_wait(int fd, int option, int64_t *current, int64_t deadline) noexcept nogil:
    """Let the next wait end at the deadline, give or take a twentieth: most calls then need no system call here."""
    cdef int64_t left = deadline - now_ns()
    cdef timeval wait
    if left <= 0:
        return EXPIRED
    if left - left // 20 <= current[0] <= left + left // 20:
        return DONE
    wait.tv_sec = left // 1000000000
    wait.tv_usec = left % 1000000000 // 1000
    if wait.tv_sec == 0 and wait.tv_usec == 0:
        wait.tv_usec = 1    # zero would mean for ever
    if setsockopt(fd, SOL_SOCKET, option, &wait, sizeof(wait)) != 0:
        return CLOSED
    current[0] = left
    return DONE


cdef int after_error(int64_t deadline) except -3 nogil:
    """Decide what a failed call means: DONE says try again."""
    if errno == EINTR:
        with gil:
            PyErr_CheckSignals()
        return DONE
    if errno == EAGAIN:
        return EXPIRED if now_ns() >= deadline else DONE
    return CLOSED


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
        outcome = bound_wait(stream.fd, SO_RCVTIMEO, &stream.receive_wait, deadline)
        if outcome != DONE:
            return outcome
        got[0] = recvmsg(stream.fd, &message, flags)
        if got[0] > 0:
            return DONE
        if got[0] == 0:
            return CLOSED
        outcome = after_error(deadline)
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
    cdef ssize_t got = 0
    cdef int outcome
    count = advance(&parts, count, 0)
    while count:
        outcome = receive_some(stream, parts, count, MSG_WAITALL, deadline, &got)
        if outcome != DONE:
            return outcome
        count = advance(&parts, count, got)
        if count and got > 0:
            # A short count under MSG_WAITALL is a signal or the kernel's timeout: let handlers run.
            with gil:
                PyErr_CheckSignals()
    return DONE


cdef int send_all(Stream *stream, iovec *parts, int count, int64_t deadline) except -3 nogil:
    """Send every part. The parts are used up."""
    cdef msghdr message
    cdef ssize_t sent
    cdef int outcome
    message.msg_name = NULL
    message.msg_namelen = 0
    message.msg_control = NULL
    message.msg_controllen = 0
    message.msg_flags = 0
    count = advance(&parts, count, 0)
    while count:
        outcome = bound_wait(stream.fd, SO_SNDTIMEO, &stream.send_wait, deadline)
        if outcome != DONE:
            return outcome
        message.msg_iov = parts
        message.msg_iovlen = count if count < MOST_PARTS else MOST_PARTS
        sent = sendmsg(stream.fd, &message, MSG_NOSIGNAL)
        if sent < 0:
            outcome = after_error(deadline)
            if outcome != DONE:
                return outcome
            continue
        count = advance(&parts, count, sent)
        if count and sent > 0 and message.msg_iovlen < MOST_PARTS:
            with gil:
                PyErr_CheckSignals()
    return DONE
