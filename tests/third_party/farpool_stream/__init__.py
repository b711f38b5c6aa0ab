"""Slabs over a Unix stream socket, in plain Python: a transport as another package would write one."""

from __future__ import annotations

from farpool.transports.contract import ClientContext, ClientTransport, ServerTransport, Transport

__all__ = ["TRANSPORT"]


def make_server() -> ServerTransport:
    """Import the server half when a server starts it."""
    from farpool_stream.serving import StreamServer

    return StreamServer()


def make_client(context: ClientContext) -> ClientTransport:
    """Import the client half when a session tries it."""
    from farpool_stream.reaching import StreamClient

    return StreamClient()


TRANSPORT = Transport(
    name="stream",
    rank=90,
    server=make_server,
    client=make_client,
    summary="a Unix stream socket, in plain Python",
)
