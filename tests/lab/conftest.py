"""Run the tests of the lab where it can run, and say once why not where it cannot."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
ROOT_OF_CHECKOUT = FOLDER.parents[1]
PROGRAM = FOLDER / "farpool-lab"

StartLab = Callable[..., "subprocess.Popen[str]"]
RunLab = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if FOLDER in item.path.parents]
    if not ours:
        return
    done = subprocess.run([PROGRAM, "check"], capture_output=True, text=True, check=False)
    for item in ours:
        if done.returncode != 0:
            item.add_marker(pytest.mark.skip(reason=done.stderr.strip()))


@pytest.fixture
def start_lab(tmp_path: Path) -> StartLab:
    """Call with ``farpool-lab run``'s arguments: its process, which the test ends. Results go to ``tmp_path``."""

    def start(*arguments: str) -> subprocess.Popen[str]:
        # A worker of pytest-xdist is killed on Ctrl-C: what it has started shall end with it.
        command = ["setpriv", "--pdeathsig", "TERM", str(PROGRAM), "run", "--results", str(tmp_path), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


@pytest.fixture
def run_lab(start_lab: StartLab) -> RunLab:
    """Call with ``farpool-lab run``'s arguments: its exit code and what it printed."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        with start_lab(*arguments) as process:
            out, err = process.communicate()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    return run
