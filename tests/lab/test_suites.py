"""The suites of the transports that need a device, each in a guest that has one.

A guest's device must be used: a test that is passed over there for want of one would hide a failure.
"""

from __future__ import annotations

import os
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from tests.lab.conftest import RunLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

RDMA = ("--rdma",)
DEVICE = ("--cxl", "768M", "--cxl-kind", "nvdimm")
"""Ordinary memory to the guest: what QEMU emulates of CXL costs 30 ms a MiB, and the driver above it is the same."""
SMALL_DEVICE = ("--cxl", "256M", "--cxl-kind", "nvdimm")
"""For the tests of rdma that register a device's memory."""
LESSONS = "tests/lessons/test_row_1[5689]_*.py"
HISTORIES = " ".join(
    f"'tests/linearizability/test_words.py::test_{name}'"
    for name in (
        "nothing_fails[rdma]",
        "clients_are_killed_and_stopped[rdma]",
        "the_server_starts_anew[rdma-killed]",
        "the_server_starts_anew[rdma-stopped]",
    )
)
"""What concurrent clients saw of words over rdma, with clients and the server killed meanwhile."""
CONFORMANCE = "tests/conformance"
CORE = tuple(f"{CONFORMANCE}/test_{name}.py" for name in ("transfers", "words", "lifetime", "restarting", "commits"))
"""What differs most between transports. ``LAB_SUITES=whole`` runs all of the suite: half an hour more."""
MISSING = ("no RDMA device", "no DAX device", "pyverbs")
"""What no test of these may be passed over for."""
SLOWEST = "processes_lose_no_update and sync"
SUITES = {
    "rdma": ((*RDMA, *SMALL_DEVICE), f"tests/rdma {LESSONS} {HISTORIES}", "--transport rdma"),
    "rdma-pyverbs": (RDMA, "", "--transport 'rdma?verbs=pyverbs'"),
    "cxl-device": (DEVICE, "tests/devices", "--transport cxl-device"),
}


def suite_of(name: str) -> tuple[tuple[str, ...], str]:
    """Return the guest's options, and what pytest is given in it."""
    options, own, chosen = SUITES[name]
    if os.environ.get("LAB_SUITES") == "whole":
        return options, f"{own} {CONFORMANCE} {chosen}"
    kept = f"not ({SLOWEST})" + (" and not aio" if name == "rdma-pyverbs" else "")
    return options, f"{own} {' '.join(CORE)} {chosen} -k '{kept}'"


def run_suite(run_lab: RunLab, results: Path, options: tuple[str, ...], tests: str) -> list[ET.Element]:
    """Run pytest in a guest; return its cases."""
    report = shlex.quote(str(results / "report.xml"))
    script = (
        f"export FARPOOL_START_TIMEOUT=200 FARPOOL_TEST_DAX=${{LAB_DAX:-}}; "
        f"exec python -m pytest -q -p no:cacheprovider -o timeout=300 --junitxml={report} {tests}"
    )
    done = run_lab(*options, "--timeout", "1700", "--", "bash", "-c", script)
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr}"
    return list(ET.parse(results / "report.xml").iter("testcase"))


@pytest.mark.parametrize("name", SUITES)
def test_the_suite_passes_on_the_device(run_lab: RunLab, tmp_path: Path, name: str) -> None:
    options, tests = suite_of(name)
    cases = run_suite(run_lab, tmp_path, options, tests)
    skipped = [str(skip.get("message")) for case in cases for skip in case.iter("skipped")]
    assert len(cases) - len(skipped) > 80
    assert [reason for reason in skipped for missing in MISSING if missing in reason] == []
