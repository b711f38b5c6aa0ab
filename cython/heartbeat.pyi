"""Nothing here for Python: ``heartbeat.pxd`` declares what other native modules cimport."""
