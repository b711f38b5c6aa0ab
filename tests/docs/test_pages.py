"""What the pages say in tables and lists is what the code has: wire format, settings, exit codes, commands, links."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from farpool.cli.exit_codes import ExitCode
from farpool.cli.main import COMMANDS
from farpool.native import tcp_wire
from farpool.protocol.messages import OPERATIONS
from farpool.server.settings import ServerSettings, load_settings

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))]


def page(name: str) -> str:
    return (DOCS / name).read_text()


def section(name: str, heading: str) -> str:
    return re.split(r"\n##+ ", page(name).split(f"\n{heading}\n")[1])[0]


def numbered_rows(text: str) -> dict[int, str]:
    """Return the rows of a table whose first cell is a number: that number, and the second cell."""
    return {int(number): name for number, name in re.findall(r"^\| (\d+) \| ([^|]*?) \|", text, re.MULTILINE)}


def test_the_operations_of_the_data_plane() -> None:
    rows = numbered_rows(section("protocol.md", "### Operations"))
    assert {name: number for number, name in rows.items()} == tcp_wire.OPERATIONS


def test_the_statuses_of_the_data_plane() -> None:
    tables = section("protocol.md", f"### Answer: {tcp_wire.ANSWER_BYTES} bytes, then `length` bytes")
    assert numbered_rows(tables.split("| status | name |")[1]) == tcp_wire.STATUSES


def test_the_numbers_of_the_data_plane() -> None:
    text = page("protocol.md")
    assert f"### Request: {tcp_wire.REQUEST_BYTES} bytes" in text
    assert f"### Answer: {tcp_wire.ANSWER_BYTES} bytes" in text
    assert f"`0x{tcp_wire.MAGIC:X}`" in text
    assert f"the version: {tcp_wire.VERSION} " in text
    assert f"at most {tcp_wire.MAX_PARTS:,} parts" in text


def test_every_request_of_the_control_plane() -> None:
    text = page("protocol.md")
    assert [cls.__name__ for cls in OPERATIONS.values() if f"messages.{cls.__name__}\n" not in text] == []


def test_every_setting_of_the_server_and_no_other() -> None:
    text = section("operations.md", "## Configure")
    named = set(re.findall(r"^#? ?(\w+) = ", text, re.MULTILINE))
    assert named == set(ServerSettings.model_fields) - {"transport_settings"}


def test_the_defaults_of_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "farpool.toml"
    file.write_text(re.findall(r"^```toml\n(.*?)^```", page("operations.md"), re.MULTILINE | re.DOTALL)[0])
    shown = load_settings(file, {}).model_dump(include=set(tomllib.loads(file.read_text())))
    assert shown == {name: ServerSettings.model_fields[name].default for name in shown}


def test_the_exit_codes() -> None:
    assert set(numbered_rows(section("design.md", "## The command line"))) == {int(code) for code in ExitCode}


def test_every_command() -> None:
    text = section("design.md", "## The command line")
    assert [name for name in COMMANDS if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_files_of_the_repository(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text())
    assert [target for target in targets if "://" not in target and not (path.parent / target).exists()] == []
