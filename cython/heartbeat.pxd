from libc.stdint cimport int64_t, uint8_t, uint32_t

from farpool.native.cipher cimport Cipher
from farpool.native.libpthread cimport pthread_cond_t, pthread_mutex_t, pthread_t

cdef enum:
    LONGEST_BEAT = 256      # bytes of the frame that is sent again and again

cdef struct Heartbeat:
    int fd
    Cipher *cipher              # NULL: in clear
    int64_t interval            # ns between two beats
    bint stop
    bint cut                    # half a beat went out: the stream is of no more use
    pthread_t thread
    pthread_mutex_t *sending    # who holds it sends; a beat never waits for it
    pthread_mutex_t mutex       # guards stop
    pthread_cond_t changed
    uint32_t nbytes
    uint8_t frame[LONGEST_BEAT]

cdef Heartbeat *heartbeat_start(int fd, Cipher *cipher, pthread_mutex_t *sending, const uint8_t *frame,
                                uint32_t nbytes, int64_t interval) noexcept nogil
cdef void heartbeat_stop(Heartbeat *beat) noexcept nogil
