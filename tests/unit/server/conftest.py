"""Real arenas in memory, a real server, and a client that speaks raw frames."""

from __future__ import annotations

import itertools
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from farpool.protocol.addresses import parse_address
from farpool.protocol.errors import from_wire
from farpool.protocol.framing import FrameDecoder, decode_payload
from farpool.protocol.messages import (
    ERROR,
    EVENT,
    REPLY,
    Hello,
    Reply,
    Request,
    ResumeKey,
    Welcome,
    decode_reply_fields,
    encode_request,
)
from farpool.server.embedded import EmbeddedServer, serve_embedded

R = TypeVar("R", bound=Reply)


class RawClient:
    """A control connection without any of the client's care: what is sent is what the test says."""

    def __init__(
        self, url: str, *, hello: bool = True, resume: ResumeKey | None = None, tenant: str | None = None
    ) -> None:
        address = parse_address(url)
        if address.path:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(address.path)
        else:
            self.socket = socket.create_connection((address.host, address.port))
        self.socket.settimeout(20)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._decoder = FrameDecoder()
        self._waiting: list[bytes] = []
        self._ids = itertools.count(1)
        self.welcome: Welcome | None = None
        if hello:
            try:
                self.welcome = self.ask(Hello(protocol=1, client="raw", resume=resume, tenant=tenant), Welcome)
            except BaseException:
                self.close()
                raise

    @property
    def key(self) -> ResumeKey:
        """What resumes this session."""
        assert self.welcome is not None
        return ResumeKey(session=self.welcome.session, secret=self.welcome.secret)

    def ask(self, request: Request, reply: type[R]) -> R:
        """Send a request and return its reply; raise the server's error."""
        request_id = self.send(request)
        return self.answer(request_id, reply)

    def send(self, request: Request) -> int:
        """Send a request and return its id."""
        request_id = next(self._ids)
        self.socket.sendall(encode_request(request_id, request))
        return request_id

    def answer(self, request_id: int, reply: type[R]) -> R:
        """Return the reply to that request, raise if the next reply is another's."""
        message = self.receive()
        while message[0] == EVENT:
            self.events.append((message[1], message[2]))
            message = self.receive()
        assert message[1] == request_id
        if message[0] == ERROR:
            raise from_wire(message[2], message[3], message[4])
        assert message[0] == REPLY
        return decode_reply_fields(reply, message[2])

    def event(self) -> tuple[str, dict[str, Any]]:
        """Return the oldest event, waiting for it."""
        if not self.events:
            message = self.receive()
            assert message[0] == EVENT
            self.events.append((message[1], message[2]))
        return self.events.pop(0)

    def receive(self) -> list[Any]:
        """Return the next message; raise ``EOFError`` if the server closed the connection."""
        while not self._waiting:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._waiting += self._decoder.feed(data)
        return decode_payload(self._waiting.pop(0))

    def wait_for_end(self) -> list[list[Any]]:
        """Return what still comes until the server closes the connection."""
        messages: list[list[Any]] = []
        try:
            while True:
                messages.append(self.receive())
        except (EOFError, ConnectionResetError):
            return messages

    def close(self) -> None:
        """Close the connection without a goodbye."""
        self.socket.close()


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    """Where a test's server keeps its audit log."""
    return tmp_path / "audit.jsonl"


@pytest.fixture
def connect() -> Iterator[Callable[..., RawClient]]:
    """Open raw clients, and close them at the end."""
    clients: list[RawClient] = []

    def open_client(url: str, **options: Any) -> RawClient:
        client = RawClient(url, **options)
        clients.append(client)
        return client

    yield open_client
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A server that the tests of one module share."""
    with serve_embedded(capacity="64MiB", log_level="debug", session_timeout=300) as running:
        yield running


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A new directory in memory."""
    folder = Path(tempfile.mkdtemp(prefix="farpool-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def small_file_system(memory_folder: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB, for root; others skip."""
    folder = memory_folder / "small"
    folder.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "farpool-test", folder], check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not mount a tmpfs")
    yield folder
    subprocess.run(["umount", folder], check=True)


class FakeClock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    """Time that the test moves."""
    return FakeClock()
