"""The two-host suite, ``tests/two_hosts``: a server on one guest, clients on the other, over every transport."""

from __future__ import annotations

import re

import pytest
from tests.lab.conftest import RunLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1700)]


@pytest.mark.parametrize(
    ("options", "passed_over"),
    [
        (("--cxl-kind", "nvdimm"), "host A is not to be lost"),
        (("--cxl-kind", "pmem", "--lost", "A"), "QEMU's CXL memory loses atomics of two guests"),
    ],
    ids=["nvdimm", "pmem-host-A-is-lost"],
)
def test_clients_of_another_host(run_lab: RunLab, options: tuple[str, ...], passed_over: str) -> None:
    given = ("--hosts", "2", "--rdma", "--cxl", "256M", *options, "--timeout", "1200", "--boot-timeout", "400")
    done = run_lab(*given, "--", "bash", "tests/two_hosts/run.sh")
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr}"
    skipped = re.findall(r"^B\| SKIPPED \[1\] (.*)", done.stdout, re.MULTILINE)
    assert len(skipped) == 1, skipped
    assert passed_over in skipped[0]
    assert re.search(r"^B\| =+ 21 passed, 1 skipped in ", done.stdout, re.MULTILINE), done.stdout
