"""Which transport a pool takes, what it says about the others, and that it never takes another silently."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import farpool
from farpool.protocol.messages import Offer
from farpool.transports.contract import ClientContext, Transport
from farpool.transports.registry import find_transport

if TYPE_CHECKING:
    from farpool.server.embedded import EmbeddedServer


def test_the_one_asked_for(server: EmbeddedServer, transport: str) -> None:
    with farpool.connect(server.url, transport=transport) as pool:
        assert pool.transport == transport
        report = {name: (status, reason) for name, status, reason in pool.transport_report}
        assert report.pop(transport) == ("chosen", "")
        for status, reason in report.values():
            assert status == "untried"
            assert transport in reason
        assert pool.stat().transports[transport]["available"]


def test_the_fastest(server: EmbeddedServer) -> None:
    with farpool.connect(server.url) as pool:
        offered = [find_transport(name) for name, _, reason in pool.transport_report if "not installed" not in reason]
        unusable = {name for name, status, _ in pool.transport_report if status == "unusable"}
        usable = [found for found in offered if found.name not in unusable]
        assert pool.transport == min(usable, key=lambda found: found.rank).name
        for name, status, reason in pool.transport_report:
            assert (status == "chosen") == (name == pool.transport) == (reason == "")


def test_named_properly(transport: str) -> None:
    found = find_transport(transport)
    assert isinstance(found, Transport)
    assert found.name == transport
    assert found.summary


def test_unknown(server: EmbeddedServer) -> None:
    with pytest.raises(farpool.InvalidArgument, match="there is no transport"):
        farpool.connect(server.url, transport="pigeon")


def test_server_of_one_transport(transport: str) -> None:
    """Another one is refused with the reason; and the offer of a server that has gone is found to be unusable."""
    other = "cxl" if transport == "tcp" else "tcp"
    with farpool.serve_embedded(capacity="16MiB", transports=[transport]) as served:
        with pytest.raises(farpool.TransportUnavailable, match=f"does not offer.*{other}.*{transport}"):
            farpool.connect(served.url, transport=other)
        with farpool.connect(served.url) as pool:
            assert pool.transport == transport
            (offer,) = pool._session.welcome.offers  # pyright: ignore[reportPrivateUsage]
    for params in (offer.params, {}):
        client = find_transport(transport).client(ClientContext())
        probe = client.probe(Offer(transport=transport, available=True, params=params), 10.0)
        assert not probe.usable
        assert len(probe.reason) > 20
        client.close()
        client.close()


def test_over_the_tcp_port_of_the_control_plane(server: EmbeddedServer, transport: str) -> None:
    """Also a client that has not come in by the Unix socket reaches the memory, if it is on the same host."""
    with farpool.connect(server.tcp_url, transport=transport) as pool, suppress(farpool.NotMappable):
        slab = pool.allocate(4096, name="by port")
        slab.write(b"data")
        with farpool.connect(server.url, transport=transport) as other:
            assert other.open("by port").read(4) == b"data"
        slab.view().release()
