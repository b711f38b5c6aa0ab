def buffer_extent(owner: object) -> tuple[int, int]:
    """Return the address and the bytes of a contiguous buffer; (0, 0) for an object that shows none."""
