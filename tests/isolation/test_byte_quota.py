"""The byte quota over cxl: what a client keeps is charged, whatever it says; who keeps nothing is never refused."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.conftest import settle

import farpool
from farpool.client.administration import Administration
from farpool.protocol.quota_messages import TenantLimit
from farpool.server.embedded import EmbeddedServer

ROOT = Path(__file__).parents[2]
HOARDER = Path(__file__).with_name("hoarder.py")
MIB = 1 << 20
QUOTA = 4 * MIB
WITHIN = 30.0


class Hoarder(NamedTuple):
    """A client that keeps what it said to have let go, and what it told of that."""

    process: subprocess.Popen[str]
    got: int
    error: str
    child: int

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()


Hoard = Callable[..., Hoarder]


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with farpool.serve_embedded(capacity="64MiB", session_timeout=2.0, disconnect_grace=0.2) as running:
        limit(running)
        yield running


def limit(server: EmbeddedServer) -> None:
    """Make the tenant, with its quota."""
    with Administration(server.url, 20) as administration:
        administration.add_tenant("hoarder", None)
        administration.limit(TenantLimit(tenant="hoarder", max_bytes=QUOTA))


@pytest.fixture
def hoard() -> Iterator[Hoard]:
    started: list[Hoarder] = []

    def start(url: str, nbytes: int, what: str) -> Hoarder:
        command = [sys.executable, str(HOARDER), url, str(nbytes), what]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        said: dict[str, Any] = json.loads(line) if line else {"got": 0, "error": "", "child": 0}
        started.append(Hoarder(process, **said))
        assert line, process.stderr.read()
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


def connect(server: EmbeddedServer, **options: Any) -> farpool.Pool:
    """Open another session of the hoarder's tenant."""
    return farpool.connect(server.url, tenant="hoarder", timeout=20, **options)


def in_use(server: EmbeddedServer) -> tuple[int, int, int]:
    """Return the bytes of slabs, those that are reclaiming, and those that the arena's files really take."""
    with farpool.connect(server.url, transport="tcp", timeout=20) as pool:
        stat = pool.stat()
    taken = sum(path.stat().st_blocks * 512 for path in Path(server.arena).glob("slab-*"))
    return stat.allocated, stat.reclaiming, taken


def wait_for(server: EmbeddedServer, expected: tuple[int, int, int]) -> None:
    """Wait until that much is in use."""
    seen: list[tuple[int, int, int]] = []

    def missing() -> set[str]:
        seen.append(in_use(server))
        return set() if seen[-1] == expected else {"missing"}

    assert not settle(missing, set(), WITHIN), f"{seen[-1]} are in use, and not {expected}"


@pytest.mark.parametrize("over", ["unix", "tcp"])
@pytest.mark.parametrize(
    "what", ["keep_descriptor", "keep_descriptor_for_reading", "keep_mapping", "keep_mapping_for_reading"]
)
def test_what_is_kept_is_charged_until_the_process_is_dead(
    server: EmbeddedServer, hoard: Hoard, what: str, over: str
) -> None:
    hoarder = hoard(server.url if over == "unix" else server.tcp_url, MIB, what)
    assert (hoarder.got, hoarder.error) == (4, "QuotaExceeded")
    assert in_use(server) == (0, QUOTA, QUOTA)
    with connect(server, transport="tcp") as pool:
        with pytest.raises(farpool.QuotaExceeded, match=r"uses 4 MiB \(4 MiB of it freed, but still mapped by"):
            pool.allocate(1)
        hoarder.kill()
        wait_for(server, (0, 0, 0))
        pool.allocate(QUOTA)


def test_long_slabs_are_charged_as_well(server: EmbeddedServer, hoard: Hoard) -> None:
    with Administration(server.url, 20) as administration:
        administration.limit(TenantLimit(tenant="hoarder", max_bytes=40 * MIB))
    hoarder = hoard(server.url, 20 * MIB, "keep_mapping")
    assert (hoarder.got, hoarder.error) == (2, "QuotaExceeded")
    hoarder.kill()
    wait_for(server, (0, 0, 0))


