"""Forks the clients: ``python -m tests.chaos.nursery BOARD``.

Python and what a client imports are loaded once. Each line of stdin is the order for a client; what clients tell, and
that they have started and ended, goes to stdout as lines of JSON. When stdin ends, all clients are killed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.chaos.board import Board
from tests.chaos.findings import Broken, Finding
from tests.chaos.plan import Role
from tests.chaos.worker import WORKERS, Order

from farpool.transports.registry import find_transport, transport_names

__all__ = ["main"]


def tell(slot: int, event: str, **facts: Any) -> None:
    """Write a line, in one piece: all clients share the pipe."""
    os.write(1, json.dumps({"slot": slot, "event": event, **facts}).encode() + b"\n")


class Nursery:
    """The clients that run, by process."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._slots: dict[int, int] = {}

    def start(self, order: Order) -> None:
        """Fork a client."""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # it may end before we know it
        pid = os.fork()
        if pid == 0:
            os._exit(self._live(order))
        self._slots[pid] = order["slot"]
        tell(order["slot"], "started", pid=pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])

    def _live(self, order: Order) -> int:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        slot: int = order["slot"]
        try:
            worker = WORKERS[Role(order["role"])](
                order, self._board, lambda *event, **facts: tell(slot, *event, **facts)
            )

            def stop(*_: object) -> None:
                worker.stopping = True

            signal.signal(signal.SIGTERM, stop)
            worker.run()
        except Broken as seen:
            tell(slot, "found", kind=seen.kind, what=str(seen))
        except BaseException:  # noqa: BLE001  whatever else it is, it is told
            tell(slot, "found", kind=Finding.ERROR, what=traceback.format_exc()[-3000:])
        return 0

    def reap(self, *_: object) -> None:
        """Tell which clients have ended."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                tell(self._slots.pop(ended[0]), "ended", pid=ended[0], code=os.waitstatus_to_exitcode(ended[1]))

    def end(self) -> None:
        """Kill who is left."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for pid in self._slots:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def load_clients() -> None:
    """Import what a client would, so that each finds it here."""
    for name in transport_names():
        find_transport(name)
        import_module(f"farpool.transports.{name}.client")
    for name in ("client.draft", "client.pool", "client.verified", "transports.cxl.device_client"):
        import_module(f"farpool.{name}")


def main(board: str) -> None:
    """Start a client for each line."""
    load_clients()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    nursery = Nursery(Board(Path(board)))
    signal.signal(signal.SIGCHLD, nursery.reap)
    try:
        for line in sys.stdin:
            nursery.start(json.loads(line))
    finally:
        nursery.end()


if __name__ == "__main__":
    main(sys.argv[1])
