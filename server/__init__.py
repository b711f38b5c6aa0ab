"""The pool server: arenas, catalog, leases, sessions and the control service."""
