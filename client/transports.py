"""Choose the transport of a session: the one that was asked for, or the fastest that works from here.

Only what may be chosen is imported and probed: asking for tcp loads nothing of rdma.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any, Literal, NamedTuple

from farpool.client.session import Session
from farpool.protocol.addresses import fill_host
from farpool.protocol.errors import DeadlineExceeded, InvalidArgument, TransportUnavailable
from farpool.protocol.messages import Negotiate, Negotiated, Offer
from farpool.transports.contract import ClientContext, ClientTransport, Probe, Transport
from farpool.transports.registry import find_transport, transport_names

__all__ = ["AUTO", "Selection", "TransportReport", "client_context", "select_transport"]

AUTO = "auto"

Find = Callable[[str], Transport]


class TransportReport(NamedTuple):
    """What was found out about one transport when the pool was connected."""

    name: str
    status: Literal["chosen", "unusable", "untried"]
    """``untried`` ranks after the chosen one, or was not asked for."""
    reason: str
    """Why it was passed over, in a sentence that a user can act on; empty for the chosen one."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen transport's client half, and the report on all that the server offered."""

    name: str
    client: ClientTransport
    report: tuple[TransportReport, ...]


def select_transport(
    offers: Sequence[Offer],
    wanted: str,
    find: Find = find_transport,
    context_of: Callable[[str], ClientContext] = lambda name: ClientContext(),
    deadline: float = inf,
) -> Selection:
    """Return the transport called *wanted*, or for ``"auto"`` the first by rank that is usable from here.

    Raises:
        DeadlineExceeded: the deadline passed before one was found.
        InvalidArgument: no transport of that name is installed.
        TransportUnavailable: it cannot be used here, or ``"auto"`` finds none that can; the message has all
            reasons.
    """
    if not isinstance(wanted, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument(f'transport must be a name or "{AUTO}", not {wanted!r}')
    if wanted == AUTO:
        return _select_fastest(offers, find, context_of, deadline)
    transport = find(wanted)
    offer = next((offer for offer in offers if offer.transport == wanted), None)
    if offer is None:
        names = ", ".join(offer.transport for offer in offers) or "none"
        raise TransportUnavailable(
            f'the server does not offer transport "{wanted}", only {names}; '
            "ask for one of those, or start the server with it in --transports"
        )
    client, probe = _probe(transport, offer, context_of, deadline)
    if client is None:
        raise TransportUnavailable(f'transport "{wanted}" cannot be used here: {probe.reason}')
    others = [
        TransportReport(other.transport, "untried", f"{wanted} was asked for")
        for other in offers
        if other.transport != wanted
    ]
    return Selection(wanted, client, (TransportReport(wanted, "chosen", ""), *others))


def _select_fastest(
    offers: Sequence[Offer], find: Find, context_of: Callable[[str], ClientContext], deadline: float
) -> Selection:
    report: list[TransportReport] = []
    candidates: list[tuple[Transport, Offer]] = []
    for offer in offers:
        try:
            candidates.append((find(offer.transport), offer))
        except InvalidArgument:
            installed = ", ".join(transport_names()) or "none"
            reason = f"the server offers it, but it is not installed here (installed: {installed})"
            report.append(TransportReport(offer.transport, "unusable", reason))
        except TransportUnavailable as error:
            report.append(TransportReport(offer.transport, "unusable", error.message))
    chosen: tuple[str, ClientTransport] | None = None
    for transport, offer in sorted(candidates, key=lambda candidate: candidate[0].rank):
        if chosen is not None:
            report.append(TransportReport(transport.name, "untried", f"{chosen[0]} is faster, and usable"))
            continue
        client, probe = _probe(transport, offer, context_of, deadline)
        if client is not None:
            chosen = transport.name, client
        report.append(TransportReport(transport.name, "chosen" if client else "unusable", probe.reason))
    if chosen is None:
        reasons = "; ".join(f"{name}: {reason}" for name, _, reason in report) or "the server offers none"
        raise TransportUnavailable(f"no transport can be used here. {reasons}")
    return Selection(*chosen, tuple(report))


def _probe(
    transport: Transport, offer: Offer, context_of: Callable[[str], ClientContext], deadline: float
) -> tuple[ClientTransport | None, Probe]:
    """Return the client half if it is usable, and what its probe says."""
    if not offer.available:
        return None, Probe(usable=False, reason=offer.reason or "the server cannot use it, and gives no reason")
    if (seconds := deadline - monotonic()) <= 0:
        raise DeadlineExceeded(f"the deadline passed before transport {transport.name} could be tried; raise timeout=")
    try:
        client = transport.client(context_of(transport.name))
    except Exception as error:  # noqa: BLE001  a third party's code may fail in any way
        return None, Probe(usable=False, reason=f"it cannot be loaded: {error}")
    try:
        probe = client.probe(offer, seconds)
    except Exception as error:  # noqa: BLE001  the same
        probe = Probe(usable=False, reason=f"its probe failed: {error}")
    if not probe.usable:
        client.close()
        return None, probe
    return client, Probe(usable=True)


def client_context(session: Session, transport: str) -> ClientContext:
    """Return what a transport's client half is made with."""

    def negotiate(params: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        request = Negotiate(transport=transport, params=dict(params))
        reply = session.call(request, Negotiated, monotonic() + max(seconds, 0.0))
        return fill_host(reply.params, session.address)

    options = dict(session.address.options)
    return ClientContext(options=options, negotiate=negotiate, connected=session.is_connected, tls=session.tls)
