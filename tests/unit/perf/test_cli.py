"""``farpool perf quick``: what it prints, and where it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import farpool
from farpool.cli.main import main
from farpool.server.embedded import EmbeddedServer

QUICK = ["perf", "quick", "--seconds", "0.005"]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with farpool.serve_embedded(capacity="64MiB") as served:
        yield served


def test_json_lines_come_alone_on_stdout(server: EmbeddedServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--json", "--url", server.url, "--transports", "cxl,rdma"]) == 0
    out, err = capfd.readouterr()
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["transport"] for record in records] == ["control", *["cxl"] * 15, "rdma"]
    assert len({tuple(record) for record in records}) == 1
    assert records[-1]["reason"]
    assert err.startswith("farpool: measured on ")
    assert len(err.splitlines()) == 1


def test_the_table_fits_80_columns(
    server: EmbeddedServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*QUICK, "--url", server.url, "--transports", "tcp,rdma"]) == 0
    out, _ = capfd.readouterr()
    assert "…" not in out
    assert "raw stream" in out
    assert "rdma      not measured here: " in out
    assert max(map(len, out.splitlines())) <= 80


def test_without_an_address_a_server_is_started(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FARPOOL_URL", raising=False)
    assert main([*QUICK, "--json", "--transports", "rdma"]) == 0
    assert [json.loads(line)["transport"] for line in capfd.readouterr().out.splitlines()] == ["control", "rdma"]


def test_the_server_that_is_started_keeps_its_slabs_where_it_is_told(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FARPOOL_URL", raising=False)
    monkeypatch.setenv("FARPOOL_ARENA", str(tmp_path / "nonesuch"))  # the command line counts for more
    arena = tmp_path / "arena"
    assert main([*QUICK, "--json", "--transports", "rdma", "--arena", str(arena)]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[0])["transport"] == "control"
    assert (arena / ".farpool").is_dir()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--seconds", "0"], 2),
        (["--seconds", "61"], 2),
        (["--seconds", "soon"], 2),
        (["--transports", " ,"], 2),
        (["--url", "nonsense"], 2),
        (["--url", "unix:///nonesuch/farpool.sock"], 6),
    ],
)
def test_a_users_mistake_is_one_line(
    server: EmbeddedServer, capfd: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    assert main(["perf", "quick", "--url", server.url, *arguments]) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("farpool: ")
