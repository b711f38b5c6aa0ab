"""What an ended session may still have mapped stays charged until its process is dead."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farpool.protocol.messages import Allocate, Attached, Done, Goodbye, ServerStat, Stat
from farpool.server.embedded import EmbeddedServer, serve_embedded

Connect = Callable[..., Any]

ROOT = Path(__file__).parents[3]
HOLDER = """
import socket, sys
sys.path.insert(0, sys.argv[3])
from tests.descriptors import fetch_descriptor
from farpool.protocol.framing import FrameDecoder, decode_payload
from farpool.protocol.messages import Allocate, Goodbye, Hello, encode_request
end = sys.argv[2]
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
decoder, waiting = FrameDecoder(), []
def ask(request):
    link.sendall(encode_request(1, request))
    while not waiting:
        waiting.extend(decoder.feed(link.recv(1 << 16)))
    return decode_payload(waiting.pop(0))
ask(Hello(protocol=1, client="holder"))
def hold():
    made = ask(Allocate(nbytes=4096, transport="cxl"))[2]
    slab = made["slab"]
    fetch_descriptor(made["params"], slab["id"], slab["generation"], writable=True)
    return slab
slab = hold()
if end != "goodbye":
    hold()
ask(Allocate(nbytes=4096, transport="cxl"))
ask(Allocate(nbytes=4096, transport="tcp"))
if end == "goodbye":
    ask(Goodbye(mapped=[(slab["id"], slab["generation"])]))
link.close()
print("ended", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with serve_embedded(capacity="1MiB", disconnect_grace=0.05) as running:
        yield running


@pytest.fixture
def start(server: EmbeddedServer) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    children: list[subprocess.Popen[str]] = []

    def start_holder(end: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER, server.url.removeprefix("unix://"), end, str(ROOT)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ended\n"
        return child

    yield start_holder
    for child in children:
        child.kill()
        child.communicate()


def wait_for(client: Any, allocated: int, reclaiming: int) -> None:
    seen: tuple[int, int] | None = None
    for _ in range(1000):
        stat = client.ask(Stat(), ServerStat)
        seen = (stat.allocated, stat.reclaiming)
        if seen == (allocated, reclaiming):
            return
        subprocess.run(["true"], check=True)
    assert seen == (allocated, reclaiming)


@pytest.mark.parametrize(("end", "mapped"), [("goodbye", 4096), ("eof", 8192)])
def test_what_a_live_process_may_have_mapped_stays_charged(
    server: EmbeddedServer, connect: Connect, start: Callable[[str], subprocess.Popen[str]], end: str, mapped: int
) -> None:
    client = connect(server.url)
    child = start(end)
    wait_for(client, 0, mapped)
    server.kill()
    server.start()
    client = connect(server.url)
    wait_for(client, 0, mapped)
    child.kill()
    wait_for(client, 0, 0)


def test_without_a_process_to_watch_the_session_is_believed(server: EmbeddedServer, connect: Connect) -> None:
    client, remote = connect(server.url), connect(server.tcp_url)
    slab = remote.ask(Allocate(nbytes=4096, transport="cxl"), Attached).slab
    remote.ask(Goodbye(mapped=[(slab.id, slab.generation)]), Done)
    assert client.ask(Stat(), ServerStat).reclaiming == 0
