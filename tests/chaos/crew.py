"""The clients of a round as the run sees them: started, hit, watched and ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.chaos.board import Board, Word
from tests.chaos.findings import Broken, Finding
from tests.chaos.patience import WITHIN
from tests.chaos.plan import ROLES, Round

__all__ = ["Crew"]

ROOT = Path(__file__).resolve().parents[2]
LOOK_SECONDS = 0.002
DUMP_SECONDS = 0.5


@dataclass(slots=True)
class Told:
    """What the clients of one round have said."""

    found: list[Broken] = field(default_factory=list[Broken])
    older: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """A version that was read, and the newer one that had been seen or acknowledged before."""
    unknown: set[int] = field(default_factory=set[int])
    """Versions whose commit had no answer: they may come late."""
    done: dict[int, Mapping[str, Any]] = field(default_factory=dict[int, Mapping[str, Any]])


class Crew:
    """The clients. A ``with`` block ends them, and the process that forks them."""

    def __init__(self, folder: Path) -> None:
        self.board = Board(folder / "board")
        self.pids: dict[int, int] = {}
        """Clients that run, by their place in the crew."""
        self.told = Told()
        self._unread = b""
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.nursery", str(folder / "board")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.close()
        self._nursery.wait()
        self._nursery.stdout.close()

    def start(self, plan: Round, url: str, names: Mapping[str, Any]) -> None:
        """Start the whole crew, and wait until each has done something."""
        assert self._nursery.stdin is not None
        self.board.clear()
        self.told = Told()
        for slot, role in enumerate(ROLES):
            order = {
                "slot": slot,
                "role": role,
                "transport": plan.transports[slot],
                "url": url,
                "seed": plan.seed,
                "number": plan.number,
                "version_bytes": plan.version_bytes,
                "copy_bytes": plan.copy_bytes,
                **names,
            }
            self._nursery.stdin.write(json.dumps(order).encode() + b"\n")
        self._nursery.stdin.flush()
        everyone = range(len(ROLES))
        self.until(lambda: len(self.pids) == len(ROLES), "the clients start")
        self.until(lambda: all(self.board.get(slot, Word.ANSWERED) for slot in everyone), "every client works")

    # What they say ---------------------------------------------------------------------------------------------

    def listen(self, seconds: float = 0.0) -> None:
        """Take what clients have said; wait for it that long."""
        assert self._nursery.stdout is not None
        if not select.select([self._nursery.stdout], [], [], seconds)[0]:
            return
        piece = os.read(self._nursery.stdout.fileno(), 1 << 16)
        if not piece:
            raise Broken(Finding.ERROR, "the process that forks clients has ended")
        *lines, self._unread = (self._unread + piece).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))

    def _hear(self, said: dict[str, Any]) -> None:
        slot: int = said["slot"]
        match said["event"]:
            case "started":
                self.pids[slot] = said["pid"]
            case "ended":
                del self.pids[slot]
            case "found":
                self.told.found.append(Broken(Finding(said["kind"]), f"{ROLES[slot]} {slot}: {said['what']}"))
            case "older":
                self.told.older.append((said["version"], said["than"]))
            case "unknown":
                self.told.unknown.add(said["version"])
            case _:
                self.told.done[slot] = said

    def check(self) -> None:
        """Raise if a client has seen what must not be."""
        late = [(version, than) for version, than in self.told.older if version not in self.told.unknown]
        if late:
            raise Broken(Finding.OLD_READ, f"a version was read after a newer one was there: {late[:4]}")

    def until(self, true: Callable[[], bool], what: str, within: float = WITHIN) -> None:
        """Wait for *true*, and listen meanwhile."""
        deadline = time.monotonic() + within
        while not true():
            self.listen(LOOK_SECONDS)
            if self.told.found:
                raise self.told.found[0]
            if time.monotonic() > deadline:
                self._dump()
                raise Broken(Finding.STUCK, f"not within {within:g} s: {what}")

    def work_for(self, seconds: float) -> None:
        """Let that time pass."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.listen(left)

    def _dump(self) -> None:
        """Let the clients show on stderr where they are."""
        for pid in self.pids.values():
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGUSR1)
        time.sleep(DUMP_SECONDS)

    # What happens to them --------------------------------------------------------------------------------------

    def kill(self, slot: int) -> None:
        """Kill a client, and wait until it is gone."""
        os.kill(self.pids[slot], signal.SIGKILL)
        self.until(lambda: slot not in self.pids, "a killed client ends")

    def stop(self, slot: int) -> None:
        """Stop a client; it stands still when this returns."""
        status = Path(f"/proc/{self.pids[slot]}/stat")
        os.kill(self.pids[slot], signal.SIGSTOP)
        self.until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", "a client stops")

    def stop_busy(self, slot: int) -> None:
        """Stop a client in the middle of what it does."""
        while True:
            self.until(lambda: self.board.get(slot, Word.BUSY) == 1, "a client is busy")
            self.stop(slot)
            if self.board.get(slot, Word.BUSY):
                return
            self.go_on(slot)

    def go_on(self, slot: int) -> None:
        """Let a stopped client go on."""
        os.kill(self.pids[slot], signal.SIGCONT)

    def answered_since(self, slots: Iterable[int], moment: float, what: str) -> list[float]:
        """Wait until each of *slots* was answered after *moment*; return after how many seconds."""
        waiting, took = set(slots), list[float]()

        def all_were() -> bool:
            for slot in tuple(waiting):
                if (at := self.board.answered_at(slot)) > moment:
                    waiting.remove(slot)
                    took.append(at - moment)
            return not waiting

        self.until(all_were, what)
        return took

    def finish(self) -> None:
        """Let every client end in order, and judge what they have seen."""
        for pid in self.pids.values():
            os.kill(pid, signal.SIGTERM)
        left = set(self.pids)
        self.until(lambda: not self.pids, "the clients end")
        self.check()
        if not left <= set(self.told.done):
            raise Broken(Finding.ERROR, f"clients ended without a word: {sorted(left - set(self.told.done))}")
