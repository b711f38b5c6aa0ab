def fork_count() -> int:
    """Return how often this process is a fork of a fork: it changes in a child, never in a parent. Costs one load."""
