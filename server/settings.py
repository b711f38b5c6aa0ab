"""What a server can be told: a file ``farpool.toml``, the environment ``FARPOOL_*``, the command line.

The command line wins over the environment, and that over the file. Nothing here touches the machine but the
reading of the file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.sources import InitSettingsSource

from farpool.protocol.addresses import default_socket_path, parse_host_port, validate_socket_path
from farpool.protocol.errors import FarpoolError
from farpool.protocol.units import parse_size, validate_tenant

__all__ = [
    "RELOADABLE",
    "ConfigurationError",
    "ServerSettings",
    "TenantSettings",
    "TlsSettings",
    "load_settings",
    "unknown_variables",
]

RELOADABLE = (
    *(
        "capacity",
        "log_level",
        "session_timeout",
        "disconnect_grace",
        "resume_grace",
        "drain_timeout",
        "tenants",
        "tls",
    ),
)
"""Settings that SIGHUP changes in a running server; any other change waits for a restart."""

OTHER_VARIABLES = frozenset(
    {
        *("CONFIG", "CXL_COHERENCE", "DEBUG", "SERVER_EMBEDDED", "START_TIMEOUT", "TENANT", "TOKEN", "TOKEN_FILE"),
        *("TLS_CA", "TLS_CERTIFICATE", "TLS_KEY", "TLS_SERVER_NAME", "URL"),
    }
)
"""What ``FARPOOL_`` begins too and is no setting of a server: of the command line, the client, and what embeds us."""

Seconds = Annotated[float, Field(gt=0, le=86400.0)]
LogLevel = Literal["debug", "info", "warning", "error"]


class ConfigurationError(FarpoolError):
    """The server cannot start as it was told to; one line that says what is wrong and how to mend it."""


def _default_arena() -> str:
    return f"/dev/shm/farpool-{os.geteuid()}"  # noqa: S108  owner and mode are checked when it is opened


def _default_state_dir() -> str:
    if os.geteuid() == 0:
        return "/var/lib/farpool"
    return os.path.join(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state", "farpool")  # noqa: PTH118


def _default_socket() -> str:
    return default_socket_path(os.environ, os.geteuid())


class TenantSettings(BaseModel):
    """What a file says of one tenant: ``[tenants.NAME]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    uids: tuple[Annotated[int, Field(ge=0, lt=(1 << 32) - 1)], ...] = ()
    """Users of the server's host that are this tenant over the Unix socket, without a token."""
    certificates: tuple[str, ...] = ()
    """Names in client certificates that are this tenant over TLS, without a token."""
    max_bytes: int | None = None
    """Bytes that its slabs together may take; a string such as ``"8GiB"`` is accepted."""
    max_slabs: int | None = Field(default=None, ge=0)
    max_sessions: int | None = Field(default=None, ge=0)
    max_rate: float | None = Field(default=None, gt=0, le=1e9)
    """Requests a second."""

    @field_validator("max_bytes", mode="before")
    @classmethod
    def _max_bytes(cls, value: object) -> int | None:
        return None if value is None else parse_size(value, what="max_bytes")


class TlsSettings(BaseModel):
    """What encrypts the server's port, data connections included: ``[tls]``. Files are PEM."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    certificate: str
    """File of the server's certificate, and of those between it and its authority."""
    key: str
    """File of the certificate's key, without a password."""
    client_ca: str = ""
    """File of the authority that has signed the certificates of clients; without one none is asked for."""
    require_client_certificate: bool | None = None
    """Whether a client without a certificate is refused; by default if there is a ``client_ca``."""
    kernel: bool = False
    """Whether the kernel encrypts what the data plane sends, if its module ``tls`` is loaded."""

    @field_validator("certificate", "key", "client_ca", mode="after")
    @classmethod
    def _file(cls, value: str) -> str:
        return str(Path(value).expanduser().absolute()) if value else ""

    @model_validator(mode="after")
    def _has_authority(self) -> TlsSettings:
        if self.require_client_certificate and not self.client_ca:
            raise ValueError("require_client_certificate needs client_ca, the authority that signs them")
        return self

    @property
    def requires_certificate(self) -> bool:
        """Whether a client without a certificate is refused."""
        wanted = self.require_client_certificate
        return bool(self.client_ca) if wanted is None else wanted


