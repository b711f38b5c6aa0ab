"""TLS for control and data connections: a server's keys, a client's, and the handshake with its errors.

Built where the headers of OpenSSL are (libssl-dev): the system's library, the one that Python's own ssl module has.
TLS 1.2 at least, forward secrecy alone, no compression, no renegotiation, no resumption.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

import os

from cpython.exc cimport PyErr_CheckSignals

from farpool.native.cipher cimport Cipher, Encryption, Encryptor
from farpool.native.clock cimport now_ns, to_ns
from farpool.native.libpthread cimport (
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
)
from farpool.native.libsocket cimport iovec, poll, pollfd
from farpool.native.libssl cimport (
    ERR_LIB_SSL,
    SSL_CTX,
    SSL_FILETYPE_PEM,
    SSL_METHOD,
    SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER,
    SSL_MODE_RELEASE_BUFFERS,
    SSL_OP_ENABLE_KTLS,
    SSL_OP_IGNORE_UNEXPECTED_EOF,
    SSL_OP_NO_COMPRESSION,
    SSL_OP_NO_RENEGOTIATION,
    SSL_R_CERTIFICATE_VERIFY_FAILED,
    SSL_R_HTTP_REQUEST,
    SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE,
    SSL_R_UNEXPECTED_EOF_WHILE_READING,
    SSL_R_WRONG_VERSION_NUMBER,
    SSL_SESS_CACHE_OFF,
    SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
    SSL_VERIFY_PEER,
    TLS1_2_VERSION,
    X509_V_ERR_CERT_HAS_EXPIRED,
    X509_V_ERR_CERT_NOT_YET_VALID,
    X509_V_ERR_HOSTNAME_MISMATCH,
    X509_V_ERR_IP_ADDRESS_MISMATCH,
    ERR_clear_error,
    ERR_get_error,
    ERR_GET_LIB,
    ERR_GET_REASON,
    ERR_reason_error_string,
    SSL_CTX_check_private_key,
    SSL_CTX_free,
    SSL_CTX_load_verify_locations,
    SSL_CTX_new,
    SSL_CTX_set_cipher_list,
    SSL_CTX_set_ciphersuites,
    SSL_CTX_set_client_CA_list,
    SSL_CTX_set_default_passwd_cb,
    SSL_CTX_set_default_read_buffer_len,
    SSL_CTX_set_default_verify_paths,
    SSL_CTX_set_min_proto_version,
    SSL_CTX_set_mode,
    SSL_CTX_set_num_tickets,
    SSL_CTX_set_options,
    SSL_CTX_set_read_ahead,
    SSL_CTX_set_session_cache_mode,
    SSL_CTX_set_session_id_context,
    SSL_CTX_set_verify,
    SSL_CTX_use_certificate_chain_file,
    SSL_CTX_use_PrivateKey_file,
    SSL_get0_param,
    SSL_get_cipher_name,
    SSL_get_verify_result,
    SSL_get_version,
    SSL_load_client_CA_file,
    SSL_set1_host,
    SSL_set_tlsext_host_name,
    TLS_client_method,
    TLS_server_method,
    X509_verify_cert_error_string,
    X509_VERIFY_PARAM_set1_ip_asc,
)
from farpool.native.tls_cipher cimport TlsCipher, tls_cipher_new

from farpool.protocol.errors import (
    AuthenticationFailed,
    DeadlineExceeded,
    InvalidArgument,
    ProtocolError,
    ServerLost,
)

cdef enum:
    READ_AHEAD = 65536          # bytes asked of a socket at once: several records
    ALERT = 1000                # reasons over this are alerts of the other side (SSL_AD_REASON_OFFSET)
    MOST_MILLISECONDS = 1000000

# Bad, unsupported, revoked, expired or unknown; unknown CA, access denied, certificate required (RFC 8446, 6.2).
cdef frozenset ALERTS_ABOUT_CERTIFICATES = frozenset({42, 43, 44, 45, 46, 48, 49, 116})


cdef struct TlsKeys:            # what a server's threads make ciphers with
    pthread_mutex_t lock
    SSL_CTX *context
    bint kernel


cdef int no_password(char *buffer, int room, int writing, void *nothing) noexcept nogil:
    return 0                    # OpenSSL would ask on the terminal


cdef str reason_of(unsigned long error):
    cdef const char *text = ERR_reason_error_string(error) if error else NULL
    return (<bytes> text).decode("ascii", "replace") if text != NULL else "no reason is known"


cdef object unusable(what, path):
    """Return the error of a file that OpenSSL did not take."""
    error = InvalidArgument(f"the {what} {os.fspath(path)!r} cannot be used for TLS: {reason_of(ERR_get_error())}")
    ERR_clear_error()
    return error


cdef bytes readable(what, path):
    """Return the name of a file that can be read, as OpenSSL takes it."""
    try:
        with open(path, "rb"):
            return os.fsencode(path)
    except OSError as error:
        raise InvalidArgument(f"the {what} {os.fspath(path)!r} cannot be read: {error.strerror}") from None


cdef SSL_CTX *new_context(const SSL_METHOD *method) except NULL:
    cdef SSL_CTX *context = SSL_CTX_new(method)
    if context == NULL:
        raise MemoryError
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION)
    # Of equals the quicker first: OpenSSL would begin with 256 bits.
    SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256")
    SSL_CTX_set_cipher_list(context, "ECDHE+AES128+AESGCM:ECDHE+AESGCM:ECDHE+CHACHA20")
    SSL_CTX_set_options(context, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF)
    SSL_CTX_set_mode(context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS)
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF)
    SSL_CTX_set_read_ahead(context, 1)
    SSL_CTX_set_default_read_buffer_len(context, READ_AHEAD)
    SSL_CTX_set_default_passwd_cb(context, no_password)
    return context


cdef int load_certificate(SSL_CTX *context, certificate, key) except -1:
    cdef bytes certificate_path = readable("certificate", certificate)
    cdef bytes key_path = readable("key", key)
    ERR_clear_error()
    if SSL_CTX_use_certificate_chain_file(context, certificate_path) != 1:
        raise unusable("certificate", certificate)
    if SSL_CTX_use_PrivateKey_file(context, key_path, SSL_FILETYPE_PEM) != 1:
        raise unusable("key", key)
    if SSL_CTX_check_private_key(context) != 1:
        raise unusable("key", key)
    return 0


cdef int load_authorities(SSL_CTX *context, ca) except -1:
    cdef bytes path
    ERR_clear_error()
    if os.path.isdir(ca):
        path = os.fsencode(ca)
        if SSL_CTX_load_verify_locations(context, NULL, path) != 1:
            raise unusable("folder of authorities", ca)
        return 0
    path = readable("authority's certificate", ca)
    if SSL_CTX_load_verify_locations(context, path, NULL) != 1:
        raise unusable("authority's certificate", ca)
    return 0


def kernel_encrypts():
    """Tell whether this host's kernel can encrypt TLS by itself: its module ``tls`` is loaded."""
    try:
        with open("/proc/sys/net/ipv4/tcp_available_ulp") as file:
            return SSL_OP_ENABLE_KTLS != 0 and "tls" in file.read().split()
    except OSError:
        return False


