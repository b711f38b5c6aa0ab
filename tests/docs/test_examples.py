"""Every ``python``, ``console`` and ``toml`` block of the README and the docs does what a reader would do with it.

The Python blocks of a page run in order as one program; the console blocks of a page as one shell session. Both find a
server through the variables that a user would set, so that nothing collides with another test.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import farpool
from farpool.server.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATIENCE = 100.0


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in BLOCK.findall(page.read_text()) if name == language]


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A working folder whose name is short enough for a Unix socket."""
    path = Path(tempfile.mkdtemp())
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("page", pages_with("python"), ids=name_of)
def test_python_blocks_run_as_one_program(page: Path, folder: Path) -> None:
    program = folder / "example.py"
    program.write_text("\n".join(blocks(page, "python")))
    with farpool.serve_embedded(capacity="64MiB") as server:
        done = subprocess.run(
            [sys.executable, "-W", "error", program],
            cwd=folder,
            env={**os.environ, "FARPOOL_URL": server.url},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", pages_with("console"), ids=name_of)
def test_console_blocks_run_as_one_session(page: Path, folder: Path) -> None:
    lines = [line[2:] for text in blocks(page, "console") for line in text.splitlines() if line.startswith("$ ")]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(folder),
        "FARPOOL_ARENA": str(folder / "arena"),
        "FARPOOL_LISTEN": "127.0.0.1:0",
    }
    (folder / "arena").mkdir(mode=0o700)
    shell = subprocess.Popen(
        ["bash", "-e", "-o", "pipefail", "-c", "\n".join(lines)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = shell.communicate(timeout=PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)  # whatever the page has left in the background
        shell.wait()
    assert shell.returncode == 0, output


@pytest.mark.parametrize("page", pages_with("toml"), ids=name_of)
def test_configuration_files_load(page: Path, folder: Path) -> None:
    for text in blocks(page, "toml"):
        file = folder / "farpool.toml"
        file.write_text(text)
        load_settings(file, {})
