from collections.abc import Callable, Mapping
from typing import Any

from farpool.native.remote_region import RemoteRegion
from farpool.native.tcp_peer import TcpPeer

class TcpRegion(RemoteRegion):
    """One attached slab, reached through the server's tcp data plane."""

    def __init__(
        self,
        peer: TcpPeer,
        handle: int,
        version: int,
        generation: int,
        nbytes: int,
        writable: bool,
        atomics: bool,
        label: str,
        timeout: float,
        renew: Callable[[float], Mapping[str, Any]],
        on_close: Callable[[], object] | None,
    ) -> None: ...
