"""Nothing here for Python: ``tcp_connection.pxd`` declares what the reactor cimports."""
