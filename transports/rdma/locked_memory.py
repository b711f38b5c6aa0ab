"""How much memory this process may lock: what it registers counts against it."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

__all__ = ["ENOUGH_BYTES", "how_to_raise", "locked_limit"]

ENOUGH_BYTES: Final = 64 << 20
"""Below this a registration of one ordinary slab fails (docs/rdma.md)."""

CAP_IPC_LOCK: Final = 14
"""Number of the capability that lifts the limit, from <linux/capability.h>."""


def locked_limit(proc_root: Path = Path("/proc")) -> int | None:
    """Return the bytes that this process may lock, None if it has no limit or the right to pass over it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or _may_pass_over(proc_root):
        return None
    return soft


def how_to_raise() -> str:
    """Return the command that raises the limit for what is started next from the same shell."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "ulimit -l unlimited" if hard == resource.RLIM_INFINITY else "sudo prlimit --memlock=unlimited --pid $$"


def _may_pass_over(proc_root: Path) -> bool:
    try:
        facts = (proc_root / "self/status").read_text("utf-8", "replace")
    except OSError:
        return False
    effective = next((line for line in facts.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    return bool(int(effective.split()[1], 16) >> CAP_IPC_LOCK & 1)
