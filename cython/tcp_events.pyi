"""Nothing here for Python: ``tcp_events.pxd`` declares what the data plane cimports."""
