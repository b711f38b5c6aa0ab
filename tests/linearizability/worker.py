"""Change words, and write down each call and each return.

``python worker.py URL TRANSPORT SLAB HISTORY SEED OPERATIONS WORDS``

It says ``ready``, begins when it is told to, and ends when it has done its operations.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

import farpool

KINDS = ("load", "store", "fetch_add", "compare_swap")


def drawn(chance: random.Random, seen: int) -> tuple[str, list[int]]:
    """Draw an operation; new values are unlike all others."""
    kind = chance.choice(KINDS)
    new = chance.getrandbits(64)
    operands = {
        "load": [],
        "store": [new],
        "fetch_add": [chance.randrange(1, 1000)],
        "compare_swap": [seen if chance.random() < 0.8 else new, new ^ 1],
    }
    return kind, operands[kind]


def main(url: str, transport: str, name: str, history: str, seed: int, operations: int, words: int) -> None:
    """Write a line before each call and one after it; a call that raises gets none, its outcome is unknown."""
    chance = random.Random(seed)
    seen = dict.fromkeys(range(words), 0)
    log = os.open(history, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(*line: Any) -> None:
        os.write(log, json.dumps([time.monotonic_ns(), *line]).encode() + b"\n")

    with farpool.connect(url, transport=transport, timeout=30) as pool:
        slab = pool.open(name)
        slab.load(0)
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(operations):
            word = chance.randrange(words)
            kind, operands = drawn(chance, seen[word])
            note(number, 8 * word, kind, operands)
            try:
                result = getattr(slab, kind)(8 * word, *operands)
            except (farpool.ServerLost, farpool.DeadlineExceeded):
                continue
            note(number, result)
            if result is not None:
                seen[word] = result


if __name__ == "__main__":
    address, way, slab_name, file = sys.argv[1:5]
    main(address, way, slab_name, file, *map(int, sys.argv[5:]))
