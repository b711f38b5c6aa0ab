"""One control connection: requests go out, and whoever waits for a reply reads the replies of all.

There is no reading thread. Of the callers that wait, one leads: it reads frames and hands each to its call;
the others follow, each at a gate of its own. A leader that has its reply, or gives up, opens one follower's
gate, and that one leads. A reply whose caller has given up is dropped, or given to the call's ``late`` hook.

Ctrl-C may strike after any call that is made here. State therefore changes inside ``with`` on a C lock, which
leaves no gap between taking the lock and being sure to release it; who leads is a field, not a lock, for the
same reason; a payload goes from the channel to the inbox within one call into C, and leaves it only once it
is dealt with.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from farpool.client.deadlines import seconds_left
from farpool.client.parting import Parting
from farpool.protocol import messages
from farpool.protocol.errors import DeadlineExceeded, FarpoolError, ProtocolError, ServerLost, from_wire
from farpool.protocol.framing import decode_payload
from farpool.protocol.messages import Heartbeat, Reply, Request, decode_reply_fields, encode_request

if TYPE_CHECKING:
    from farpool.native.control_channel import ControlChannel

__all__ = ["Call", "Connection"]

R = TypeVar("R", bound=Reply)
Late = Callable[[Reply, int], None]
"""What to do with the reply of a call whose caller has given up, in that session of the client's. Must not block."""

GLANCE_SECONDS: Final = 0.001
"""How long the socket is looked at when the deadline has passed: a reply that has come beats it."""

FAREWELL_SECONDS: Final = 1.0
"""How long frames that nobody waits for may take to leave."""


class Call:
    """One request that was sent. The connection's lock guards the fields."""

    __slots__ = ("abandoned", "done", "error", "gate", "id", "late", "reply", "request", "sent")

    def __init__(self, call_id: int, request: Request, late: Late | None) -> None:
        self.id = call_id
        self.request = request
        self.late = late
        self.gate: threading.Lock | None = None
        self.reply: Reply | None = None
        self.error: FarpoolError | None = None
        self.sent = False
        self.done = False
        self.abandoned = False


