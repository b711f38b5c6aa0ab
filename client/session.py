"""A session with one server: it outlives its connections, and says Goodbye at its end.

Before each request the connection is looked at; one that has ended is replaced, and the session resumed with
its secret; where none comes, the keeper sees to that. A request that was out when the connection broke is sent again
if doing it twice does no harm.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from farpool.client.backoff import Backoff
from farpool.client.connection import Connection, Late
from farpool.client.credentials import ANONYMOUS, Credentials
from farpool.client.deadlines import seconds_left
from farpool.client.dialing import dial
from farpool.client.encryption import encrypt, refuse_clear
from farpool.client.keeper import keep, look_after, release
from farpool.client.parting import EVERY_SESSION, Parting
from farpool.client.succession import Bond, Succession
from farpool.native.control_channel import ControlChannel
from farpool.native.fork import fork_count
from farpool.protocol.addresses import Address, fill_host
from farpool.protocol.errors import (
    AuthenticationFailed,
    FarpoolError,
    ForkedSession,
    InvalidArgument,
    ProtocolError,
    ServerLost,
    SlabNotFound,
    StaleSlab,
    out_of_descriptors,
)
from farpool.protocol.framing import MAX_FRAME_BYTES
from farpool.protocol.messages import (
    PROTOCOL_VERSION,
    Allocate,
    Challenged,
    Done,
    Free,
    Goodbye,
    Heartbeat,
    Hello,
    Reply,
    Request,
    ResumeKey,
    Welcome,
    encode_request,
)

if TYPE_CHECKING:
    from farpool.native.tls import TlsClient

__all__ = ["GOODBYE_SECONDS", "Session", "outcome_unknown"]

R = TypeVar("R", bound=Reply)

GOODBYE_SECONDS: Final = 1.0
"""How long the end of a session waits for the server to confirm it."""

LEAST_SECONDS: Final = 0.1
"""How long a Goodbye may take to leave, however little time there is."""

MAX_MAPPED: Final = 3000
"""Slabs that one Goodbye can name: at most 19 bytes each, in a request of 64 KiB."""


class Session:
    """One session of this process with the server at *address*. Thread-safe.

    A forked child that calls it gets ``ForkedSession``, and never touches the parent's connection.
    """

    def __init__(self, address: Address, credentials: Credentials = ANONYMOUS, tls: TlsClient | None = None) -> None:
        self.address = address
        self.tls = tls
        self.on_event: Callable[[str, dict[str, Any]], None] = _ignore
        self.on_new_session: Callable[[], None] = lambda: None
        """Called when another session has taken the place of one that ended, before anything is asked in it."""
        self.succession = Succession()
        self._credentials = credentials
        self._welcome: Welcome | None = None
        self._resume: ResumeKey | None = None
        self._connection: Connection | None = None
        self._connecting = threading.RLock()
        self._parting = Parting()
        self._closed = False
        self._forks = fork_count()

    # What the server said at the last Hello -----------------------------------------------------------------

    @property
    def welcome(self) -> Welcome:
        """The server's answer to the last Hello; hosts that its offers leave open are the one it was reached at."""
        assert self._welcome is not None, "open() comes first"
        return self._welcome

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that opened the session."""
        return fork_count() != self._forks

    def check(self) -> None:
        """Raise ``ForkedSession`` in a forked child, ``InvalidArgument`` after ``close``."""
        if fork_count() != self._forks:
            raise ForkedSession("this pool was connected by the parent process; call farpool.connect() in the child")
        if self._closed:
            raise InvalidArgument("this pool is closed; call farpool.connect() again")

    # Requests -----------------------------------------------------------------------------------------------

    def open(self, deadline: float) -> None:
        """Connect for the first time; a server that isn't there is an error at once.

        Raises:
            ServerLost: nobody listens at the address.
            DeadlineExceeded: somebody does, and says nothing.
            AuthenticationFailed: the server does not accept the credentials, or does not know their token itself.
            TransportUnavailable: this process may open no more files.
        """
        try:
            self._connect(deadline)
        except OSError as error:
            if isinstance(error, FarpoolError):
                raise
            raise out_of_descriptors(error) or ServerLost(
                f"no pool server answers at {self.address} ({_reason(error)}); start one with: farpool serve"
            ) from error

    def call(
        self,
        request: Request,
        reply_type: type[R],
        deadline: float,
        late: Late | None = None,
        bond: Bond | None = None,
    ) -> R:
        """Send *request* and return its reply; see :meth:`ask`."""
        return self.ask(request, reply_type, deadline, late, bond)[0]

    def ask(
        self,
        request: Request,
        reply_type: type[R],
        deadline: float,
        late: Late | None = None,
        bond: Bond | None = None,
    ) -> tuple[R, int]:
        """Send *request*, over as many connections as it takes until *deadline*.

        Return its reply, and which of the client's sessions that is of. *late* gets both if the reply comes after the
        caller has given up.

        Raises:
            ServerLost: the server stays away; or the connection broke under an ``Allocate``, whose outcome is
                unknown.
            StaleSlab: it was asked for a handle with a *bond* to a session that has ended; nothing was sent.
        """
        retries: Backoff | None = None
        while True:
            connection = self.connection(deadline)
            if bond is not None:  # here, since a connection is of one session, and so are all replies that come over it
                self.succession.check(bond, connection.serial)
            sent = False
            try:
                call = connection.begin(request, deadline, late)
                sent = True
                return connection.finish(call, reply_type, deadline), connection.serial
            except ServerLost as lost:
                if sent and request.once:
                    raise outcome_unknown(lost, request) from lost
                cause = lost
            except (SlabNotFound, StaleSlab):
                if retries is None or not isinstance(request, Free):
                    raise
                return reply_type(), connection.serial  # the first try freed it
            retries = retries or Backoff(deadline)
            if not retries.wait():
                raise cause

    def part(self, request: Request, serial: int = EVERY_SESSION) -> None:
        """Queue a request that asks for no reply; it leaves before the next one. Takes no lock.

        Unless *serial* is 0, it is dropped if the client's session of that number ends before.
        """
        self._parting.add(request, serial)

    def flush(self) -> None:
        """Send what is queued if the connection is up; never connects, never raises a ``FarpoolError``."""
        connection = self._connection
        if connection is not None and not self._closed and not self.forked:
            connection.flush()

    def is_connected(self) -> bool:
        """Tell whether the connection to the server is up, as far as this side can see. One system call."""
        connection = self._connection
        return connection is not None and connection.usable

    # Connecting ---------------------------------------------------------------------------------------------

    def connection(self, deadline: float) -> Connection:
        """Return a connection that a request can be sent over, a new one if it must be."""
        self.check()
        connection = self._connection
        if connection is not None and connection.usable:
            return connection
        try:
            if not self._connecting.acquire(timeout=seconds_left(deadline)):
                raise ServerLost("the server has gone, and another thread could not reach it in time; nothing was sent")
            return self._replace_connection(deadline)
        finally:
            try:  # noqa: SIM105  a call in between would be a gap for Ctrl-C
                self._connecting.release()
            except RuntimeError:
                pass  # it was never taken

    def _replace_connection(self, deadline: float) -> Connection:
        connection = self._connection
        if connection is not None and connection.usable:
            return connection  # another thread was quicker
        if connection is not None:
            connection.drain(deadline)  # the replies that came before the end
        return self._reconnect(deadline)

    def _reconnect(self, deadline: float) -> Connection:
        backoff = Backoff(deadline)
        while True:
            self.check()
            try:
                return self._connect(deadline)
            except AuthenticationFailed as error:
                if self._resume is None or error.details.get("certificate"):
                    raise
                self.succession.note_end(error)
                self._resume = None  # the old session has ended: open a new one
                continue
            except OSError as error:
                if isinstance(error, FarpoolError) and not isinstance(error, ServerLost):
                    raise
                if (shortage := out_of_descriptors(error)) is not None:
                    raise shortage from error
                cause = error
            if not backoff.wait():
                raise ServerLost(
                    f"the pool server at {self.address} has gone ({_reason(cause)}), "
                    "and did not come back in time; nothing was sent"
                ) from cause

    def _connect(self, deadline: float) -> Connection:
        refuse_clear(self.address, self.tls)
        fd = dial(self.address, deadline)
        channel = ControlChannel(fd, MAX_FRAME_BYTES, encrypt(fd, self.address, self.tls, deadline))
        connection = Connection(channel, self._parting, self._event)
        try:
            welcome = self._say_hello(connection, deadline)
            channel.start_heartbeat(encode_request(0, Heartbeat()), welcome.heartbeat)
            if self._resume is None:
                self.succession.begin()
                self.on_new_session()
            connection.serial = self.succession.serial
        except BaseException:
            connection.fail("no session was opened")
            raise
        self._welcome = welcome
        self._resume = ResumeKey(session=welcome.session, secret=welcome.secret)
        self._connection = connection
        if self._closed:
            connection.fail("the pool was closed")
            return connection
        connection.on_end = self._look_after
        keep(self, channel.fileno())
        if self._closed:
            release(self)
        return connection

    def _look_after(self) -> None:
        """Reconnect soon, unless the next call is quicker."""
        if not self._closed and not self.forked:
            look_after(self)

    def _say_hello(self, connection: Connection, deadline: float) -> Welcome:
        # A session that goes on has a secret of its own.
        proving = self._credentials.prove() if self._resume is None else None
        proof = b""
        if proving is not None:
            challenge = connection.begin(proving.challenge, deadline)
            proof = proving.answer(connection.finish(challenge, Challenged, deadline))
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            client=_client_name(),
            tenant=self._credentials.tenant,
            pid=os.getpid(),
            resume=self._resume,
            proof=proof,
        )
        call = connection.begin(hello, deadline)
        welcome = connection.finish(call, Welcome, deadline)
        if welcome.protocol != PROTOCOL_VERSION:
            raise ProtocolError(
                f"the server speaks version {welcome.protocol} of the control protocol, this client "
                f"{PROTOCOL_VERSION}; install the same release of farpool on both sides"
            )
        if proving is not None:
            proving.check(welcome.signature)
        offers = [replace(offer, params=fill_host(offer.params, self.address)) for offer in welcome.offers]
        return replace(welcome, offers=offers)

    def _event(self, kind: str, fields: dict[str, Any]) -> None:
        self.on_event(kind, fields)

    # The end ------------------------------------------------------------------------------------------------

    def close(self, timeout: float = GOODBYE_SECONDS, mapped: Sequence[tuple[int, int]] = ()) -> None:
        """Say Goodbye, wait at most *timeout* seconds for its reply, and close. Idempotent; never raises.

        *mapped* are the slabs, by id and generation, that live views show. If they are too many to name, nothing
        is said: the server keeps the bytes of a session that ends so until the process is gone.
        """
        if self._closed:
            return
        self._closed = True
        if not self.forked:
            release(self)
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self.forked:
            connection.channel.close()
            return
        try:
            if connection.usable and len(mapped) <= MAX_MAPPED:
                deadline = time.monotonic() + timeout
                connection.settle(deadline - timeout / 2)
                call = connection.begin(Goodbye(mapped=list(mapped)), max(deadline, time.monotonic() + LEAST_SECONDS))
                connection.finish(call, Done, deadline)
        except FarpoolError:
            pass  # the server sees the connection end
        finally:
            connection.fail("the pool was closed")


def _ignore(kind: str, fields: dict[str, Any]) -> None:
    """Take an event that nobody asked for."""


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def outcome_unknown(lost: ServerLost, request: Request) -> ServerLost:
    """Return the error of a request whose connection broke before its reply, and that is not sent twice."""
    if not isinstance(request, Allocate):
        return ServerLost(
            f"the server was lost in the middle of {request.operation} ({lost.message}); whether that took effect is "
            "unknown: a draft that was not committed ends with the session"
        )
    return ServerLost(
        f"the server was lost while it allocated ({lost.message}); whether the slab was made is unknown: "
        "a session slab ends with the session, others are seen with pool.slabs()"
    )


@cache
def _release() -> str:
    try:
        return version("farpool")
    except PackageNotFoundError:
        return "unknown"


def _client_name() -> str:
    return f"farpool/{_release()} python/{sys.version_info.major}.{sys.version_info.minor} pid {os.getpid()}"
