class Convoy:
    """Several flights that move the parts of one call, and share its future; its pipeline makes it."""

class Flight:
    """One operation in flight; its pipeline makes it."""