def reason_of_failure(unsigned long code):
    """Return what OpenSSL says of one of its numbers."""
    return reason_of(code)


def refuses_certificate(unsigned long code):
    """Tell whether it says that the other side's certificate was refused, or missed."""
    refusals = (SSL_R_CERTIFICATE_VERIFY_FAILED, SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE)
    return ERR_GET_LIB(code) == ERR_LIB_SSL and ERR_GET_REASON(code) in refusals


# The server's side -----------------------------------------------------------------------------------------------

cdef Cipher *accept(void *keys, int fd) noexcept nogil:
    cdef TlsKeys *ours = <TlsKeys *> keys
    cdef TlsCipher *cipher
    pthread_mutex_lock(&ours.lock)
    cipher = tls_cipher_new(ours.context, fd, True, False, ours.kernel)
    pthread_mutex_unlock(&ours.lock)
    return &cipher.base if cipher != NULL else NULL


cdef class TlsServer(Encryptor):
    """What a server shows to those who connect, and asks of them; see the stub for the contract."""

    def __init__(self, certificate, key, client_ca=None, bint require=False, *, bint kernel=False):
        cdef TlsKeys *keys = <TlsKeys *> self.keys
        if keys == NULL:
            keys = <TlsKeys *> calloc(1, sizeof(TlsKeys))
            if keys == NULL:
                raise MemoryError
            pthread_mutex_init(&keys.lock, NULL)
            keys.kernel = kernel and kernel_encrypts()
            self.keys = keys
            self.accept = accept
        self.load(certificate, key, client_ca, require)

    def __dealloc__(self):
        cdef TlsKeys *keys = <TlsKeys *> self.keys
        if keys != NULL:
            if keys.context != NULL:
                SSL_CTX_free(keys.context)
            pthread_mutex_destroy(&keys.lock)
            free(keys)

    def load(self, certificate, key, client_ca=None, bint require=False):
        """Take these files for connections that come from now on; those there are keep what they have."""
        cdef TlsKeys *keys = <TlsKeys *> self.keys
        cdef SSL_CTX *context = new_context(TLS_server_method())
        cdef SSL_CTX *before
        try:
            load_certificate(context, certificate, key)
            if client_ca is not None:
                load_authorities(context, client_ca)
                SSL_CTX_set_client_CA_list(context, SSL_load_client_CA_file(os.fsencode(client_ca)))
                SSL_CTX_set_verify(context, SSL_VERIFY_PEER | (SSL_VERIFY_FAIL_IF_NO_PEER_CERT if require else 0), NULL)
            SSL_CTX_set_num_tickets(context, 0)
            SSL_CTX_set_session_id_context(context, b"farpool", 7)
            if keys.kernel:
                SSL_CTX_set_options(context, SSL_OP_ENABLE_KTLS)
        except BaseException:
            SSL_CTX_free(context)
            raise
        pthread_mutex_lock(&keys.lock)
        before, keys.context = keys.context, context
        pthread_mutex_unlock(&keys.lock)
        if before != NULL:
            SSL_CTX_free(before)


