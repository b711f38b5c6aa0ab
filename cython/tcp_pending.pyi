class Pending:
    """One request in flight of a pipelined data connection; its pipeline makes it."""
