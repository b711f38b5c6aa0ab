"""Where things are, and whether a guest can be started here."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
"""The checkout."""
LAB = ROOT / ".lab"
KERNEL = LAB / "kernel"
"""An unpacked kernel package: ``boot/image`` and ``lib/modules``, with the modules that guests use."""
IMAGE = KERNEL / "boot/image"
INITRD = LAB / "initrd"
QEMU = "qemu-system-x86_64"

PROGRAMS = {
    QEMU: "qemu-system-x86",
    "busybox": "busybox-static",
    "depmod": "kmod",
    "xz": "xz-utils",
    "setpriv": "util-linux",
    "ip": "iproute2",
    "ping": "iputils-ping",
    "ibv_devices": "ibverbs-utils",
    "ib_read_lat": "perftest",
    "ndctl": "ndctl",
    "daxctl": "daxctl",
}
"""Programs that the host or its guests run, and Debian's packages with them."""
LIBRARIES = {
    "/usr/include/infiniband/verbs.h": "libibverbs-dev",
    "/etc/libibverbs.d/rxe.driver": "ibverbs-providers",
    "/usr/lib/python3/dist-packages/pyverbs/__init__.py": "python3-pyverbs",
}


def missing_packages() -> list[str]:
    """Return Debian's packages that are not here, by what they bring: other distributions name them otherwise."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    lacking = {package for program, package in PROGRAMS.items() if not shutil.which(program, path=path)}
    return sorted(lacking | {package for file, package in LIBRARIES.items() if not Path(file).exists()})


def why_not() -> str | None:
    """Return in one line why no guest can be started here; None if one can."""
    lacking = missing_packages()
    if lacking:
        return f"the lab lacks {', '.join(lacking)}; run: make lab"
    if not (IMAGE.is_file() and INITRD.is_file()):
        return "the lab's kernel is not set up; run: make lab"
    return None
