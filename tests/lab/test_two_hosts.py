"""The two-host suite, ``tests/two_hosts``: a server on one guest, clients on the other, over every transport."""

from __future__ import annotations

import os
import re

import pytest
from tests.lab.conftest import RunLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1700)]


@pytest.mark.parametrize(
    ("kind", "passed_over"),
    [
        ("nvdimm", []),
        pytest.param(
            "pmem",
            ["QEMU's CXL memory loses atomics of two guests"],
            marks=pytest.mark.skipif(os.environ.get("LAB_SUITES") != "whole", reason="only with LAB_SUITES=whole"),
        ),
    ],
)
def test_clients_of_another_host(run_lab: RunLab, kind: str, passed_over: list[str]) -> None:
    given = ("--hosts", "2", "--rdma", "--cxl", "256M", "--cxl-kind", kind, "--lost", "A")
    limits = ("--timeout", "1200", "--boot-timeout", "400")
    done = run_lab(*given, *limits, "--", "bash", "tests/two_hosts/run.sh")
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr}"
    skipped = re.findall(r"^B\| SKIPPED \[1\] (.*)", done.stdout, re.MULTILINE)
    assert len(skipped) == len(passed_over), skipped
    assert all(reason in said for reason, said in zip(passed_over, skipped, strict=True))
    assert re.search(rf"^B\| =+ {22 - len(skipped)} passed", done.stdout, re.MULTILINE), done.stdout
