"""Nothing here for Python: ``stream.pxd`` declares what other native modules cimport."""
