"""How many files and sockets the kernel gives this process."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

import structlog

__all__ = ["raise_descriptor_limit"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.server")

DESCRIPTORS_OF_SESSION: Final = 3
"""Its control connection, the watch over its process and one data connection; a client of many threads takes more."""


def raise_descriptor_limit(max_sessions: int) -> None:
    """Raise the limit as far as it goes, and say so if that is too little for so many sessions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max_sessions * DESCRIPTORS_OF_SESSION
    if limit != resource.RLIM_INFINITY and limit < wanted:
        todo = "raise the limit (LimitNOFILE, ulimit -n), or serve with a lower max_sessions"
        log.warning("too few file descriptors for max_sessions", limit=limit, wanted=wanted, todo=todo)
