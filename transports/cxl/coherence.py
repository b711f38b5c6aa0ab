"""What a region does about caches: as the server declared, or as a test asks for by an environment variable."""

from __future__ import annotations

import os
from typing import Final

from farpool.native.cxl_region import CxlRegion
from farpool.native.line_model import LineModel
from farpool.native.mapping import Mapping as MemoryMapping
from farpool.protocol.errors import InvalidArgument
from farpool.transports.contract import Ticket

__all__ = ["VARIABLE", "make_region"]

VARIABLE: Final = "FARPOOL_CXL_COHERENCE"
"""For tests: ``simulated`` puts a model of incoherent caches before each region's memory, and
``simulated-without-flush`` and ``simulated-without-invalidate`` models that have a fault."""

_FAULTS: Final = {
    "simulated": "",
    "simulated-without-flush": "flush",
    "simulated-without-invalidate": "invalidate",
}


def make_region(ticket: Ticket, mapping: MemoryMapping, generations: MemoryMapping) -> CxlRegion:
    """Return the region of one mapped slab."""
    coherence = str(ticket.params.get("coherence", "hardware"))
    asked = os.environ.get(VARIABLE)
    model = None
    if asked:
        if asked not in _FAULTS:
            raise InvalidArgument(f"{VARIABLE} is one of {', '.join(_FAULTS)}, not {asked!r}")
        model = LineModel(mapping, _FAULTS[asked])
    return CxlRegion(
        mapping,
        ticket.nbytes,
        generations,
        ticket.params["slot"],
        ticket.generation,
        ticket.writable,
        ticket.atomics == "cpu",
        ticket.label,
        None,
        coherence,
        model,
        int(ticket.params.get("watched", 0)),
        int(ticket.params.get("session_word", 0)),
        int(ticket.params.get("session", 0)),
    )
