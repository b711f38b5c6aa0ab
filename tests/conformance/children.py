"""What child processes of the suite do: ``python children.py TASK URL TRANSPORT ARGUMENT...``

Each connects for itself, prints ``ready`` or ``done`` and what its test wants to know, and exits with 0.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial

import farpool

MIB = 1 << 20


def count(pool: farpool.Pool, name: str, rounds: str) -> None:
    """Add to word 8, swap word 16 upwards, and subtract from word 24."""
    slab = pool.open(name)
    for _ in range(int(rounds)):
        slab.fetch_add(8, 1)
        seen = slab.load(16)
        while (now := slab.compare_swap(16, seen, seen + 1)) != seen:
            seen = now
        slab.fetch_add(24, -1)


def reserve_and_wait(pool: farpool.Pool, name: str) -> None:
    """Write half of a draft, and wait to be killed."""
    draft = pool.open(name).reserve()
    draft.write(b"half")
    print("ready", flush=True)
    sys.stdin.read()


def interrupt_reads(pool: farpool.Pool, rounds: str) -> None:
    """Read under a hail of Ctrl-C; whatever a read returns must be right, and so must the one after each stop."""
    large, small = pool.allocate(16 * MIB), pool.allocate(8)
    large.write(b"\x5a" * large.nbytes)
    small.write(b"original")
    buffer = bytearray(large.nbytes)
    interrupted = 0
    for number in range(int(rounds)):
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-4 * (1 + number % 40))
            while True:
                buffer[:] = bytes(large.nbytes)
                assert large.read_into(buffer) == large.nbytes
                assert buffer.count(b"\x5a") == large.nbytes
        except KeyboardInterrupt:
            interrupted += 1
        assert small.read(8) == b"original"
        assert pool.stat().sessions >= 1
    print("interrupted", interrupted)


def interrupt_waiting(pool: farpool.Pool, what: str) -> None:
    """Wait for a server that is stopped, be interrupted, and go on once it runs again (stdin says when)."""
    slab = pool.allocate(4096)
    slab.write(b"before")
    calls: dict[str, Callable[[], object]] = {
        "stat": lambda: pool.stat(timeout=60),
        "allocate": lambda: pool.allocate(64, timeout=60),
        "read": lambda: slab.read(6, timeout=60),
        "write": lambda: slab.write(b"during", 100, timeout=60),
    }
    print("ready", flush=True)
    sys.stdin.readline()
    stop = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    outcome = "interrupted"
    try:
        stop.start()
        calls[what]()
        outcome = "finished"
        signal.pause()  # Ctrl-C comes in any case
    except KeyboardInterrupt:
        print(outcome, flush=True)
    sys.stdin.readline()
    assert slab.read(6) == b"before"
    slab.write(b"after")
    assert slab.read(6) == b"aftere"
    assert slab.read(6, 100) in {bytes(6), b"during"}
    pool.stat()  # behind the late reply, which frees what it brings
    assert [info.id for info in pool.slabs()] == [slab.id], "an allocation that was interrupted left a slab"


def fork(pool: farpool.Pool, url: str) -> None:
    """Fork with an open session: the child's calls raise, and the parent's go on while the child connects anew."""
    slab = pool.allocate(4096, name="forked")
    slab.write(b"parent")
    pid = os.fork()
    if pid == 0:
        os._exit(_forked(pool, slab, url))
    for number in range(200):
        slab.store(8, number)
        assert slab.load(8) == number
        assert slab.read(6) == b"parent"
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert slab.read(5, 100) == b"child"
    assert pool.stat().slabs >= 1


def _forked(pool: farpool.Pool, slab: farpool.Slab, url: str) -> int:
    """Return 0 if every inherited handle refuses, closing harms nothing, and a session of one's own works."""
    calls: list[Callable[[], object]] = [
        lambda: slab.read(1),
        lambda: slab.read_into(bytearray(8)),
        lambda: slab.write(b"x"),
        lambda: slab.readv([(0, bytearray(1))]),
        lambda: slab.writev([(0, b"x")]),
        lambda: slab.load(0),
        lambda: slab.store(0, 1),
        lambda: slab.fetch_add(0, 1),
        lambda: slab.compare_swap(0, 0, 1),
        lambda: pool.allocate(8),
        lambda: pool.open("forked"),
        pool.stat,
        pool.slabs,
        slab.free,
    ]
    for number, call in enumerate(calls):
        try:
            call()
        except farpool.ForkedSession:
            continue
        return 10 + number
    transport = pool.transport
    slab.close()
    pool.close()
    with farpool.connect(url, transport=transport) as own:
        mine = own.open("forked")
        mine.write(b"child", 100)
        return 0 if mine.read(6) == b"parent" else 1