def test_replaced_memory_is_charged_as_well(server: EmbeddedServer, hoard: Hoard) -> None:
    hoarder = hoard(server.url, MIB, "keep_draft")
    assert (hoarder.got, hoarder.error) == (3, "QuotaExceeded")
    assert in_use(server) == (MIB, 3 * MIB, QUOTA)
    hoarder.kill()
    wait_for(server, (0, 0, 0))


def test_a_descriptor_that_does_not_count_keeps_no_page(server: EmbeddedServer, hoard: Hoard) -> None:
    hoarder = hoard(server.url, MIB, "keep_without_rights")
    assert (hoarder.got, hoarder.error) == (20, "")
    assert in_use(server) == (0, 0, 0)
    kept = [entry for entry in Path(f"/proc/{hoarder.process.pid}/fd").iterdir() if "slab-" in str(entry.readlink())]
    assert len(kept) == 20
    assert [entry.stat().st_blocks for entry in kept] == [0] * 20


def test_the_pool_is_not_larger_than_its_capacity(server: EmbeddedServer, hoard: Hoard) -> None:
    with Administration(server.url, 20) as administration:
        administration.limit(TenantLimit(tenant="hoarder", max_bytes=None))
    hoarder = hoard(server.url, 10 * MIB, "keep_mapping")
    assert (hoarder.got, hoarder.error) == (6, "PoolFull")
    with farpool.connect(server.url, transport="cxl") as pool:
        with pytest.raises(farpool.PoolFull, match="60 MiB wait for clients to let go"):
            pool.allocate("5MiB")
        hoarder.kill()
        wait_for(server, (0, 0, 0))
        pool.allocate("64MiB")


@pytest.mark.parametrize("over", ["unix", "tcp"])
def test_a_session_that_ends_with_a_lie_is_charged(server: EmbeddedServer, hoard: Hoard, over: str) -> None:
    hoarder = hoard(server.url if over == "unix" else server.tcp_url, QUOTA, "part_with")
    assert in_use(server) == (0, QUOTA, QUOTA)
    with connect(server, transport="tcp") as pool, pytest.raises(farpool.QuotaExceeded):
        pool.allocate(1)
    hoarder.kill()
    wait_for(server, (0, 0, 0))


@pytest.mark.parametrize("over", ["unix", "tcp"])
def test_a_silent_client_is_charged(server: EmbeddedServer, hoard: Hoard, over: str) -> None:
    """Of one that came over TCP the server knows no process."""
    hoarder = hoard(server.url if over == "unix" else server.tcp_url, MIB, "keep_draft")
    os.kill(hoarder.process.pid, signal.SIGSTOP)
    wait_for(server, (0, QUOTA, QUOTA))
    with connect(server, transport="tcp") as pool, pytest.raises(farpool.QuotaExceeded):
        pool.allocate(1)
    hoarder.kill()
    wait_for(server, (0, 0, 0))


def test_what_a_child_has_inherited_is_charged_until_that_is_dead(server: EmbeddedServer, hoard: Hoard) -> None:
    hoarder = hoard(server.url, MIB, "leave_to_a_child")
    hoarder.kill()
    with connect(server, transport="tcp") as pool:
        with pytest.raises(farpool.QuotaExceeded):
            pool.allocate(1)
        assert in_use(server) == (0, QUOTA, QUOTA)
        os.kill(hoarder.child, signal.SIGKILL)
        wait_for(server, (0, 0, 0))


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_new_server_charges_on(hoard: Hoard, tmp_path: Path, how: str) -> None:
    """Also with what its predecessor had no time to note."""
    arena = Path("/dev/shm", f"farpool-quota-{os.getpid()}")
    options: dict[str, Any] = {"arena": arena, "capacity": "64MiB", "unix": tmp_path / "f.sock"}
    try:
        with farpool.serve_embedded(**options) as server:
            limit(server)
            hoarder = hoard(server.url, MIB, "keep_mapping")
            if how == "killed":
                server.kill()
        with farpool.serve_embedded(**options) as server:
            assert in_use(server) == (0, QUOTA, QUOTA)
            with connect(server, transport="cxl") as pool:
                with pytest.raises(farpool.QuotaExceeded):
                    pool.allocate(1)
                hoarder.kill()
                wait_for(server, (0, 0, 0))
                pool.allocate(QUOTA)
    finally:
        subprocess.run(["rm", "-rf", arena], check=True)


