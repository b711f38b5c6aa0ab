"""One process of ``farpool demo``: attaches the slab over one transport and does what its stdin says.

``python -m farpool.cli.demo_worker URL TRANSPORT SLAB_ID`` reads one JSON object a line, ``{"do": ...}``, and
answers each with one line on stdout. It ends with its stdin, so that nothing stays when the demo is killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

import farpool

if TYPE_CHECKING:
    from farpool.client.slab import Slab

__all__ = ["serve_commands"]

Answer = dict[str, Any]


def _pattern(seed: int, nbytes: int) -> bytes:
    return np.random.default_rng(seed).bytes(nbytes)


def _write(slab: Slab, command: Mapping[str, Any]) -> Answer:
    """Write the pattern again and again for some seconds."""
    data = _pattern(command["seed"], command["nbytes"])
    moved, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < command["seconds"]:
        moved += slab.write(data, command["offset"])
    return {"nbytes": moved, "seconds": elapsed}


def _verify(slab: Slab, command: Mapping[str, Any]) -> Answer:
    """Read what another process has written and compare every byte."""
    expected = _pattern(command["seed"], command["nbytes"])
    buffer = bytearray(command["nbytes"])
    started = time.perf_counter()
    slab.read_into(buffer, command["offset"])
    return {
        "nbytes": len(buffer),
        "seconds": time.perf_counter() - started,
        "equal": bytes(buffer) == expected,
    }


def _count(slab: Slab, command: Mapping[str, Any]) -> Answer:
    """Add one to a word many times."""
    started = time.perf_counter()
    for _ in range(command["times"]):
        slab.fetch_add(command["offset"], 1)
    return {"times": command["times"], "seconds": time.perf_counter() - started}


_COMMANDS: dict[str, Callable[[Slab, Mapping[str, Any]], Answer]] = {
    "write": _write,
    "verify": _verify,
    "count": _count,
}


def serve_commands(url: str, transport: str, slab_id: int, lines: Iterable[str]) -> None:
    """Attach the slab, say so, and answer each of *lines*."""
    with farpool.connect(url, transport=transport) as pool, pool.open(slab_id) as slab:
        _answer({"pid": os.getpid(), "transport": slab.transport})
        for line in lines:
            command = json.loads(line)
            _answer(_COMMANDS[command["do"]](slab, command))


def _answer(answer: Answer) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    try:
        serve_commands(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.stdin)
    except farpool.FarpoolError as problem:
        _answer({"error": problem.message})
