"""TLS over one connected socket, by the system's OpenSSL, without the GIL: what a ``Cipher`` promises.

OpenSSL reaches the socket through two functions of ours. What it sends is collected, so that several records leave in
one system call, and none of them raises SIGPIPE. A call waits at most once, and saves the system call that would only
say that nothing is there. An SSL object is for one thread at a time: where several use a connection each call takes a
lock, and none waits for the socket while it has it.

Where the kernel encrypts, OpenSSL writes to the socket by itself, a record at a time.
"""

cimport libc.errno
from libc.errno cimport EAGAIN, EINTR, EPROTO
from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from farpool.native.cipher cimport Cipher
from farpool.native.libpthread cimport (
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from farpool.native.libsocket cimport MSG_DONTWAIT, MSG_NOSIGNAL, POLLIN, POLLOUT, iovec, recv, send
from farpool.native.libssl cimport (
    BIO,
    BIO_CTRL_FLUSH,
    BIO_METHOD,
    BIO_TYPE_SOURCE_SINK,
    SSL_CTX,
    SSL_ERROR_SYSCALL,
    SSL_ERROR_WANT_READ,
    SSL_ERROR_WANT_WRITE,
    SSL_ERROR_ZERO_RETURN,
    BIO_clear_retry_flags,
    BIO_get_data,
    BIO_get_new_index,
    BIO_meth_new,
    BIO_meth_set_ctrl,
    BIO_meth_set_read,
    BIO_meth_set_write,
    BIO_new,
    BIO_set_data,
    BIO_set_init,
    BIO_set_retry_read,
    ERR_clear_error,
    ERR_peek_error,
    SSL_do_handshake,
    SSL_free,
    SSL_get_error,
    SSL_is_init_finished,
    SSL_new,
    SSL_peek,
    SSL_read,
    SSL_set_accept_state,
    SSL_set_bio,
    SSL_set_connect_state,
    SSL_set_fd,
    SSL_write,
)

cdef enum:
    RECORD_BYTES = 16384        # the most that a record of TLS can carry
    MOST_AT_ONCE = 1048576      # bytes of one call, before other connections have their turn
    MOST_OUT = 49152            # encrypted bytes that are sent together; the last record may reach over it
    MOST_TOGETHER = 2           # records of one call of OpenSSL
    LONGEST = 1 << 30           # lengths are ints in OpenSSL


# To and from the socket ------------------------------------------------------------------------------------------

cdef int from_socket(BIO *bio, char *data, int nbytes) noexcept nogil:
    cdef TlsCipher *cipher = <TlsCipher *> BIO_get_data(bio)
    cdef ssize_t got
    BIO_clear_retry_flags(bio)
    if cipher.taken and cipher.waits != POLLIN:
        libc.errno.errno = EAGAIN
        BIO_set_retry_read(bio)
        return -1
    got = recv(cipher.fd, data, nbytes, 0 if cipher.waits == POLLIN else MSG_DONTWAIT)
    cipher.waits = 0
    cipher.taken = got < nbytes
    if got < 0 and libc.errno.errno in (EAGAIN, EINTR):
        BIO_set_retry_read(bio)
    return <int> got


cdef int to_socket(BIO *bio, const char *data, int nbytes) noexcept nogil:
    """Keep what OpenSSL has encrypted; ``push_out`` sends it."""
    cdef TlsCipher *cipher = <TlsCipher *> BIO_get_data(bio)
    cdef uint8_t *larger
    cdef size_t room = cipher.filled + nbytes
    BIO_clear_retry_flags(bio)
    if room > cipher.room:
        room += room // 2
        larger = <uint8_t *> realloc(cipher.out, room)
        if larger == NULL:
            return -1
        cipher.out = larger
        cipher.room = room
    memcpy(cipher.out + cipher.filled, data, nbytes)
    cipher.filled += nbytes
    return nbytes


cdef int push_out(TlsCipher *cipher) noexcept nogil:
    """Send what is encrypted: 0 when all of it is out, -1 with errno."""
    cdef ssize_t sent
    while cipher.first < cipher.filled:
        sent = send(cipher.fd, cipher.out + cipher.first, cipher.filled - cipher.first,
                    MSG_NOSIGNAL if cipher.waits == POLLOUT else MSG_NOSIGNAL | MSG_DONTWAIT)
        cipher.waits = 0
        if sent < 0:
            break
        cipher.first += sent
    if cipher.first == cipher.filled:
        cipher.first = cipher.filled = 0
    cipher.base.unsent = cipher.filled - cipher.first
    return 0 if cipher.filled == 0 else -1


cdef long control(BIO *bio, int command, long number, void *data) noexcept nogil:
    return command == BIO_CTRL_FLUSH


cdef BIO_METHOD *socket_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "farpool socket")
BIO_meth_set_read(socket_method, from_socket)
BIO_meth_set_write(socket_method, to_socket)
BIO_meth_set_ctrl(socket_method, control)


