"""Sessions: the life of each as a table of transitions, and the rules of liveness.

A connection that ends leaves its session a grace in which the client may resume it; silence, a farewell or
the death of the process end it. No sockets here: a session talks to its client through a :class:`Channel`.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, Protocol

from farpool.protocol.errors import AuthenticationFailed, PermissionDenied
from farpool.server.deadlines import Clock
from farpool.transports.contract import ServedSession

__all__ = [
    "TRANSITIONS",
    "Channel",
    "Session",
    "SessionEvent",
    "SessionState",
    "SessionTable",
    "Timing",
    "hash_secret",
]

SECRET_BYTES: Final = 32


class SessionState(StrEnum):
    """Where a session is in its life."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    AWAITING = "awaiting"
    """Known from the catalog after a restart; its client has not come back yet."""
    ENDED = "ended"


class SessionEvent(StrEnum):
    """What can happen to a session."""

    RESUMED = "resumed"
    LOST = "lost its connection"
    GOODBYE = "said goodbye"
    SILENT = "was silent for too long"
    DIED = "its process died"
    TOO_LATE = "did not come back in time"
    STOPPED = "the server stops"
    DISMISSED = "was ended by an administrator"


_S, _E = SessionState, SessionEvent

TRANSITIONS: Final[dict[tuple[SessionState, SessionEvent], SessionState]] = {
    (_S.CONNECTED, _E.RESUMED): _S.CONNECTED,
    (_S.CONNECTED, _E.LOST): _S.DISCONNECTED,
    (_S.CONNECTED, _E.GOODBYE): _S.ENDED,
    (_S.CONNECTED, _E.SILENT): _S.ENDED,
    (_S.CONNECTED, _E.DIED): _S.ENDED,
    (_S.CONNECTED, _E.STOPPED): _S.ENDED,
    (_S.CONNECTED, _E.DISMISSED): _S.ENDED,
    (_S.DISCONNECTED, _E.RESUMED): _S.CONNECTED,
    (_S.DISCONNECTED, _E.TOO_LATE): _S.ENDED,
    (_S.DISCONNECTED, _E.DIED): _S.ENDED,
    (_S.DISCONNECTED, _E.STOPPED): _S.ENDED,
    (_S.DISCONNECTED, _E.DISMISSED): _S.ENDED,
    (_S.AWAITING, _E.RESUMED): _S.CONNECTED,
    (_S.AWAITING, _E.TOO_LATE): _S.ENDED,
    (_S.AWAITING, _E.STOPPED): _S.ENDED,
    (_S.AWAITING, _E.DISMISSED): _S.ENDED,
}


class Channel(Protocol):
    """A session's way to its client."""

    def send(self, frame: bytes) -> None:
        """Queue a frame."""
        ...

    def close(self, reason: str) -> None:
        """Close the connection once what was queued is sent."""
        ...


class Closeable(Protocol):
    """A watch over a process."""

    def close(self) -> None:
        """Stop watching."""
        ...


class Timing(Protocol):
    """The settings that rule liveness, in seconds; they may change while the server runs."""

    @property
    def session_timeout(self) -> float: ...  # noqa: D102
    @property
    def disconnect_grace(self) -> float: ...  # noqa: D102
    @property
    def resume_grace(self) -> float: ...  # noqa: D102


class Session:
    """One client process as the server knows it."""

    __slots__ = (
        "administrator",
        "channel",
        "host",
        "id",
        "last_seen",
        "mapped",
        "pid",
        "secret_hash",
        "served",
        "since",
        "state",
        "tenant",
        "timeout",
        "watch",
        "watches",
        "word",
    )

    def __init__(self, id: int, tenant: str, secret_hash: bytes, state: SessionState, now: float) -> None:  # noqa: A002
        self.id = id
        self.tenant = tenant
        self.secret_hash = secret_hash
        self.state = state
        self.since = now
        """When it came into its state, on the server's clock."""
        self.last_seen = now
        """When its client was last heard of, on the server's clock."""
        self.timeout = math.inf
        """Seconds of silence that end it, as its client was told."""
        self.channel: Channel | None = None
        self.served: ServedSession | None = None
        """What transports see; None until the client has shown the secret to this server."""
        self.administrator = False
        """Whether the other end of its connection may ask for administrative acts."""
        self.pid: int | None = None
        self.mapped: frozenset[tuple[int, int]] = frozenset()
        """Slabs, by id and generation, that its client has said to leave mapped at its goodbye."""
        self.host = ""
        """Where its client is, as an operator would name it; ``""`` is this machine."""
        self.watch: Closeable | None = None
        """Tells when the client's process dies, if it is on this machine."""
        self.watches = 0
        """Number of the watch over its deadline that counts; older ones are void."""
        self.word = 0
        """Where its word is (:class:`farpool.server.session_words.SessionWords`), 0 where it has none."""

    @property
    def alive(self) -> bool:
        """Tell whether it has not ended."""
        return self.state is not SessionState.ENDED

    def watch_process(self, watch: Closeable | None) -> None:
        """Replace the watch over the client's process."""
        if self.watch is not None:
            self.watch.close()
        self.watch = watch

    def advance(self, event: SessionEvent, now: float) -> None:
        """Change the state; an event that cannot happen in it is a programming error."""
        target = TRANSITIONS.get((self.state, event))
        if target is None:
            raise RuntimeError(f"session {self.id} is {self.state.value}: it cannot have been that it {event.value}")
        self.state = target
        self.since = now


def hash_secret(secret: bytes) -> bytes:
    """Return what the catalog keeps of a secret. It is 32 random bytes, so one round of SHA-256 is enough."""
    return hashlib.sha256(secret).digest()


