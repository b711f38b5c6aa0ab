def buffer_extent(owner: object) -> tuple[int, int]:
    """Return the address and the bytes of a contiguous buffer; (0, 0) for an object that shows none."""

def seconds_of(timeout: float | None, default: float) -> float:
    """Return *timeout* in seconds, and *default* for None; raises ``InvalidArgument`` unless it is a number over 0."""