class Connection:
    """A connected :class:`ControlChannel` and the calls that are out on it. Thread-safe.

    *parting* is the client's queue of frames that ask for no reply: they leave before the next request.
    """

    serial = 0
    """Which of the client's sessions it is of, counted from 1; 0 until that is known, and nothing parts before."""

    def __init__(
        self,
        channel: ControlChannel,
        parting: Parting,
        on_event: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.channel = channel
        self._parting = parting
        self._inbox: deque[bytes] = deque()
        self._on_event = on_event
        self._ids = count(1)
        self._lock = threading.RLock()  # re-entrant: a signal handler may come here while its thread has it
        self._calls: dict[int, Call] = {}
        self._followers: dict[int, Call] = {}
        self._reader: Call | None = None
        self._reading = 0  # the thread of that one
        self._failure = ""
        self._farewell = ""
        self.on_end: Callable[[], None] = _nothing
        """Called when the connection has failed, by whoever noticed; must not block."""

    @property
    def usable(self) -> bool:
        """Whether a request may be sent: the peer has not closed, and nothing broke. One system call."""
        return not self._failure and not self.channel.ended()

    # Sending ------------------------------------------------------------------------------------------------

    def begin(self, request: Request, deadline: float, late: Late | None = None) -> Call:
        """Send *request*; :meth:`finish` waits for its reply.

        Raises:
            ServerLost: the connection broke before the whole request had left: the server has not acted on
                it.
            DeadlineExceeded: the server reads nothing.
        """
        call = Call(next(self._ids), request, late)
        frame = encode_request(call.id, request)
        try:
            with self._lock:
                if self._failure:
                    raise ServerLost(self._failure)
                self._calls[call.id] = call
            self._send(frame, deadline, call)
        except ServerLost as error:
            self.fail(error.message)
            raise
        except BaseException:
            self.abandon(call)
            raise
        return call

    def flush(self) -> None:
        """Send the parting frames now if the connection is usable; otherwise they stay queued."""
        if self._parting and self.usable:
            try:
                self._send(b"", monotonic() + FAREWELL_SECONDS)
            except ServerLost as error:
                self.fail(error.message)
            except DeadlineExceeded:
                pass

    def _send(self, frame: bytes, deadline: float, call: Call | None = None) -> None:
        try:
            if not self._parting.sending.acquire(timeout=seconds_left(deadline)):
                raise DeadlineExceeded("the server reads nothing: earlier requests are still waiting to be sent")
            self._send_after_parting(frame, deadline, call)
        finally:
            try:  # noqa: SIM105  a call in between would be a gap for Ctrl-C
                self._parting.sending.release()
            except RuntimeError:
                pass  # it was never taken

    def _send_after_parting(self, frame: bytes, deadline: float, call: Call | None) -> None:
        parted = self._parting.take(self.serial) if self.serial else []
        if parted:
            frame = b"".join([*(words for _, words in parted), frame])
        try:
            if call is not None:
                call.sent = True
            self.channel.send(frame, deadline)
        except BaseException as error:
            if self.channel.broken or isinstance(error, DeadlineExceeded):  # they did not leave, or not whole
                self._parting.put_back(parted)
            raise

    # Waiting ------------------------------------------------------------------------------------------------

    def finish(self, call: Call, reply_type: type[R], deadline: float) -> R:
        """Wait for the reply of *call*; a reply that has come beats the deadline.

        Raises:
            ServerLost: the connection broke; whether the server has acted on the request is unknown.
            DeadlineExceeded: no reply in time; a late one goes to the call's ``late`` hook.
            FarpoolError: what the server answered.
        """
        try:
            self._wait(call, deadline)
            if call.error is not None:
                raise call.error
            if isinstance(call.reply, reply_type):
                return call.reply
        except BaseException:
            self.abandon(call)
            raise
        raise ProtocolError(f"the server's reply is not a {reply_type.__name__}")

    def drain(self, deadline: float) -> None:
        """Act on what came before the end of a connection that the server has closed; then it closes itself."""
        watch = Call(0, Heartbeat(), None)  # the server never answers id 0
        with self._lock:
            if self._failure:
                return
            self._calls[0] = watch
        try:
            self._wait(watch, deadline)
        except DeadlineExceeded:  # all of it was here, and this machine too busy to read it
            self.fail("the server closed the control connection")
        finally:
            self._calls.pop(0, None)

    def settle(self, deadline: float) -> None:
        """Wait for the late replies that somebody wants to hear of, until *deadline*."""
        for call in list(self._calls.values()):
            if call.abandoned:
                try:
                    self._wait(call, deadline)
                except DeadlineExceeded:
                    return

    def _wait(self, call: Call, deadline: float) -> None:
        try:
            # A loop right here would end outside of the try if Ctrl-C came as it jumps back (CPython 3.11).
            self._lead_or_wait(call, deadline)
        finally:
            with self._lock:
                if self._reader is call:
                    self._reader = None
                self._followers.pop(call.id, None)
                if self._reader is None and self._followers:
                    self._open_gate(next(iter(self._followers.values())))

    def _lead_or_wait(self, call: Call, deadline: float) -> None:
        while not call.done:
            if self._lead_or_follow(call):
                self._read_for(call, deadline)
                continue
            assert call.gate is not None
            if not call.gate.acquire(timeout=seconds_left(deadline)) and not self._lead_or_follow(call):
                raise DeadlineExceeded(_overdue(call))

    def _lead_or_follow(self, call: Call) -> bool:
        """Make *call* the leader if there is none (or it is done), else put it in the line of followers."""
        with self._lock:
            if call.done or self._reader is None or self._reader is call:
                self._followers.pop(call.id, None)
                if not call.done:
                    self._reader, self._reading = call, threading.get_ident()
                return True
            if self._reading == threading.get_ident():  # a finalizer's call, in the middle of the leader's
                raise DeadlineExceeded(
                    f"the reply to {call.request.operation} is not waited for: a finalizer asks, in the middle of a "
                    "call of the thread that reads all replies"
                )
            if call.gate is None:
                call.gate = threading.Lock()
            call.gate.acquire(blocking=False)  # shut it, if an opening came just as its wait timed out
            self._followers[call.id] = call
            return False

    def _read_for(self, call: Call, deadline: float) -> None:
        until = max(deadline, monotonic() + GLANCE_SECONDS)
        try:
            while not call.done:
                if not self._inbox:
                    self._inbox.extend(map(self.channel.receive, (until,)))
                self._dispatch(self._inbox[0])
                self._inbox.popleft()
        except DeadlineExceeded:
            if self.channel.broken:
                self.fail("the connection broke in the middle of a message")
            raise DeadlineExceeded(_overdue(call)) from None
        except (ServerLost, ProtocolError) as error:
            self.fail(error.message)

    # What comes in ------------------------------------------------------------------------------------------

    def _dispatch(self, payload: bytes) -> None:
        """Act on one payload; doing it twice is harmless."""
        match decode_payload(payload):
            case [messages.EVENT, str(kind), fields]:
                self._on_event(kind, _as_map(fields))
            case [messages.REPLY, int(call_id), fields]:
                self._answer(call_id, fields, None)
            case [messages.ERROR, 0, str(), str(text), _]:
                self._farewell = text  # the end of the connection follows, and this says why
            case [messages.ERROR, int(call_id), str(kind), str(text), details]:
                self._answer(call_id, None, from_wire(kind, text, _as_map(details)))
            case _:
                raise ProtocolError("the server sent what is neither a reply nor an event; is it a Farpool server?")

    def _answer(self, call_id: int, fields: object, error: FarpoolError | None) -> None:
        call = self._calls.get(call_id)
        if call is None:
            return  # its caller gave up, and has no use for a late reply
        reply = decode_reply_fields(call.request.reply, fields) if error is None else None
        with self._lock:
            call.reply, call.error, call.done = reply, error, True
            if call.abandoned:
                self._give_to_late(call)
            self._open_gate(call)
            self._calls.pop(call_id, None)

    def abandon(self, call: Call) -> None:
        """Wait for *call* no more; its reply, which may have come already, goes to the ``late`` hook."""
        with self._lock:
            call.abandoned = True
            if call.done:
                self._give_to_late(call)
            elif call.late is None or not call.sent:
                self._calls.pop(call.id, None)

    def _give_to_late(self, call: Call) -> None:
        if call.late is not None and call.reply is not None:
            call.late(call.reply, self.serial)
            call.late = None

    def _open_gate(self, call: Call) -> None:
        """Let a follower go on; the lock is held."""
        if call.id in self._followers:
            assert call.gate is not None
            if call.gate.locked():
                call.gate.release()
            self._followers.pop(call.id, None)

    # The end ------------------------------------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """Close the connection; every call that is out ends with ``ServerLost``. Idempotent."""
        with self._lock:
            self._failure = self._failure or self._farewell or reason
            for call in list(self._calls.values()):
                call.error, call.done = ServerLost(self._failure), True
                self._open_gate(call)
            self._calls.clear()
        self.channel.close()
        on_end, self.on_end = self.on_end, _nothing
        on_end()


def _nothing() -> None:
    """Take the end of a connection that is nobody's."""


def _as_map(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError("the server sent a message without its map of fields; is it a Farpool server?")
    return cast("dict[str, Any]", value)


def _overdue(call: Call) -> str:
    return f"the server has not answered {call.request.operation} in time; is it stopped or overloaded?"
