"""Lessons rows 1 to 3: a server that is killed in the middle of a commit has the old bytes or the new, never a mix."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

KILLER = Path(__file__).with_name("commit_killer.py")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["directory", "device"])
def test_killed_at_every_point_of_a_commit(kind: str) -> None:
    with tempfile.TemporaryDirectory(prefix="farpool-test-", dir="/dev/shm") as folder:
        command = [sys.executable, str(KILLER), folder, kind]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    rounds, _, old, _ = done.stdout.splitlines()[-1].replace(",", "").split()  # the log is before it
    assert int(rounds) > int(old) > 10
