"""What machine and which versions the numbers of a run come from."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import farpool

__all__ = ["Environment", "fingerprint"]

GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
CPU_FACTS = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine, its load and the versions."""

    cpu: str
    cores: int
    """Processors that this process may run on."""
    memory_gib: float
    kernel: str
    governor: str
    """How the processor's frequency is chosen; ``unknown`` in most virtual machines."""
    virtual: bool
    """The processor says that a hypervisor is below us."""
    load: float
    """Load average of the last minute, before the run."""
    python: str
    numpy: str
    farpool: str

    def as_record(self) -> dict[str, Any]:
        """Return the facts as JSON takes them."""
        return asdict(self)

    def __str__(self) -> str:
        machine = f"{self.cpu}, {self.cores} cores{', virtual' if self.virtual else ''}"
        versions = f"Python {self.python}, numpy {self.numpy}, farpool {self.farpool}"
        return f"{machine}; Linux {self.kernel}, governor {self.governor}, load {self.load:.1f}; {versions}"


def fingerprint() -> Environment:
    """Return the facts of now. A fact that cannot be read is ``unknown``."""
    facts = _cpu_facts()
    return Environment(
        cpu=facts.get("model name", platform.machine() or "unknown"),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        kernel=platform.release(),
        governor=_read(GOVERNOR).strip() or "unknown",
        virtual="hypervisor" in facts.get("flags", "").split(),
        load=round(os.getloadavg()[0], 2),
        python=platform.python_version(),
        numpy=np.__version__,
        farpool=farpool.__version__,
    )


def _cpu_facts() -> dict[str, str]:
    """Return the first processor's facts."""
    first = _read(CPU_FACTS).partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
