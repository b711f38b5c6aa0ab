"""Too few file descriptors, for the server and for a client: errors that say so, and all works again afterwards."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.conftest import links_of
from tests.faults.conftest import APIS, TRANSPORTS, Serve

import farpool
from farpool.client.pool import Pool

STARVED = Path(__file__).with_name("starved.py")


def use(pool: Pool) -> None:
    """Do what a client does all day."""
    slab = pool.allocate(4096)
    slab.write(b"word")
    assert slab.read(4) == b"word"
    slab.free()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("api", APIS)
def test_a_client_says_that_it_has_too_few(serve: Serve, transport: str, api: str) -> None:
    server = serve()
    done = subprocess.run(
        [sys.executable, STARVED, server.url, transport, api], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    *outcomes, lost = json.loads(done.stdout)
    assert outcomes[0], "it connected without a descriptor"
    assert not outcomes[-1], "it did not work with all that it needs"
    assert lost, "it worked without a descriptor"
    unclear = [text for text in (*outcomes, lost) if text and not ("open files" in text and "ulimit -n" in text)]
    assert not unclear, unclear


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_server_with_too_few_refuses_newcomers_and_keeps_its_clients(serve: Serve, transport: str) -> None:
    server = serve()
    with farpool.connect(server.url, transport=transport) as pool, ExitStack() as others:
        use(pool)
        _, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        used = len(list(links_of(server.pid)))
        refusals: list[farpool.FarpoolError] = []
        for spare in (0, 1, 2, 4, 8, 16, 24):
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (used + spare, hard))
            try:
                while True:
                    use(others.enter_context(farpool.connect(server.url, transport=transport, timeout=3.0)))
            except farpool.FarpoolError as error:
                refusals.append(error)
            refused = refusal_of(pool)
            assert not refused or "file descriptor" in refused, refused
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert not [error for error in refusals if isinstance(error, farpool.ProtocolError)], refusals
        use(pool)
        use(others.enter_context(farpool.connect(server.url, transport=transport)))


def refusal_of(pool: Pool) -> str:
    """Use the pool; return what the server says if it has no descriptor for that."""
    try:
        use(pool)
    except farpool.FarpoolError as error:
        return str(error)
    return ""
