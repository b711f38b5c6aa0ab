"""Which host a client goes to for data, when the server cannot know by which of its names it is seen."""

from __future__ import annotations

import farpool
from farpool.client.pool import open_session
from farpool.protocol.addresses import parse_address


def test_a_transport_is_probed_at_the_host_that_was_connected_to() -> None:
    with farpool.serve_embedded(capacity="16MiB", transports=["tcp"], listen="0.0.0.0:0", insecure=True) as server:
        port = parse_address(server.tcp_url).port
        session, selection, _ = open_session(f"farpool://127.0.0.2:{port}", "tcp", 20.0, None, None, None)
        selection.client.close()
        session.close()
        (offer,) = session.welcome.offers
        assert offer.params["host"] == "127.0.0.2", "the loopback address is another machine's server elsewhere"