# One call --------------------------------------------------------------------------------------------------------

cdef void enter(TlsCipher *cipher, short event) noexcept nogil:
    """Begin a call that may wait once for *event* if the cipher is patient, 0 for none."""
    if cipher.shared:
        pthread_mutex_lock(&cipher.lock)
    cipher.waits = event if cipher.base.patient else 0
    cipher.taken = False
    ERR_clear_error()


cdef void leave(TlsCipher *cipher) noexcept nogil:
    cdef int error = libc.errno.errno
    if cipher.shared:
        pthread_mutex_unlock(&cipher.lock)
    libc.errno.errno = error


cdef int explain(TlsCipher *cipher, int outcome, short *wants) noexcept nogil:
    """Return what a call that moved nothing means: 0 at the end, else -1 with errno."""
    cdef int error = libc.errno.errno
    cdef int kind = SSL_get_error(cipher.ssl, outcome)
    if kind in (SSL_ERROR_WANT_READ, SSL_ERROR_WANT_WRITE):
        wants[0] = POLLIN if kind == SSL_ERROR_WANT_READ else POLLOUT
        libc.errno.errno = EINTR if error == EINTR else EAGAIN
        return -1
    if kind == SSL_ERROR_ZERO_RETURN:
        return 0
    cipher.base.failure = ERR_peek_error()
    ERR_clear_error()
    if kind == SSL_ERROR_SYSCALL and cipher.base.failure == 0:
        return 0
    libc.errno.errno = EPROTO
    return -1


cdef ssize_t fill(TlsCipher *cipher, iovec *parts, size_t count) noexcept nogil:
    """Receive into *parts* until they are full, or nothing more is there."""
    cdef ssize_t total = 0
    cdef size_t i, done, room
    cdef int got, outcome
    for i in range(count):
        done = 0
        while done < parts[i].iov_len:
            if total >= MOST_AT_ONCE:
                return total
            room = parts[i].iov_len - done
            got = SSL_read(cipher.ssl, <char *> parts[i].iov_base + done, <int> (room if room < LONGEST else LONGEST))
            if got <= 0:
                outcome = explain(cipher, got, &cipher.base.receive_wants)
                cipher.base.drained = True
                return total if total else outcome
            cipher.waits = 0
            done += got
            total += got
    return total


cdef void answer(TlsCipher *cipher) noexcept nogil:
    """Send what TLS itself has to say: its part of the handshake, an alert."""
    cdef int error = libc.errno.errno
    if not cipher.kernel and cipher.filled and push_out(cipher) != 0 and libc.errno.errno in (EAGAIN, EINTR):
        cipher.base.receive_wants = POLLOUT
    libc.errno.errno = error


cdef ssize_t receive(Cipher *base, iovec *parts, size_t count) noexcept nogil:
    cdef TlsCipher *cipher = <TlsCipher *> base
    cdef ssize_t got
    enter(cipher, POLLIN)
    base.drained = False
    base.receive_wants = POLLIN
    got = fill(cipher, parts, count)
    if not base.greeted:
        base.greeted = SSL_is_init_finished(cipher.ssl)
    answer(cipher)
    leave(cipher)
    return got


cdef int push_record(TlsCipher *cipher) noexcept nogil:
    """Send the record that OpenSSL has begun to: 0 when it is out, -1 with errno."""
    cdef int sent
    if cipher.base.unsent == 0:
        return 0
    sent = SSL_write(cipher.ssl, cipher.out, <int> cipher.base.unsent)
    if sent <= 0:
        sent = explain(cipher, sent, &cipher.base.send_wants)
        if sent == 0:
            libc.errno.errno = EPROTO
        return -1
    cipher.base.unsent = 0
    return 0


cdef int push_either(TlsCipher *cipher) noexcept nogil:
    return push_record(cipher) if cipher.kernel else push_out(cipher)


cdef int encrypt(TlsCipher *cipher, const uint8_t *data, size_t nbytes) noexcept nogil:
    """Put *data* on its way. Whether the socket has room for it now or not, it counts as sent: its bytes are sealed."""
    if cipher.kernel:
        if data != cipher.out:
            memcpy(cipher.out, data, nbytes)
        cipher.base.unsent = nbytes
        return push_record(cipher)
    if SSL_write(cipher.ssl, data, <int> nbytes) <= 0:
        explain(cipher, -1, &cipher.base.send_wants)
        libc.errno.errno = EPROTO
        return -1
    return push_out(cipher) if cipher.filled >= MOST_OUT else 0


