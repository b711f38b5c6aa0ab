"""The allocator of extents, against a plain set of the pages that are taken."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from farpool.protocol.errors import InvalidArgument
from farpool.server.extents import Extent, ExtentAllocator


class AllocatorMachine(RuleBasedStateMachine):
    """Takes, frees and recovers extents in any order."""

    @initialize(align=st.sampled_from([4096, 2 << 20, 3]), start=st.integers(0, 10_000), pages=st.integers(0, 40))
    def begin(self, align: int, start: int, pages: int) -> None:
        self.align = align
        self.start, self.end = start, start + pages * align + start % 7
        self.allocator = ExtentAllocator(self.start, self.end, align)
        self.taken: list[Extent] = []

    @rule(pages=st.integers(1, 12), less=st.integers(0, 2))
    def take(self, pages: int, less: int) -> None:
        longest = self.allocator.longest
        extent = self.allocator.take(pages * self.align - less)
        if extent is None:
            assert longest < pages * self.align
        else:
            assert extent.nbytes == pages * self.align
            self.taken.append(extent)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        extent = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.allocator.give_back(extent)
        with pytest.raises(InvalidArgument):
            self.allocator.give_back(extent)

    @rule()
    def recover(self) -> None:
        anew = ExtentAllocator(self.start, self.end, self.align)
        for extent in reversed(self.taken):
            anew.claim(extent)
            with pytest.raises(InvalidArgument):
                anew.claim(extent)
        assert anew.runs == self.allocator.runs
        self.allocator = anew

    @invariant()
    def every_byte_is_free_or_taken_once(self) -> None:
        allocator = self.allocator
        pieces = sorted([*allocator.runs, *self.taken])
        assert all(before.end <= after.offset for before, after in pairwise(pieces))
        assert sum(piece.nbytes for piece in pieces) == allocator.total
        assert allocator.free == allocator.total - sum(extent.nbytes for extent in self.taken)
        assert all(self.start <= piece.offset and piece.end <= self.end for piece in pieces)
        assert all(piece.offset % self.align == 0 == piece.nbytes % self.align for piece in pieces)

    @invariant()
    def free_neighbours_have_grown_together(self) -> None:
        runs = self.allocator.runs
        assert all(before.end < after.offset for before, after in pairwise(runs))


AllocatorMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAllocator = AllocatorMachine.TestCase


@given(st.lists(st.integers(1, 4), max_size=8), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_once_all_is_given_back_one_run_is_left(pages: list[int], random: object) -> None:
    allocator = ExtentAllocator(10, 50 * 10, 10)
    taken = [extent for count in pages if (extent := allocator.take(count * 10)) is not None]
    random.shuffle(taken)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    for extent in taken:
        allocator.give_back(extent)
    assert allocator.runs == (Extent(10, 490),)


def test_the_smallest_run_that_fits_is_cut() -> None:
    allocator = ExtentAllocator(0, 100, 10)
    first, second, third = (allocator.take(nbytes) for nbytes in (30, 10, 20))
    assert (first, second, third) == (Extent(0, 30), Extent(30, 10), Extent(40, 20))
    assert first is not None
    assert third is not None
    allocator.give_back(first)
    allocator.give_back(third)  # joins the rest: 60 bytes at 40
    assert allocator.take(1) == Extent(0, 10)
    assert allocator.longest == 60


@pytest.mark.parametrize("extent", [Extent(5, 10), Extent(10, 5), Extent(100, 10), Extent(0, 0), Extent(-10, 10)])
def test_what_was_never_an_extent_is_refused(extent: Extent) -> None:
    allocator = ExtentAllocator(0, 100, 10)
    with pytest.raises(InvalidArgument):
        allocator.claim(extent)
    with pytest.raises(InvalidArgument):
        allocator.give_back(extent)
