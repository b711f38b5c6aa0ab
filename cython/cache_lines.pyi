from typing_extensions import Buffer

def line_bytes() -> int:
    """Return the bytes of a cache line."""

def lines_of(address: int, nbytes: int) -> list[int]:
    """Return the addresses of the lines that ``flush`` and ``invalidate`` touch for *nbytes* at *address*."""

def instructions() -> tuple[str, str]:
    """Return the names of the instructions that write back and drop.

    Raises ``TransportUnavailable`` on a processor that has none a program may use.
    """

def flush_memory(memory: Buffer, offset: int, nbytes: int) -> None:
    """Write back the lines of *nbytes* at *offset* of a writable buffer."""

def drop_memory(memory: Buffer, offset: int, nbytes: int) -> None:
    """Drop the lines of *nbytes* at *offset* of a buffer."""
