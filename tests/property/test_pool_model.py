"""A pool against a plain model of it: whatever is done in whatever order, bytes, names and errors are the model's.

Two sessions, one over each API, share a server. It is killed and started again on the way, leases run out, and
sessions end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from tests.conformance.driving import AnySlab, AwaitedPool
from tests.property.pool_model import Handle, ModelPool, Pick, Session
from tests.property.profile import PROFILE

import farpool
from farpool.server.embedded import EmbeddedServer

CAPACITY = 64 << 20
LARGEST = 70_000
TOP = 1 << 64
WITHIN = 20.0
"""Seconds that an expiry may take to show."""

one_of_ten = st.integers(0, 9).map(lambda number: number == 9)
picks = st.tuples(st.integers(0, 999), one_of_ten)
sides = st.integers(0, 1)
"""Which of the two sessions."""
places = st.integers(0, 1000)
"""Where in a slab, in thousandths of its size: most accesses should be within."""
names = st.none() | st.sampled_from(["a", "b", "ç\N{SNOWMAN}"])
leases = st.sampled_from(["session", "persistent", 60.0])
modes = st.sampled_from(["r", "rw"])
sizes = st.integers(8, 200) | st.integers(4000, 4200) | st.just(LARGEST)
large = st.integers(4000, 40_000).map(lambda count: bytes([count % 251]) * count)
pieces = st.binary(max_size=64) | large


class PoolMachine(RuleBasedStateMachine):
    """The rules. ``server`` and ``transport`` are set by the test."""

    server: EmbeddedServer
    transport: str

    def __init__(self) -> None:
        super().__init__()
        self.model = ModelPool()
        self.count = 0
        self.restarts = self.expiries = 1  # what an example does at most: they take seconds
        self.endings = 3
        self.awaited: list[AwaitedPool] = []
        self.sessions = [self.connect(0), self.connect(1)]

    def connect(self, side: int) -> Session:
        self.count += 1
        if side == 0:
            plain = farpool.connect(self.server.url, transport=self.transport, timeout=30)
            return Session(plain, self.count)
        awaited = AwaitedPool(self.server.url, self.transport, 30)
        self.awaited.append(awaited)  # its event loop must outlive it, for handles that are used afterwards
        return Session(awaited, self.count)

    def attempt(self, errors: tuple[type[Exception], ...], call: Callable[[], object]) -> bool:
        """Make *call*; return whether it succeeded, as it must if there is no reason against."""
        if not errors:
            call()
            return True
        with pytest.raises(errors):
            call()
        return False

    # Slabs come and go --------------------------------------------------------------------------------------

    @rule(side=sides, nbytes=sizes, name=names, lease=leases)
    def allocate(self, side: int, nbytes: int, name: str | None, lease: str | float) -> None:
        session, made = self.sessions[side], list[AnySlab]()
        taken = (farpool.NameTaken,) if self.model.named(name) else ()
        if self.attempt(taken, lambda: made.append(session.pool.allocate(nbytes, name=name, lease=lease))):
            slab = made[0]
            assert (slab.nbytes, slab.name, slab.lease, slab.mode) == (nbytes, name, lease, "rw")
            assert slab.read(nbytes) == bytes(nbytes)
            self.model.add(slab, name, lease, session)

    @rule(side=sides, nbytes=st.sampled_from([CAPACITY + 1, 2**50]))
    def allocate_too_much(self, side: int, nbytes: int) -> None:
        with pytest.raises(farpool.PoolFull):
            self.sessions[side].pool.allocate(nbytes)

    @rule(pick=picks, side=sides, by_name=st.booleans(), mode=modes)
    def open(self, pick: Pick, side: int, by_name: bool, mode: str) -> None:
        handle = self.model.pick(pick)
        if handle is None:
            return
        session, model, made = self.sessions[side], handle.model, list[AnySlab]()
        key: str | int = model.id
        if by_name and model.name is not None:
            key = model.name
            model = self.model.named(model.name) or model
        missing = () if model.alive else (farpool.SlabNotFound,)
        if self.attempt(missing, lambda: made.append(session.pool.open(key, mode=mode))):
            slab = made[0]
            assert (slab.id, slab.name, slab.nbytes, slab.mode) == (model.id, model.name, len(model.memory), mode)
            self.model.hold(slab, model, session, writable=mode == "rw")

    @rule(pick=picks)
    def free(self, pick: Pick) -> None:
        handle = self.model.pick(pick)
        if handle is None:
            return
        errors: tuple[type[Exception], ...] = ()
        if handle.session not in {session.number for session in self.sessions}:
            errors = (farpool.InvalidArgument,)  # its pool is closed
        elif not handle.writable:
            errors = (farpool.ReadOnly,)
        elif not handle.model.alive:
            errors = (farpool.StaleSlab, farpool.SlabNotFound)
        if self.attempt(errors, handle.slab.free):
            handle.model.alive = False

    @rule(pick=picks)
    def close(self, pick: Pick) -> None:
        handle = self.model.pick(pick)
        if handle is not None:
            handle.slab.close()
            handle.open = False

    # Bytes --------------------------------------------------------------------------------------------------

    @rule(pick=picks, place=places, data=pieces, wild=one_of_ten)
    def write(self, pick: Pick, place: int, data: bytes, wild: bool) -> None:
        handle = self.model.pick(pick)
        if handle is None:
            return
        offset, nbytes = handle.range(place, len(data), wild)
        data = data[:nbytes]
        if self.attempt(handle.errors(offset, nbytes, writes=True), lambda: handle.slab.write(data, offset)):
            handle.model.memory[offset : offset + nbytes] = data

    @rule(pick=picks, place=places, nbytes=st.integers(0, LARGEST), wild=one_of_ten)
    def read(self, pick: Pick, place: int, nbytes: int, wild: bool) -> None:
        handle = self.model.pick(pick)
        if handle is None:
            return
        offset, nbytes = handle.range(place, nbytes, wild)
        buffer = bytearray(b"\xee" * nbytes)
        if self.attempt(handle.errors(offset, nbytes), lambda: handle.slab.read_into(buffer, offset)):
            assert buffer == handle.model.memory[offset : offset + nbytes]
        else:
            assert buffer == b"\xee" * nbytes

    @rule(pick=picks)
    def read_all(self, pick: Pick) -> None:
        handle, seen = self.model.pick(pick), list[bytes]()
        if handle is not None:
            nbytes = len(handle.model.memory)
            if self.attempt(handle.errors(), lambda: seen.append(handle.slab.read(nbytes))):
                assert seen == [handle.model.memory]

    @rule(pick=picks, parts=st.lists(st.tuples(places, pieces, one_of_ten), max_size=5))
    def write_many(self, pick: Pick, parts: list[tuple[int, bytes, bool]]) -> None:
        """Parts that overlap are left out: which of them stays is not promised."""
        handle = self.model.pick(pick)
        if handle is None:
            return
        apart: list[tuple[int, bytes]] = []
        for place, data, wild in parts:
            offset, nbytes = handle.range(place, len(data), wild)
            if all(offset + nbytes <= other or other + len(there) <= offset for other, there in apart):
                apart.append((offset, data[:nbytes]))
        errors = {*handle.errors(writes=True)}
        errors |= {error for offset, data in apart for error in handle.errors(offset, len(data), writes=True)}
        if self.attempt(tuple(errors), lambda: handle.slab.writev(apart)):
            for offset, data in apart:
                handle.model.memory[offset : offset + len(data)] = data

    @rule(pick=picks, parts=st.lists(st.tuples(places, st.integers(0, 5000), one_of_ten), max_size=5))
    def read_many(self, pick: Pick, parts: list[tuple[int, int, bool]]) -> None:
        handle = self.model.pick(pick)
        if handle is None:
            return
        ranges = [handle.range(*part) for part in parts]
        targets = [(offset, bytearray(b"\xee" * nbytes)) for offset, nbytes in ranges]
        errors = {*handle.errors(), *(error for part in ranges for error in handle.errors(*part))}
        if self.attempt(tuple(errors), lambda: handle.slab.readv(targets)):
            for offset, target in targets:
                assert target == handle.model.memory[offset : offset + len(target)]
        else:
            assert all(target.count(0xEE) == len(target) for _, target in targets)

    @rule(pick=picks, word=st.integers(0, 30), addend=st.integers(-(2**64), 2**65))
    def add(self, pick: Pick, word: int, addend: int) -> None:
        handle, seen = self.model.pick(pick), list[int]()
        if handle is not None:
            offset, old = self.word(handle, word)
            call = lambda: seen.append(handle.slab.fetch_add(offset, addend))  # noqa: E731
            if self.attempt(handle.errors(offset, 8, writes=True), call):
                assert seen == [old]
                handle.model.memory[offset : offset + 8] = ((old + addend) % TOP).to_bytes(8, "little")

    @rule(pick=picks, word=st.integers(0, 30), new=st.integers(0, TOP - 1), right=st.booleans())
    def swap(self, pick: Pick, word: int, new: int, right: bool) -> None:
        handle, seen = self.model.pick(pick), list[int]()
        if handle is not None:
            offset, old = self.word(handle, word)
            expected = old if right else (old + 1) % TOP
            call = lambda: seen.append(handle.slab.compare_swap(offset, expected, new))  # noqa: E731
            if self.attempt(handle.errors(offset, 8, writes=True), call):
                assert seen == [old]
                handle.model.memory[offset : offset + 8] = (new if right else old).to_bytes(8, "little")

    def word(self, handle: Handle, word: int) -> tuple[int, int]:
        return word * 8, int.from_bytes(handle.model.memory[word * 8 : word * 8 + 8], "little")

    # Time and trouble ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.restarts > 0)
    @rule()
    def restart(self) -> None:
        """Kill the server. Sessions resume, so that all slabs come back with their bytes."""
        self.restarts -= 1
        self.server.kill()
        self.server.start()

    @precondition(lambda self: self.expiries > 0)
    @rule(side=sides, mode=modes)
    def expire(self, side: int, mode: str) -> None:
        """Let a lease run out that nobody renews any more."""
        self.expiries -= 1
        session = self.sessions[side]
        with farpool.connect(self.server.url, transport=self.transport) as owner:
            slab = owner.allocate(4096, lease=0.3)
            slab.write(b"leased")
            twin = session.pool.open(slab.id, mode=mode)
        deadline = time.monotonic() + WITHIN
        while time.monotonic() < deadline:
            try:
                assert twin.read(6) == b"leased"
            except farpool.StaleSlab:
                break
            time.sleep(0.02)
        else:
            pytest.fail("the lease has not run out")
        handle = self.model.add(twin, None, 0.3, session)
        handle.writable, handle.model.alive = mode == "rw", False

    @precondition(lambda self: self.endings > 0)
    @rule(side=sides)
    def end_session(self, side: int) -> None:
        self.endings -= 1
        ended = self.sessions[side]
        ended.pool.close()
        self.model.end_session(ended.number)
        self.sessions[side] = self.connect(side)

    # What always holds --------------------------------------------------------------------------------------

    @invariant()
    def listing(self) -> None:
        for session in self.sessions:
            seen = {(info.id, info.name, info.nbytes) for info in session.pool.slabs() if info.state != "reclaiming"}
            assert seen == self.model.listing()

    def teardown(self) -> None:
        for slab in self.model.slabs:
            if slab.alive:
                self.sessions[0].pool.open(slab.id).free()
        self.sessions[0].pool.close()
        for awaited in self.awaited:
            awaited.end()
        with farpool.connect(self.server.url, transport=self.transport) as pool:
            stat = pool.stat()
            assert (stat.slabs, stat.allocated, stat.reclaiming) == (0, 0, 0)


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    with farpool.serve_embedded(capacity=CAPACITY) as served:
        yield served


@pytest.mark.parametrize("transport", ["cxl", "tcp"])
def test_pool_is_as_its_model(own_server: EmbeddedServer, transport: str) -> None:
    machine = type("Machine", (PoolMachine,), {"server": own_server, "transport": transport})
    # Not shrunk: a step may take a second. Add Phase.shrink to look into a failure.
    bounds = settings(PROFILE, max_examples=10, stateful_step_count=50, phases=[Phase.generate])
    run_state_machine_as_test(machine, settings=bounds)
