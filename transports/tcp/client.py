"""The client half of tcp: the session's data connections, and the regions over them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from farpool.native.tcp_peer import TcpPeer
from farpool.native.tcp_region import TcpRegion
from farpool.protocol.errors import out_of_descriptors
from farpool.protocol.messages import Offer
from farpool.transports.contract import AwaitableRegion, Probe, Region, Ticket
from farpool.transports.reaching import reach
from farpool.transports.tcp.awaitable import AwaitableConnection, AwaitableTcpRegion
from farpool.transports.threads import MOST_THREADS

if TYPE_CHECKING:
    from farpool.native.tls import TlsClient

__all__ = ["TcpClient"]

PROBE_SECONDS = 2.0


class TcpClient:
    """One for a session. Thread-safe: the peer hands each operation a connection of its own.

    With *tls* they are encrypted, and the server's certificate is checked, as the control connection's is.
    """

    def __init__(self, tls: TlsClient | None = None) -> None:
        self._tls = tls
        self._peer = TcpPeer(reach, tls=tls)
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="farpool-tcp")
        self._loops: dict[asyncio.AbstractEventLoop, AwaitableConnection] = {}

    def probe(self, offer: Offer, seconds: float) -> Probe:
        """Open a connection to the data port and close it again."""
        host, port = offer.params.get("host", ""), offer.params.get("port", 0)
        if self._tls is not None and not offer.params.get("tls"):
            return Probe(
                usable=False,
                reason="the control connection is encrypted, and the server's data plane is not; give the server a "
                "certificate of its own: [tls] in farpool.toml",
            )
        try:
            reach(host, port, time.monotonic() + min(seconds, PROBE_SECONDS), f"{host}:{port}").close()
        except (OSError, TypeError, OverflowError) as error:
            if (shortage := out_of_descriptors(error)) is not None:
                return Probe(usable=False, reason=shortage.message)
            return Probe(
                usable=False,
                reason=f"the server's data port {host}:{port} cannot be reached from here ({error}); "
                "see --data-listen of farpool serve, and firewalls in between",
            )
        return Probe(usable=True)

    def attach(self, ticket: Ticket, seconds: float) -> Region:
        """Return a region that exchanges requests over the session's data connections; it opens none, and waits not."""
        params = self._configure(ticket.params)
        return TcpRegion(
            self._peer,
            params["handle"],
            params["version"],
            ticket.generation,
            ticket.nbytes,
            ticket.writable,
            ticket.atomics == "cpu",
            ticket.label,
            ticket.timeout,
            lambda seconds: self._configure(ticket.renew(seconds)),
            None,
        )

    def _configure(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take over how the data port is reached; return *params* with the version of that."""
        where = (params["host"], params["port"], params["slot"], params["secret"], params["epoch"])
        return {**params, "version": self._peer.configure(*where)}

    def awaitable(self, region: Region, ticket: Ticket) -> AwaitableRegion:
        """Return the twin of *region* over the running loop's own pipelined connection."""
        assert isinstance(region, TcpRegion)
        loop = asyncio.get_running_loop()
        connection = self._loops.get(loop)
        if connection is None:
            self._close_ended()
            connection = self._loops[loop] = AwaitableConnection(self._peer, self._threads)
        return AwaitableTcpRegion(region, connection, ticket.timeout)

    def _close_ended(self) -> None:
        """Close the connections of loops that are closed: they count against the session."""
        for loop in [loop for loop in list(self._loops) if loop.is_closed()]:
            if (connection := self._loops.pop(loop, None)) is not None:
                connection.close()

    def close(self) -> None:
        """Close the data connections."""
        self._peer.close()
        for connection in list(self._loops.values()):
            connection.close()
        self._loops.clear()
        self._threads.shutdown(wait=False)
