"""Nothing here for Python: ``tls_cipher.pxd`` declares what ``tls`` cimports."""
