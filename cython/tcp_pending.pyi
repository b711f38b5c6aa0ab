"""Nothing here for Python: ``tcp_pending.pxd`` declares what the pipeline cimports."""
