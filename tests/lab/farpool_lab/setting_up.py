"""Set the lab up: packages of the distribution, a kernel that is only unpacked below ``.lab``, an initramfs.

Done again it takes no time: each step looks for what it would make. Nothing of the host's own boot is touched.
"""

from __future__ import annotations

import lzma
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from tests.lab.farpool_lab.places import IMAGE, INITRD, KERNEL, LAB, ROOT, missing_packages

KERNEL_PACKAGE = "linux-image-amd64"
BOOT_MODULES = ("virtio_pci", "9p", "9pnet_virtio", "overlay", "virtio_console")
"""Modules that init.sh loads to reach the host's files."""
GUEST_MODULES = (
    *("virtio_net", "dummy", "veth", "sch_netem", "af_packet", "loop", "crc32_generic", "crc32c_generic"),
    *("tls", "gcm", "ghash_generic", "ctr"),
    *("rdma_rxe", "ib_uverbs", "ib_umad", "rdma_ucm"),
    *("cxl_acpi", "cxl_pci", "cxl_mem", "cxl_port", "cxl_pmem", "encrypted_keys", "trusted"),
    *("nfit", "nd_pmem", "nd_btt", "dax_pmem", "dax_cxl", "dax_hmem", "device_dax", "kmem"),
)
"""Modules that guest.sh or a test may load. All others are removed: fewer to find, and to decompress."""


class CannotSetUp(Exception):
    """A line for the user: what is missing, and the command that mends it."""


def set_up() -> None:
    """Make everything that ``farpool-lab run`` needs. Raises: CannotSetUp."""
    begun = time.monotonic()
    if os.uname().machine != "x86_64":
        raise CannotSetUp(f"the lab's guests are x86-64 and this machine is {os.uname().machine}")
    LAB.mkdir(exist_ok=True)
    install(missing_packages())
    if not IMAGE.is_file():
        say(f"unpacking a kernel into {LAB.relative_to(ROOT)} (about 15 s)")
        unpack_kernel()
    sources = [ROOT / "tests/lab/init.sh", Path(__file__), IMAGE]
    if not INITRD.is_file() or INITRD.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        make_initrd()
    say(f"ready: kernel {kernel_version()}; took {time.monotonic() - begun:.0f} s")


def say(text: str) -> None:
    print(f"==> lab: {text}", flush=True)


def run(*command: str | Path, cwd: Path | None = None, feed: bytes | None = None) -> bytes:
    """Run a command and return its standard output. Raises: CannotSetUp, with what it said."""
    words = [str(word) for word in command]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    done = subprocess.run(words, cwd=cwd, input=feed, capture_output=True, check=False, env=environment)
    if done.returncode != 0:
        raise CannotSetUp(f"failed: {' '.join(words)}\n{done.stderr.decode(errors='replace').strip()}")
    return done.stdout


# Packages -------------------------------------------------------------------------------------------


def install(packages: list[str]) -> None:
    """Install *packages* with apt; as root only."""
    if not packages:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    if not shutil.which("apt-get"):
        raise CannotSetUp(
            f"no apt-get here. Install what Debian calls {', '.join(packages)} your way, then run this again"
        )
    if os.geteuid() != 0:
        raise CannotSetUp(f"only root can install packages. Run: sudo {' '.join(command)}\nthen run this again")
    say(f"installing {' '.join(packages)} (about a minute)")
    run("apt-get", "update", "-qq")
    run(*command)
    lacking = missing_packages()
    if lacking:
        raise CannotSetUp(f"installed, and still without what {', '.join(lacking)} should bring")


# The kernel -----------------------------------------------------------------------------------------


