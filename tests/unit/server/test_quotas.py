"""Quotas: what is counted, what is refused and with which numbers, and who changes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from farpool.protocol.errors import InvalidArgument, PermissionDenied, ProtocolError, QuotaExceeded
from farpool.protocol.messages import (
    Allocate,
    Attached,
    Detach,
    Done,
    Free,
    Goodbye,
    Hello,
    Reserve,
    ServerStat,
    Stat,
    TenantAdd,
    TenantInfo,
    TenantLimit,
    TenantList,
    TenantListing,
    Welcome,
)
from farpool.server.embedded import EmbeddedServer, serve_embedded
from farpool.server.quotas import NO_QUOTA, Quota, Rates

Connect = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with serve_embedded(capacity="64MiB") as running:
        yield running


@pytest.fixture
def administrator(server: EmbeddedServer, connect: Connect) -> Any:
    client = connect(server.url)
    client.ask(TenantAdd(tenant="small"), Done)
    return client


@pytest.fixture
def small(server: EmbeddedServer, connect: Connect, administrator: Any) -> Any:
    return open_as(connect, server, "small")


def open_as(connect: Connect, server: EmbeddedServer, tenant: str) -> Any:
    client = connect(server.tcp_url, hello=False)
    client.welcome = client.ask(Hello(protocol=1, client="raw", tenant=tenant), Welcome)
    return client


def info_of(administrator: Any, name: str = "small") -> TenantInfo:
    page = administrator.ask(TenantListing(), TenantList)
    found: list[TenantInfo] = [info for info in page.tenants if info.name == name]
    return found[0]


def limit(administrator: Any, **limits: Any) -> None:
    administrator.ask(TenantLimit(tenant="small", **limits), Done)


def test_bytes_of_slabs_and_drafts(administrator: Any, small: Any) -> None:
    limit(administrator, max_bytes=12 << 10)
    slab = small.ask(Allocate(nbytes=4096, transport="tcp"), Attached).slab
    draft = small.ask(Reserve(id=slab.id, generation=slab.generation, transport="tcp"), Attached).slab
    with pytest.raises(
        QuotaExceeded, match=r'"small" uses 8 KiB of its quota of 12 KiB; .*farpool quota set'
    ) as caught:
        small.ask(Allocate(nbytes=8192), Attached)
    assert caught.value.details == {"asked": 8192, "used": 8192, "limit": 12 << 10}
    with pytest.raises(QuotaExceeded):
        small.ask(Allocate(nbytes=20 << 20), Attached)
    assert info_of(administrator).nbytes == 8192
    small.ask(Free(id=draft.id, generation=draft.generation), Done)
    small.ask(Allocate(nbytes=8192), Attached)
    administrator.ask(Allocate(nbytes=1 << 20), Attached)


def test_slabs(administrator: Any, small: Any) -> None:
    limit(administrator, max_slabs=1)
    slab = small.ask(Allocate(nbytes=1), Attached).slab
    with pytest.raises(QuotaExceeded, match="has 1 slabs, its quota is 1"):
        small.ask(Allocate(nbytes=1), Attached)
    limit(administrator, max_slabs=2)
    small.ask(Allocate(nbytes=1), Attached)
    limit(administrator, max_slabs=0)
    assert info_of(administrator).slabs == 2, "what it has, it keeps"
    small.ask(Free(id=slab.id, generation=slab.generation), Done)
    limit(administrator, max_slabs=None)
    small.ask(Allocate(nbytes=1), Attached)


def test_sessions(server: EmbeddedServer, connect: Connect, administrator: Any, small: Any) -> None:
    limit(administrator, max_sessions=1)
    with pytest.raises(QuotaExceeded, match="has 1 sessions, its quota is 1"):
        open_as(connect, server, "small")
    again = connect(server.tcp_url, resume=small.key)
    assert info_of(administrator).sessions == 1
    again.ask(Stat(), ServerStat)
    limit(administrator, max_sessions=2)
    open_as(connect, server, "small")


def test_one_of_several_tenants_has_half_of_all_sessions(connect: Connect) -> None:
    with serve_embedded(capacity="1MiB", transports=["tcp"], max_sessions=5) as server:
        crowd = [open_as(connect, server, "default") for _ in range(4)]
        administrator = connect(server.url)
        administrator.ask(TenantAdd(tenant="small"), Done)
        with pytest.raises(PermissionDenied, match=r'"default" has 5 sessions.*half of the server\'s 5.*max_sessions'):
            open_as(connect, server, "default")
        for client in crowd[:3]:
            client.ask(Goodbye(), Done)
        crowd.append(open_as(connect, server, "default"))
        with pytest.raises(PermissionDenied, match=r'"default" has 3 sessions'):
            open_as(connect, server, "default")
        for _ in range(2):
            open_as(connect, server, "small")
        connect(server.url)


def test_requests_a_second(administrator: Any, small: Any) -> None:
    slab = small.ask(Allocate(nbytes=1), Attached).slab
    limit(administrator, max_rate=0.001)
    small.ask(Stat(), ServerStat)
    with pytest.raises(QuotaExceeded, match=r"may send 0.001 requests a second; wait") as caught:
        small.ask(Stat(), ServerStat)
    assert caught.value.details["limit"] == 0.001
    small.ask(Detach(id=slab.id, generation=slab.generation, transport="tcp"), Done)
    small.ask(Free(id=slab.id, generation=slab.generation), Done)
    for _ in range(3):
        administrator.ask(Stat(), ServerStat)
    limit(administrator, max_rate=None)
    small.ask(Stat(), ServerStat)


def test_what_cannot_be(administrator: Any, small: Any) -> None:
    with pytest.raises(PermissionDenied):
        limit(small, max_slabs=5)
    with pytest.raises(InvalidArgument, match="farpool tenant list"):
        administrator.ask(TenantLimit(tenant="nobody", max_slabs=1), Done)
    for limits in ({"max_bytes": -1}, {"max_rate": 0.0}, {"max_rate": float("nan")}, {"max_slabs": 1 << 62}):
        with pytest.raises(ProtocolError):
            limit(administrator, **limits)


def test_the_configuration_comes_first(connect: Connect) -> None:
    with serve_embedded(capacity="64MiB", tenants={"small": {"max_bytes": "8KiB", "max_rate": 1000}}) as server:
        administrator = connect(server.url)
        info = info_of(administrator)
        assert (info.max_bytes, info.max_slabs, info.max_rate) == (8192, None, 1000)
        with pytest.raises(PermissionDenied, match=r"the configuration sets max_bytes .*\[tenants.small\]"):
            limit(administrator, max_bytes=1 << 20)
        limit(administrator, max_slabs=3)
        info = info_of(administrator)
        assert (info.max_bytes, info.max_slabs, info.max_rate) == (8192, 3, 1000)


def test_a_rate_is_saved_up_for_a_second(clock: Any) -> None:
    quotas = {"a": Quota(rate=4.0)}
    rates = Rates(clock, lambda tenant: quotas.get(tenant, NO_QUOTA))

    def granted(tenant: str = "a") -> int:
        for count in range(100):
            try:
                rates.take(tenant, refusable=True)
            except QuotaExceeded:
                return count
        return 100

    assert (granted(), granted(), granted("b")) == (4, 0, 100)
    clock.now += 0.5
    assert granted() == 2
    clock.now += 1000
    assert granted() == 4
    for _ in range(100):
        rates.take("a", refusable=False)
    clock.now += 1.25
    assert granted() == 1
    quotas["a"] = Quota(rate=0.5)
    clock.now += 2
    assert granted() == 1
