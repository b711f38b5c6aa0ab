"""Nothing here for Python: ``tcp_admission.pxd`` declares what the connection cimports."""