def unpack_kernel() -> None:
    """Download Debian's kernel and keep, decompressed, the modules that guests use."""
    if not shutil.which("apt-get"):
        raise CannotSetUp("no apt-get here: the kernel of the lab's guests is the package of a Debian, 12 or later")
    package = kernel_package()
    shutil.rmtree(KERNEL, ignore_errors=True)
    making = LAB / "kernel.made"
    shutil.rmtree(making, ignore_errors=True)
    (making / "deb").mkdir(parents=True)
    as_root = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
    run("apt-get", "-qq", *as_root, "download", package, cwd=making / "deb")
    run("dpkg-deb", "-x", next((making / "deb").iterdir()), making)
    shutil.rmtree(making / "deb")
    if not (making / "lib/modules").is_dir():
        (making / "lib").mkdir(exist_ok=True)
        (making / "usr/lib/modules").rename(making / "lib/modules")
    shutil.rmtree(making / "usr", ignore_errors=True)
    modules = next((making / "lib/modules").iterdir())
    run("depmod", "-b", making, modules.name)
    keep_modules(modules, with_needed(modules, BOOT_MODULES + GUEST_MODULES))
    run("depmod", "-b", making, modules.name)
    packed = making / f"boot/vmlinuz-{modules.name}"
    (making / "boot/image").write_bytes(decompressed(packed.read_bytes()))
    packed.unlink()
    making.rename(KERNEL)


def decompressed(image: bytes) -> bytes:
    """Return the ELF file in a bzImage, which would take a guest ten seconds; *image* itself if it is not in xz.

    Offsets: the kernel's Documentation/arch/x86/boot.rst.
    """
    (sectors,) = struct.unpack_from("<B", image, 0x1F1)
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (sectors + 1) * 512 + offset
    payload = image[start : start + length]
    if not payload.startswith(b"\xfd7zXZ\0"):
        return image
    return lzma.LZMADecompressor().decompress(payload)  # what follows the stream is the kernel's size


def kernel_package() -> str:
    """Return the package that the distribution's newest kernel is in."""
    if not list(Path("/var/lib/apt/lists").glob("*Packages*")) and os.geteuid() == 0:
        run("apt-get", "update", "-qq")
    for line in run("apt-cache", "depends", "--important", KERNEL_PACKAGE).decode().splitlines():
        kind, _, name = line.strip().partition(": ")
        if kind == "Depends" and name.startswith("linux-image-"):
            return name
    raise CannotSetUp(f"apt knows no {KERNEL_PACKAGE}: the lab needs Debian 12 or later. Or run: sudo apt-get update")


def with_needed(modules: Path, names: Iterable[str]) -> list[str]:
    """Return the files of *names* and of what they need, in an order in which they can be loaded."""
    needs: dict[str, list[str]] = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        file, _, others = line.partition(":")
        needs[file] = others.split()
    files = {Path(file).name.partition(".ko")[0].replace("-", "_"): file for file in needs}
    wanted = [files[name] for name in names if name in files]  # what is not a file is built in, or newer
    return list(dict.fromkeys(file for one in wanted for file in [*reversed(needs[one]), one]))


def keep_modules(modules: Path, files: list[str]) -> None:
    for path in (modules / "kernel").rglob("*.ko*"):
        if str(path.relative_to(modules)) not in files:
            path.unlink()
        elif path.suffix == ".xz":
            run("xz", "--decompress", path)


def kernel_version() -> str:
    return next((KERNEL / "lib/modules").iterdir()).name


# The initramfs --------------------------------------------------------------------------------------


def make_initrd() -> None:
    """Pack busybox, init.sh and the modules that it loads."""
    tree = LAB / "initrd.made"
    shutil.rmtree(tree, ignore_errors=True)
    (tree / "bin").mkdir(parents=True)
    (tree / "modules").mkdir()
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, tree / "bin/busybox")
    shutil.copy(ROOT / "tests/lab/init.sh", tree / "init")
    (tree / "init").chmod(0o755)
    modules = KERNEL / "lib/modules" / kernel_version()
    files = with_needed(modules, BOOT_MODULES)
    for file in files:
        shutil.copy(modules / file, tree / "modules")
    (tree / "modules/order").write_text("".join(f"{Path(file).name}\n" for file in files))
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    packed = run(busybox, "cpio", "-o", "-H", "newc", cwd=tree, feed=names.encode())
    INITRD.with_suffix(".new").write_bytes(packed)
    INITRD.with_suffix(".new").rename(INITRD)
    shutil.rmtree(tree)
