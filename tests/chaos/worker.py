"""The clients of a round: each does its role's turn again and again, whatever happens, until it is asked to end.

An error that the fault explains is survived. Bytes that nobody may see are told as a ``violation``.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.chaos.board import Board, Word
from tests.chaos.findings import Broken, Finding
from tests.chaos.patience import PACE, TIMEOUT
from tests.chaos.plan import Role

import farpool

__all__ = ["WORKERS", "Order", "Tell"]

LOST = (farpool.ServerLost, farpool.DeadlineExceeded, farpool.TransportUnavailable)
"""What a fault may do to a call."""

Order = Mapping[str, Any]
Tell = Callable[..., None]
Words = NDArray[np.uint64]


class Worker(ABC):
    """What all roles share: one session, the faults that it survives, and what the board is told."""

    def __init__(self, order: Order, board: Board, tell: Tell) -> None:
        self.order = order
        self.slot: int = order["slot"]
        self.board = board
        self.tell = tell
        self.chance = random.Random(f"{order['seed']} {order['number']} {self.slot}")
        self.stopping = False
        self.faults: Counter[str] = Counter()
        self.turns = 0
        self.pool: farpool.Pool

    def run(self) -> None:
        """Work until ``stopping``; close in order."""
        while not self.stopping:
            try:
                with self.connect() as self.pool:
                    self.work()
            except LOST as error:
                self.faults[type(error).__name__] += 1
                time.sleep(PACE)
        self.tell("done", turns=self.turns, faults=dict(self.faults))

    def connect(self) -> farpool.Pool:
        """Open a session."""
        return farpool.connect(self.order["url"], transport=self.order["transport"], timeout=TIMEOUT)

    def work(self) -> None:
        """Do turns in one pool."""
        session = 0
        while not self.stopping:
            try:
                if not session:
                    self.prepare()
                    session = self.pool.session_id
                self.turn()
            except farpool.SlabBusy as error:
                self.faults[type(error).__name__] += 1
                time.sleep(PACE)
            except farpool.StaleSlab as error:
                self.faults[type(error).__name__] += 1
                self.must_have_ended(session, error)
                session = 0
            except LOST as error:
                self.faults[type(error).__name__] += 1
                continue
            finally:
                self.board.put(self.slot, Word.BUSY, 0)
            self.turns += 1
            self.board.answer(self.slot)

    def prepare(self) -> None:
        """Take what the turns need, in a session that has nothing yet."""
        self.hold(self.pool.allocate(4096))

    def hold(self, slab: farpool.Slab) -> None:
        """Keep a slab of this session, that the run looks for."""
        self.own = slab
        self.board.put(self.slot, Word.SLAB, slab.id)

    @abstractmethod
    def turn(self) -> None:
        """Do something, and look at what there is to be seen."""

    def must_have_ended(self, session: int, error: farpool.StaleSlab) -> None:
        """Hold the server to its word: nobody ends our slabs while our session goes on."""
        if session and not error.details.get("begun"):
            self.pool.stat()  # a client that was stopped learns so that it has another session
            if self.pool.session_id == session:
                raise Broken(Finding.ERROR, f"stale although its session goes on: {error}") from error

    def only(self, words: Words, allowed: set[int], kind: Finding, what: str) -> None:
        """Look whether there is anything else among *words*."""
        if not (words == next(iter(allowed))).all():
            found = {int(word) for word in np.unique(words)}
            if not found <= allowed:
                raise Broken(kind, f"{what}: {sorted(found - allowed)[:4]} among {sorted(allowed)[-4:]}")


class Committer(Worker):
    """Commits version after version of two slabs together."""

    version = 0

    def prepare(self) -> None:
        super().prepare()
        self.slabs = [self.pool.open(name) for name in self.order["versions"]]

    def turn(self) -> None:
        self.version += 1
        block = np.full(self.order["version_bytes"] // 8, self.version, np.uint64)
        checksum, copy = self.chance.random() < 0.7, self.chance.random() < 0.2
        drafts: list[farpool.Draft] = []
        try:
            for slab in self.slabs:
                drafts.append(slab.reserve(copy=copy, checksum=checksum))
                drafts[-1].write(block)
            self.pool.commit(drafts)
        except (farpool.StaleSlab, *LOST):
            self.tell("unknown", version=self.version)
            raise
        finally:
            for draft in drafts:
                draft.close()
        self.board.acknowledged = self.version


class Reader(Worker):
    """Reads both slabs through read-only handles: whole versions, and none older than what was seen or acknowledged."""

    def prepare(self) -> None:
        super().prepare()
        self.slabs = [self.pool.open(name, mode="r") for name in self.order["versions"]]
        self.buffer = np.empty(self.order["version_bytes"] // 8, np.uint64)
        self.newest = getattr(self, "newest", 0)

    def turn(self) -> None:
        for slab in self.slabs:  # the second has what was seen in the first, at least
            must = max(self.newest, self.board.acknowledged)
            version = self.version_of(slab)
            if version < must:
                self.tell("older", version=version, than=must)
            self.newest = max(self.newest, version)

    def version_of(self, slab: farpool.Slab) -> int:
        """Read the slab, or a part of it, and return which version that is."""
        words = self.buffer
        if self.chance.random() < 0.3:
            first = self.chance.randrange(len(words))
            words = words[first : first + self.chance.randrange(1, 512)]
            assert slab.read_into(words, 8 * first) == words.nbytes
        elif self.chance.random() < 0.3:
            half = len(words) // 2
            assert slab.readv([(0, words[:half]), (8 * half, words[half:])]) == words.nbytes
        else:
            assert slab.read_into(words) == words.nbytes
        self.only(words, {int(words[0])}, Finding.TORN_READ, "a committed slab has two versions at once")
        return int(words[0])


class Stamper(Worker):
    """Fills slabs with numbers that nobody else uses, and looks whether there is anything else."""

    stamp = 0

    def fill(self, slab: farpool.Slab, buffer: Words, what: str) -> None:
        """Fill the slab, and read it twice; of our own writes those may still come whose outcome is unknown."""
        self.stamp = (self.stamp or (self.slot + 1) << 32) + 1
        buffer.fill(self.stamp)
        allowed = {self.stamp, *self.unknown}
        try:
            assert slab.write(buffer) == buffer.nbytes
        except LOST:
            self.unknown.append(self.stamp)
            raise
        for _ in range(2):
            assert slab.read_into(buffer) == buffer.nbytes
            self.only(buffer, allowed, Finding.STALE_WRITE, what)

    unknown: list[int]


class Owner(Stamper):
    """Takes a slab for itself alone, fills it and reads it: nobody else's bytes may be there."""

    def prepare(self) -> None:
        super().prepare()
        self.unknown = getattr(self, "unknown", [])

    def turn(self) -> None:
        with self.pool.open(self.order["owned"], exclusive=True) as slab:
            self.board.put(self.slot, Word.BUSY, 1)
            buffer = np.empty(slab.nbytes // 8, np.uint64)
            self.fill(slab, buffer, "another's bytes in a slab that is ours alone")
            self.board.put(self.slot, Word.BUSY, 0)
        self.board.put(self.slot, Word.DONE, self.board.get(self.slot, Word.DONE) + 1)


class Copier(Stamper):
    """Copies to a large slab and back: zeroes at first, and then nothing but what it wrote."""

    def prepare(self) -> None:
        slab = self.pool.allocate(self.order["copy_bytes"])
        self.hold(slab)
        self.unknown = []
        self.buffer = np.empty(slab.nbytes // 8, np.uint64)
        assert slab.read_into(self.buffer) == slab.nbytes
        self.only(self.buffer, {0}, Finding.STALE_WRITE, "another's bytes in a new slab")

    def turn(self) -> None:
        self.board.put(self.slot, Word.BUSY, 1)
        self.fill(self.own, self.buffer, "another's bytes in a slab of our session")
        self.board.put(self.slot, Word.DONE, self.board.get(self.slot, Word.DONE) + 1)


WORKERS: dict[Role, type[Worker]] = {
    Role.COMMITTER: Committer,
    Role.READER: Reader,
    Role.OWNER: Owner,
    Role.COPIER: Copier,
}
