"""The operator's word: what ended sessions of a host that is gone had mapped comes back, and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farpool.protocol.errors import InvalidArgument, PermissionDenied
from farpool.protocol.messages import (
    Allocate,
    Attached,
    Done,
    Goodbye,
    Open,
    Quarantined,
    Release,
    ServerStat,
    SlabInfo,
    Stat,
)
from farpool.server.embedded import EmbeddedServer, serve_embedded

Connect = Callable[..., Any]

UNIT = 2 << 20


@pytest.fixture
def server(memory_folder: Path) -> Iterator[EmbeddedServer]:
    """A server of a device, which hands memory out again; another host is one that comes over TCP."""
    device = memory_folder / "device"
    with device.open("wb") as file:
        file.truncate(8 * UNIT)
    settings: dict[str, Any] = {"arena": device, "state_dir": str(memory_folder / "state")}
    with serve_embedded(capacity="14MiB", disconnect_grace=0.05, resume_grace=0.05, **settings) as running:
        yield running


def made(client: Any, **options: Any) -> SlabInfo:
    slab = client.ask(Allocate(nbytes=UNIT, transport="cxl", **options), Attached).slab
    assert isinstance(slab, SlabInfo)
    return slab


def held(client: Any) -> list[Quarantined]:
    stat = client.ask(Stat(), ServerStat)
    assert isinstance(stat, ServerStat)
    return stat.quarantined


def wait_for(client: Any, expected: list[Quarantined]) -> None:
    for _ in range(1000):
        if held(client) == expected:
            return
        subprocess.run(["true"], check=True)
    assert held(client) == expected


def test_a_hosts_memory_waits_for_the_operators_word(server: EmbeddedServer, connect: Connect) -> None:
    local, remote, second = connect(server.url), connect(server.tcp_url), connect(server.tcp_url)
    made(remote)
    kept = made(remote, name="kept", lease="persistent")
    second.ask(Open(name="kept", transport="cxl"), Attached)
    assert held(local) == [], "the sessions have not ended"
    remote.ask(Goodbye(), Done)
    second.close()
    wait_for(local, [Quarantined(host="127.0.0.1", sessions=2, slabs=2, nbytes=2 * UNIT)])
    assert local.ask(Stat(), ServerStat).reclaiming == UNIT
    back = local.ask(Release(host="127.0.0.1"), Quarantined)
    assert back == Quarantined(host="127.0.0.1", sessions=2, slabs=1, nbytes=UNIT), "a slab that lives stays"
    stat = local.ask(Stat(), ServerStat)
    assert (stat.quarantined, stat.reclaiming, stat.allocated) == ([], 0, UNIT)
    assert local.ask(Open(id=kept.id), Attached).slab.attached == 0


def test_others_than_administrators_are_told_of_no_host(server: EmbeddedServer, connect: Connect) -> None:
    local, remote, other = connect(server.url), connect(server.tcp_url), connect(server.tcp_url)
    made(remote)
    made(remote)
    remote.close()
    wait_for(local, [Quarantined(host="127.0.0.1", sessions=1, slabs=2, nbytes=2 * UNIT)])
    assert held(other) == [Quarantined(host="", sessions=1, slabs=2, nbytes=2 * UNIT)]
    local.ask(Release(host="127.0.0.1"), Quarantined)
    assert held(other) == []


def test_it_survives_a_server_that_is_killed(server: EmbeddedServer, connect: Connect) -> None:
    remote = connect(server.tcp_url)
    made(remote)
    server.kill()
    server.start()
    local = connect(server.url)
    expected = [Quarantined(host="127.0.0.1", sessions=1, slabs=1, nbytes=UNIT)]
    wait_for(local, expected)  # the session was not resumed in time, and its host is still known
    local.ask(Release(host="127.0.0.1"), Quarantined)
    server.kill()
    server.start()
    local = connect(server.url)
    assert (held(local), local.ask(Stat(), ServerStat).reclaiming) == ([], 0)


def test_a_session_that_lives_is_left_alone(server: EmbeddedServer, connect: Connect) -> None:
    local, remote, other = connect(server.url), connect(server.tcp_url), connect(server.tcp_url)
    slab = made(other)
    made(remote)
    remote.close()
    wait_for(local, [Quarantined(host="127.0.0.1", sessions=1, slabs=1, nbytes=UNIT)])
    assert local.ask(Release(host="127.0.0.1"), Quarantined).slabs == 1
    assert other.ask(Open(id=slab.id), Attached).slab.attached == 1


def test_an_unknown_host_is_answered_with_those_that_hold_something(server: EmbeddedServer, connect: Connect) -> None:
    local, remote = connect(server.url), connect(server.tcp_url)
    with pytest.raises(InvalidArgument, match=r"'elsewhere' holds memory; those that do: none does"):
        local.ask(Release(host="elsewhere"), Quarantined)
    made(remote)
    remote.close()
    wait_for(local, [Quarantined(host="127.0.0.1", sessions=1, slabs=1, nbytes=UNIT)])
    with pytest.raises(InvalidArgument, match=r"those that do: 127\.0\.0\.1"):
        local.ask(Release(host="elsewhere"), Quarantined)


def test_a_process_that_is_seen_to_live_is_not_released(server: EmbeddedServer, connect: Connect) -> None:
    local, mapper = connect(server.url), connect(server.url)
    made(mapper)
    mapper.close()  # and this process, the client, lives on
    wait_for(local, [Quarantined(host="local", sessions=1, slabs=1, nbytes=UNIT)])
    with pytest.raises(PermissionDenied, match=r"is alive; end it with: kill \d+"):
        local.ask(Release(host="local"), Quarantined)
    assert len(held(local)) == 1


def test_only_the_operator_is_believed(server: EmbeddedServer, connect: Connect) -> None:
    remote = connect(server.tcp_url)
    with pytest.raises(PermissionDenied, match=r"is for administrators: .* over unix://"):
        remote.ask(Release(host="127.0.0.1"), Quarantined)
