"""Rounds of faults over every transport, in a guest that has the devices: ``CONTRIBUTING.md``, "Chaos"."""

from __future__ import annotations

import json

import pytest
from tests.chaos.findings import Finding
from tests.lab.conftest import RunLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

ROUNDS = 6
SEED = 2054
"""One of those whose first rounds hit clients on six different ways to memory, each in another way."""


def test_rounds_over_every_transport(run_lab: RunLab) -> None:
    command = ["--timeout", "1500", "--", "python", "-m", "tests.chaos", "--json"]
    done = run_lab("--rdma", "--cxl", "512M", *command, "--rounds", str(ROUNDS), "--seed", str(SEED))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    summary, *_ = [json.loads(line) for line in done.stdout.splitlines()]
    assert summary["rounds"] == ROUNDS
    assert not any(summary[kind] for kind in Finding)
    lanes = {"cxl (files)", "tcp (files)", "rdma (files)", "tcp (device)", "rdma (device)", "tcp (tls)"}
    assert summary["played"].keys() >= lanes
