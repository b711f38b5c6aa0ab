# OpenSSL's <openssl/ssl.h>, as far as we use it: 1.1.1 or later, the library that Python's own ssl module has.
# C declarations alone.
from libc.stdint cimport uint64_t

cdef extern from * nogil:
    """
    #include <openssl/bio.h>
    #include <openssl/err.h>
    #include <openssl/ssl.h>
    #include <openssl/x509v3.h>
    #ifndef SSL_OP_ENABLE_KTLS
    #define SSL_OP_ENABLE_KTLS 0
    #endif
    #ifndef SSL_OP_IGNORE_UNEXPECTED_EOF
    #define SSL_OP_IGNORE_UNEXPECTED_EOF 0
    #endif
    #ifndef SSL_R_UNEXPECTED_EOF_WHILE_READING
    #define SSL_R_UNEXPECTED_EOF_WHILE_READING 294
    #endif
    """
    ctypedef struct SSL:
        pass
    ctypedef struct SSL_CTX:
        pass
    ctypedef struct SSL_METHOD:
        pass
    ctypedef struct BIO:
        pass
    ctypedef struct BIO_METHOD:
        pass
    ctypedef struct X509_VERIFY_PARAM:
        pass
    ctypedef struct X509_NAMES "STACK_OF(X509_NAME)":
        pass

    # A context: certificates, and what is asked of the other side.
    const SSL_METHOD *TLS_client_method()
    const SSL_METHOD *TLS_server_method()
    SSL_CTX *SSL_CTX_new(const SSL_METHOD *method)
    void SSL_CTX_free(SSL_CTX *context)
    int SSL_CTX_set_min_proto_version(SSL_CTX *context, int version)
    int SSL_CTX_set_cipher_list(SSL_CTX *context, const char *ciphers)
    int SSL_CTX_set_ciphersuites(SSL_CTX *context, const char *suites)
    uint64_t SSL_CTX_set_options(SSL_CTX *context, uint64_t options)
    long SSL_CTX_set_mode(SSL_CTX *context, long mode)
    long SSL_CTX_set_session_cache_mode(SSL_CTX *context, long mode)
    int SSL_CTX_set_num_tickets(SSL_CTX *context, size_t count)
    int SSL_CTX_set_session_id_context(SSL_CTX *context, const unsigned char *name, unsigned int length)
    void SSL_CTX_set_default_read_buffer_len(SSL_CTX *context, size_t length)
    void SSL_CTX_set_read_ahead(SSL_CTX *context, int on)
    void SSL_CTX_set_verify(SSL_CTX *context, int mode, void *callback)
    void SSL_CTX_set_default_passwd_cb(SSL_CTX *context, int (*ask)(char *, int, int, void *) noexcept)
    int SSL_CTX_use_certificate_chain_file(SSL_CTX *context, const char *path)
    int SSL_CTX_use_PrivateKey_file(SSL_CTX *context, const char *path, int kind)
    int SSL_CTX_check_private_key(const SSL_CTX *context)
    int SSL_CTX_load_verify_locations(SSL_CTX *context, const char *file, const char *folder)
    int SSL_CTX_set_default_verify_paths(SSL_CTX *context)
    X509_NAMES *SSL_load_client_CA_file(const char *path)
    void SSL_CTX_set_client_CA_list(SSL_CTX *context, X509_NAMES *names)
    int SSL_FILETYPE_PEM, SSL_VERIFY_NONE, SSL_VERIFY_PEER, SSL_VERIFY_FAIL_IF_NO_PEER_CERT, TLS1_2_VERSION
    int SSL_SESS_CACHE_OFF
    long SSL_MODE_ENABLE_PARTIAL_WRITE, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER, SSL_MODE_RELEASE_BUFFERS
    uint64_t SSL_OP_ENABLE_KTLS, SSL_OP_IGNORE_UNEXPECTED_EOF, SSL_OP_NO_RENEGOTIATION, SSL_OP_NO_COMPRESSION

    # A connection.
    SSL *SSL_new(SSL_CTX *context)
    void SSL_free(SSL *ssl)
    int SSL_set_fd(SSL *ssl, int fd)
    void SSL_set_bio(SSL *ssl, BIO *receiving, BIO *sending)
    BIO *SSL_get_wbio(const SSL *ssl)
    void SSL_set_accept_state(SSL *ssl)
    void SSL_set_connect_state(SSL *ssl)
    int SSL_do_handshake(SSL *ssl)
    int SSL_is_init_finished(const SSL *ssl)
    int SSL_read(SSL *ssl, void *buffer, int nbytes)
    int SSL_peek(SSL *ssl, void *buffer, int nbytes)
    int SSL_write(SSL *ssl, const void *buffer, int nbytes)
    int SSL_get_error(const SSL *ssl, int outcome)
    long SSL_get_verify_result(const SSL *ssl)
    const char *SSL_get_version(const SSL *ssl)
    const char *SSL_get_cipher_name(const SSL *ssl)
    int SSL_set1_host(SSL *ssl, const char *name)
    long SSL_set_tlsext_host_name(SSL *ssl, const char *name)
    X509_VERIFY_PARAM *SSL_get0_param(SSL *ssl)
    int X509_VERIFY_PARAM_set1_ip_asc(X509_VERIFY_PARAM *param, const char *address)
    int SSL_ERROR_NONE, SSL_ERROR_WANT_READ, SSL_ERROR_WANT_WRITE, SSL_ERROR_ZERO_RETURN, SSL_ERROR_SYSCALL

    # What went wrong.
    void ERR_clear_error()
    unsigned long ERR_peek_error()
    unsigned long ERR_get_error()
    const char *ERR_reason_error_string(unsigned long error)
    int ERR_GET_LIB(unsigned long error)
    int ERR_GET_REASON(unsigned long error)
    const char *X509_verify_cert_error_string(long result)
    long X509_V_OK, X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH, X509_V_ERR_CERT_HAS_EXPIRED
    long X509_V_ERR_CERT_NOT_YET_VALID
    int ERR_LIB_SSL, SSL_R_WRONG_VERSION_NUMBER, SSL_R_HTTP_REQUEST, SSL_R_CERTIFICATE_VERIFY_FAILED
    int SSL_R_UNEXPECTED_EOF_WHILE_READING, SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE

    # Our own way to the socket.
    int BIO_get_new_index()
    BIO_METHOD *BIO_meth_new(int kind, const char *name)
    int BIO_meth_set_read(BIO_METHOD *method, int (*read)(BIO *, char *, int) noexcept nogil)
    int BIO_meth_set_write(BIO_METHOD *method, int (*write)(BIO *, const char *, int) noexcept nogil)
    int BIO_meth_set_ctrl(BIO_METHOD *method, long (*ctrl)(BIO *, int, long, void *) noexcept nogil)
    BIO *BIO_new(const BIO_METHOD *method)
    void BIO_set_init(BIO *bio, int initialised)
    void BIO_set_data(BIO *bio, void *data)
    void *BIO_get_data(BIO *bio)
    void BIO_clear_retry_flags(BIO *bio)
    void BIO_set_retry_read(BIO *bio)
    void BIO_set_retry_write(BIO *bio)
    long BIO_get_ktls_send(BIO *bio)
    int BIO_TYPE_SOURCE_SINK, BIO_CTRL_FLUSH