# The client's side -----------------------------------------------------------------------------------------------

cdef class TlsConnection(Encryption):
    """The encryption of one connection that this process has opened; see the stub for the contract."""

    cdef str label              # how messages name the other side
    cdef str name               # what its certificate must be for

    cdef TlsCipher *tls(self) noexcept:
        return <TlsCipher *> self.cipher

    @property
    def version(self):
        """Version of TLS that was agreed on."""
        return (<bytes> SSL_get_version(self.tls().ssl)).decode()

    @property
    def suite(self):
        """Cipher suite that was agreed on."""
        return (<bytes> SSL_get_cipher_name(self.tls().ssl)).decode()

    def greet(self):
        """Go on with the handshake; return what ``poll`` must wait for, 0 when it is done."""
        cdef int outcome
        with nogil:
            outcome = self.cipher.greet(self.cipher)
        if outcome == 0:
            return 0
        if errno in (EAGAIN, EINTR):
            return self.cipher.receive_wants
        raise self.failure() or ServerLost(
            f"{self.label} closed the connection in the TLS handshake; does it speak TLS? A server without TLS has an "
            "address that begins with farpool://"
        )

    def send(self, bytes data not None):
        """Send what the socket takes of *data*, and return how much; raise ``BlockingIOError`` if nothing."""
        cdef iovec part
        cdef ssize_t sent
        part.iov_base = <char *> data
        part.iov_len = len(data)
        sent = self.cipher.send(self.cipher, &part, 1)
        if sent >= 0:
            return sent
        if errno in (EAGAIN, EINTR):
            raise BlockingIOError(errno, "the socket takes no more")
        raise self.failure() or ServerLost(f"{self.label} closed the connection")

    def receive(self, int nbytes):
        """Return at most *nbytes* that have come, none at the end; raise ``BlockingIOError`` if there are none yet."""
        cdef bytearray data = bytearray(nbytes)
        cdef iovec part
        cdef ssize_t got
        part.iov_base = <char *> data
        part.iov_len = nbytes
        got = self.cipher.receive(self.cipher, &part, 1)
        if got >= 0:
            return bytes(data[:got])
        if errno in (EAGAIN, EINTR):
            raise BlockingIOError(errno, "nothing is there yet")
        raise self.failure() or ServerLost(f"{self.label} closed the connection")

    cpdef failure(self):
        """Return the error that TLS has ended the connection with; None if it has not."""
        cdef unsigned long code = self.cipher.failure
        cdef int reason = ERR_GET_REASON(code)
        if code == 0 or (ERR_GET_LIB(code) == ERR_LIB_SSL and reason == SSL_R_UNEXPECTED_EOF_WHILE_READING):
            return None
        if ERR_GET_LIB(code) == ERR_LIB_SSL:
            if reason == SSL_R_CERTIFICATE_VERIFY_FAILED:
                return self.distrust()
            if reason in (SSL_R_WRONG_VERSION_NUMBER, SSL_R_HTTP_REQUEST):
                return ProtocolError(f"{self.label} does not speak TLS; without it the address begins with farpool://")
            if reason - ALERT in ALERTS_ABOUT_CERTIFICATES:
                return AuthenticationFailed(
                    f"{self.label} refuses this client's certificate, or its lack of one ({reason_of(code)}); name one "
                    "that the server's client_ca has signed: connect(tls=farpool.Tls(certificate=..., key=...))",
                    certificate=True,
                )
        return ProtocolError(f"TLS with {self.label} failed: {reason_of(code)}")

    cdef object distrust(self):
        cdef long result = SSL_get_verify_result(self.tls().ssl)
        why = (<bytes> X509_verify_cert_error_string(result)).decode()
        if result in (X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH):
            mend = (f"it is not for {self.name}: connect by a name that it has, or say which one it must have: "
                    "connect(tls=farpool.Tls(server_name=...)), FARPOOL_TLS_SERVER_NAME")
        elif result in (X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_CERT_NOT_YET_VALID):
            mend = f"{why}: give the server a new one, or look at both hosts' clocks"
        else:
            mend = f"{why}: name its authority: connect(tls=farpool.Tls(ca=...)), FARPOOL_TLS_CA"
        return AuthenticationFailed(f"the certificate of {self.label} is not accepted; {mend}", certificate=True)


