"""Nothing here for Python: ``checks.pxd`` declares what other native modules cimport."""
