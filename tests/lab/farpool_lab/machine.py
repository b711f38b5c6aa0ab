"""The command line of QEMU for one guest, and the line that tells guest.sh what to do."""

from __future__ import annotations

import base64
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.lab.farpool_lab.places import IMAGE, INITRD, QEMU, ROOT

CXL_KINDS = ("pmem", "volatile", "nvdimm")
MIB = 1 << 20
CXL_STEP = 256 * MIB
"""CXL decoders work in multiples of this."""
LABEL_BYTES = 256 * MIB
"""The label storage that a persistent CXL device must have."""
MEMORY_MIB = 2048
"""Memory of a guest, which also holds what it writes to files."""
TCP_NAME = "10.77.0."
"""The network of the guests: host A is .1, B is .2."""


@dataclass(frozen=True, slots=True)
class Order:
    """What ``farpool-lab run`` was asked for."""

    command: tuple[str, ...]
    hosts: int
    rdma: bool
    cxl_bytes: int
    cxl_kind: str
    cpus: int
    results: Path
    folder: Path
    boot_timeout: float
    timeout: float
    verbose: bool
    lost: str = ""
    """Name of the host whose guest the command ends by force; its end is no failure."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """What a QEMU inherits, by number."""

    console: int
    control: int
    stdout: int
    stderr: int
    wire: int | None
    """Its end of the network of two guests."""
    memory: int | None
    labels: int | None

    def numbers(self) -> list[int]:
        return [number for name in self.__slots__ if (number := getattr(self, name)) is not None]


def instructions(order: Order, host: int) -> bytes:
    """Return the line for guest.sh of host number *host* (from 0)."""
    peer = 1 - host if order.hosts == 2 else host
    values = {
        "wire": "1" if order.hosts == 2 else "",
        "rdma": "1" if order.rdma else "",
        "cxl_kind": order.cxl_kind if order.cxl_bytes else "",
        "cxl_bytes": str(order.cxl_bytes),
        "folder": str(order.folder),
        "LAB_NAME": "AB"[host],
        "LAB_IP": f"{TCP_NAME}{host + 1}",
        "LAB_PEER_IP": f"{TCP_NAME}{peer + 1}",
        "LAB_RESULTS": str(order.results),
        "LAB_LOST": order.lost,
        "LAB_CXL_KIND": order.cxl_kind if order.cxl_bytes else "",
        "FARPOOL_START_TIMEOUT": "300",
        "PATH": f"{ROOT}/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    lines += [f"export {' '.join(name for name in values if name.isupper())}", f"command=({shlex.join(order.command)})"]
    return base64.b64encode("\n".join(lines).encode()) + b"\n"


def command_line(order: Order, host: int, inherited: Descriptors) -> list[str]:
    """Return the command that starts the guest of host number *host*; it ends when the calling thread does."""
    memory = f"{MEMORY_MIB}M"
    kind = order.cxl_kind if order.cxl_bytes else ""
    machine = "q35,accel=tcg"
    if kind:
        memory += f",maxmem={MEMORY_MIB + 16384}M,slots=4"
        machine += ",nvdimm=on" if kind == "nvdimm" else ",cxl=on"
    words = ["setpriv", "--pdeathsig", "KILL", QEMU]
    words += ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]
    # The kernel invalidates no CPU caches below a hypervisor, and without that commits no CXL region: hide it.
    # Without fast string instructions libc and kernel copy 8 bytes and more at once. With them each byte to CXL memory
    # is an access of QEMU's: to zero 32 MiB takes 18 s.
    words += ["-machine", machine, "-cpu", "max,-hypervisor,-erms,-fsrm", "-m", memory]
    # With maxcpus=1 QEMU would take the guest for alone with its memory, and make no atomic of its atomics: on an
    # nvdimm two guests lose a third of their additions.
    words += ["-smp", f"{order.cpus},maxcpus={max(order.cpus, 2)}"]
    words += ["-kernel", str(IMAGE), "-initrd", str(INITRD), "-append", kernel_arguments(order)]
    words += [*ports(inherited), *shares(order), *network(host, inherited)]
    if kind:
        words += memory_device(order, inherited)
    return words


def kernel_arguments(order: Order) -> str:
    """Return the kernel's command line; what it does not know itself becomes init.sh's environment."""
    return " ".join(
        [
            "console=ttyS0 loglevel=4 panic=-1 oops=panic mitigations=off random.trust_cpu=on",
            # What the kernel would make of a host that is busy with other things.
            "tsc=reliable no_timer_check nowatchdog rcupdate.rcu_cpu_stall_suppress=1",
            "modprobe.blacklist=kmem",  # which would make ordinary memory of a volatile region
            f"lab_root={ROOT} lab_results={order.results}",
        ]
    )


def ports(inherited: Descriptors) -> list[str]:
    """Return a serial console, and three ports that guest.sh knows by name."""
    words = ["-chardev", f"socket,id=console,fd={inherited.console}", "-serial", "chardev:console"]
    words += ["-device", "virtio-serial-pci,bus=pcie.0"]
    for name in ("control", "stdout", "stderr"):
        words += ["-chardev", f"socket,id={name},fd={getattr(inherited, name)}"]
        words += ["-device", f"virtserialport,chardev={name},name={name}"]
    return words


def shares(order: Order) -> list[str]:
    """Return the host's files, read-only, and the folder of results."""
    words: list[str] = []
    for name, path, options in (("host", Path("/"), ",readonly=on,multidevs=remap"), ("results", order.results, "")):
        words += ["-fsdev", f"local,id={name},path={path},security_model=none{options}"]
        words += ["-device", f"virtio-9p-pci,bus=pcie.0,fsdev={name},mount_tag={name}"]
    return words


def network(host: int, inherited: Descriptors) -> list[str]:
    if inherited.wire is None:
        return []
    device = f"virtio-net-pci,bus=pcie.0,netdev=wire,mac=52:54:00:77:00:0{host + 1},host_mtu=9000,romfile="
    return ["-netdev", f"dgram,id=wire,local.type=fd,local.str={inherited.wire}", "-device", device]


def memory_device(order: Order, inherited: Descriptors) -> list[str]:
    """Return the device that becomes /dev/dax0.0. QEMU opens the memory by the name of its descriptor."""
    words = ["-object", backend("memory", inherited.memory, order.cxl_bytes)]
    if order.cxl_kind == "nvdimm":
        return [*words, "-device", "nvdimm,id=nv0,memdev=memory"]
    words += ["-device", "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1"]
    words += ["-device", "cxl-rp,port=0,bus=cxl.1,id=rp0,chassis=0,slot=2"]
    # QEMU 7.2 loses every write, silently, when the host bridge has one root port alone.
    words += ["-device", "cxl-rp,port=1,bus=cxl.1,id=rp1,chassis=0,slot=3"]
    words += ["-machine", "cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G"]
    if order.cxl_kind == "volatile":
        return [*words, "-device", "cxl-type3,bus=rp0,volatile-memdev=memory,id=mem0"]
    words += ["-object", backend("labels", inherited.labels, LABEL_BYTES)]
    return [*words, "-device", "cxl-type3,bus=rp0,memdev=memory,lsa=labels,id=mem0"]


def backend(name: str, descriptor: int | None, size: int) -> str:
    return f"memory-backend-file,id={name},share=on,mem-path=/dev/fd/{descriptor},size={size}"