class SessionTable:
    """Every session that has not ended. ``ended`` is called once for each that does. Not thread-safe."""

    def __init__(
        self,
        timing: Timing,
        clock: Clock,
        watch: Callable[[Callable[[], float], Callable[[], None]], None],
        ended: Callable[[Session, SessionEvent], None],
    ) -> None:
        self.timing = timing
        self._clock = clock
        self._watch = watch
        self._ended = ended
        self._sessions: dict[int, Session] = {}
        self._of_tenant: Counter[str] = Counter()
        self._stopped: Mapping[int, bytes] = {}
        self._stopped_until = -math.inf

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> list[Session]:
        """Return the sessions that have not ended."""
        return list(self._sessions.values())

    def count(self, tenant: str) -> int:
        """Return how many sessions a tenant has."""
        return self._of_tenant[tenant]

    def get(self, session_id: int) -> Session | None:
        """Return a session that has not ended."""
        return self._sessions.get(session_id)

    def served(self, session_id: int) -> ServedSession | None:
        """Return a session that may use data planes now."""
        session = self._sessions.get(session_id)
        return None if session is None else session.served

    def connected(self) -> int:
        """Return how many sessions have a connection."""
        return sum(session.channel is not None for session in self._sessions.values())

    def open(self, session_id: int, tenant: str, channel: Channel, limit: int, word: int = 0) -> Session:
        """Begin a session with a new secret; raise ``PermissionDenied`` when *limit* of them are open."""
        if len(self._sessions) >= limit:
            raise PermissionDenied(
                f"the server has its limit of {limit} sessions; end some, or serve with a higher max_sessions",
                limit=limit,
            )
        secret = secrets.token_bytes(SECRET_BYTES)
        session = Session(session_id, tenant, hash_secret(secret), SessionState.CONNECTED, self._clock())
        session.served = ServedSession(session_id, tenant, secret, word=word)
        session.word = word
        session.channel = channel
        session.timeout = self.timing.session_timeout
        self._add(session)
        return session

    def restore(self, session_id: int, tenant: str, secret_hash: bytes) -> Session:
        """Bring back a session from the catalog, to be resumed within the grace."""
        session = Session(session_id, tenant, secret_hash, SessionState.AWAITING, self._clock())
        self._add(session)
        return session

    def remember(self, stopped: Mapping[int, bytes]) -> None:
        """For a grace, tell the clients of sessions that the last server ended as it stopped that this was why."""
        self._stopped, self._stopped_until = stopped, self._clock() + self.timing.resume_grace

    def resume(self, session_id: int, secret: bytes, channel: Channel) -> Session:
        """Give a session a new connection; raise ``AuthenticationFailed`` if it ended or that is wrong."""
        session = self._sessions.get(session_id)
        expected = session.secret_hash if session is not None else bytes(32)
        if not hmac.compare_digest(hash_secret(secret), expected) or session is None:
            details = {"session": session_id}
            if self._clock() < self._stopped_until:
                ended = self._stopped.get(session_id, bytes(32))
                details["stopped"] = hmac.compare_digest(hash_secret(secret), ended)
            raise AuthenticationFailed(
                f"session {session_id} cannot be resumed: it has ended, or the secret is not its own; open "
                "a new session",
                **details,
            )
        before, session.channel = session.channel, channel
        session.served = ServedSession(session.id, session.tenant, secret, word=session.word)
        session.advance(SessionEvent.RESUMED, self._clock())
        session.last_seen = session.since
        session.timeout = self.timing.session_timeout
        session.watch_process(None)
        self._watch_anew(session)
        if before is not None:
            before.close("its session was resumed over another connection")
        return session

    def lose(self, session: Session, channel: Channel) -> None:
        """Begin the grace of a session whose connection *channel* has ended."""
        if session.channel is channel and session.alive:
            session.channel = None
            session.advance(SessionEvent.LOST, self._clock())
            session.last_seen = session.since
            self._watch_anew(session)

    def end(self, session: Session, event: SessionEvent, farewell: bytes = b"") -> None:
        """End a session now, and send *farewell* once that is noted; one that has ended stays so."""
        if not session.alive:
            return
        session.advance(event, self._clock())
        if event in (SessionEvent.GOODBYE, SessionEvent.DIED, SessionEvent.STOPPED):
            session.last_seen = session.since
        session.watch_process(None)
        del self._sessions[session.id]
        self._of_tenant[session.tenant] -= 1
        channel, session.channel = session.channel, None
        self._ended(session, event)
        session.served = None
        if channel is not None:
            if farewell:
                channel.send(farewell)
            channel.close(f"its session has ended: {event.value}")

    def forgive_silence(self) -> None:
        """Begin the time of silence and all graces anew: it was us who did not listen."""
        now = self._clock()
        for session in self._sessions.values():
            session.since = now
            if session.channel is not None:
                session.last_seen = now

    def deadline(self, session: Session) -> float:
        """Return when the session ends unless something happens, on the server's clock."""
        match session.state:
            case SessionState.CONNECTED:
                return session.last_seen + session.timeout
            case SessionState.DISCONNECTED:
                return session.since + self.timing.disconnect_grace
            case SessionState.AWAITING:
                return session.since + self.timing.resume_grace
            case SessionState.ENDED:
                return math.inf

    def _add(self, session: Session) -> None:
        self._sessions[session.id] = session
        self._of_tenant[session.tenant] += 1
        self._watch_anew(session)

    def _watch_anew(self, session: Session) -> None:
        session.watches += 1
        number = session.watches
        self._watch(
            lambda: self.deadline(session) if session.watches == number else math.inf,
            lambda: self._expire(session),
        )

    def _expire(self, session: Session) -> None:
        silent = session.state is SessionState.CONNECTED
        self.end(session, SessionEvent.SILENT if silent else SessionEvent.TOO_LATE)
