from libc.stdint cimport uint8_t

from farpool.native.cipher cimport Cipher
from farpool.native.libpthread cimport pthread_mutex_t
from farpool.native.libssl cimport SSL, SSL_CTX


cdef struct TlsCipher:
    Cipher base                 # first: the two share an address
    SSL *ssl
    int fd
    bint shared                 # several threads use it: each call has the lock
    pthread_mutex_t lock
    short waits                 # what this call may still wait for at the socket: POLLIN, POLLOUT, or 0
    bint taken                  # this call has had all that the socket had
    bint kernel                 # OpenSSL reaches the socket by itself, so that the kernel can encrypt
    uint8_t *out                # encrypted bytes for the socket; with kernel those of the record that is being sent
    size_t room                 # of out
    size_t first                # encrypted bytes that are sent already
    size_t filled

cdef TlsCipher *tls_cipher_new(SSL_CTX *context, int fd, bint server, bint shared, bint kernel) noexcept nogil
