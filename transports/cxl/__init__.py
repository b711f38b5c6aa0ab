"""cxl: client and server map the same memory; loads and stores are the transport."""

from __future__ import annotations

from farpool.transports.contract import ClientContext, ClientTransport, ServerTransport, Transport

__all__ = ["TRANSPORT"]


def _server() -> ServerTransport:
    from farpool.transports.cxl.server import CxlServer  # noqa: PLC0415  naming a transport loads nothing of it

    return CxlServer()


def _client(context: ClientContext) -> ClientTransport:
    from farpool.transports.cxl.client import CxlClient  # noqa: PLC0415  naming a transport loads nothing of it

    return CxlClient()


TRANSPORT = Transport(
    name="cxl",
    rank=10,
    server=_server,
    client=_client,
    summary="the same memory, mapped by client and server",
)
