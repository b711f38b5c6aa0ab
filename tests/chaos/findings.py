"""What must never be found, by kind."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Broken", "Finding"]


class Finding(StrEnum):
    """A kind of thing that ends a run."""

    STALE_WRITE = "stale_writes"
    """Another's bytes in memory that is somebody's own."""
    TORN_READ = "torn_reads"
    """A read of a committed slab that is no version."""
    OLD_READ = "old_reads"
    """A version that is older than one that was seen before, or whose commit had returned."""
    LEAK = "leaked"
    """What is left when no client is."""
    STUCK = "stuck"
    """What has not happened in any reasonable time."""
    ERROR = "errors"
    """An error that no fault explains."""


class Broken(Exception):
    """What must hold does not; ends the run."""

    def __init__(self, kind: Finding, what: str) -> None:
        super().__init__(what)
        self.kind = kind