def hold_the_interpreter(pool: farpool.Pool, seconds: str) -> None:
    """Let no other thread of Python run for a while, as foreign code may, and go on with the session."""
    slab, session = pool.allocate(4096), pool.session_id
    slab.write(b"kept")
    print("ready", flush=True)
    ctypes.PyDLL(None).usleep(int(float(seconds) * 1e6))
    assert slab.read(4) == b"kept"
    assert pool.stat().sessions >= 1
    print("kept" if pool.session_id == session else "ended", flush=True)


def overwrite(pool: farpool.Pool, name: str = "") -> None:
    """Write to a slab without end, be stopped meanwhile, and find out that it has gone, or is somebody else's."""
    slab = pool.open(name) if name else pool.allocate(4 * MIB)
    block = b"\xee" * slab.nbytes
    print("ready", slab.id, flush=True)
    while True:
        try:
            slab.write(block)
            slab.writev([(0, block[:64]), (slab.nbytes - 64, block[:64])])
            slab.store(8, 0xEEEE)
            slab.fetch_add(16, 1)
        except farpool.ServerLost:
            continue  # a write in flight: whether it took effect is unknown
        except (farpool.StaleSlab, farpool.SlabBusy):
            break
    again = pool.allocate(4096)
    again.write(b"again")
    print("stale", again.read(5).decode(), flush=True)


def store_all_over(pool: farpool.Pool, name: str) -> None:
    """Store to every word of a slab that is shared, one after the other without end, and be stopped meanwhile."""
    slab = pool.open(name)
    print("ready", flush=True)
    outcome = "done"
    while outcome == "done":
        for offset in range(0, slab.nbytes, 8):
            outcome = outcome_of(partial(slab.store, offset, 0xEEEE))
            if outcome != "done":
                break
    print(outcome, flush=True)


def write_all_over(pool: farpool.Pool, name: str) -> None:
    """Overwrite a slab that is shared in one write after the other, each with a byte of its own, and be stopped."""
    slab = pool.open(name)
    blocks = [bytes([value]) * slab.nbytes for value in (0xEE, 0xEF)]
    print("ready", flush=True)
    outcome = "done"
    while outcome == "done":
        for block in blocks:
            outcome = outcome_of(partial(slab.write, block))
            if outcome != "done":
                break
    print(outcome, flush=True)


def own_and_share(pool: farpool.Pool, owned: str, shared: str) -> None:
    """Have one slab alone and share another, be stopped until the session has ended, and store to both."""
    alone, with_others = pool.open(owned, exclusive=True), pool.open(shared)
    seen, session = alone.load(8), pool.session_id
    print("ready", flush=True)
    sys.stdin.readline()
    print(outcome_of(lambda: alone.store(8, seen + 1)), alone.exclusive, flush=True)
    pool.stat()
    assert pool.session_id != session
    print(outcome_of(lambda: alone.store(8, seen + 1)), outcome_of(lambda: with_others.store(8, 1)), flush=True)
    print(outcome_of(alone.free), outcome_of(with_others.free), flush=True)
    assert pool.open(shared).load(8) == 2


def outcome_of(call: Callable[[], object]) -> str:
    """Return what became of *call*: whether a write whose answer did not come has taken effect is unknown."""
    while True:
        try:
            call()
        except farpool.ServerLost:
            continue
        except farpool.FarpoolError as error:
            return type(error).__name__
        return "done"


def main(task: str, url: str, transport: str, *arguments: str) -> None:
    tasks: dict[str, Callable[..., None]] = {
        function.__name__: function
        for function in (
            *(count, fork, hold_the_interpreter, interrupt_reads, interrupt_waiting),
            *(overwrite, own_and_share, reserve_and_wait, store_all_over, write_all_over),
        )
    }
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    with farpool.connect(url, transport=transport, timeout=30) as pool:
        tasks[task](pool, *arguments)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
