"""Ctrl-C in a synchronous call ends that call; the same pool and slab go on, and nobody gets another's bytes."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conformance.conftest import StartChild

    from farpool.server.embedded import EmbeddedServer


def say(child: subprocess.Popen[str], line: str = "") -> None:
    assert child.stdin is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()


def hear(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def test_in_the_middle_of_reads(server: EmbeddedServer, transport: str, start_child: StartChild) -> None:
    child = start_child("interrupt_reads", server.url, transport, 25)
    out, err = child.communicate(timeout=100)
    assert (child.returncode, out.splitlines()) == (0, ["interrupted 25", "done"]), err


@pytest.mark.parametrize("what", ["stat", "allocate", "read", "write"])
def test_while_the_server_is_stopped(
    server: EmbeddedServer, transport: str, start_child: StartChild, what: str
) -> None:
    child = start_child("interrupt_waiting", server.url, transport, what)
    assert hear(child) == "ready", child.communicate()[1]
    server.suspend()
    try:
        say(child)
        outcome = hear(child)
    finally:
        server.resume()
    # Where memory is mapped a read needs no server, and has ended before Ctrl-C comes.
    assert outcome == "interrupted" or (outcome == "finished" and what in {"read", "write"}), outcome
    say(child)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "done\n"), err
