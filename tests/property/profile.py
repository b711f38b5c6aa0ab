"""How hypothesis runs here: the same way every time, so that what fails in CI fails on a desk."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

__all__ = ["PROFILE"]

PROFILE = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
