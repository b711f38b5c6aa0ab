"""A bounded run of the rounds that ``make chaos`` plays at length, and that a round can be played again."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from tests.chaos.findings import Finding
from tests.chaos.plan import ROLES, Lane, Scenario, draw

ROOT = Path(__file__).resolve().parents[2]
LANES = [Lane("files", "cxl"), Lane("files", "tcp"), Lane("tls", "tcp")]
ROUNDS = 30
SECONDS = 300
"""No round begins after that, which a machine that is merely busy does not reach: fewer rounds are a failure."""


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
def test_rounds_of_faults() -> None:
    """Each run plays others, so that many runs see many; what fails says how to play it again."""
    seed = os.environ.get("FARPOOL_CHAOS_SEED") or str(secrets.randbelow(1 << 31))
    again = f"to play these rounds again: FARPOOL_CHAOS_SEED={seed}"
    print(again)
    command = [sys.executable, "-m", "tests.chaos", "--json", "--rounds", str(ROUNDS), "--seed", seed]
    command += ["--seconds", str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 100, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{again}\n{done.stderr}"
    summary, *rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert not any(summary[kind] for kind in Finding), again
    assert summary["rounds"] == ROUNDS, f"played in {summary['seconds']} s; {again}"
    assert summary["turns"] > summary["rounds"], again
    assert all(row["count"] for row in rows), again


def test_a_round_is_what_its_seed_and_number_say() -> None:
    rounds = [draw(7, number, LANES) for number in range(60)]
    assert rounds == [draw(7, number, LANES) for number in range(60)]
    assert rounds != [draw(8, number, LANES) for number in range(60)]


def test_every_scenario_comes_over_every_lane_before_one_comes_again() -> None:
    every = len(Scenario) * len(LANES)
    assert len({(plan.scenario, plan.lane) for plan in (draw(1, number, LANES) for number in range(every))}) == every


@pytest.mark.parametrize("number", range(12))
def test_the_crew_uses_what_its_place_has(number: int) -> None:
    plan = draw(3, number, LANES)
    assert plan.transports[plan.victim] == plan.lane.transport
    assert len(plan.transports) == len(ROLES)
    assert set(plan.transports) <= {lane.transport for lane in LANES if lane.place == plan.lane.place}
