"""Client and server on processors of their own, and back again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from farpool.perf.placement import apart_from, cpus_of

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")


@pytest.fixture
def child() -> Iterator[int]:
    waits = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE) as process:
        yield process.pid


def test_our_child_runs_apart(child: int) -> None:
    before = cpus_of(0), cpus_of(child)
    with apart_from(child):
        assert len(cpus_of(0)) == 1
        assert cpus_of(child) == before[0] - cpus_of(0)
    assert (cpus_of(0), cpus_of(child)) == before


@pytest.mark.parametrize("pid", [1, 1 << 22, 1 << 40])
def test_what_is_not_our_child_is_left_alone(pid: int) -> None:
    before = cpus_of(0), cpus_of(pid)
    with apart_from(pid):
        assert (cpus_of(0), cpus_of(pid)) == before


def test_a_child_that_ends_meanwhile_is_no_error(child: int) -> None:
    before = cpus_of(0)
    with apart_from(child):
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert cpus_of(0) == before
