"""A region whose attempts are made in Python keeps the rules of ``RemoteRegion``."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import pytest

import farpool
from farpool.native.delegating_region import DONE, GONE, OVERDUE, REFUSED, DelegatingRegion

Part = tuple[int, memoryview, object]
Call = tuple[str, int, int, int, list[tuple[int, int]]]


class Recorded(DelegatingRegion):
    """Keeps its bytes in a list, and ends each attempt as it is told; done when it is told nothing."""

    def __init__(self, *, writable: bool = True, atomics: bool = True) -> None:
        super().__init__(
            {"key": 1},
            generation=3,
            nbytes=64,
            writable=writable,
            atomics=atomics,
            domain="rdma",
            label="test",
            timeout=10.0,
            most_parts=2,
            renew=self.attach_again,
        )
        self.bytes = bytearray(64)
        self.ends: list[int | Exception] = []
        self.calls: list[Call] = []
        self.lent: list[memoryview] = []

    def attach_again(self, seconds: float) -> Mapping[str, Any]:
        assert 0 < seconds <= 10.0
        return {"key": self.params["key"] + 1}

    def execute(
        self, code: str, offset: int, length: int, operand: int, parts: list[Part], deadline: float
    ) -> tuple[int, int]:
        self.calls.append((code, offset, length, operand, [(start, view.nbytes) for start, view, _ in parts]))
        self.lent += [view for _, view, _ in parts]
        end = self.ends.pop(0) if self.ends else DONE
        if isinstance(end, Exception):
            raise end
        for start, view, _ in parts if end == DONE else ():
            if code == "read":
                view[:] = self.bytes[start : start + view.nbytes]
            else:
                self.bytes[start : start + view.nbytes] = view
        return end, 7


def test_buffers_are_lent_for_one_attempt() -> None:
    region = Recorded()
    assert region.write(b"hello", 3) == 5
    assert region.read(5, 3) == b"hello"
    target = bytearray(5)
    assert region.readv([(3, target), (0, bytearray(0))]) == 5
    assert target == b"hello"
    assert [call[0] for call in region.calls] == ["write", "read", "read"]
    for view in region.lent:
        with pytest.raises(ValueError, match="released"):
            view.tobytes()


def test_a_batch_is_cut_to_what_one_operation_takes() -> None:
    region = Recorded()
    assert region.writev([(0, b"a"), (8, b"bc"), (16, b"def")]) == 6
    assert region.calls == [("write", 0, 3, 0, [(0, 1), (8, 2)]), ("write", 16, 3, 0, [(16, 3)])]


def test_parts_of_one_size_are_cut_to_that_as_well() -> None:
    region = Recorded()
    assert region.scatter(array("q", [16, 0, 8]), 2, b"aabbcc") == 6
    assert region.calls == [("write", 16, 4, 0, [(16, 2), (0, 2)]), ("write", 8, 2, 0, [(8, 2)])]
    target = bytearray(6)
    assert region.gather(array("q", [0, 8, 15]), 2, target) == 6
    assert target == b"bbcc\0a"


def test_words() -> None:
    region = Recorded()
    region.store(8, 2**64 - 1)
    assert region.load(8) == region.fetch_add(8, -1) == region.compare_swap(16, 5, 6) == 7
    assert region.calls == [
        ("store", 8, 0, 2**64 - 1, []),
        ("load", 8, 0, 0, []),
        ("fetch_add", 8, 0, 2**64 - 1, []),
        ("compare_swap", 16, 5, 6, []),
    ]


def test_what_cannot_be_right_is_not_attempted() -> None:
    region = Recorded(writable=False, atomics=False)
    with pytest.raises(farpool.OutOfBounds):
        region.read(1, 64)
    with pytest.raises(farpool.ReadOnly):
        region.write(b"x")
    with pytest.raises(farpool.WrongAtomicDomain):
        Recorded(atomics=False).fetch_add(0, 1)
    region.close()
    with pytest.raises(farpool.StaleSlab):
        region.read(1)
    assert not region.calls


@pytest.mark.parametrize("end", [GONE, REFUSED, farpool.ServerLost("no connection")])
def test_a_read_is_tried_again_with_what_was_published_anew(end: int | Exception) -> None:
    region = Recorded()
    region.ends = [end]
    assert region.read(4) == bytes(4)
    assert region.params == {"key": 2}
    assert len(region.calls) == 2


def test_a_write_is_tried_again_only_if_nothing_was_sent() -> None:
    region = Recorded()
    region.ends = [GONE]
    with pytest.raises(farpool.ServerLost, match="unknown"):
        region.write(b"x")
    region.ends = [farpool.ServerLost("no connection"), REFUSED]
    with pytest.raises(farpool.StaleSlab):
        region.write(b"x")
    region.ends = [REFUSED]
    assert region.write(b"x") == 1


def test_a_late_one_says_so() -> None:
    region = Recorded()
    region.ends = [OVERDUE]
    with pytest.raises(farpool.DeadlineExceeded):
        region.fetch_add(0, 1)


def test_other_errors_reach_the_caller_and_end_the_loan() -> None:
    region = Recorded()
    region.ends = [KeyError("a bug")]
    with pytest.raises(KeyError):
        region.read(4)
    with pytest.raises(ValueError, match="released"):
        region.lent[0].tobytes()
