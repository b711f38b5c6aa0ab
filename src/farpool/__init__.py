"""Farpool: slabs of far memory in a network-attached pool, over CXL-mapped memory, RDMA and TCP.

::

    with farpool.connect("farpool://host:7700", transport="auto") as pool:
        slab = pool.allocate("64MiB", name="weights")
        slab.write(b"hello")

Names load when they are first used: importing this package loads no transport, and none of the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farpool.protocol.errors import (
    AuthenticationFailed,
    CorruptData,
    DeadlineExceeded,
    FarpoolError,
    ForkedSession,
    InvalidArgument,
    NameTaken,
    NotMappable,
    OutOfBounds,
    PermissionDenied,
    PoolFull,
    ProtocolError,
    QuotaExceeded,
    ReadOnly,
    RegionInUse,
    ServerLost,
    SlabBusy,
    SlabNotFound,
    StaleSlab,
    TransportUnavailable,
    UnsuitableBuffer,
    WrongAtomicDomain,
)

if TYPE_CHECKING:
    from farpool import aio
    from farpool.client.draft import Draft
    from farpool.client.encryption import Tls
    from farpool.client.pool import Pool, connect
    from farpool.client.slab import Slab
    from farpool.server.embedded import serve_embedded

    __version__: str

__all__ = [
    "AuthenticationFailed",
    "CorruptData",
    "DeadlineExceeded",
    "Draft",
    "FarpoolError",
    "ForkedSession",
    "InvalidArgument",
    "NameTaken",
    "NotMappable",
    "OutOfBounds",
    "PermissionDenied",
    "Pool",
    "PoolFull",
    "ProtocolError",
    "QuotaExceeded",
    "ReadOnly",
    "RegionInUse",
    "ServerLost",
    "Slab",
    "SlabBusy",
    "SlabNotFound",
    "StaleSlab",
    "Tls",
    "TransportUnavailable",
    "UnsuitableBuffer",
    "WrongAtomicDomain",
    "__version__",
    "aio",
    "connect",
    "serve_embedded",
]

_HOMES = {
    "Draft": "farpool.client.draft",
    "Pool": "farpool.client.pool",
    "Slab": "farpool.client.slab",
    "Tls": "farpool.client.encryption",
    "aio": "farpool.aio",
    "connect": "farpool.client.pool",
    "serve_embedded": "farpool.server.embedded",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module, metadata  # noqa: PLC0415  loaded with the first name that needs it

    value: Any
    if name == "__version__":
        value = metadata.version("farpool")
    elif name in _HOMES:
        module = import_module(_HOMES[name])
        value = module if name == "aio" else getattr(module, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
