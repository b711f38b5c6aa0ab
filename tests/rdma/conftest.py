"""Tests of the rdma transport that need more than the conformance suite."""

from __future__ import annotations

import pytest

from farpool.protocol.errors import TransportUnavailable
from farpool.transports.rdma import binding


@pytest.fixture
def pyverbs() -> binding.Binding:
    """Skip the test where the distribution's pyverbs is not linked into this environment."""
    try:
        return binding.load("pyverbs")
    except TransportUnavailable as error:
        pytest.skip(error.message)
