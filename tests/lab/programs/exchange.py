"""Exchange bytes between two guests by plain loads and stores on the memory device that they share.

Stores of 8 bytes, or fewer, alone are seen whole by the other guest, so the turn is one such word.
"""

from __future__ import annotations

import mmap
import os

MAPPED = 2 << 20
"""What a devdax device maps in multiples of."""
PATTERNS = {"A": bytes(range(256)) * 16, "B": bytes(range(255, -1, -1)) * 16}
AT = {"A": 4096, "B": 65536}

me = os.environ["LAB_NAME"]
peer = "B" if me == "A" else "A"
descriptor = os.open(os.environ["LAB_DAX"], os.O_RDWR)
memory = memoryview(mmap.mmap(descriptor, MAPPED, mmap.MAP_SHARED))
turn = memory[:8].cast("Q")


def put() -> None:
    memory[AT[me] : AT[me] + len(PATTERNS[me])] = PATTERNS[me]


def wait_for(value: int) -> None:
    while turn[0] != value:
        os.sched_yield()


def check() -> None:
    assert bytes(memory[AT[peer] : AT[peer] + len(PATTERNS[peer])]) == PATTERNS[peer]


if me == "A":
    put()
    turn[0] = 1
    wait_for(2)
    check()
else:
    wait_for(1)
    check()
    put()
    turn[0] = 2
print("exchanged")
