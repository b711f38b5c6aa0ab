from libc.stdint cimport uint64_t

from farpool.native.libpthread cimport pthread_mutex_t
from farpool.native.libsocket cimport iovec, msghdr, recvmsg, sendmsg

# How the bytes of a connection are encrypted, for modules that know nothing of the library that does it. A connection
# without one (NULL) is in clear, and pays one comparison a system call.
#
# The calls are those of a socket that does not block: bytes moved; 0 at the connection's end; -1 with errno, which is
# EAGAIN when the socket must be ready for receive_wants or send_wants (poll's events) first. A patient cipher may wait
# once in each call, as long as the socket's own timeouts say.
cdef struct Cipher
ctypedef ssize_t (*CipherReceive)(Cipher *cipher, iovec *parts, size_t count) noexcept nogil
ctypedef ssize_t (*CipherSend)(Cipher *cipher, const iovec *parts, size_t count) noexcept nogil
ctypedef int (*CipherStep)(Cipher *cipher) noexcept nogil
ctypedef void (*CipherFree)(Cipher *cipher) noexcept nogil

cdef struct Cipher:
    CipherReceive receive
    CipherSend send         # what it takes is on its way, be it that unsent says that some of it waits for the socket
    CipherStep push         # send what was taken and is not out: 0 when all is
    CipherStep greet        # one step of the handshake: 0 when it is done
    CipherStep peek         # 1 if there are bytes to receive; never waits
    CipherFree free
    size_t unsent           # bytes that send has taken, in a record that is not wholly out
    short receive_wants
    short send_wants
    bint drained            # the last receive left nothing behind that the socket does not know of
    bint patient
    bint greeted            # the handshake is done
    unsigned long failure   # what went wrong, in the library's own numbers; 0 if nothing, or the connection broke


cdef class Encryption:      # owns the cipher of one connection
    cdef Cipher *cipher
    cdef uint64_t born      # forks when this was made

    cpdef failure(self)


cdef class Encryptor:       # makes the ciphers of connections that a server accepts
    cdef void *keys
    cdef Cipher *(*accept)(void *keys, int fd) noexcept nogil


cdef inline ssize_t receive_through(int fd, Cipher *cipher, msghdr *message, int flags) noexcept nogil:
    if cipher == NULL:
        return recvmsg(fd, message, flags)
    return cipher.receive(cipher, message.msg_iov, message.msg_iovlen)


cdef inline ssize_t send_through(int fd, Cipher *cipher, msghdr *message, int flags) noexcept nogil:
    if cipher == NULL:
        return sendmsg(fd, message, flags)
    return cipher.send(cipher, message.msg_iov, message.msg_iovlen)
