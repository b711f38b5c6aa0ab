"""The files of ``deploy/`` fit each other, and this server."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from farpool.server.settings import load_settings

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"


@pytest.fixture
def unit() -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "farpool.service")
    return dict(parser["Service"])


def test_the_configuration_is_one_of_this_server() -> None:
    settings = load_settings(DEPLOY / "farpool.toml", environment=False)
    assert settings.socket_bits == 0o660
    assert Path(settings.arena).parent == Path("/dev/shm")


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("examples/*.toml")), ids=lambda path: path.stem)
def test_the_examples_are_configurations_that_may_listen(path: Path) -> None:
    settings = load_settings(path, environment=False)
    assert settings.authentication == "required" or settings.listen.startswith("127.")


def test_the_service_may_write_where_its_configuration_points(unit: dict[str, str]) -> None:
    settings = load_settings(DEPLOY / "farpool.toml", environment=False)
    assert Path(settings.unix).parent == Path("/run", unit["RuntimeDirectory"])
    assert Path(settings.state_dir) == Path("/var/lib", unit["StateDirectory"])
    assert str(Path(settings.arena).parent) in unit["ReadWritePaths"].split()


def test_the_page_installs_what_the_service_reads_and_names_its_address(unit: dict[str, str]) -> None:
    page = (DEPLOY.parent / "docs/operations.md").read_text()
    (config,) = re.findall(r"--config (\S+)", unit["ExecStart"])
    assert f"deploy/farpool.toml {config}" in page
    settings = load_settings(DEPLOY / "farpool.toml", environment=False)
    assert f"FARPOOL_URL=unix://{settings.unix}" in page
