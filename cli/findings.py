"""What the checks of ``farpool doctor`` are given and what they find; the checks themselves are listed in ``checks``.

A check looks and changes nothing. ``fail`` means that Farpool cannot work as asked, ``warn`` that something
will be slower or missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

__all__ = ["Check", "Finding", "Level", "Row", "Subject", "finding_of"]

Level = Literal["ok", "warn", "fail"]
Row = Mapping[str, str | int | bool]

BEFORE_COMMANDS: Final = ("; run: ", "; run as root: ")
"""What stands between cause and command in a message of a transport."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; ``mend`` is a command, or empty."""

    check: str
    level: Level
    message: str
    mend: str = ""
    rows: tuple[Row, ...] = ()
    """A table that belongs to it; each row has the same keys."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is examined: this machine, and the pool at ``url`` (the default address if None)."""

    url: str | None = None
    timeout: float = 2.0
    sys_root: Path = Path("/sys")
    proc_root: Path = Path("/proc")
    modules_root: Path = Path("/lib/modules")


Check = Callable[[Subject], Iterator[Finding]]


def finding_of(check: str, problem: str) -> Finding:
    """Return a warning of a transport's own message, with its command apart."""
    for separator in BEFORE_COMMANDS:
        cause, found, mend = problem.rpartition(separator)
        if found:
            return Finding(check, "warn", cause, mend)
    return Finding(check, "warn", problem)
