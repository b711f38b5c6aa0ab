"""One tenant tries on every transport to read, write, guess, exhaust or observe another, as a user without rights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import farpool
from farpool.client.administration import Administration
from farpool.protocol.messages import Attached, Reserve
from farpool.protocol.quota_messages import TenantLimit
from farpool.server.embedded import EmbeddedServer

NOBODY = 65534
INTRUDER = Path(__file__).with_name("intruder.py")
SECRET = b"victim's"
MEBIBYTES = 8

pytestmark = pytest.mark.root


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    if os.geteuid() != 0:
        pytest.skip("only root can run children under other uids")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        tenants = {"intruder": {"uids": [NOBODY]}, "victim": {}, "reader": {}}
        settings: dict[str, Any] = {"authentication": "required", "tenants": tenants}
        served = farpool.serve_embedded(
            capacity="64MiB", transports=["cxl", "tcp"], unix=f"{folder}/f.sock", socket_mode="0666", **settings
        )
        with served as running:
            yield running


def target_of(server: EmbeddedServer, pool: farpool.Pool, slab: farpool.Slab) -> dict[str, Any]:
    """Return all that an intruder could know, and more."""
    reserve = Reserve(id=slab.id, generation=slab.generation, transport="tcp")
    draft = slab.attachment.session.call(reserve, Attached, time.monotonic() + 20).slab
    params = slab.attachment.ticket.params
    return {
        "url": server.url,
        "slab": slab.id,
        "generation": slab.generation,
        "draft": draft.id,
        "draft_generation": draft.generation,
        "session": pool.session_id,
        "params": {"slot": params["slot"], "handle": params["handle"]},
        "server_pid": server.pid,
        "victim_pid": os.getpid(),
        "arena": server.arena,
        "files": [str(path) for path in Path(server.arena).rglob("*") if path.is_file()],
    }


def test_an_intruder_gets_nothing(server: EmbeddedServer) -> None:
    with Administration(server.url, 20) as administration:
        administration.limit(TenantLimit(tenant="intruder", max_bytes=MEBIBYTES << 20))
    with farpool.connect(server.url, transport="tcp", tenant="victim", timeout=30) as pool:
        slab = pool.allocate(1 << 16, name="secret")
        slab.write(SECRET)
        slab.grant("reader")
        target = target_of(server, pool, slab)
        command = [sys.executable, str(INTRUDER), str(NOBODY), json.dumps(target)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        outcomes = report["outcomes"]
        assert len(outcomes) > 80
        assert [what for what, error in outcomes.items() if not error] == []
        assert len(report["seen"]) == 3, "it sees those of its own"
        assert slab.id not in report["seen"]
        assert report["told"] == [0, "", []], "stat tells it where the server and its files are, or who else is there"
        assert report["refusal"] == "QuotaExceeded"
        assert report["allocated"] < MEBIBYTES
        assert slab.read(len(SECRET)) == SECRET
        assert slab.read(1 << 16)[len(SECRET) :] == bytes((1 << 16) - len(SECRET))
        assert [grant.tenant for grant in slab.grants()] == ["reader"]
        pool.allocate("16MiB").free()
