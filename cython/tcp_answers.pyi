"""Nothing here for Python: ``tcp_answers.pxd`` declares what the connection cimports."""
