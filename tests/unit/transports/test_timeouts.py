"""One rule for timeouts: what a region takes is what the client's other calls take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farpool.client.deadlines import parse_timeout
from farpool.native.checks import seconds_of
from farpool.protocol.errors import InvalidArgument


@pytest.mark.parametrize("timeout", [1, 0.5, 1e-9, 2**62, 1e300, float("inf"), np.float64(3.5)])
def test_the_same_seconds(timeout: float) -> None:
    assert seconds_of(timeout, 7.0) == parse_timeout(timeout)


@pytest.mark.parametrize(
    "timeout",
    [0, -1, float("nan"), -float("inf"), "5", True, b"", np.int64(1), 10**400, 10**5000],
    ids=lambda value: type(value).__name__,
)
def test_the_same_refusals(timeout: Any) -> None:
    with pytest.raises(InvalidArgument, match="timeout must be seconds"):
        parse_timeout(timeout)
    with pytest.raises(InvalidArgument, match="timeout must be seconds"):
        seconds_of(timeout, 7.0)


def test_none_is_the_default() -> None:
    assert seconds_of(None, 7.0) == 7.0