# Honest clients --------------------------------------------------------------------------------------------------


def test_who_keeps_nothing_is_never_refused(server: EmbeddedServer) -> None:
    with connect(server, transport="cxl") as pool, connect(server, transport="cxl") as other:
        for turn in range(100):
            slab = pool.allocate(QUOTA)
            slab.view()[:8] = bytes(8)
            if turn % 2:
                with other.open(slab.id) as shared:
                    shared.read(8)
            slab.free()
        for _ in range(20):
            pool.free_many(pool.allocate_many([QUOTA // 64] * 64))
        slab = pool.allocate(QUOTA // 2)
        for _ in range(20):
            draft = slab.reserve()
            draft.write(bytes(8))
            draft.commit()
            assert slab.read(8) == bytes(8)
        slab.free()
        assert pool.stat().reclaiming == 0


def test_who_frees_what_others_still_map_may_be_refused_until_they_let_go(server: EmbeddedServer) -> None:
    with connect(server, transport="cxl") as pool, connect(server, transport="cxl") as other:
        slab = pool.allocate(QUOTA)
        shared = other.open(slab.id)
        slab.free()
        with pytest.raises(farpool.QuotaExceeded):
            pool.allocate(1)
        shared.close()
        pool.allocate(QUOTA)


SLEEPER = """
import sys, farpool
with farpool.connect(sys.argv[1], transport="cxl", tenant="hoarder", timeout=20) as pool:
    slab = pool.allocate(sys.argv[2])
    print("asleep", flush=True)
    sys.stdin.readline()
    fresh = pool.allocate(sys.argv[2])
    try:
        slab.read(1)
    except farpool.StaleSlab:
        print("awake", flush=True)
"""


@pytest.mark.parametrize("over", ["unix", "tcp"])
def test_who_has_slept_through_the_end_of_a_session_has_the_whole_quota_again(
    server: EmbeddedServer, over: str
) -> None:
    """It has a handle of what is gone: that keeps nothing as soon as the server is reached."""
    url = server.url if over == "unix" else server.tcp_url
    command = [sys.executable, "-c", SLEEPER, url, str(QUOTA)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sleeper:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "asleep\n"
        sleeper.send_signal(signal.SIGSTOP)
        wait_for(server, (0, QUOTA, QUOTA))
        sleeper.send_signal(signal.SIGCONT)
        assert sleeper.communicate("wake up\n", timeout=WITHIN)[0] == "awake\n"
        assert sleeper.returncode == 0


@pytest.mark.parametrize("nbytes", [QUOTA, 20 * MIB])
def test_views_that_outlived_their_session_make_room_as_soon_as_they_go(server: EmbeddedServer, nbytes: int) -> None:
    """Nobody tells the server that they have: it looks, before it refuses."""
    with Administration(server.url, 20) as administration:
        administration.limit(TenantLimit(tenant="hoarder", max_bytes=nbytes))
    before = connect(server, transport="cxl")
    array = before.allocate(nbytes).array("u1", 8)
    before.close()
    with connect(server, transport="cxl") as pool:
        with pytest.raises(farpool.QuotaExceeded):
            pool.allocate(1)
        assert array.tolist() == [0] * 8
        del array
        gc.collect()
        kept = pool.allocate(nbytes, lease="persistent")
        assert pool.stat().reclaiming == 0
        kept.free()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_that_uses_nothing_keeps_nothing(server: EmbeddedServer) -> None:
    with connect(server, transport="cxl") as pool:
        slab = pool.allocate(QUOTA)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, b"!")
            signal.pause()
        try:
            assert os.read(reading, 1) == b"!"
            slab.free()
            pool.allocate(QUOTA)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            os.close(writing)
