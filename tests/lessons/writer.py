"""Write half of a new version, wait to be told, and go on: ``python writer.py URL TRANSPORT NAME LEASE``."""

from __future__ import annotations

import sys

import farpool

NBYTES = 256 << 10
HALF = b"\x22" * (NBYTES // 2)


def main(url: str, transport: str, name: str, lease: str) -> None:
    """Say how far it came; the outcome of the commit is the name of its error."""
    with farpool.connect(url, transport=transport, timeout=20) as pool:
        try:
            slab = pool.open(name)
        except farpool.SlabNotFound:
            slab = pool.allocate(NBYTES, name=name, lease=lease if lease == "session" else float(lease))
        draft = slab.reserve()
        draft.write(HALF)
        print("half written", flush=True)
        sys.stdin.readline()
        try:
            draft.write(HALF, len(HALF))
            draft.commit()
        except farpool.FarpoolError as error:
            print(type(error).__name__, flush=True)
        else:
            print("committed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