class ServerSettings(BaseSettings):
    """Every setting of a pool server, with its default. Sizes are bytes, times are seconds."""

    model_config = SettingsConfigDict(
        env_prefix="FARPOOL_", env_ignore_empty=True, extra="forbid", frozen=True, validate_default=False
    )

    capacity: int = 1 << 30
    """Bytes that all slabs together may take; a string such as ``"64GiB"`` is accepted."""
    arena: str = Field(default_factory=_default_arena)
    """Directory on a memory file system that holds the slabs, one file each; or a memory device, ``/dev/daxX.Y``."""
    coherence: Literal["hardware", "software"] = "hardware"
    """``software``: hosts that share the arena's memory have caches that do not see each other (CXL 2.0 pools)."""
    state_dir: str = Field(default_factory=_default_state_dir)
    """Directory for the catalog of an arena on a device; a directory's catalog is inside it."""
    listen: str = "127.0.0.1:7700"
    """``HOST:PORT`` of the control plane; port 0 lets the kernel choose."""
    tls: TlsSettings | None = None
    """What encrypts that port and the data port; the Unix socket stays in clear. Read again on SIGHUP."""
    unix: str = Field(default_factory=_default_socket)
    """Path of the control plane's Unix socket."""
    socket_mode: str = "0600"
    """Permission bits of the Unix socket, in octal."""
    transports: Annotated[tuple[str, ...], NoDecode] = ("cxl", "tcp")
    """Transports to offer, each by the name of its entry point."""
    data_listen: str = ""
    """``HOST:PORT`` of the tcp data plane; empty for the host of ``listen`` and a port that the kernel chooses."""
    data_threads: int = Field(default=1, ge=1, le=64)
    """Reactor threads of the tcp data plane."""
    transport_settings: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    """Settings of transports by name, handed over as they are."""
    session_timeout: Seconds = 10.0
    """Silence after which a connected session ends."""
    disconnect_grace: Seconds = 1.0
    """How long a session whose connection ended can be resumed."""
    resume_grace: Seconds = 30.0
    """How long sessions can be resumed after a restart of the server."""
    drain_timeout: Seconds = 5.0
    """How long SIGTERM waits for sessions to end by themselves."""
    max_sessions: int = Field(default=1024, ge=1, le=1 << 20)
    """Sessions that may be open at once."""
    authentication: Literal["none", "required"] = "none"
    """``required``: whoever is no administrator has a token, or a user or certificate that a tenant names."""
    insecure: bool = False
    """Listen without authentication on an address that other hosts may reach."""
    tenants: dict[str, TenantSettings] = Field(default_factory=dict[str, TenantSettings])
    """Tenants by name, in addition to those that ``farpool tenant add`` made."""
    audit_log: str = ""
    """File of the audit log; empty for the server's own log."""
    log_level: LogLevel = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    """``auto`` writes for people to a terminal, and JSON elsewhere."""

    _config: Path | None = PrivateAttr(default=None)
    _overrides: dict[str, Any] = PrivateAttr(default_factory=dict[str, Any])

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: what was passed, the environment, then what the subclass of a file adds."""
        return (init_settings, env_settings)

    @field_validator("capacity", mode="before")
    @classmethod
    def _capacity(cls, value: object) -> int:
        return parse_size(value, what="capacity")

    @field_validator("arena", "unix", "state_dir", mode="before")
    @classmethod
    def _path(cls, value: object) -> object:
        return os.fspath(value) if isinstance(value, Path) else value

    @field_validator("arena", mode="after")
    @classmethod
    def _arena(cls, value: str) -> str:
        if not value or "\0" in value:
            raise ValueError("the arena must be the path of a directory or a device")
        return str(Path(value).expanduser().absolute())

    @field_validator("state_dir", mode="after")
    @classmethod
    def _state_dir(cls, value: str) -> str:
        if not value or "\0" in value:
            raise ValueError("the state directory must be the path of a directory")
        return str(Path(value).expanduser().absolute())

    @field_validator("listen", "data_listen", mode="after")
    @classmethod
    def _host_port(cls, value: str, info: ValidationInfo) -> str:
        if value or info.field_name == "listen":
            parse_host_port(value)
        return value

    @field_validator("unix", mode="after")
    @classmethod
    def _unix(cls, value: str) -> str:
        return validate_socket_path(str(Path(value.removeprefix("unix://")).expanduser().absolute()))

    @field_validator("socket_mode", mode="after")
    @classmethod
    def _socket_mode(cls, value: str) -> str:
        try:
            mode = int(value, 8)
        except ValueError:
            mode = -1
        if not 0 <= mode <= 0o777:
            raise ValueError(f'must be permission bits in octal, such as "0600" or "0660", not {value!r}')
        return value

    @field_validator("tenants", mode="after")
    @classmethod
    def _tenants(cls, value: dict[str, TenantSettings]) -> dict[str, TenantSettings]:
        for name in value:
            validate_tenant(name)
        return value

    @field_validator("audit_log", mode="after")
    @classmethod
    def _audit_log(cls, value: str) -> str:
        return str(Path(value).expanduser().absolute()) if value else ""

    @field_validator("transports", mode="before")
    @classmethod
    def _transports(cls, value: object) -> object:
        names = value.split(",") if isinstance(value, str) else value
        if isinstance(names, (list, tuple)):
            names = tuple(dict.fromkeys(str(name).strip() for name in names))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            if not names or not all(names):
                raise ValueError('must name transports, such as "cxl,tcp"')
        return names

    @property
    def socket_bits(self) -> int:
        """The permission bits of the Unix socket as a number."""
        return int(self.socket_mode, 8)

    @property
    def data_address(self) -> str:
        """Where the tcp data plane listens: who can reach the control plane can reach it too."""
        return self.data_listen or f"{self.listen.rpartition(':')[0]}:0"

    @property
    def heartbeat(self) -> float:
        """Seconds between a client's heartbeats: four fit into the time of silence that ends a session."""
        return min(2.5, self.session_timeout / 4)

    def remember(self, config: Path | None, overrides: dict[str, Any]) -> None:
        """Keep where the settings came from."""
        self._config, self._overrides = config, overrides

    def reloaded(self) -> ServerSettings:
        """Read the same sources again; raise :class:`ConfigurationError`. These settings stay as they are."""
        return load_settings(self._config, self._overrides)


