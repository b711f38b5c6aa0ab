from farpool.native.rdma_region import RdmaRegion
from farpool.native.verbs_limits import BareVerbs

def instant_region(nbytes: int) -> RdmaRegion:
    """Return a region of *nbytes* whose operations are done when they are posted; no byte moves."""

def instant_verbs(nbytes: int) -> BareVerbs:
    """Return the loops in C over the same provider: the limit."""

def posted() -> tuple[int, int, int, int]:
    """Return how many doorbells, work requests, signalled ones and bytes there were in this process."""
