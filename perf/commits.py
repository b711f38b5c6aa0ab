"""What commits cost: each verified read beside the same read of a slab that is not verified, and the commit itself.

``python -m farpool.perf.commits [URL]`` prints one JSON object a line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from typing import Final

import farpool
from farpool import Pool, Slab
from farpool.perf.emulation import is_emulated
from farpool.perf.limit_contenders import Limit
from farpool.perf.measurement import measure
from farpool.perf.rounds import Contender, in_python
from farpool.perf.rows import Row
from farpool.perf.workloads import Workload

__all__ = ["main", "run"]

SLAB_NBYTES: Final = 32 << 20
READS: Final = (64, 4 << 10, 64 << 10, 1 << 20, 8 << 20)
COMMITS: Final = (4 << 10, 1 << 20, 16 << 20)


def run(url: str, transport: str, seconds: float = 0.25) -> Generator[Row]:
    """Measure over one transport; yield each row as it is done."""
    with farpool.connect(url, transport=transport) as pool, ExitStack() as undo:
        plain, verified = pool.allocate(SLAB_NBYTES), pool.allocate(SLAB_NBYTES)
        undo.callback(plain.free)
        undo.callback(verified.free)
        with verified.reserve() as draft:
            draft.write(bytes(SLAB_NBYTES))
            draft.commit()
        emulated = is_emulated(transport, pool.stat().arena)
        for nbytes in READS:
            limit = Limit(_reads(plain, nbytes), "the same read, not verified")
            workload = Workload("verified read_into", nbytes, _reads(verified, nbytes), limit)
            yield measure(workload, seconds, transport=transport, emulated=emulated)
        for nbytes in COMMITS:
            workload = Workload("reserve+write+commit", nbytes, _commits(pool, nbytes), Limit(None, ""))
            yield measure(workload, seconds, transport=transport, emulated=emulated)


def _reads(slab: Slab, nbytes: int) -> Contender:
    buffer = bytearray(nbytes)

    def read(offsets: Sequence[int]) -> None:
        for offset in offsets:
            slab.read_into(buffer, offset)

    return in_python(read, list(range(0, SLAB_NBYTES, max(nbytes, 64 << 10)))[:256])


def _commits(pool: Pool, nbytes: int) -> Contender:
    slab, data = pool.allocate(nbytes), bytes(nbytes)

    def commit(rounds: Sequence[int]) -> None:
        for _ in rounds:
            with slab.reserve() as draft:
                draft.write(data)
                draft.commit()

    return in_python(commit, list(range(16)))


def main(arguments: Sequence[str]) -> None:
    """Measure the pool at the address in *arguments*, or one that lives as long as this does."""
    with ExitStack() as undo:
        url = arguments[0] if arguments else undo.enter_context(farpool.serve_embedded(transports=("cxl", "tcp"))).url
        for transport in ("cxl", "tcp"):
            for row in run(url, transport):
                print(json.dumps(row.as_record()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