def load_settings(
    config: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    environment: bool = True,
) -> ServerSettings:
    """Read the settings: *overrides* (but None), the *environment* unless False, the file *config*, the defaults.

    Raises:
        ConfigurationError: the file cannot be read, has an unknown key, or some value cannot be right.
    """
    path = Path(config) if config is not None else None
    passed = {key: value for key, value in (overrides or {}).items() if value is not None}
    from_file = _read_file(path) if path is not None else {}

    class FileSettings(ServerSettings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *args: Any, **kwargs: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            passed, variables = super().settings_customise_sources(settings_cls, *args, **kwargs)
            return (
                passed,
                *([variables] if environment else []),
                InitSettingsSource(settings_cls, init_kwargs=from_file),
            )

    try:
        settings = FileSettings(**passed)
    except ValidationError as error:
        raise ConfigurationError(_explain(error, path, passed, from_file)) from None
    settings.remember(path, passed)
    return settings


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """Return the names in *environment* that look like settings of ours and are none: most often misspelt."""
    known = {name.upper() for name in ServerSettings.model_fields} | OTHER_VARIABLES
    ours = [name for name in environment if name.startswith("FARPOOL_")]
    return sorted(name for name in ours if name.removeprefix("FARPOOL_") not in known)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read the configuration file {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"the configuration file {path} is not valid TOML: {error}") from None
    known = sorted(ServerSettings.model_fields)
    for key in values:
        if key not in known:
            raise ConfigurationError(f'{path}: unknown key "{key}"; known keys are {", ".join(known)}')
    return values


def _explain(error: ValidationError, path: Path | None, passed: Mapping[str, Any], from_file: Mapping[str, Any]) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    name = str(first["loc"][0]) if first["loc"] else ""
    variable = f"FARPOOL_{name.upper()}"
    if name in passed:
        source = f"setting {key}"
    elif os.environ.get(variable):
        source = f"environment variable {variable}"
    elif name in from_file:
        source = f'{path}: key "{key}"'
    else:
        source = f"setting {key}"
    if first["type"] == "extra_forbidden":
        return f"{source} is unknown; known are {', '.join(sorted(ServerSettings.model_fields))}"
    message, got = first["msg"].removeprefix("Value error, "), repr(first["input"])
    return f"{source}: {message.removeprefix(f'{name} ')}" + ("" if got in message else f" (got {got})")
