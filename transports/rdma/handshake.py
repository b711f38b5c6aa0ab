"""What the two ends of an RDMA connection tell each other, over the control plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from farpool.protocol.errors import ProtocolError
from farpool.transports.rdma.binding import VerbsPair
from farpool.transports.rdma.ports import Port

__all__ = ["End", "connect_pair", "decode_end", "describe_end"]


class End(msgspec.Struct, frozen=True, kw_only=True):
    """One end: its queue pair, and what its port can do."""

    number: int
    psn: int
    gid: bytes
    lid: int
    mtu: int
    """As an ``ibv_mtu``; the smaller of both ends is used."""
    reads_in: int
    """Reads and atomics that it answers at once; the other end sends no more."""
    incarnation: int = 0
    """Number that the server has drawn at its start; a client has none."""


def describe_end(pair: VerbsPair, port: Port) -> dict[str, Any]:
    """Return what the peer must know of *pair*."""
    end = End(
        number=pair.number,
        psn=pair.psn,
        gid=port.gid_bytes,
        lid=port.lid,
        mtu=port.mtu,
        reads_in=port.reads_in,
        incarnation=pair.incarnation,
    )
    fields: dict[str, Any] = msgspec.to_builtins(end, builtin_types=(bytes,))
    return fields


def decode_end(params: Mapping[str, Any]) -> End:
    """Return the peer's end; raises :class:`ProtocolError` if it is not one."""
    try:
        end = msgspec.convert(dict(params), End)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the peer's end of an RDMA connection: {error}") from None
    within = 0 <= end.number < 1 << 24 and 0 <= end.psn < 1 << 24 and 0 <= end.lid < 1 << 16
    within = within and 0 <= end.incarnation < 1 << 63
    if not within or len(end.gid) != 16 or not 1 <= end.mtu <= 5 or not 1 <= end.reads_in <= 255:
        raise ProtocolError("the peer's end of an RDMA connection has a number out of range")
    return end


def connect_pair(pair: VerbsPair, port: Port, peer: End, remote_access: int) -> None:
    """Connect *pair* to the peer's; raises ``TransportUnavailable`` if the device refuses."""
    pair.connect(
        number=peer.number,
        psn=peer.psn,
        gid=peer.gid,
        lid=peer.lid,
        gid_index=port.gid.index,
        mtu=min(port.mtu, peer.mtu),
        reads_in=port.reads_in,
        reads_out=min(port.reads_out, peer.reads_in),
        remote_access=remote_access,
    )
