"""The command ``farpool-lab``."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from tests.lab.farpool_lab import places, running, setting_up
from tests.lab.farpool_lab.machine import CXL_KINDS, CXL_STEP, MIB, Order

UNITS = {"M": MIB, "MiB": MIB, "G": MIB << 10, "GiB": MIB << 10}


def size(text: str) -> int:
    """Return the bytes of ``512M`` or ``1GiB``."""
    found = re.fullmatch(r"(\d+)(M|MiB|G|GiB)", text)
    count = int(found[1]) * UNITS[found[2]] if found else 0
    if count <= 0 or count % CXL_STEP or count > 4096 * MIB:
        raise argparse.ArgumentTypeError(f"{text!r} is not a multiple of 256M up to 4G, such as 512M")
    return count


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("farpool-lab", description="Guests with soft-RoCE and emulated CXL memory.")
    commands = parser.add_subparsers(dest="task", required=True)
    commands.add_parser("setup", help="install and build what the lab needs (make lab)")
    commands.add_parser("check", help="say why the lab cannot run here; exit code 1 if so")
    run = commands.add_parser("run", help="boot, run a command in the guest, end with its exit code")
    run.add_argument("--hosts", type=int, choices=(1, 2), default=1, help="guests; both run the command")
    run.add_argument("--rdma", action="store_true", help="a soft-RoCE device, rxe0")
    run.add_argument("--cxl", type=size, default=0, metavar="SIZE", help="a memory device, /dev/dax0.0")
    run.add_argument("--cxl-kind", choices=CXL_KINDS, default="pmem", help="what the device is (default: pmem)")
    run.add_argument("--cpus", type=int, choices=(1, 2, 4), default=1, help="processors of a guest (1, the quickest)")
    run.add_argument("--lost", choices=("A", "B"), default="", help="this host's command ends its guest by force")
    run.add_argument("--results", type=Path, default=places.LAB / "results", help="folder that the guest may write to")
    run.add_argument("--timeout", type=float, default=3600.0, metavar="S", help="bound of the command (3600)")
    run.add_argument("--boot-timeout", type=float, default=300.0, metavar="S", help="bound of the boot (300)")
    run.add_argument("--verbose", action="store_true", help="show the consoles on standard error, from the start")
    run.add_argument("command", nargs="+", metavar="-- COMMAND")
    given = parser.parse_args(words)
    if given.task == "run" and given.lost and given.hosts == 1:
        parser.error("--lost needs a second host that goes on: --hosts 2")
    return given


def main() -> int:
    words = sys.argv[1:]
    given = parse(words)
    if given.task == "setup":
        try:
            setting_up.set_up()
        except setting_up.CannotSetUp as error:
            print(f"farpool-lab: {error}", file=sys.stderr)
            return 1
        return 0
    reason = places.why_not()
    if reason:
        print(f"farpool-lab: {reason}", file=sys.stderr)
        return 1 if given.task == "check" else running.NO_RESULT
    return 0 if given.task == "check" else run(given)


def run(given: argparse.Namespace) -> int:
    given.results.mkdir(parents=True, exist_ok=True)
    order = Order(
        command=tuple(given.command),
        hosts=given.hosts,
        rdma=given.rdma,
        cxl_bytes=given.cxl,
        cxl_kind=given.cxl_kind,
        cpus=given.cpus,
        results=given.results.resolve(),
        folder=places.ROOT,
        boot_timeout=given.boot_timeout,
        timeout=given.timeout,
        verbose=given.verbose,
        lost=given.lost,
    )
    for path in (places.ROOT, order.results):
        if re.search(r"[\s,\"'=]", str(path)):
            print(
                f"farpool-lab: QEMU cannot be given a path with a blank, comma, quote or '=': {path}", file=sys.stderr
            )
            return running.NO_RESULT
    return running.run(order)


if __name__ == "__main__":
    sys.exit(main())
