"""Settings: which source wins, and what a mistake in each gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from farpool.server.settings import ConfigurationError, ServerSettings, load_settings


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("FARPOOL_"):
            monkeypatch.delenv(name)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "farpool.toml"


def test_no_file_is_needed() -> None:
    settings = load_settings()
    assert settings.capacity == 1 << 30
    assert settings.listen == "127.0.0.1:7700"
    assert settings.transports == ("cxl", "tcp")
    assert settings.arena == f"/dev/shm/farpool-{os.geteuid()}"
    assert settings.socket_bits == 0o600


def test_command_line_beats_environment_beats_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text('capacity = "1MiB"\nsession_timeout = 3\nlog_level = "error"\n')
    monkeypatch.setenv("FARPOOL_SESSION_TIMEOUT", "4")
    monkeypatch.setenv("FARPOOL_LOG_LEVEL", "warning")
    settings = load_settings(config, {"log_level": "debug", "listen": None})
    assert settings.capacity == 1 << 20
    assert settings.session_timeout == 4
    assert settings.log_level == "debug"
    assert settings.listen == "127.0.0.1:7700"


def test_transports_are_a_list_or_names_with_commas(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text('transports = ["tcp"]\n')
    assert load_settings(config).transports == ("tcp",)
    monkeypatch.setenv("FARPOOL_TRANSPORTS", "tcp, cxl,tcp")
    assert load_settings(config).transports == ("tcp", "cxl")
    assert load_settings(config, {"transports": ["cxl"]}).transports == ("cxl",)


def test_paths_may_be_paths(tmp_path: Path) -> None:
    settings = load_settings(None, {"arena": tmp_path, "unix": tmp_path / "f.sock"})
    assert settings.arena == str(tmp_path)
    assert settings.unix == str(tmp_path / "f.sock")


def test_the_data_plane_is_reached_where_the_control_plane_is() -> None:
    assert load_settings().data_address == "127.0.0.1:0"
    assert load_settings(None, {"listen": "0.0.0.0:7700"}).data_address == "0.0.0.0:0"
    assert load_settings(None, {"listen": "[::]:7700"}).data_address == "[::]:0"
    assert load_settings(None, {"listen": "0.0.0.0:1", "data_listen": "127.0.0.1:2"}).data_address == "127.0.0.1:2"


def test_unknown_key_names_file_key_and_known_ones(config: Path) -> None:
    config.write_text("capasity = 1\n")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(config)
    message = str(caught.value)
    assert str(config) in message
    assert '"capasity"' in message
    assert "capacity" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('capacity = "12XB"', ["capacity", "12XB", "KiB"]),
        ("capacity = 0", ["capacity", "at least 1 byte"]),
        ('listen = "nowhere"', ["listen", "HOST:PORT"]),
        ('socket_mode = "9"', ["socket_mode", "octal"]),
        ('log_level = "loud"', ["log_level", "debug"]),
        ("session_timeout = -1", ["session_timeout", "greater than 0"]),
        ("data_threads = 65", ["data_threads", "64"]),
        ('data_listen = "here"', ["data_listen", "HOST:PORT"]),
        ("transports = []", ["transports", "cxl,tcp"]),
        (f'unix = "/{"x" * 120}"', ["unix", "107 bytes"]),
        ('max_sessions = "many"', ["max_sessions", "integer"]),
    ],
)
def test_bad_value_is_one_line_that_names_it(config: Path, text: str, words: list[str]) -> None:
    config.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_settings(config)
    message = str(caught.value)
    assert str(config) in message
    assert "\n" not in message
    for word in words:
        assert word in message


def test_bad_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARPOOL_CAPACITY", "much")
    with pytest.raises(ConfigurationError, match="FARPOOL_CAPACITY"):
        load_settings()


def test_bad_file_is_one_line(config: Path, tmp_path: Path) -> None:
    config.write_text("capacity = = 1")
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        load_settings(config)
    config.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        load_settings(config)
    with pytest.raises(ConfigurationError, match="cannot read"):
        load_settings(tmp_path / "missing.toml")


def test_reload_reads_the_same_sources(config: Path) -> None:
    config.write_text('capacity = "1MiB"\n')
    settings = load_settings(config, {"log_level": "debug"})
    config.write_text('capacity = "2MiB"\nlog_level = "error"\n')
    again = settings.reloaded()
    assert again.capacity == 2 << 20
    assert again.log_level == "debug"
    config.write_text("nonsense = 1\n")
    with pytest.raises(ConfigurationError):
        settings.reloaded()


def test_heartbeats_fit_into_the_time_of_silence() -> None:
    assert ServerSettings(session_timeout=10).heartbeat == 2.5
    assert ServerSettings(session_timeout=1).heartbeat == 0.25