cdef class TlsClient:
    """What a client asks of servers' certificates, and shows them; see the stub for the contract."""

    cdef SSL_CTX *context
    cdef readonly str name

    def __init__(self, str name not None, ca=None, certificate=None, key=None):
        if not name or "\0" in name:
            raise InvalidArgument(f"a server's certificate must be for a name, not {name!r}")
        self.name = name
        self.context = new_context(TLS_client_method())
        if ca is not None:
            load_authorities(self.context, ca)
        else:
            SSL_CTX_set_default_verify_paths(self.context)
        if certificate is not None:
            load_certificate(self.context, certificate, certificate if key is None else key)
        elif key is not None:
            raise InvalidArgument("a key for TLS comes with its certificate; name both")
        SSL_CTX_set_verify(self.context, SSL_VERIFY_PEER, NULL)

    def __dealloc__(self):
        if self.context != NULL:
            SSL_CTX_free(self.context)

    def begin(self, int fd, str label not None, *, bint shared=False):
        """Return the encryption of the connected socket *fd* before its handshake."""
        cdef TlsConnection made = TlsConnection()
        cdef TlsCipher *cipher = tls_cipher_new(self.context, fd, False, shared, False)
        if cipher == NULL:
            raise MemoryError
        made.cipher = &cipher.base
        made.label = label
        made.name = self.name
        name = self.name.encode("idna") if not self.name.isascii() else self.name.encode()
        if X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(cipher.ssl), name) != 1:
            ERR_clear_error()
            if SSL_set1_host(cipher.ssl, name) != 1:
                raise InvalidArgument(f"no certificate can be for {self.name!r}")
            SSL_set_tlsext_host_name(cipher.ssl, name)
        return made

    def connect(self, int fd, str label not None, double deadline, *, bint shared=False):
        """Return the encryption of the connected, blocking socket *fd* after its handshake."""
        cdef TlsConnection made = self.begin(fd, label, shared=shared)
        cdef int64_t until = to_ns(deadline), left
        cdef pollfd waiting
        while wants := made.greet():
            left = until - now_ns()
            if left <= 0:
                raise DeadlineExceeded(
                    f"{label} did not answer in the TLS handshake in time; is it stopped, or no server with TLS?"
                )
            waiting.fd = fd
            waiting.events = wants
            with nogil:
                poll(&waiting, 1, <int> min(left // 1000000 + 1, <int64_t> MOST_MILLISECONDS))
            PyErr_CheckSignals()
        made.cipher.patient = not shared
        return made
