"""A pool server as a child process, for applications and tests: :func:`serve_embedded`.

The child holds the other end of a pipe. When this process ends, however it ends, the child stops and removes
what was made for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from typing import IO, Any, Final

from farpool.protocol.addresses import MAX_SOCKET_PATH_BYTES, parse_address
from farpool.protocol.errors import FarpoolError, InvalidArgument, ServerLost
from farpool.protocol.units import parse_size
from farpool.server.settings import ConfigurationError, load_settings

__all__ = ["EmbeddedServer", "serve_embedded"]

START_SECONDS: Final = float(os.environ.get("FARPOOL_START_TIMEOUT", "30"))
"""A child that is not ready by then has failed. An emulated machine needs more."""

EMBEDDED_VARIABLE: Final = "FARPOOL_SERVER_EMBEDDED"
"""Tells ``python -m farpool.server`` that a line of JSON comes on stdin, the lifeline from then on."""

OURS: Final = ("FARPOOL_", "NOTIFY_SOCKET")
"""Variables that speak to this process, not to a server that it embeds."""

MEMORY_FOLDER: Final = "/dev/shm"  # noqa: S108  the arena in it is made by mkdtemp
LOG_TAIL_BYTES: Final = 4096


@contextlib.contextmanager
def serve_embedded(
    *,
    capacity: int | str = "256MiB",
    transports: Sequence[str] = ("cxl", "tcp"),
    arena: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Generator[EmbeddedServer]:
    """Run a pool server as a child process while the block lasts, and remove all that it made afterwards.

    Slabs live in a new directory in memory unless *arena* names one, which then stays. *settings* are those
    of :class:`~farpool.server.settings.ServerSettings`, for example ``session_timeout=2.0``.

    Raises:
        InvalidArgument: there is no such setting, or its value cannot be right.
        FarpoolError: the server did not start; the message has what it said last.
    """
    order: dict[str, Any] = {
        "capacity": parse_size(capacity, what="capacity"),
        "transports": transports if isinstance(transports, str) else list(transports),
        **settings,
    }
    try:
        load_settings(None, order, environment=False)
    except ConfigurationError as error:
        raise InvalidArgument(error.message) from None
    with contextlib.ExitStack() as undo:
        remove: list[str] = []
        if arena is None:
            arena = _make_folder(MEMORY_FOLDER, "farpool-embedded-", undo, remove)
        order["arena"] = os.fspath(arena)
        if "unix" not in order:
            order["unix"] = f"{_make_folder(_short_folder(), 'farpool-socket-', undo, remove)}/farpool.sock"
        order.setdefault("listen", "127.0.0.1:0")
        server = EmbeddedServer(order, remove)
        undo.callback(server.close)
        server.start()
        yield server


def _make_folder(parent: str, prefix: str, undo: contextlib.ExitStack, remove: list[str]) -> str:
    folder = tempfile.mkdtemp(prefix=prefix, dir=parent)
    undo.callback(_remove_folder, folder, os.getpid())
    remove.append(folder)
    return folder


def _remove_folder(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # and not in a fork that leaves the same block
        shutil.rmtree(folder, ignore_errors=True)


def _short_folder() -> str:
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) < MAX_SOCKET_PATH_BYTES - 60 else "/tmp"  # noqa: S108


class EmbeddedServer:
    """A server that this process started. Not thread-safe but for its properties."""

    def __init__(self, settings: dict[str, Any], remove: Sequence[str]) -> None:
        self._settings = settings
        self._remove = list(remove)
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        self._url = self._tcp_url = ""

    @property
    def url(self) -> str:
        """Address of the Unix socket."""
        return self._url

    @property
    def tcp_url(self) -> str:
        """Address of the TCP port; it stays the same over :meth:`restart`."""
        return self._tcp_url

    @property
    def pid(self) -> int:
        """The server's process; raises ``ServerLost`` while there is none."""
        return self._running().pid

    @property
    def arena(self) -> str:
        """Directory with the slabs."""
        return str(self._settings["arena"])

    def log(self) -> str:
        """Return what the server has written to its log, JSON Lines, over all its starts."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode("utf-8", "replace")

    def start(self) -> None:
        """Start the server and wait until it is ready; nothing happens if it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        self._reap()
        self._start(takeover=False)

    def take_over(self) -> None:
        """Start another server that takes over from the running one: sessions go on, connections are made anew.

        Raises:
            FarpoolError: it did not start; which of the two runs is what ``pid`` says.
        """
        before = self._running()
        try:
            self._start(takeover=True)
        except BaseException:
            if before.poll() is None:
                self._process = before
            raise
        before.wait(START_SECONDS)
        _close_pipes(before)

    def _start(self, *, takeover: bool) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(OURS)}
        order = {
            "settings": self._settings,
            "parent": os.getpid(),
            "remove": self._remove,
            "takeover": takeover,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "farpool.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**environment, EMBEDDED_VARIABLE: "1"},
            start_new_session=True,
        )
        try:
            self._wait_until_ready(self._process, json.dumps(order, default=os.fspath).encode() + b"\n")
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End the server in order: session slabs go, the others stay. Nothing happens if it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the server if it runs, and start it on the same arena, socket and port."""
        self.stop()
        self.start()

    def suspend(self) -> None:
        """Stop the server's process with SIGSTOP: it neither answers nor ends its connections."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        # The signal stops its threads a moment later only.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a suspended server go on."""
        self._running().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop the server for good. May be called twice; does nothing in a fork of the process that started it."""
        if os.getpid() != self._owner:
            return
        self.stop()
        self._log.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise ServerLost("the embedded server does not run; call start()")
        return self._process

    def _wait_until_ready(self, process: subprocess.Popen[bytes], order: bytes) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(order)
            process.stdin.flush()
        deadline = time.monotonic() + START_SECONDS
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(process.stdout.fileno(), 4096) if ready else b""
            if not piece:
                raise FarpoolError(self._failure(process, timed_out=not ready))
            line += piece
        self._url, self._tcp_url = line.decode().removeprefix("farpool ready:").split()
        address = parse_address(self._tcp_url)
        host = f"[{address.host}]" if ":" in address.host else address.host
        self._settings["listen"] = f"{host}:{address.port}"

    def _failure(self, process: subprocess.Popen[bytes], *, timed_out: bool) -> str:
        if timed_out:
            why = f"was not ready within {START_SECONDS:g} s"
        else:
            why = f"ended with code {process.wait(START_SECONDS)}"
        tail = self.log()[-LOG_TAIL_BYTES:].strip()
        return f"the embedded server {why}: {tail or 'it said nothing'}"

    def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
            drain = float(self._settings.get("drain_timeout", 5.0))
            try:
                process.wait(drain + START_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._reap()

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _close_pipes(process)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
