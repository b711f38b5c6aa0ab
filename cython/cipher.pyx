"""Owners of what encrypts a connection; ``cipher.pxd`` declares what a data or control connection asks of it.

Always built. The module that fills these in, ``tls``, is built where the headers of OpenSSL are.
"""

from farpool.native.fork cimport forks


cdef class Encryption:
    """The encryption of one connection; whoever has the connection holds this."""

    def __cinit__(self):
        self.born = forks

    def __dealloc__(self):
        # In a forked child the parent's threads may have been in the middle of it: it is left as it is.
        if self.cipher != NULL and self.born == forks:
            self.cipher.free(self.cipher)
        self.cipher = NULL

    cpdef failure(self):
        """Return the error that it has ended the connection with; None if it has not."""
        return None


cdef class Encryptor:
    """What encrypts the connections that a server accepts."""
