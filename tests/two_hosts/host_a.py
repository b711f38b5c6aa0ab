"""What host A does for the tests on host B: it serves the pool, uses slabs by itself, and is lost when told to.

A line of JSON comes in, ``[operation, arguments]``, and one goes out, ``[result, error]``. It ends with the connection.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import farpool

ASKED_WITHIN: Final = 300.0
"""Seconds in which host B's tests begin."""
TIMEOUT: Final = 60.0
UNIX: Final = "/run/farpool.sock"


class HostA:
    """The pool server of this host, and clients of it that live here too, one for each transport."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._server: subprocess.Popen[str] | None = None
        self._arguments: list[str] = []
        self._pools: dict[str, farpool.Pool] = {}

    def serve(self, arguments: list[str]) -> None:
        """Have a server that was started with *arguments*."""
        if self._server is not None and self._arguments == arguments:
            return
        self.stop()
        with self._log.open("a") as log:
            command = ["farpool", "serve", "--unix", UNIX, *arguments]
            # A guest that is slow must not lose its sessions when the server comes back.
            environment = {**os.environ, "FARPOOL_RESUME_GRACE": "600"}
            self._server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        assert self._server.stdout is not None
        ready = self._server.stdout.readline()
        if not ready.startswith("farpool ready:"):
            self._server.wait()
            raise RuntimeError(f"the server did not start: {self._log.read_text().splitlines()[-1]}")
        self._arguments = arguments

    def stop(self, *, force: bool = False) -> None:
        """End the server in order, or kill it."""
        if not force:
            self._leave()
        if self._server is not None:
            (self._server.kill if force else self._server.terminate)()
            self._server.communicate()
            self._server = None
        self._leave()

    def restart(self) -> None:
        """Kill the server and start it again."""
        arguments = self._arguments
        self.stop(force=True)
        self.serve(arguments)

    def _leave(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _open(self, transport: str, name: str) -> farpool.Slab:
        if transport not in self._pools:
            self._pools[transport] = farpool.connect(f"unix://{UNIX}", transport=transport, timeout=TIMEOUT)
        return self._pools[transport].open(name)

    def digest(self, name: str, offset: int, nbytes: int) -> str:
        """Return the SHA-256 of what this host sees."""
        slab = self._open("cxl", name)
        data = slab.read(nbytes, offset)
        slab.close()
        return hashlib.sha256(data).hexdigest()

    def write(self, name: str, offset: int, data: str) -> None:
        """Write bytes, which come as hexadecimal digits."""
        slab = self._open("cxl", name)
        slab.write(bytes.fromhex(data), offset)
        slab.close()

    def add(self, transport: str, name: str, offset: int, rounds: int) -> int:
        """Add 1 to a word many times, and return the sum of the values it had before."""
        slab = self._open(transport, name)
        seen = sum(slab.fetch_add(offset, 1) for _ in range(rounds))
        slab.close()
        return seen

    def lose(self) -> None:
        """End this guest as a power cut would: nothing is said to anyone."""
        if os.environ.get("LAB_LOST") != "A":
            raise RuntimeError("this host is not to be lost; run farpool-lab with --lost A")
        Path("/proc/sysrq-trigger").write_text("b")


def answer(host: HostA, line: str) -> str:
    operation, arguments = json.loads(line)
    operations: dict[str, Callable[..., Any]] = {
        function.__name__: function
        for function in (host.serve, host.restart, host.digest, host.write, host.add, host.lose)
    }
    try:
        return json.dumps([operations[operation](*arguments), None])
    except Exception as error:  # noqa: BLE001  host B's test shall show it
        return json.dumps([None, f"{type(error).__name__}: {error}"])


def main() -> int:
    if os.environ.get("LAB_NAME") != "A" or os.environ["LAB_IP"] == os.environ["LAB_PEER_IP"]:
        print("host_a.py is host A of two guests; see tests/two_hosts/run.sh", file=sys.stderr)
        return 2
    host = HostA(Path(os.environ["LAB_RESULTS"], "server.log"))
    with ExitStack() as undo:
        listener = undo.enter_context(socket.create_server((os.environ["LAB_IP"], int(os.environ["LAB_PORT"]))))
        undo.callback(host.stop)
        listener.settimeout(ASKED_WITHIN)
        connection = undo.enter_context(listener.accept()[0])
        connection.settimeout(None)
        stream = undo.enter_context(connection.makefile("rw"))
        with suppress(ConnectionError):
            for line in stream:
                stream.write(answer(host, line) + "\n")
                stream.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
