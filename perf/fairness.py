"""What one tenant's flood costs another: its latencies alone, and while the server is flooded, as JSON Lines.

``python -m farpool.perf.fairness`` starts a server with two tenants. One floods it, by control requests that are
pipelined without a pause, by reads of 1 MiB over several tcp connections, or by hundreds of waits for words of a slab
that is stored to without a pause, from processes of their own that give way to the other tenant's on the processors
(nice 19): what is measured is what the server makes of them. The other does one operation after the other. Alone and
flooded alternate, in rounds: the flood is stopped and goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final

import farpool

__all__ = ["measure"]

FLOOD: Final = "flood"
QUIET: Final = "quiet"
SHARE: Final = 0.99
PIPELINED: Final = 256
"""Requests of the control flood that are on their way at once."""
BULK_NBYTES: Final = 1 << 20
CONNECTIONS: Final = 4
"""Readers of one flooding process."""
WAITING_SESSIONS: Final = 16
WAITS: Final = 32
"""Words that each of these sessions waits for at once."""


# The flood ------------------------------------------------------------------------------------------------------


def flood_control(url: str) -> None:
    """Allocate and free slabs as fast as the server does it: requests are pipelined."""
    with farpool.connect(url, tenant=FLOOD, transport="tcp", timeout=60) as pool:
        print("ready", flush=True)
        with contextlib.suppress(farpool.FarpoolError):
            while True:
                pool.free_many(pool.allocate_many([4096] * PIPELINED))


def flood_data(url: str) -> None:
    """Read a slab without a pause over several connections."""
    with farpool.connect(url, tenant=FLOOD, transport="tcp", timeout=60) as pool:
        slab = pool.allocate(BULK_NBYTES)
        print("ready", flush=True)

        def read() -> None:
            target = bytearray(BULK_NBYTES)
            with contextlib.suppress(farpool.FarpoolError):
                while True:
                    slab.read_into(target)

        threads = [threading.Thread(target=read, daemon=True) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        sys.stdin.read()


def flood_waits(url: str) -> None:
    """Wait for many words that stay as they are, and store to another one and notify without a pause."""
    with contextlib.ExitStack() as undo:
        options: dict[str, Any] = {"tenant": FLOOD, "transport": "tcp", "timeout": 60}
        pools = [undo.enter_context(farpool.connect(url, **options)) for _ in range(WAITING_SESSIONS)]
        slab = pools[0].allocate(8 * (WAITS + 1))

        def repeat(operation: Callable[[], object]) -> None:
            with contextlib.suppress(farpool.FarpoolError):
                while True:
                    operation()

        def wait(slab: farpool.Slab, offset: int) -> None:
            with contextlib.suppress(farpool.DeadlineExceeded):
                slab.wait(offset, 0)

        slabs = [pool.open(slab.id) for pool in pools]
        operations: list[Callable[[], object]] = [
            partial(wait, each, 8 * place) for each in slabs for place in range(WAITS)
        ]
        operations += [partial(slab.store, 8 * WAITS, 1), partial(slab.notify, 0)]
        for operation in operations:
            threading.Thread(target=repeat, args=(operation,), daemon=True).start()
        print("ready", flush=True)
        sys.stdin.read()


FLOODS: Final = {"control": flood_control, "tcp": flood_data, "waits": flood_waits}


@contextlib.contextmanager
def flooding(kind: str, url: str, processes: int) -> Generator[Callable[[bool], None]]:
    """Run the flood, stopped; call what this gives with whether it shall go on."""
    command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, "--flood", kind, url]
    with contextlib.ExitStack() as undo:
        running: list[subprocess.Popen[str]] = []
        for _ in range(processes):
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)  # noqa: S603  our own program
            undo.enter_context(process)
            undo.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            running.append(process)

        def go_on(on: bool) -> None:
            for process in running:
                process.send_signal(signal.SIGCONT if on else signal.SIGSTOP)

        go_on(False)
        yield go_on


# The other tenant -----------------------------------------------------------------------------------------------


def measure(
    seconds: float, rounds: int, processes: int, floods: Sequence[str] = tuple(FLOODS)
) -> Generator[dict[str, Any]]:
    """Yield a row for each operation and flood. Times in us; ``ratio`` is of the p99s, flooded by alone."""
    tenants = {name: {"uids": [os.geteuid()]} for name in (FLOOD, QUIET)}
    settings: dict[str, Any] = {"tenants": tenants, "session_timeout": 300.0}
    with (
        farpool.serve_embedded(capacity="256MiB", transports=["tcp"], **settings) as server,
        farpool.connect(server.url, tenant=QUIET, transport="tcp", timeout=60) as pool,
    ):
        slab, target = pool.allocate("1MiB"), bytearray(4096)
        operations: dict[str, Callable[[], object]] = {
            "allocate+free": lambda: pool.allocate(4096).free(),
            "read_into 4096": lambda: slab.read_into(target),
        }
        for kind in floods:
            with flooding(kind, server.url, processes) as go_on:
                for name, operation in operations.items():
                    yield _row(name, kind, operation, go_on, seconds / rounds, rounds)


def _row(
    name: str, kind: str, operation: Callable[[], object], go_on: Callable[[bool], None], seconds: float, rounds: int
) -> dict[str, Any]:
    alone: list[float] = []
    flooded: list[float] = []
    for _ in range(rounds):
        alone += _time(operation, seconds)
        go_on(True)
        flooded += _time(operation, seconds)
        go_on(False)
    numbers = {"alone_p50_us": _quantile(alone, 0.5), "alone_p99_us": _quantile(alone, SHARE)}
    numbers |= {"flooded_p50_us": _quantile(flooded, 0.5), "flooded_p99_us": _quantile(flooded, SHARE)}
    ratio = numbers["flooded_p99_us"] / numbers["alone_p99_us"]
    return {"op": name, "flood": kind, **numbers, "ratio": ratio, "samples": len(flooded)}


def _time(operation: Callable[[], object], seconds: float) -> list[float]:
    """Return how long each operation took, in us, for *seconds* in all."""
    samples: list[float] = []
    clock = time.perf_counter
    end = clock() + seconds
    while True:
        begun = clock()
        operation()
        now = clock()
        samples.append((now - begun) * 1e6)
        if now >= end:
            return samples


def _quantile(samples: Sequence[float], share: float) -> float:
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * share))]


def main() -> None:
    """Print the rows, or be the flood."""
    parser = argparse.ArgumentParser(prog="python -m farpool.perf.fairness", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each row, alone and flooded each")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--processes", type=int, default=1, help="that flood")
    parser.add_argument("--floods", nargs="+", choices=FLOODS, default=list(FLOODS), help="all of them by default")
    parser.add_argument("--flood", nargs=2, metavar=("KIND", "URL"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.flood:
        os.nice(19)
        FLOODS[chosen.flood[0]](chosen.flood[1])
        return
    for row in measure(chosen.seconds, chosen.rounds, chosen.processes, chosen.floods):
        print(json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}))


if __name__ == "__main__":
    main()
