"""Nothing here for Python: ``tcp_worker.pxd`` declares what the reactor cimports."""
