"""The conformance suite under the model of incoherent caches fails when a flush or an invalidate is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", ["simulated-without-flush", "simulated-without-invalidate"])
def test_the_suite_notices(fault: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["--transport", "cxl", "tests/conformance/test_transfers.py", "-k", "see_each_others and sync"]
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**outer, "FARPOOL_CXL_COHERENCE": fault},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed" in done.stdout, done.stdout