cdef ssize_t drain(TlsCipher *cipher, const iovec *parts, size_t count) noexcept nogil:
    """Send *parts* in records that are as full as can be, until the socket takes no more."""
    cdef uint8_t few[RECORD_BYTES]
    cdef const uint8_t *data
    cdef size_t i = 0, done = 0, nbytes, here
    cdef size_t most = RECORD_BYTES if cipher.kernel else MOST_TOGETHER * RECORD_BYTES
    cdef ssize_t total = 0
    if push_either(cipher) != 0:
        return -1
    while i < count and total < MOST_AT_ONCE:
        here = parts[i].iov_len - done
        if here >= RECORD_BYTES:
            data = <uint8_t *> parts[i].iov_base + done
            nbytes = here if here < most else most // RECORD_BYTES * RECORD_BYTES
            done += nbytes
        else:
            data = few
            nbytes = 0
            while i < count and nbytes < RECORD_BYTES:
                here = parts[i].iov_len - done
                if here > RECORD_BYTES - nbytes:
                    here = RECORD_BYTES - nbytes
                memcpy(few + nbytes, <char *> parts[i].iov_base + done, here)
                nbytes += here
                done += here
                if done < parts[i].iov_len:
                    break
                i += 1
                done = 0
            if nbytes == 0:
                break
        total += nbytes
        if encrypt(cipher, data, nbytes) != 0:
            return total if libc.errno.errno in (EAGAIN, EINTR) else -1
        if i < count and done == parts[i].iov_len:
            i += 1
            done = 0
    if not cipher.kernel and push_out(cipher) != 0 and libc.errno.errno not in (EAGAIN, EINTR):
        return -1
    return total


cdef ssize_t send_parts(Cipher *base, const iovec *parts, size_t count) noexcept nogil:
    cdef TlsCipher *cipher = <TlsCipher *> base
    cdef ssize_t sent
    enter(cipher, POLLOUT)
    base.send_wants = POLLOUT
    sent = drain(cipher, parts, count)
    leave(cipher)
    return sent


cdef int push(Cipher *base) noexcept nogil:
    cdef TlsCipher *cipher = <TlsCipher *> base
    cdef int outcome
    enter(cipher, POLLOUT)
    base.send_wants = POLLOUT
    outcome = push_either(cipher)
    leave(cipher)
    return outcome


cdef int greet(Cipher *base) noexcept nogil:
    cdef TlsCipher *cipher = <TlsCipher *> base
    cdef int outcome
    enter(cipher, 0)
    base.receive_wants = POLLIN
    outcome = SSL_do_handshake(cipher.ssl)
    if outcome == 1:
        base.greeted = True
        outcome = 0
    elif explain(cipher, outcome, &base.receive_wants) == 0:
        libc.errno.errno = EPROTO
        outcome = -1
    else:
        outcome = -1
    answer(cipher)
    leave(cipher)
    return outcome


cdef int peek(Cipher *base) noexcept nogil:
    cdef TlsCipher *cipher = <TlsCipher *> base
    cdef char byte
    cdef int outcome
    enter(cipher, 0)
    outcome = SSL_peek(cipher.ssl, &byte, 1)
    if outcome <= 0:
        outcome = explain(cipher, outcome, &base.receive_wants)
    leave(cipher)
    return outcome


cdef void destroy(Cipher *base) noexcept nogil:
    cdef TlsCipher *cipher = <TlsCipher *> base
    SSL_free(cipher.ssl)
    free(cipher.out)
    pthread_mutex_destroy(&cipher.lock)
    free(cipher)


cdef TlsCipher *tls_cipher_new(SSL_CTX *context, int fd, bint server, bint shared, bint kernel) noexcept nogil:
    """Return the cipher of the connected socket *fd* before its handshake; NULL without memory.

    With *kernel* OpenSSL reaches the socket, which must not block, by itself, so that the kernel can encrypt; SIGPIPE
    must be blocked in the threads that send.
    """
    cdef TlsCipher *cipher = <TlsCipher *> calloc(1, sizeof(TlsCipher))
    cdef BIO *bio = NULL
    if cipher == NULL:
        return NULL
    pthread_mutex_init(&cipher.lock, NULL)
    cipher.fd = fd
    cipher.shared = shared
    cipher.base.receive = receive
    cipher.base.send = send_parts
    cipher.base.push = push
    cipher.base.greet = greet
    cipher.base.peek = peek
    cipher.base.free = destroy
    cipher.base.receive_wants = POLLIN
    cipher.base.send_wants = POLLOUT
    cipher.kernel = kernel
    cipher.ssl = SSL_new(context)
    if kernel:
        cipher.out = <uint8_t *> calloc(1, RECORD_BYTES)
    else:
        bio = BIO_new(socket_method)
    if cipher.ssl == NULL or (cipher.out == NULL if kernel else bio == NULL):
        destroy(&cipher.base)
        return NULL
    if kernel:
        SSL_set_fd(cipher.ssl, fd)
    else:
        BIO_set_data(bio, cipher)
        BIO_set_init(bio, 1)
        SSL_set_bio(cipher.ssl, bio, bio)
    if server:
        SSL_set_accept_state(cipher.ssl)
    else:
        SSL_set_connect_state(cipher.ssl)
    return cipher
