"""The tcp data port under requests that are wrong somewhere, answer by answer beside a model in plain Python."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.conftest import DATA_NAMES, NBYTES, DataStranger, Target, bounded

from farpool.native.tcp_wire import MAGIC, MAX_PARTS, OPERATIONS, pack_request

FIRST = bytes(range(256)) * (NBYTES // 256)
CHANGING = {"write", "writev", "store", "fetch_add", "compare_swap"}

Part = tuple[int, int]


@dataclass
class Ask:
    """One request, with all that stands behind its header."""

    operation: int
    handle: str
    generation: str
    offset: int
    length: int
    operand: int
    parts: list[Part] = field(default_factory=list[Part])
    payload: bytes = b""
    magic: int = MAGIC

    @property
    def name(self) -> str:
        return DATA_NAMES.get(self.operation, "unknown")

    def encode(self, stranger: DataStranger, foreign: int) -> bytes:
        """Return header, parts and payload."""
        handles = {"own": stranger.handle, "a neighbour's": foreign, "none": 2**32 - 1, "next": stranger.handle + 1}
        generations = {"own": stranger.generation, "none": 0, "old": stranger.generation - 1, "last": 2**64 - 1}
        header = pack_request(
            self.operation,
            handle=handles[self.handle],
            generation=generations[self.generation],
            offset=self.offset,
            length=self.length,
            operand=self.operand,
            magic=self.magic,
        )
        return header + b"".join(struct.pack("<QQ", *part) for part in self.parts) + self.payload


def inside(offset: int, length: int) -> bool:
    """Tell whether the range is one of the slab's."""
    return offset + length <= NBYTES


class Model:
    """The slab's bytes, and the answers of a server that keeps every rule."""

    def __init__(self, *, writable: bool) -> None:
        self.content = bytearray(FIRST)
        self.answers: list[tuple[str, bytes]] = []
        self.dropped = False
        """Garbage came, which ends the connection at once: answers that were not out yet are lost."""
        self._writable = writable

    def take(self, ask: Ask) -> bool:
        """Do one request; return False if nothing behind it is understood any more."""
        too_many = ask.name in ("readv", "writev") and ask.operand > MAX_PARTS
        if ask.magic != MAGIC or ask.name in ("unknown", "hello") or too_many:
            self.dropped = True
            return False
        status = self.judge(ask)
        whole = ask.name not in ("write", "writev") or len(ask.payload) == ask.length
        if whole:
            self.answers.append((status, self.do(ask) if status == "ok" else b""))
        elif status == "ok":
            self.move(ask)
        return whole

    def judge(self, ask: Ask) -> str:
        """Return the status that the request deserves."""
        if (ask.handle, ask.generation) != ("own", "own"):
            return "stale"
        if ask.name in CHANGING and not self._writable:
            return "read only"
        if ask.name in ("readv", "writev"):
            if not all(inside(*part) for part in ask.parts):
                return "out of bounds"
            return "ok" if sum(length for _, length in ask.parts) == ask.length else "invalid"
        if ask.name in ("read", "write"):
            return "ok" if inside(ask.offset, ask.length) else "out of bounds"
        if not inside(ask.offset, 8):
            return "out of bounds"
        return "invalid" if ask.offset % 8 else "ok"

    def do(self, ask: Ask) -> bytes:
        """Change the bytes, and return those of the answer."""
        if ask.name in ("write", "writev"):
            self.move(ask)
            return b""
        if ask.name in ("read", "readv"):
            parts = ask.parts if ask.name == "readv" else [(ask.offset, ask.length)]
            return b"".join(self.content[offset : offset + length] for offset, length in parts)
        old = int.from_bytes(self.content[ask.offset : ask.offset + 8], "little")
        new = {
            "load": old,
            "store": ask.operand,
            "fetch_add": (old + ask.operand) % 2**64,
            "compare_swap": ask.operand if old == ask.length else old,
        }[ask.name]
        self.content[ask.offset : ask.offset + 8] = new.to_bytes(8, "little")
        return b"" if ask.name == "store" else old.to_bytes(8, "little")

    def move(self, ask: Ask) -> None:
        """Take the payload, or as much of it as came."""
        left = ask.payload
        for offset, length in ask.parts if ask.name == "writev" else [(ask.offset, ask.length)]:
            here, left = left[:length], left[length:]
            self.content[offset : offset + len(here)] = here


EDGES = [0, 1, 7, 8, 63, 64, 4095, 4096, NBYTES - 8, NBYTES - 1, NBYTES, NBYTES + 1]
FAR = [2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 8, 2**63 - 1, 2**63, 2**64 - NBYTES, 2**64 - 8, 2**64 - 1]
NUMBERS = st.one_of(st.sampled_from(EDGES), st.sampled_from(EDGES), st.sampled_from(FAR), st.integers(0, 2**64 - 1))
MOSTLY_OWN = ["own"] * 12


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    """Draw a request that is wrong in few places, if any."""
    operation = draw(st.sampled_from([*OPERATIONS.values(), *list(OPERATIONS.values())[1:] * 3, 0, 10, 128, 255]))
    ask = Ask(
        operation=operation,
        handle=draw(st.sampled_from([*MOSTLY_OWN, "a neighbour's", "none", "next"])),
        generation=draw(st.sampled_from([*MOSTLY_OWN, "none", "old", "last"])),
        offset=draw(NUMBERS),
        length=draw(NUMBERS),
        operand=draw(NUMBERS),
        magic=draw(st.sampled_from([MAGIC] * 30 + [0, MAGIC ^ 1, 0x5448])),
    )
    if ask.name in ("readv", "writev"):
        numbers = draw(st.sampled_from([st.sampled_from(EDGES), st.sampled_from(EDGES[:8]), NUMBERS]))
        ask.parts = draw(st.lists(st.tuples(numbers, numbers), max_size=8))
        ask.operand = draw(st.sampled_from([len(ask.parts)] * 10 + [MAX_PARTS + 1, 2**60 + len(ask.parts), 2**64 - 1]))
        total = sum(length for _, length in ask.parts) % 2**64
        ask.length = draw(st.sampled_from([total] * 6 + [0, total + 1 if total < 2**64 - 1 else 0, 2**64 - 1]))
    if ask.name in ("write", "writev"):
        limit = min(ask.length, 3 * NBYTES)
        cut = draw(st.sampled_from([limit] * 8 + [0, limit // 2, max(0, limit - 1)]))
        ask.payload = bytes([draw(st.integers(0, 255))]) * cut
    return ask


@bounded(300)
@given(stream=st.lists(asks(), max_size=12), cuts=st.lists(st.integers(0, 4000), max_size=4), reads_only=st.booleans())
def test_every_answer_is_that_of_the_model(
    target: Target, owner: DataStranger, reader: DataStranger, stream: list[Ask], cuts: list[int], reads_only: bool
) -> None:
    stranger = reader if reads_only else owner
    foreign: int = target.neighbours[1].slab.attachment.ticket.params["handle"]
    owner.slab.write(FIRST)
    model = Model(writable=not reads_only)
    sent = b""
    for ask in stream:
        sent += ask.encode(stranger, foreign)
        if not model.take(ask):
            break
    edges = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
    answers = stranger.talk(*[sent[start:end] for start, end in pairwise(edges)])
    assert answers == model.answers[: len(answers)]
    assert len(answers) == len(model.answers) or model.dropped, "answers are missing"
    assert owner.slab.read(NBYTES) == model.content
    target.check()
