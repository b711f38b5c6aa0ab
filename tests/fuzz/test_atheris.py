"""Run each coverage-guided harness for a bounded time; ``make fuzz`` lets them run longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fuzz.conftest import SECONDS

pytest.importorskip("atheris", reason="atheris is not installed: pip install 'farpool[fuzz]'")

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).with_name("corpus")
HARNESSES = sorted(Path(__file__).parent.glob("atheris_*.py"))
BOUNDS = [f"-max_total_time={SECONDS:.0f}"] if SECONDS else ["-runs=20000", "-max_total_time=5", "-seed=1"]


@pytest.mark.parametrize("harness", HARNESSES, ids=lambda path: path.stem)
def test_it_finds_nothing(harness: Path, tmp_path: Path) -> None:
    corpus = CORPUS / harness.stem.removeprefix("atheris_")  # new inputs go to the first folder
    command = [sys.executable, "-m", f"tests.fuzz.{harness.stem}", str(tmp_path), str(corpus), *BOUNDS]
    command += [f"-artifact_prefix={tmp_path}/"]
    limits = ["-timeout=10", "-rss_limit_mb=1024", "-max_len=4096", "-len_control=0"]
    done = subprocess.run(
        [*command, *limits],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=100 + SECONDS,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Done " in done.stderr, done.stderr[-4000:]
