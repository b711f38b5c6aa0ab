"""perftest's own programs as limits: what ``ib_read_lat`` and ``ib_read_bw`` reach between two processes of this host.

A program reports one number a run, so that a round of it is one sample. Starting it is not part of the number.
"""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from typing import Final

from farpool import DeadlineExceeded, ServerLost
from farpool.perf.limit_contenders import Limit
from farpool.perf.rdma_port import RdmaPort
from farpool.perf.rounds import Contender
from farpool.perf.walk import Bytes, Int64Array

__all__ = ["LATENCY", "THROUGHPUT", "PerftestLimits", "is_installed", "parse_report"]

LATENCY: Final = "ib_read_lat"
THROUGHPUT: Final = "ib_read_bw"
COLUMNS: Final = {LATENCY: 4, THROUGHPUT: 3}
"""Which number of a report's last line counts: the typical time in us, the mean throughput in MB/s."""
MEGABYTE: Final = 1 << 20
"""perftest's own."""

RUN_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 0.1
FEWEST, MOST = 100, 20_000
"""Iterations of one run."""


def is_installed() -> bool:
    """Tell whether both programs are there."""
    return all(shutil.which(program) is not None for program in COLUMNS)


class PerftestLimits:
    """Reads by perftest over one port, looped back: single ones by ``ib_read_lat``, batches by ``ib_read_bw``."""

    def __init__(self, port: RdmaPort) -> None:
        self._port = port

    def read(self, offsets: Int64Array, buffer: Bytes, nbytes: int) -> Limit:
        """Return the time of one read, or as many in flight as *buffer* has parts of *nbytes*."""
        depth = len(buffer) // nbytes
        program = LATENCY if depth == 1 else THROUGHPUT
        return Limit(self._contender(program, nbytes, depth), program)

    def _contender(self, program: str, nbytes: int, depth: int) -> Contender:
        iterations = FEWEST

        def contend(calls: int, samples: Int64Array, seconds: float) -> int:
            nonlocal iterations
            number = parse_report(program, self._run(program, nbytes, depth, iterations))
            read_ns = number * 1e3 if program == LATENCY else nbytes * 1e9 / (number * MEGABYTE)
            iterations = max(FEWEST, min(MOST, int(seconds * 1e9 / read_ns)))
            samples[0] = max(1, round(read_ns * depth * calls))
            return 1

        return contend

    def _run(self, program: str, nbytes: int, depth: int, iterations: int) -> str:
        """Run both ends and return the client's report."""
        command = [program, "-F", "-d", self._port.device, "-i", str(self._port.port)]
        command += ["-x", str(self._port.gid_index), "-s", str(nbytes), "-n", str(iterations), "-p", str(_free_port())]
        if program == THROUGHPUT:
            command += ["-t", str(depth)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # noqa: S603
        try:
            return _run_client([*command, "127.0.0.1"], server)
        finally:
            server.kill()
            server.communicate()


def _run_client(command: Sequence[str], server: subprocess.Popen[str]) -> str:
    """Run the client again until its server listens."""
    deadline = time.monotonic() + RUN_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=left)  # noqa: S603
        except subprocess.TimeoutExpired:
            break
        if done.returncode == 0:
            return done.stdout
        try:
            _, error = server.communicate(timeout=RETRY_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        raise ServerLost(f"{command[0]} does not run here: {error.strip() or done.stderr.strip()}")
    raise DeadlineExceeded(f"{command[0]} was not done after {RUN_SECONDS:.0f} s; run it: {shlex.join(command)}")


def parse_report(program: str, report: str) -> float:
    """Return the number that counts of a program's report; raises ``ServerLost`` if there is none."""
    lines = [line.split() for line in report.splitlines()]
    measured = [words for words in lines if words and words[0].isdecimal()]
    try:
        return float(measured[-1][COLUMNS[program]])
    except (IndexError, ValueError):
        raise ServerLost(f"{program} has reported no number: {report[-200:]!r}") from None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
