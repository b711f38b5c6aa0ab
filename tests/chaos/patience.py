"""How long things may take here, in seconds. An emulated machine, which ``FARPOOL_START_TIMEOUT`` tells, needs more."""

from __future__ import annotations

import os

__all__ = ["PACE", "RESUME_GRACE", "SESSION_TIMEOUT", "TIMEOUT", "WITHIN"]

USUAL_START = 30.0
SLOWNESS = max(1.0, float(os.environ.get("FARPOOL_START_TIMEOUT", USUAL_START)) / USUAL_START)

TIMEOUT = 1.0 * SLOWNESS
"""A call of a client."""
SESSION_TIMEOUT = 2.0 * SLOWNESS
RESUME_GRACE = 3.0 * SLOWNESS
PACE = 0.01
"""Between attempts, so that clients that cannot work leave the processor to those that can."""
WITHIN = 60.0 * SLOWNESS
"""In which what must happen has happened; only a failure takes so long."""
