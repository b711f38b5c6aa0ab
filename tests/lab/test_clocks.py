"""The clock of the day is set by an hour under a server and its clients, in a guest that has one of its own."""

from __future__ import annotations

import pytest
from tests.lab.conftest import RunLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

HOLDS = ["deadlines hold", "leases hold", "a grant follows the clock", "sessions stay"]


@pytest.mark.parametrize("seconds", [3600, -3600], ids=["forward", "backward"])
def test_a_clock_that_jumps_moves_nothing_but_the_end_of_a_grant(run_lab: RunLab, seconds: int) -> None:
    script = f"FARPOOL_START_TIMEOUT=100 exec python tests/lab/programs/clocks.py {seconds}"
    done = run_lab("--timeout", "300", "--", "bash", "-c", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == HOLDS
