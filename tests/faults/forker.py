"""A client that forks while its threads transfer: ``python forker.py URL TRANSPORT FORKS``.

Each child must get ``ForkedSession`` from what it inherited, work over a session of its own and end; the parent's
transfers must not notice.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback

import farpool

NBYTES = 1 << 20


class Worker(threading.Thread):
    """Transfers over one of the parent's slabs until it is told to stop."""

    def __init__(self, pool: farpool.Pool, stop: threading.Event) -> None:
        super().__init__()
        self.slab = pool.allocate(NBYTES)
        self.turns = 0
        self.error: BaseException | None = None
        self._pool = pool
        self._stop_event = stop

    def run(self) -> None:
        try:
            while not self._stop_event.is_set():
                block = self.turns.to_bytes(4, "little") * (NBYTES // 4)
                self.slab.write(block)
                assert self.slab.read(NBYTES) == block, "these are not the bytes that were written"
                self._pool.allocate(64).free()
                self.turns += 1
        except BaseException as error:  # noqa: BLE001  the main thread raises it
            self.error = error


def live_in_the_child(url: str, transport: str, pool: farpool.Pool, slab: farpool.Slab) -> None:
    """Touch what was inherited, and connect anew."""
    for call in (pool.stat, lambda: pool.allocate(64), lambda: slab.read(8), lambda: slab.write(b"child"), slab.free):
        try:
            call()
        except farpool.ForkedSession:
            continue
        raise AssertionError("the child could use its parent's session")
    with farpool.connect(url, transport=transport) as own:
        fresh = own.allocate(NBYTES)
        fresh.write(b"c" * NBYTES)
        assert fresh.read(NBYTES) == b"c" * NBYTES
    pool.close()  # of the parent's session: must be nothing


def main(url: str, transport: str, forks: str) -> None:
    """Fork again and again."""
    stop = threading.Event()
    with farpool.connect(url, transport=transport) as pool:
        workers = [Worker(pool, stop) for _ in range(3)]
        for worker in workers:
            worker.start()
        for _ in range(int(forks)):
            child = os.fork()
            if child == 0:
                try:
                    live_in_the_child(url, transport, pool, workers[0].slab)
                except BaseException:  # noqa: BLE001  os._exit skips what would print it
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert status == 0, f"a child has ended with status {status}"
        stop.set()
        for worker in workers:
            worker.join()
            assert worker.error is None, worker.error
            assert worker.turns
            worker.slab.free()
        assert pool.stat().slabs == 0
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
