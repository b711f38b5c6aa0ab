"""Histories of one 8-byte word, and the question whether one is linearizable.

The search is that of Wing and Gong with Lowe's memory of configurations: what is done, and the word's value.
An operation whose outcome is unknown (its process was killed, or it raised) may have taken effect at any time after it
was called, or never.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Operation", "is_linearizable", "read_histories"]

TOP = 2**64
NEVER = 2**63
"""When an operation of unknown outcome returned."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; times in ns of the host's monotonic clock, and what it returned, None for a store."""

    kind: str
    operands: tuple[int, ...]
    called: int
    returned: int = NEVER
    result: int | None = None

    @property
    def known(self) -> bool:
        """Tell whether it returned."""
        return self.returned != NEVER

    def fits(self, value: int) -> bool:
        """Tell whether it can have returned what it did while the word had that value."""
        return not self.known or self.kind == "store" or self.result == value

    def apply(self, value: int) -> int:
        """Return the value that the word has afterwards."""
        match self.kind, self.operands:
            case "store", (new,):
                return new
            case "fetch_add", (delta,):
                return (value + delta) % TOP
            case "compare_swap", (expected, new):
                return new if value == expected else value
            case _:
                return value


def is_linearizable(history: Sequence[Operation], first: int = 0) -> bool:
    """Tell whether the operations can have taken effect one after the other, each between its call and its return."""
    done_by = sorted(history, key=lambda operation: operation.called)
    wanted = sum(1 << number for number, operation in enumerate(done_by) if operation.known)
    seen: set[tuple[int, int]] = set()
    waiting = [(0, first)]
    while waiting:
        done, value = waiting.pop()
        if done & wanted == wanted:
            return True
        if (done, value) in seen:
            continue
        seen.add((done, value))
        following: list[tuple[int, int]] = []
        for number in candidates(done_by, done):
            operation = done_by[number]
            if not operation.fits(value):
                continue
            after = operation.apply(value)
            if after == value and operation.known:
                following = [(done | 1 << number, value)]  # what changes nothing may as well be the next
                break
            if after != value:
                following.append((done | 1 << number, after))
        waiting += following
    return False


def candidates(history: Sequence[Operation], done: int) -> Iterator[int]:
    """Yield the operations that may be the next: called before any other that is not done has returned."""
    first_return = NEVER
    start = (~done & (done + 1)).bit_length() - 1  # all before it are done
    for number in range(start, len(history)):
        if history[number].called > first_return:
            break
        if not done >> number & 1:
            first_return = min(first_return, history[number].returned)
    for number in range(start, len(history)):
        if history[number].called > first_return:
            break
        if not done >> number & 1:
            yield number


def read_histories(paths: Sequence[Path]) -> dict[int, list[Operation]]:
    """Return the history of each word, by its offset, from the files that workers have written.

    Lines are ``[time, number, offset, kind, operands]`` of a call, and ``[time, number, result]`` of its return. The
    last line of a killed worker may be cut off: the call was not made then, or its outcome is unknown.
    """
    histories: dict[int, list[Operation]] = defaultdict(list)
    for path in paths:
        calls: dict[int, tuple[int, Operation]] = {}
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                break
            time, number, *rest = json.loads(line)
            if len(rest) == 3:
                offset, kind, operands = rest
                calls[number] = offset, Operation(kind, tuple(operands), time)
            else:
                offset, call = calls.pop(number)
                histories[offset].append(Operation(call.kind, call.operands, call.called, time, rest[0]))
        for offset, call in calls.values():
            histories[offset].append(call)
    return histories
