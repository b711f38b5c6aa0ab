"""``farpool demo``: one server, one slab, two client processes on two transports; then a table of speeds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

import farpool
from farpool.cli.options import forget_credentials, parse_seconds
from farpool.cli.screens import console
from farpool.perf import quick
from farpool.perf.table import render
from farpool.protocol.errors import CorruptData, FarpoolError

if TYPE_CHECKING:
    from farpool.client.pool import Pool

__all__ = ["demo"]

TRANSPORTS = ("cxl", "tcp")
MEASURED = ("cxl", "rdma", "tcp")
PART_NBYTES = 8 << 20
COUNTER_NBYTES = 4096
"""The slab begins with a page for the counter; each process then writes a part of its own."""
COUNTS = 5000
WRITE_SECONDS = 0.5
WORKER_PATIENCE = 5.0
"""Seconds that a worker has to end after its stdin has."""


class _Worker:
    """One client process, with its transport."""

    def __init__(self, url: str, transport: str, slab_id: int) -> None:
        self.transport = transport
        command = [sys.executable, "-m", "farpool.cli.demo_worker", url, transport, str(slab_id)]
        # A session of its own keeps Ctrl-C with the demo, which then ends its workers by closing their stdin.
        self._process = subprocess.Popen(  # noqa: S603  our own interpreter and our own arguments
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def ask(self, do: str, **fields: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._lost() from None

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._lost()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise FarpoolError(f"the demo's {self.transport} process failed: {answer['error']}")
        return answer

    def _lost(self) -> FarpoolError:
        return FarpoolError(f"the demo's {self.transport} process (pid {self._process.pid}) has ended unexpectedly")

    def close(self) -> None:
        with self._process as process:
            assert process.stdin is not None
            try:
                process.stdin.close()
                process.wait(WORKER_PATIENCE)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                process.kill()


def demo(
    seconds: Annotated[
        float,
        typer.Option("--seconds", parser=parse_seconds, metavar="SECONDS", help="Time for one measurement."),
    ] = 0.1,
) -> None:
    """Show a pool at work: two transports on one slab, data verified across them, and a table of speeds."""
    screen = console()
    forget_credentials()
    screen.print("Farpool demo: one server, one slab, two client processes on two transports.\n")
    with farpool.serve_embedded(transports=quick.TRANSPORTS) as server, farpool.connect(server.url) as pool:
        _step(screen, "server", f"pid {server.pid}, {server.url}")
        _share_one_slab(screen, pool, server.url)
        screen.print()
        _show_speeds(screen, server.url, seconds)


def _share_one_slab(screen: Console, pool: Pool, url: str) -> None:
    nbytes = COUNTER_NBYTES + len(TRANSPORTS) * PART_NBYTES
    with pool.allocate(nbytes, name="demo") as slab, ExitStack() as stack:
        workers = [stack.enter_context(closing(_Worker(url, name, slab.id))) for name in TRANSPORTS]
        with screen.status("two client processes start"):
            hellos = [worker.answer() for worker in workers]
        attached = ", ".join(f"pid {hello['pid']} over {hello['transport']}" for hello in hellos)
        _step(screen, "clients", f"{attached}, on the same slab of {slab.nbytes >> 20} MiB")
        _write_together(screen, workers)
        _verify_crosswise(screen, workers)
        _count_together(screen, workers)
        total = slab.load(0)
        if total != len(workers) * COUNTS:
            raise CorruptData(f"the counter shows {total}, not {len(workers) * COUNTS}")


def _offset(index: int) -> int:
    return COUNTER_NBYTES + index * PART_NBYTES


def _write_together(screen: Console, workers: Sequence[_Worker]) -> None:
    with screen.status("both write at the same time"):
        for index, worker in enumerate(workers):
            worker.ask("write", seed=index, offset=_offset(index), nbytes=PART_NBYTES, seconds=WRITE_SECONDS)
        answers = [worker.answer() for worker in workers]
    speeds = ", ".join(
        f"{worker.transport} {answer['nbytes'] / answer['seconds'] / 1e9:.1f} GB/s"
        for worker, answer in zip(workers, answers, strict=True)
    )
    _step(screen, "write", f"both at the same time: {speeds}")


def _verify_crosswise(screen: Console, workers: Sequence[_Worker]) -> None:
    with screen.status("each reads what the other wrote"):
        for index, worker in enumerate(workers):
            writer = (index + 1) % len(workers)
            worker.ask("verify", seed=writer, offset=_offset(writer), nbytes=PART_NBYTES)
        answers = [worker.answer() for worker in workers]
    for index, (worker, answer) in enumerate(zip(workers, answers, strict=True)):
        route = f"written over {workers[(index + 1) % len(workers)].transport}, read over {worker.transport}"
        if not answer["equal"]:
            raise CorruptData(f"the bytes {route} are not those that were written")
        _step(screen, "verify", f"{route}: {answer['nbytes'] >> 20} MiB equal")


def _count_together(screen: Console, workers: Sequence[_Worker]) -> None:
    with screen.status("both count on one word"):
        for worker in workers:
            worker.ask("count", offset=0, times=COUNTS)
        for worker in workers:
            worker.answer()
    _step(screen, "atomics", f"each added 1 to one word {COUNTS:,} times at the same time; none was lost")


def _show_speeds(screen: Console, url: str, seconds: float) -> None:
    with screen.status("measuring") as status:
        rows = list(quick.run(url, MEASURED, seconds, lambda text: status.update(f"measuring {text}")))
    screen.print(render(rows))


def _step(screen: Console, what: str, text: str) -> None:
    screen.print(Text.assemble(("ok ", "green"), (f"{what:<8}", "bold"), text))
