"""``farpool demo``, from its first line to its table."""

from __future__ import annotations

import signal
import subprocess
import sys

DEMO = [sys.executable, "-m", "farpool.cli.main", "demo", "--seconds", "0.01"]


def test_demo_verifies_across_transports_and_shows_a_table() -> None:
    done = subprocess.run(DEMO, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for line in (
        "written over tcp, read over cxl: 8 MiB equal",
        "written over cxl, read over tcp: 8 MiB equal",
        "none was lost",
        "rdma",
    ):
        assert line in done.stdout


def test_demo_ends_on_ctrl_c_without_a_traceback() -> None:
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "clients" in line:
                process.send_signal(signal.SIGINT)
                break
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "farpool: interrupted\n")
