"""What a client over cxl holds, fetched by hand: a test knows then what is mapped, and by whom."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from farpool.transports.cxl import descriptors
from farpool.transports.cxl.descriptors import DescriptorAnswer, DescriptorRequest

__all__ = ["fetch_descriptor"]


def fetch_descriptor(params: Mapping[str, Any], slab_id: int, generation: int, *, writable: bool) -> int:
    """Return a descriptor of an attached slab's file; the caller closes it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as wire:
        wire.settimeout(20)
        wire.connect(params["socket"])
        wire.send(DescriptorRequest(params["session"], params["secret"], slab_id, generation, writable).encode())
        packet, received, _, _ = socket.recv_fds(wire, descriptors.ANSWER_BYTES, 1)
    if DescriptorAnswer.decode(packet).status != descriptors.OK:
        for descriptor in received:
            os.close(descriptor)
        raise PermissionError("the server passes no descriptor of that slab")
    (descriptor,) = received
    return descriptor
