"""Which processors client and server run on.

Left alone, the scheduler moves a ping-pong's two ends onto one processor and apart again, which changes its
time by more than half, for us and for the limit at different moments. So a server that this process started
is kept off our processor; one that somebody else runs is left where it is.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

__all__ = ["apart_from", "cpus_of", "placed"]

Cpus = frozenset[int]


@contextmanager
def apart_from(server_pid: int) -> Generator[None]:
    """While the block lasts keep this thread on one processor, and the server, if it is our child, on others."""
    ours = cpus_of(0)
    mine = frozenset({max(ours)})
    if len(ours) == 1 or not _is_our_child(server_pid):
        yield
        return
    before = cpus_of(server_pid)
    _keep(server_pid, ours - mine)
    os.sched_setaffinity(0, mine)
    try:
        yield
    finally:
        os.sched_setaffinity(0, ours)
        _keep(server_pid, before)


@contextmanager
def placed(ours: Iterable[int], others: Iterable[int], pids: Iterable[int]) -> Generator[None]:
    """While the block lasts keep this thread on the processors *ours*, and the processes *pids* on *others*."""
    pids = list(pids)
    mine, before = cpus_of(0), {pid: cpus_of(pid) for pid in pids}
    others = frozenset(others)
    for pid in pids:
        _keep(pid, others)
    os.sched_setaffinity(0, ours)
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)
        for pid, cpus in before.items():
            _keep(pid, cpus)


def cpus_of(pid: int) -> Cpus:
    """Return the processors that a process may use; of one that is not there, those of this thread."""
    try:
        return frozenset(os.sched_getaffinity(pid))
    except (OSError, OverflowError):
        return frozenset(os.sched_getaffinity(0))


def _is_our_child(pid: int) -> bool:
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(facts[1]) == os.getpid()


def _keep(pid: int, cpus: Iterable[int]) -> None:
    """Set where every thread of a process may run; it does not matter if one has ended meanwhile."""
    try:
        threads = [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return
    for thread in threads:
        try:
            os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:
            continue
