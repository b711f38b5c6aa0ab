"""The entry point ``farpool``: finds the command, and is the only place that ends the process.

A user's mistake is one line on stderr and an exit code, never a traceback; ``FARPOOL_DEBUG=1`` shows the
traceback too. A command's module is imported when it is asked for, so that ``farpool --help`` stays fast and
no client command loads the server.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from farpool.cli.exit_codes import ExitCode, exit_code_of
from farpool.cli.output import warn
from farpool.protocol.errors import FarpoolError

__all__ = ["COMMANDS", "app", "main", "run"]

COMMANDS = {
    "serve": "Run a pool server in the foreground.",
    "status": "Show the pool's capacity, sessions and transports.",
    "ls": "List slabs.",
    "alloc": "Allocate a slab that outlives the command.",
    "free": "Free slabs by name or id.",
    "put": "Store a file in a slab, with its checksum.",
    "get": "Write a slab to a file, and verify it.",
    "grant": "Let another tenant attach a slab.",
    "format": "Give a memory device up to the next server.",
    "release": "Give back what a host that is gone had mapped.",
    "tenant": "Say who may use the pool.",
    "quota": "Say what each tenant may have at most.",
    "doctor": "Check what each transport needs on this machine.",
    "demo": "Show a pool at work, and how fast it is.",
    "perf": "Measure transports beside their limits.",
    "version": "Print the version.",
}
"""Each command, and what the list in ``farpool --help`` says of it; its module has the same name."""


class _Commands(TyperGroup):
    """Imports the module of a command when that command is named."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            ctx.fail(f"there is no command {cmd_name!r}; commands are {', '.join(COMMANDS)}")
        module = import_module(f"farpool.cli.{cmd_name}")
        group: typer.Typer | None = getattr(module, "app", None)
        if group is None:
            group = typer.Typer(add_completion=False, rich_markup_mode=None)
            group.command(cmd_name)(getattr(module, cmd_name))
        return typer.main.get_command(group)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=_Commands,
    help="A network-attached memory pool: slabs of far memory over CXL, RDMA and TCP.",
    epilog="Exit codes: 0 done; 1 other error; 2 usage or configuration; 3 not found; 4 refused; "
    "5 full or over quota; 6 server lost or deadline passed.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        import_module("farpool.cli.version").version()
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(  # pyright: ignore[reportUnusedFunction]  typer calls it
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(ExitCode.USAGE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; *arguments* default to those of the process."""
    try:
        code = app(args=arguments, prog_name="farpool", standalone_mode=False)
        _flush()
    except BrokenPipeError:
        _drop_stdout()
        return ExitCode.OTHER
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001  the last place that can turn it into one line
        try:
            _flush()
        except OSError:
            _drop_stdout()
        return _report(error)
    if code == ExitCode.INTERRUPTED:
        warn("interrupted")
    return int(code or 0)


def _report(error: Exception) -> int:
    if os.environ.get("FARPOOL_DEBUG") == "1":
        traceback.print_exception(error)
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        if context is not None and error.message == context.get_help():
            typer.echo(error.message, err=True)  # a group that was named without a command
            return error.exit_code
        command = "farpool" if context is None else context.command_path
        warn(f"{error.format_message().rstrip('.')} (see {command} --help)")
        return error.exit_code
    if isinstance(error, FarpoolError):
        warn(error.message)
    elif isinstance(error, OSError):
        warn(f"{error.filename}: {error.strerror}" if error.filename else f"{error.strerror or error}")
    else:
        warn(f"unexpected {type(error).__name__}: {error} (FARPOOL_DEBUG=1 shows where; please report it)")
    return exit_code_of(error)


def _flush() -> None:
    stdout: TextIO | None = sys.stdout  # None if the process was started without one
    if stdout is not None:
        stdout.flush()


def _drop_stdout() -> None:
    """Point stdout at nothing, so that the flush at the interpreter's end finds no broken pipe or full disk."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def run() -> None:
    """Run the command line of this process and exit; SIGTERM and SIGHUP let a command clean up first."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)
    stdout = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())


if __name__ == "__main__":
    run()
