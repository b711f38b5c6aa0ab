"""What the exit code of a command says (docs/design.md, "The command line"). No I/O here."""

from __future__ import annotations

from enum import IntEnum

from farpool.protocol import errors

__all__ = ["ExitCode", "exit_code_of"]


class ExitCode(IntEnum):
    """The exit codes that a script may rely on."""

    OK = 0
    OTHER = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    FULL = 5
    LOST = 6
    INTERRUPTED = 130
    """128 + SIGINT, as shells report it."""


_KINDS: tuple[tuple[ExitCode, tuple[type[BaseException], ...]], ...] = (
    (ExitCode.USAGE, (errors.InvalidArgument,)),
    (ExitCode.NOT_FOUND, (errors.SlabNotFound, errors.StaleSlab)),
    (
        ExitCode.REFUSED,
        (
            errors.NameTaken,
            errors.PermissionDenied,
            errors.AuthenticationFailed,
            errors.ReadOnly,
            errors.SlabBusy,
            errors.TransportUnavailable,
        ),
    ),
    (ExitCode.FULL, (errors.PoolFull, errors.QuotaExceeded)),
    (ExitCode.LOST, (errors.ServerLost, errors.DeadlineExceeded)),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code of a command that *error* ended."""
    return next((code for code, kinds in _KINDS if isinstance(error, kinds)), ExitCode.OTHER)
