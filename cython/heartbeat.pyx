"""A native thread that shows that a client is alive: it needs no GIL, so a busy interpreter does not look dead."""

from libc.errno cimport ETIMEDOUT
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, timespec

from farpool.native.cipher cimport Cipher
from farpool.native.clock cimport now_ns
from farpool.native.libpthread cimport (
    SIG_SETMASK,
    pthread_cond_destroy,
    pthread_cond_init,
    pthread_cond_signal,
    pthread_cond_timedwait,
    pthread_condattr_init,
    pthread_condattr_setclock,
    pthread_condattr_t,
    pthread_create,
    pthread_join,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_trylock,
    pthread_mutex_unlock,
    pthread_sigmask,
    sigfillset,
    sigset_t,
)
from farpool.native.libsocket cimport MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_RDWR, iovec, send, shutdown


cdef void send_beat(Heartbeat *beat) noexcept nogil:
    """Send the frame if the socket takes it at once; whatever holds the socket shows that we are alive as well."""
    cdef ssize_t sent
    cdef iovec part
    if pthread_mutex_trylock(beat.sending) != 0:
        return
    if beat.cipher != NULL:
        part.iov_base = beat.frame
        part.iov_len = beat.nbytes
        beat.cipher.send(beat.cipher, &part, 1)     # all or nothing: what it takes leaves before the next frame
    elif not beat.cut:
        sent = send(beat.fd, beat.frame, beat.nbytes, MSG_DONTWAIT | MSG_NOSIGNAL)
        if 0 < sent < <ssize_t> beat.nbytes:
            beat.cut = True
            shutdown(beat.fd, SHUT_RDWR)
    pthread_mutex_unlock(beat.sending)


cdef void *run(void *argument) noexcept nogil:
    cdef Heartbeat *beat = <Heartbeat *> argument
    cdef timespec until
    cdef int64_t due
    pthread_mutex_lock(&beat.mutex)
    while not beat.stop:
        due = now_ns() + beat.interval
        until.tv_sec = due // 1000000000
        until.tv_nsec = due % 1000000000
        if pthread_cond_timedwait(&beat.changed, &beat.mutex, &until) == ETIMEDOUT and not beat.stop:
            send_beat(beat)
    pthread_mutex_unlock(&beat.mutex)
    return NULL


cdef Heartbeat *heartbeat_start(int fd, Cipher *cipher, pthread_mutex_t *sending, const uint8_t *frame,
                                uint32_t nbytes, int64_t interval) noexcept nogil:
    """Start to beat; NULL where there is no memory or no thread to be had."""
    cdef Heartbeat *beat = <Heartbeat *> calloc(1, sizeof(Heartbeat))
    cdef pthread_condattr_t attributes
    cdef sigset_t every, before
    cdef int failed
    if beat == NULL:
        return NULL
    beat.fd = fd
    beat.cipher = cipher
    beat.sending = sending
    beat.interval = interval
    beat.nbytes = nbytes
    memcpy(beat.frame, frame, nbytes)
    pthread_mutex_init(&beat.mutex, NULL)
    pthread_condattr_init(&attributes)
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC)
    pthread_cond_init(&beat.changed, &attributes)
    # Signals are for the interpreter's threads: this one takes none.
    sigfillset(&every)
    pthread_sigmask(SIG_SETMASK, &every, &before)
    failed = pthread_create(&beat.thread, NULL, run, beat)
    pthread_sigmask(SIG_SETMASK, &before, NULL)
    if failed:
        free(beat)
        return NULL
    return beat


cdef void heartbeat_stop(Heartbeat *beat) noexcept nogil:
    """End the thread, wait for it and free *beat*."""
    pthread_mutex_lock(&beat.mutex)
    beat.stop = True
    pthread_cond_signal(&beat.changed)
    pthread_mutex_unlock(&beat.mutex)
    pthread_join(beat.thread, NULL)
    pthread_cond_destroy(&beat.changed)
    pthread_mutex_destroy(&beat.mutex)
    free(beat)
