"""tcp: slab bytes over data connections, served by native threads."""

from __future__ import annotations

from farpool.transports.contract import ClientContext, ClientTransport, ServerTransport, Transport

__all__ = ["TRANSPORT"]


def _server() -> ServerTransport:
    from farpool.transports.tcp.server import TcpServer  # noqa: PLC0415  naming a transport loads nothing of it

    return TcpServer()


def _client(context: ClientContext) -> ClientTransport:
    from farpool.transports.tcp.client import TcpClient  # noqa: PLC0415  naming a transport loads nothing of it

    return TcpClient(context.tls)


TRANSPORT = Transport(
    name="tcp",
    rank=30,
    server=_server,
    client=_client,
    summary="data connections to the server's native reactor",
)
