"""The client half of rdma: a device of this host, queue pairs to the server, and the regions over them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from farpool.protocol.errors import FarpoolError, InvalidArgument, StaleSlab
from farpool.protocol.messages import Offer
from farpool.transports.contract import AwaitableRegion, ClientContext, Probe, Region, Ticket
from farpool.transports.ending import Ending
from farpool.transports.rdma import binding as bindings
from farpool.transports.rdma.binding import Binding, Lanes, VerbsPair
from farpool.transports.rdma.handshake import connect_pair, decode_end, describe_end
from farpool.transports.rdma.ports import Port, open_port

__all__ = ["RdmaClient"]

PROBE_SECONDS: Final = 5.0
DEPTH: Final = 128
"""Work requests of a lane that may be out at once."""

SPIN_MICROSECONDS: Final = 100.0
"""A lane polls this long before it waits for an event: several times a small read on hardware."""


class RdmaClient(Ending):
    """One for a session. Thread-safe."""

    BUSY = "another thread opened the RDMA device until the deadline; raise timeout="

    def __init__(self, context: ClientContext) -> None:
        super().__init__()
        self._context = context
        self._binding: Binding | None = None
        self._port: Port | None = None
        self._lanes: Lanes | None = None

    def probe(self, offer: Offer, seconds: float) -> Probe:
        """Open the device and connect one queue pair to the server: nothing less shows that the path works."""
        try:
            self._opened(time.monotonic() + min(seconds, PROBE_SECONDS)).ping(min(seconds, PROBE_SECONDS))
        except FarpoolError as error:
            return Probe(usable=False, reason=error.message)
        return Probe(usable=True)

    def _opened(self, deadline: float) -> Lanes:
        self.check()
        lanes = self._lanes
        if lanes is not None:
            return lanes
        with self.held(deadline):
            if self._lanes is None:
                options = self._context.options
                self._binding = bindings.load(options.get("verbs", bindings.DEFAULT_BINDING))
                self._port = open_port(self._binding, options)
                self._lanes = self._binding.lanes(
                    self._binding.domain(self._port.device),
                    self._connect,
                    self._context.connected,
                    max_message=self._port.max_message,
                    depth=DEPTH,
                    spin=_spin_of(options) / 1e6,
                )
            return self._lanes

    def _connect(self, pair: VerbsPair, seconds: float) -> None:
        """Tell the server of *pair* over the control plane, and connect it to the one that the server has made."""
        port = self._port
        if port is None:
            raise StaleSlab("the pool is closed; connect again")
        theirs = decode_end(self._context.negotiate(describe_end(pair, port), seconds))
        connect_pair(pair, port, theirs, 0)
        pair.incarnation = theirs.incarnation

    def attach(self, ticket: Ticket, seconds: float) -> Region:
        """Return a region that reaches the slab by its key; nothing is waited for."""
        lanes = self._opened(time.monotonic() + seconds)
        return lanes.region(ticket, lambda seconds: self._renew(ticket, seconds))

    def _renew(self, ticket: Ticket, seconds: float) -> Mapping[str, Any]:
        """Attach again. A queue pair to a server that has restarted leads nowhere: idle ones are given up."""
        deadline = time.monotonic() + seconds
        params = ticket.renew(seconds)
        self._opened(deadline).reset(params["incarnation"])
        return params

    def awaitable(self, region: Region, ticket: Ticket) -> AwaitableRegion:
        """Return the twin of *region*."""
        return self._opened(time.monotonic() + PROBE_SECONDS).awaitable(region, ticket)

    def close(self) -> None:
        """Close the queue pairs. The device goes with the last of them: an operation may still be under way."""
        self.end()

    def _let_go(self) -> None:
        lanes, self._lanes = self._lanes, None
        self._port = None
        if lanes is not None:
            lanes.close()


def _spin_of(options: Mapping[str, str]) -> float:
    text = options.get("spin_us", str(SPIN_MICROSECONDS))
    try:
        spin = float(text)
    except ValueError:
        spin = -1.0
    if not 0 <= spin <= 1e6:
        raise InvalidArgument(f"rdma's spin_us is microseconds from 0 to 1000000, not {text!r}")
    return spin
