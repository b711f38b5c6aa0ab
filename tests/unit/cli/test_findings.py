"""The checks of ``farpool doctor`` on machines that this one is not."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farpool.cli.checks import CHECKS, examine
from farpool.cli.cxl_findings import describe_contents
from farpool.cli.findings import Finding, Subject
from farpool.cli.main import main
from farpool.transports.cxl.devices import open_device

Cli = Callable[..., Any]
"""Runs one command; what it returns has ``code``, ``out`` and ``err``."""


def run(name: str, subject: Subject) -> list[Finding]:
    return list(CHECKS[name](subject))


def test_every_check_gives_a_finding_and_names_itself(tmp_path: Path) -> None:
    found = list(examine(Subject(url=f"unix://{tmp_path}/none.sock", timeout=0.5)))
    assert {finding.check for finding in found} >= set(CHECKS)
    assert all(finding.message and "\n" not in finding.message for finding in found)


def test_no_server_fails_only_where_one_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FARPOOL_URL", raising=False)
    (named,) = run("server", Subject(url=f"unix://{tmp_path}/none.sock", timeout=0.5))
    assert (named.level, named.mend) == ("fail", "farpool serve")


def test_a_server_that_does_not_answer_is_not_to_be_started(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        (found,) = run("server", Subject(url=f"unix://{tmp_path}/s", timeout=0.2))
    assert (found.level, found.mend) == ("fail", "")


def test_what_is_fine_needs_no_mending(tmp_path: Path) -> None:
    found = examine(Subject(url=f"unix://{tmp_path}/none.sock", timeout=0.5))
    assert [finding for finding in found if finding.level == "ok" and finding.mend] == []


def test_doctor_exits_1_when_something_fails(bare: Cli, tmp_path: Path) -> None:
    result = bare("doctor", "--url", f"unix://{tmp_path}/none.sock")
    assert result.code == 1
    assert "1 fail" in result.out


def test_no_devices_are_a_warning(tmp_path: Path) -> None:
    subject = Subject(sys_root=tmp_path)
    assert {finding.level for name in ("rdma library", "locked memory") for finding in run(name, subject)} == {"ok"}
    (cxl,) = run("cxl devices", Subject(sys_root=tmp_path))
    assert (cxl.level, cxl.mend) == ("warn", "")
    (tmp_path / "bus/cxl/devices/mem0").mkdir(parents=True)
    (cxl,) = run("cxl devices", Subject(sys_root=tmp_path))
    assert (cxl.level, cxl.mend) == ("warn", "cxl create-region -m mem0")


def test_dax_devices_are_named_with_what_mends_them(tmp_path: Path) -> None:
    node = tmp_path / "bus/dax/devices/dax0.0"
    node.mkdir(parents=True)
    (tmp_path / "bus/dax/drivers/kmem").mkdir(parents=True)
    (node / "driver").symlink_to(tmp_path / "bus/dax/drivers/kmem")
    (finding,) = run("cxl devices", Subject(sys_root=tmp_path))
    assert finding.level == "warn"
    assert "dax0.0 is in system-ram mode" in finding.message
    assert finding.mend.endswith("daxctl reconfigure-device --force --mode=devdax dax0.0")


def test_what_a_device_holds(tmp_path: Path) -> None:
    path = tmp_path / "memory"

    def contents() -> Finding:
        return describe_contents("memory", open_device(str(path), writable=True))

    path.write_bytes(bytes(2 << 20))
    assert "too small" in contents().message
    path.write_bytes(bytes(4 << 20))
    assert contents().message.endswith("blank")
    assert main(["format", "--yes", str(path)]) == 0
    assert (contents().level, contents().message[-5:]) == ("ok", "blank")
    path.write_bytes(b"x" * (4 << 20))
    assert contents().mend == f"farpool format --yes {path}"


@pytest.mark.parametrize(("total", "word"), [(0, "none"), (512, "512 of 2048 kB")])
def test_huge_pages(tmp_path: Path, total: int, word: str) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nHugePages_Total:  {total}\nHugepagesize:  2048 kB\n")
    (finding,) = run("huge pages", Subject(proc_root=tmp_path))
    assert finding.level == "ok"
    assert word in finding.message


def test_a_check_that_breaks_is_a_finding(tmp_path: Path) -> None:
    found = [finding for finding in examine(Subject(proc_root=tmp_path, timeout=0.5)) if finding.check == "huge pages"]
    assert [finding.level for finding in found] == ["warn"]
    assert "could not be checked" in found[0].message
