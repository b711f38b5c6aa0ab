"""rdma: one-sided operations of RDMA devices; the server's CPU takes no part in them."""

from __future__ import annotations

from farpool.transports.contract import ClientContext, ClientTransport, ServerTransport, Transport

__all__ = ["TRANSPORT"]


def _server() -> ServerTransport:
    from farpool.transports.rdma.server import RdmaServer  # noqa: PLC0415  naming a transport loads nothing of it

    return RdmaServer()


def _client(context: ClientContext) -> ClientTransport:
    from farpool.transports.rdma.client import RdmaClient  # noqa: PLC0415  naming a transport loads nothing of it

    return RdmaClient(context)


TRANSPORT = Transport(
    name="rdma", rank=20, server=_server, client=_client, summary="one-sided operations of RDMA devices"
)
