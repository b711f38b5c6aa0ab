"""Files in and out of slabs: the bytes, the checksum, and what a failure leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import farpool
from farpool.cli import put as put_module
from farpool.cli.file_trailer import TRAILER_NBYTES, FileTrailer
from farpool.protocol.errors import ServerLost
from farpool.server.embedded import EmbeddedServer

Cli = Callable[..., Any]
"""Runs one command; what it returns has ``code``, ``out`` and ``err``."""

MIB = 1 << 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(os.urandom(9 * MIB + 17))  # one whole step, and a part of one
    return path


@pytest.fixture(autouse=True)
def _no_slab_left(cli: Cli) -> Iterator[None]:
    yield
    for line in cli("ls", "--json").out.splitlines():
        cli("free", json.loads(line)["id"])


def names(cli: Cli) -> list[str]:
    return [json.loads(line)["name"] for line in cli("ls", "--json").out.splitlines()]


@pytest.mark.parametrize("into", ["cxl", "tcp"])
@pytest.mark.parametrize("out_of", ["cxl", "tcp"])
def test_a_file_comes_back_as_it_went(cli: Cli, source: Path, tmp_path: Path, into: str, out_of: str) -> None:
    stored = cli("put", source, "--name", "f", "--transport", into)
    assert stored.code == 0
    assert stored.err == ""
    assert f"over {into}" in stored.out
    target = tmp_path / "target"
    fetched = cli("get", "f", target, "--transport", out_of)
    assert fetched.code == 0
    assert fetched.err == ""
    assert f"over {out_of}" in fetched.out
    assert target.read_bytes() == source.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.bin", "target"]


@pytest.mark.parametrize("nbytes", [1, 4096, 8 * MIB, 8 * MIB + 1])
def test_sizes_at_the_edges(cli: Cli, tmp_path: Path, nbytes: int) -> None:
    source, target = tmp_path / "edge", tmp_path / "out"
    source.write_bytes(os.urandom(nbytes))
    assert cli("put", source).code == 0
    assert cli("get", "edge", target).code == 0
    assert target.read_bytes() == source.read_bytes()


def test_json_of_put_and_get(cli: Cli, source: Path, tmp_path: Path) -> None:
    stored = json.loads(cli("put", source, "--name", "f", "--json").out)
    fetched = json.loads(cli("get", "f", tmp_path / "out", "--json").out)
    assert (stored["op"], fetched["op"]) == ("put", "get")
    for record in (stored, fetched):
        assert record["nbytes"] == source.stat().st_size
        assert record["name"] == "f"
        assert record["transport"] == "cxl"
    assert stored["crc32c"] == fetched["crc32c"]
    assert stored["id"] == fetched["id"]


def test_get_by_id_replaces_a_file_and_keeps_a_link(cli: Cli, source: Path, tmp_path: Path) -> None:
    stored = json.loads(cli("put", source, "--json").out)
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    assert cli("get", stored["id"], link).code == 0
    assert link.is_symlink()
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("at", [0, 5 * MIB, -TRAILER_NBYTES - 1])
def test_a_flipped_byte_is_found_and_no_file_is_left(
    cli: Cli, pool: farpool.Pool, source: Path, tmp_path: Path, at: int
) -> None:
    cli("put", source, "--name", "f")
    with pool.open("f") as slab:
        position = at % slab.nbytes
        (byte,) = slab.read(1, position)
        slab.write(bytes([byte ^ 1]), position)
    result = cli("get", "f", tmp_path / "out")
    assert result.code == 1
    assert "damaged" in result.err
    assert result.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["source.bin"]


def test_a_damaged_trailer_is_found(cli: Cli, pool: farpool.Pool, source: Path, tmp_path: Path) -> None:
    cli("put", source, "--name", "f")
    with pool.open("f") as slab:
        slab.write(b"\xff", slab.nbytes - 10)
    assert cli("get", "f", tmp_path / "out").code == 1


def test_half_a_file_is_never_taken_for_a_whole_one(cli: Cli, pool: farpool.Pool, tmp_path: Path) -> None:
    """Lessons row 2: only the last step of a put makes its file readable."""
    with pool.allocate(1000 + TRAILER_NBYTES, name="half", lease="persistent") as slab:
        slab.write(FileTrailer(1000).pack(), 1000)
    result = cli("get", "half", tmp_path / "out")
    assert result.code == 1
    assert "half a file" in result.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("nbytes", [1, TRAILER_NBYTES, 10000])
def test_a_slab_that_put_did_not_make_is_copied_whole(
    cli: Cli, pool: farpool.Pool, tmp_path: Path, nbytes: int
) -> None:
    content = os.urandom(nbytes)
    with pool.allocate(nbytes, name="raw", lease="persistent") as slab:
        slab.write(content)
    result = cli("get", "raw", tmp_path / "out")
    assert result.code == 0
    assert "no checksum" in result.err
    assert "no checksum" in result.out
    assert (tmp_path / "out").read_bytes() == content


def test_what_put_does_not_take(cli: Cli, tmp_path: Path) -> None:
    empty, fifo = tmp_path / "empty", tmp_path / "fifo"
    empty.touch()
    os.mkfifo(fifo)
    for path, word in (
        (empty, "empty"),
        (fifo, "regular"),
        (tmp_path, "directory"),
        (tmp_path / "no", "no file"),
    ):
        result = cli("put", path)
        assert result.code == 2
        assert word in result.err
        assert result.err.count("\n") == 1
    assert names(cli) == []


def test_where_get_does_not_write(cli: Cli, source: Path, tmp_path: Path) -> None:
    cli("put", source, "--name", "f")
    assert cli("get", "f", tmp_path).code == 2
    assert cli("get", "f", "/dev/null").code == 2
    assert cli("get", "f", tmp_path / "none" / "out").code == 2
    assert Path("/dev/null").is_char_device()


def test_errors_of_the_pool(cli: Cli, source: Path, tmp_path: Path) -> None:
    assert cli("get", "unheard of", tmp_path / "out").code == 3
    assert cli("put", source, "--name", "f").code == 0
    assert cli("put", source, "--name", "f").code == 4
    assert cli("put", source, "--name", "g", "--lease", "session").code == 2
    assert cli("put", source, "--name", "h", "--transport", "pigeon").code == 2
    huge = tmp_path / "huge"
    huge.touch()
    os.truncate(huge, 1 << 30)
    assert cli("put", huge).code == 5
    assert names(cli) == ["f"]


def test_a_second_get_of_the_same_file_is_refused_and_a_left_part_is_taken_over(
    cli: Cli, source: Path, tmp_path: Path
) -> None:
    import fcntl

    cli("put", source, "--name", "f")
    part, target = tmp_path / "out.part", tmp_path / "out"
    part.write_bytes(b"left by a killed get" * 100)
    with part.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert cli("get", "f", target).code == 2
    assert cli("get", "f", target).code == 0
    assert target.read_bytes() == source.read_bytes()
    assert not part.exists()


def test_a_full_disk_leaves_no_part(cli: Cli, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> int:
        raise OSError(28, os.strerror(28), str(tmp_path / "out.part"))

    cli("put", source, "--name", "f")
    monkeypatch.setattr("farpool.cli.get._write_all", full)
    result = cli("get", "f", tmp_path / "out")
    assert result.code == 1
    assert "No space left" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["source.bin"]


@pytest.mark.parametrize("size", [0, 10 * MIB])
def test_a_source_that_changes_is_refused_and_leaves_no_slab(
    cli: Cli, source: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    def change(chunk: object, value: int) -> int:
        os.truncate(source, size)
        return 0

    monkeypatch.setattr(put_module, "crc32c", change)
    result = cli("put", source, "--name", "f")
    assert result.code == 1
    assert "changed" in result.err
    assert names(cli) == []


def test_a_source_rewritten_in_place_is_refused(cli: Cli, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rewrite(chunk: object, value: int) -> int:
        os.utime(source, (1, time.time() + 5))
        return 0

    monkeypatch.setattr(put_module, "crc32c", rewrite)
    assert cli("put", source, "--name", "f").code == 1
    assert names(cli) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), ServerLost("gone"), OSError(5, "I/O error")])
def test_a_put_that_fails_frees_its_slab(
    cli: Cli, source: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*arguments: object) -> int:
        raise error

    monkeypatch.setattr(put_module, "crc32c", fail)
    if isinstance(error, SystemExit):
        with pytest.raises(SystemExit):
            cli("put", source, "--name", "f")
    else:
        assert (
            cli("put", source, "--name", "f").code
            == {"KeyboardInterrupt": 130, "ServerLost": 6, "OSError": 1}[type(error).__name__]
        )
    assert names(cli) == []


def test_a_killed_put_leaves_a_name_that_says_so(
    cli: Cli, server: EmbeddedServer, source: Path, tmp_path: Path
) -> None:
    program = (
        "import os, sys; from farpool.cli import put; from farpool.cli.main import main\n"
        "put.crc32c = lambda *_: os.kill(os.getpid(), 9)\n"
        "main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, "put", str(source), "--name", "f", "--url", server.url]
    assert subprocess.run(command, timeout=30, check=False).returncode == -9
    result = cli("get", "f", tmp_path / "out")
    assert result.code == 1
    assert "half a file" in result.err
    assert cli("free", "f").code == 0


def test_names_are_shown_on_one_line(cli: Cli, pool: farpool.Pool, tmp_path: Path) -> None:
    with pool.allocate(10, name="\u202espoof", lease="persistent"):
        pass
    assert "\u202e" not in cli("get", "\u202espoof", tmp_path / "out").out
    assert isinstance(pool, farpool.Pool)


@pytest.mark.parametrize("transport", ["cxl", "tcp"])
def test_a_slab_that_is_freed_meanwhile_is_code_3(
    cli: Cli, pool: farpool.Pool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    def free(*arguments: object) -> None:
        with suppress(farpool.SlabNotFound):
            pool.open("f").free()

    cli("put", source, "--name", "f")
    monkeypatch.setattr("farpool.cli.get._write_all", free)
    result = cli("get", "f", tmp_path / "out", "--transport", transport)
    assert result.code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["source.bin"]


def test_a_server_that_dies_meanwhile_is_code_6_and_leaves_no_file(
    bare: Cli, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with farpool.serve_embedded(capacity="64MiB") as mortal:
        options = ["--url", mortal.url, "--transport", "tcp", "--timeout", "1"]
        assert bare("put", source, "--name", "f", *options).code == 0

        def kill(*arguments: object) -> None:
            mortal.kill()

        monkeypatch.setattr("farpool.cli.get._write_all", kill)
        assert bare("get", "f", tmp_path / "out", *options).code == 6
    assert [path.name for path in tmp_path.iterdir()] == ["source.bin"]


def test_what_put_and_get_do_not_take_is_said(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command, words in (
        (("put", "-"), "standard input"),
        (("get", "1", "-"), "standard output"),
        (("put", "/proc/version"), "no size before it is read"),
    ):
        result = cli(*command)
        assert (result.code, result.out) == (2, "")
        assert words in result.err
    assert list(tmp_path.iterdir()) == []
