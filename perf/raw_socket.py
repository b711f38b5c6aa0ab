"""The raw ping-pong's near end: starts ``limit_server`` as a process, and makes contenders over its port."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

from farpool import DeadlineExceeded, ServerLost
from farpool.native import limits
from farpool.perf.limit_server import PLAN
from farpool.perf.rounds import Contender
from farpool.perf.walk import Int64Array, filled

__all__ = ["RawSocket"]

START_SECONDS: Final = float(os.environ.get("FARPOOL_START_TIMEOUT", "20"))
"""An emulated machine needs more."""
ANSWER_SECONDS: Final = 5.0
END_SECONDS: Final = 2.0

Plan = tuple[int, int]


class RawSocket:
    """A process that answers requests over a loopback TCP connection, and one connection to it at a time.

    *cpus* are where that process may run; without them, where we may. Used by one thread. Raises
    ``ServerLost`` or ``DeadlineExceeded`` if that process dies or stops.
    """

    def __init__(self, cpus: Iterable[int] | None = None) -> None:
        # A session of its own keeps Ctrl-C with us; the process ends with its stdin.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "farpool.perf.limit_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._connection: socket.socket | None = None
        self._plan: Plan | None = None
        try:
            if cpus is not None:
                os.sched_setaffinity(self._process.pid, cpus)
            self.port = self._read_port()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process id of the answering end."""
        return self._process.pid

    def contender(self, request_nbytes: int, reply_nbytes: int, ahead: int = 1) -> Contender:
        """Return a contender of round trips; with *ahead* above 1 it is a stream of pipelined ones."""
        request, reply = filled(request_nbytes), filled(reply_nbytes)

        def contend(calls: int, samples: Int64Array, seconds: float) -> int:
            assert calls == 1, "a round trip is always long enough to be timed by itself"
            fd = self._connect((request_nbytes, reply_nbytes)).fileno()
            return limits.round_trips(fd, request, reply, samples, seconds, ANSWER_SECONDS, ahead=ahead)

        return contend

    def close(self) -> None:
        """Close the connection and end the process. A second call does nothing."""
        self._disconnect()
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _read_port(self) -> int:
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], START_SECONDS)[0]:
            raise DeadlineExceeded(f"the process of the raw ping-pong did not start within {START_SECONDS:.0f} s")
        line = stdout.readline()
        if not line:
            raise ServerLost("the process of the raw ping-pong ended before it listened; its stderr says why")
        return int(line)

    def _connect(self, plan: Plan) -> socket.socket:
        if self._connection is not None and self._plan == plan:
            return self._connection
        self._disconnect()
        try:
            connection = socket.create_connection(("127.0.0.1", self.port), ANSWER_SECONDS)
        except OSError as error:
            raise ServerLost(f"the process of the raw ping-pong does not answer: {error}") from error
        self._connection, self._plan = connection, plan
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(PLAN.pack(*plan))
        connection.settimeout(None)
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
