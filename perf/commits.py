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
from farpool.perf.rounds import Contender, Speed, alternate, in_python
from farpool.perf.rows import BULK_NBYTES, Row

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
        for nbytes in READS:
            ours, limit = alternate(_reads(verified, nbytes), _reads(plain, nbytes), seconds)
            assert limit is not None
            yield _read_row(transport, nbytes, ours, limit)
        for nbytes in COMMITS:
            speed, _ = alternate(_commits(pool, nbytes), None, seconds)
            yield Row(
                transport=transport,
                op="reserve+write+commit",
                nbytes=nbytes,
                batch=1,
                clients=1,
                p50_us=speed.p50_us,
                p99_us=speed.p99_us,
                ops_s=speed.calls_s,
                gb_s=speed.calls_s * nbytes / 1e9,
            )


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


def _read_row(transport: str, nbytes: int, ours: Speed, limit: Speed) -> Row:
    bulk = nbytes >= BULK_NBYTES
    return Row(
        transport=transport,
        op="verified read_into",
        nbytes=nbytes,
        batch=1,
        clients=1,
        p50_us=ours.p50_us,
        p99_us=ours.p99_us,
        ops_s=ours.calls_s,
        gb_s=ours.calls_s * nbytes / 1e9,
        limit=limit.calls_s * nbytes / 1e9 if bulk else limit.p50_us,
        ratio=ours.calls_s / limit.calls_s if bulk else limit.p50_us / ours.p50_us,
        limit_name="the same read, not verified",
        limit_unit="GB/s" if bulk else "us",
    )


def main(arguments: Sequence[str]) -> None:
    """Measure the pool at the address in *arguments*, or one that lives as long as this does."""
    with ExitStack() as undo:
        url = arguments[0] if arguments else undo.enter_context(farpool.serve_embedded(transports=("cxl", "tcp"))).url
        for transport in ("cxl", "tcp"):
            for row in run(url, transport):
                print(json.dumps(row.as_record()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
