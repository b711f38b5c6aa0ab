"""The command line: one file a command; ``main`` is the entry point."""
