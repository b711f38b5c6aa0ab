"""What happens in a round, and how long it takes until all is well again."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from tests.chaos.board import Word
from tests.chaos.crew import Crew
from tests.chaos.findings import Broken, Finding
from tests.chaos.invariants import Place
from tests.chaos.plan import ROLES, Role, Round, Scenario

import farpool

__all__ = ["Times", "play"]

BYSTANDERS = 3
THEIRS = 1 << 60


@dataclass(slots=True)
class Times:
    """Seconds until memory came back, and until clients were served again, by what had happened."""

    reclaim: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    reattach: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


class Acts:
    """One round's acts, on its crew and its server."""

    def __init__(self, plan: Round, place: Place, crew: Crew, times: Times) -> None:
        self.plan = plan
        self.place = place
        self.crew = crew
        self.times = times
        self.victim = plan.victim
        self.others = [slot for slot in range(len(ROLES)) if slot != plan.victim]
        self.everyone = range(len(ROLES))

    def kill_client(self) -> None:
        if self.plan.scenario == Scenario.KILL_COPY:
            self.crew.until(lambda: self.crew.board.get(self.victim, Word.BUSY) == 1, "the victim copies")
        slab, begun = self.crew.board.get(self.victim, Word.SLAB), time.monotonic()
        self.crew.kill(self.victim)
        self.place.wait_for_end(self.crew, slab)
        self.times.reclaim["SIGKILL of the client"].append(time.monotonic() - begun)
        self.crew.answered_since(self.others, begun, "the other clients go on")

    def pause_client(self) -> None:
        self.crew.stop(self.victim)
        self.crew.work_for(self.plan.lasting)
        self._wake()

    def silence_owner(self) -> None:
        self.crew.stop_busy(self.victim)
        (other,) = [slot for slot in self.others if ROLES[slot] == Role.OWNER]
        held, begun = self.crew.board.get(other, Word.DONE), time.monotonic()
        self.crew.until(lambda: self.crew.board.get(other, Word.DONE) > held, "another has the slab for itself")
        self.times.reclaim["SIGSTOP of the owner"].append(time.monotonic() - begun)
        self._wake()

    def silence_copy(self) -> None:
        self.crew.stop_busy(self.victim)
        after = "SIGSTOP in a copy"
        if self.plan.scenario == Scenario.SILENCE_RESTART:
            after += ", SIGKILL of the server"
            self.place.server.kill()
            self.place.server.start()
        begun = time.monotonic()
        self.place.wait_for_end(self.crew, self.crew.board.get(self.victim, Word.SLAB), mapped=True)
        self.times.reclaim[after].append(time.monotonic() - begun)
        with self.place.bystander(self.plan.lane.transport) as pool:
            slabs = [pool.allocate(self.plan.copy_bytes) for _ in range(BYSTANDERS)]  # of the same memory, if any is
            for slab in slabs:
                self._must_hold(slab, 0)
                slab.write(np.full(slab.nbytes // 8, THEIRS, np.uint64))
            self._wake()
            for slab in slabs:
                self._must_hold(slab, THEIRS)

    def _must_hold(self, slab: farpool.Slab, word: int) -> None:
        words = np.frombuffer(slab.read(slab.nbytes), np.uint64)
        if not (words == word).all():
            found = f"{np.unique(words)[:4]} in memory that has another owner, who wrote {word}"
            raise Broken(Finding.STALE_WRITE, found)

    def _wake(self) -> None:
        begun = time.monotonic()
        self.crew.go_on(self.victim)
        self._again("SIGCONT of the client", begun)

    def _again(self, after: str, begun: float, slots: list[int] | None = None) -> None:
        waiting = [self.victim] if slots is None else slots
        took = self.crew.answered_since(waiting, begun, f"clients work again after {after}")
        self.times.reattach[after] += took
        self.crew.answered_since(self.crew.pids, begun, "all clients work")

    def kill_server(self) -> None:
        self.place.server.kill()
        self.place.server.start()
        self._again("SIGKILL of the server", time.monotonic(), [*self.everyone])

    def kill_both(self) -> None:
        slab = self.crew.board.get(self.victim, Word.SLAB)
        self.place.server.kill()
        self.crew.kill(self.victim)
        self.place.server.start()
        begun = time.monotonic()
        self._again("SIGKILL of the server", begun, self.others)
        self.place.wait_for_end(self.crew, slab)
        self.times.reclaim["SIGKILL of both"].append(time.monotonic() - begun)

    def pause_server(self) -> None:
        self.place.server.suspend()
        self.crew.work_for(2 * self.plan.lasting)
        self.place.server.resume()
        self._again("SIGCONT of the server", time.monotonic(), [*self.everyone])

    def take_over(self) -> None:
        self.place.server.take_over()
        self._again("a take-over", time.monotonic(), [*self.everyone])


ACTS: dict[Scenario, Callable[[Acts], None]] = {
    Scenario.KILL_CLIENT: Acts.kill_client,
    Scenario.KILL_COPY: Acts.kill_client,
    Scenario.PAUSE_CLIENT: Acts.pause_client,
    Scenario.SILENCE_OWNER: Acts.silence_owner,
    Scenario.SILENCE_COPY: Acts.silence_copy,
    Scenario.SILENCE_RESTART: Acts.silence_copy,
    Scenario.KILL_SERVER: Acts.kill_server,
    Scenario.KILL_BOTH: Acts.kill_both,
    Scenario.PAUSE_SERVER: Acts.pause_server,
    Scenario.TAKE_OVER: Acts.take_over,
}


def play(plan: Round, place: Place, crew: Crew, times: Times) -> None:
    """Play one round; raise ``Broken`` if anything does not hold."""
    names = place.make(plan)
    crew.start(plan, place.url, names)
    crew.work_for(plan.after)
    ACTS[plan.scenario](Acts(plan, place, crew, times))
    _must_go_on(crew)
    crew.finish()
    place.free(names)
    place.check_empty()


def _must_go_on(crew: Crew) -> None:
    """Wait until each owner and copier that is left comes to an end of what it does once more: nothing is locked."""
    for slot in [slot for slot in crew.pids if ROLES[slot] in (Role.OWNER, Role.COPIER)]:
        done = crew.board.get(slot, Word.DONE)

        def is_done(slot: int = slot, done: int = done) -> bool:
            return crew.board.get(slot, Word.DONE) > done

        crew.until(is_done, f"{ROLES[slot]} {slot} goes on")
