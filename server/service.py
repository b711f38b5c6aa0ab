"""What each request does: requests in, replies and the protocol's errors out. Knows no wire format."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeAlias

import structlog

from farpool.protocol.errors import (
    FarpoolError,
    InvalidArgument,
    PermissionDenied,
    PoolFull,
    ProtocolError,
    QuotaExceeded,
)
from farpool.protocol.messages import (
    PROTOCOL_VERSION,
    Allocate,
    Attach,
    Attached,
    Commit,
    Committed,
    Detach,
    Done,
    Free,
    Grant,
    GrantList,
    Grants,
    Heartbeat,
    Hello,
    Listing,
    Negotiate,
    Negotiated,
    Notify,
    Open,
    Release,
    Reply,
    Request,
    Reserve,
    Revoke,
    Stat,
    Wait,
    Watch,
    Welcome,
)
from farpool.protocol.units import format_bytes, parse_lease, parse_mode, parse_size, validate_name
from farpool.server.access import Access
from farpool.server.administration import Administration
from farpool.server.attaching import Attaching
from farpool.server.audit import AuditLog
from farpool.server.authentication import Authentication, Exchange
from farpool.server.commits import Commits
from farpool.server.deadlines import Clock
from farpool.server.handover import Handover
from farpool.server.lifecycle import REVOKED, Lifecycle
from farpool.server.long_work import LONG_BYTES
from farpool.server.peers import Peer
from farpool.server.quotas import Rates, check_sessions, check_share_of_sessions
from farpool.server.reports import SERVER_NAME, Reports
from farpool.server.sessions import Channel, Session
from farpool.server.slabs import Slab
from farpool.server.tenants import Tenants
from farpool.server.turns import Turns
from farpool.server.waiting import Waiting

__all__ = ["RESERVED_SESSIONS", "Limits", "PoolService"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.service")

RESERVED_SESSIONS: Final = 8
"""Beyond the limit, for local processes of the server's own user: the operator gets in when clients have it all."""

GIVE_BACK: Final = (Detach, Free, Revoke)
"""Requests that a quota never refuses: they give something back."""


BeingMade: TypeAlias = Attached | Awaitable[Attached]
"""A slab that is made, or will be."""


class Limits(Protocol):
    """The settings that the operations look at; they may change while the server runs."""

    @property
    def max_sessions(self) -> int: ...  # noqa: D102
    @property
    def session_timeout(self) -> float: ...  # noqa: D102
    @property
    def heartbeat(self) -> float: ...  # noqa: D102
    @property
    def authentication_required(self) -> bool: ...  # noqa: D102


class PoolService:
    """The operations of one pool. Not thread-safe."""

    def __init__(
        self,
        life: Lifecycle,
        tenants: Tenants,
        audit: AuditLog,
        limits: Limits,
        clock: Clock,
        epoch: int,
        turns: Turns,
    ) -> None:
        self.life = life
        self.tenants = tenants
        self.audit = audit
        self.limits = limits
        self.authentication = Authentication(tenants, lambda: limits.authentication_required)
        self.epoch = epoch
        self.draining = False
        self.addresses: list[str] = []
        self.handover: Handover | None = None
        """What another process may take over with; None where there is nothing to take over."""
        self.last_request = clock()
        """When something was last asked, heartbeats apart; a drain ends when nothing is asked any more."""
        self._clock = clock
        self._commits = Commits(life, lambda session, slab: self.access.check(session, slab, "rw"))
        self.turns = turns
        self.waiting = Waiting(life, turns, clock)
        self.access = Access(life, tenants, self._commits.move)
        self._reports = Reports(life, self.access, clock, epoch)
        self._attaching = Attaching(life, self.access, self._commits.move, self._reports, epoch)
        self._administration = Administration(life, tenants, self.access)
        self._rates = Rates(clock, tenants.limits)
        life.making.quota_of = tenants.limits
        life.withdrawn = self.waiting.withdraw

    def welcome(
        self, channel: Channel, hello: Hello, peer: Peer, exchange: Exchange | None = None
    ) -> tuple[Session, Welcome]:
        """Open or resume a session for the client behind *channel*, who is *peer* and was challenged to *exchange*."""
        if hello.protocol != PROTOCOL_VERSION:
            raise ProtocolError(
                f"the client speaks version {hello.protocol} of the control protocol, this server "
                f"{PROTOCOL_VERSION};"
                " install the same release of farpool on both sides",
                server=PROTOCOL_VERSION,
            )
        # Whoever has the secret of a session has shown who he is when it was opened.
        identity = None if hello.resume is not None else self.authentication.identify(peer, hello, exchange)
        if self.draining:
            raise PermissionDenied("the server is draining and opens no more sessions; try again once it is back")
        sessions = self.life.sessions
        if hello.resume is not None:
            session = sessions.resume(hello.resume.session, hello.resume.secret, channel)
            session.pid, session.host = peer.pid, peer.host
        else:
            assert identity is not None
            if not peer.administrator:  # who else would raise the quota?
                count = sessions.count(identity.tenant)
                check_sessions(identity.tenant, self.tenants.limits(identity.tenant), count)
                if len(self.tenants) > 1:
                    check_share_of_sessions(identity.tenant, self.limits.max_sessions, count)
            limit = self.limits.max_sessions + (RESERVED_SESSIONS if peer.administrator else 0)
            session = self.life.open_session(identity.tenant, channel, limit, peer.pid, peer.host)
        session.administrator = peer.administrator
        assert session.served is not None
        return session, Welcome(
            protocol=PROTOCOL_VERSION,
            server=SERVER_NAME,
            session=session.id,
            secret=session.served.secret,
            tenant=session.tenant,
            epoch=self.epoch,
            resumed=hello.resume is not None,
            heartbeat=self.limits.heartbeat,
            session_timeout=self.limits.session_timeout,
            offers=self.life.planes.offers(),
            signature=b"" if identity is None else identity.signature,
        )

    def hear(self, session: Session) -> None:
        """Note a sign of life."""
        session.last_seen = self._clock()

    def handle(self, session: Session, request: Request) -> Reply | Awaitable[Reply]:  # noqa: C901  one case each
        """Do what *request* asks for *session*; long work comes back as an awaitable."""
        session.last_seen = now = self._clock()
        if isinstance(request, Heartbeat):
            return Done()
        self.last_request = now
        if not session.administrator:
            self._rates.take(session.tenant, refusable=not isinstance(request, GIVE_BACK))
        if request.administrative:
            self.check_administrator(session, request)
        match request:
            case Allocate():
                return self._with_room(session, partial(self._allocate, session, request))
            case Free():
                return self._free(session, request)
            case Open():
                return self._attaching.open(session, request)
            case Attach():
                return self._attaching.attach(session, request)
            case Reserve():
                return self._with_room(session, partial(self._reserve, session, request))
            case Commit():
                return self._commit(session, request)
            case Grant() | Revoke() | Grants():
                return self._grants(session, request)
            case Negotiate():
                return self._negotiate(session, request)
            case Detach():
                return self._attaching.detach(session, request)
            case Wait() | Watch() | Notify():
                slab = self.access.of_life(session, request.id, request.generation)
                return self.waiting.handle(session, slab, request)
            case Listing():
                return self._reports.slabs(session, request)
            case Stat():
                return self._reports.pool(session, draining=self.draining, addresses=self.addresses)
            case Release():
                return self.life.release_host(request.host)
            case _:
                return self._administer(request)

    def check_administrator(self, session: Session, request: Request) -> None:
        """Raise ``PermissionDenied`` unless *session* is an administrator's."""
        if not session.administrator:
            raise PermissionDenied(
                f"{request.operation} is for administrators: root or the server's own user, on the server's host, over "
                f"{next(iter(self.addresses), 'its Unix socket')}"
            )

    def _administer(self, request: Request) -> Reply | Awaitable[Reply]:
        reply = self._administration.handle(request)
        if reply is None:
            raise ProtocolError(f"{request.operation} cannot be asked in an open session")
        return reply

    def _with_room(self, session: Session, make: Callable[[], BeingMade]) -> BeingMade:
        """Make a slab; where there is no room, look again at what was held, and try once more."""
        try:
            return make()
        except (PoolFull, QuotaExceeded):
            if not self.life.slabs.reclaiming:
                raise
        looking = self.life.reclaiming.look_again(session.tenant)
        return make() if looking is None else _made_after(looking, session, make)

    def _allocate(self, session: Session, request: Allocate) -> BeingMade:
        if self.draining:
            raise PermissionDenied("the server is draining and makes no more slabs; try again once it is back")
        nbytes = parse_size(request.nbytes)
        name = None if request.name is None else validate_name(request.name)
        lease = parse_lease(request.lease)
        if request.transport:
            self.life.planes.check(request.transport)
        try:
            slab = self.life.making.prepare(session, nbytes, name, lease, _domain_of(request))
            if slab.charged > LONG_BYTES:
                return self._allocate_long(session, slab, request.transport)
            self.life.making.make(slab)
            return self._attaching.admit(session, slab, request.transport)
        except PoolFull as error:
            raise self._with_numbers(error, nbytes) from error

    async def _allocate_long(self, session: Session, slab: Slab, transport: str) -> Attached:
        try:
            await self.life.making.make_long(session, slab)
            return await self._attaching.admit_long(session, slab, transport)
        except PoolFull as error:
            raise self._with_numbers(error, slab.nbytes) from error

    def _with_numbers(self, error: PoolFull, nbytes: int) -> PoolFull:
        # A part that is full itself (file system, catalog, slots) does not know the pool's numbers.
        if "capacity" in error.details:
            return error
        free, capacity = self.life.slabs.free, self.life.slabs.capacity
        return PoolFull(
            f"asked for {format_bytes(nbytes)}; {format_bytes(free)} of the pool's {format_bytes(capacity)} "
            f"are free, but {error.message}",
            asked=nbytes,
            free=min(free, error.details.get("file_system_free", free)),
            capacity=capacity,
        )

    def _reserve(self, session: Session, request: Reserve) -> BeingMade:
        slab = self.access.of_life(session, request.id, request.generation)
        self.access.check(session, slab, "rw")
        self.access.note(session, slab, request.transport, draft=True)
        if self.draining:
            raise PermissionDenied("the server is draining and makes no more drafts; try again once it is back")
        if slab.draft_of is not None:
            raise InvalidArgument("a draft has no drafts of its own; reserve its slab once more")
        try:
            draft, made = self._commits.prepare(session, slab, request)
            if made:
                return self._attaching.admit(session, draft, request.transport)
        except PoolFull as error:
            raise self._with_numbers(error, slab.nbytes) from error
        return self._reserve_long(session, slab, draft, request)

    async def _reserve_long(self, session: Session, slab: Slab, draft: Slab, request: Reserve) -> Attached:
        try:
            await self._commits.make(session, slab, draft, copy=request.copy)
            check = partial(self._commits.check_base, session, slab, draft)
            return await self._attaching.admit_long(session, draft, request.transport, check)
        except PoolFull as error:
            raise self._with_numbers(error, slab.nbytes) from error

    async def _commit(self, session: Session, request: Commit) -> Committed:
        return Committed(slabs=[self._reports.slab(slab) for slab in await self._commits.commit(session, request)])

    def _negotiate(self, session: Session, request: Negotiate) -> Negotiated:
        assert session.served is not None
        return Negotiated(params=self.life.planes.negotiate(request.transport, session.served, request.params))

    def _free(self, session: Session, request: Free) -> Done | Awaitable[Done]:
        slab = self.access.own(session, request.id, request.generation, "free")
        held = self.life.slabs.get_held(slab.id, request.memory or slab.generation)
        if request.detached and held is not None:
            self.life.let_go(held, session.id, request.detached)
        removal = self.life.end_slab(slab, REVOKED, by=session)
        return Done() if removal is None else _done_after(removal)

    def _grants(self, session: Session, request: Grant | Revoke | Grants) -> Reply | Awaitable[Reply]:
        slab = self.access.own(session, request.id, request.generation, "say who else may attach")
        match request:
            case Grant():
                return self.access.grant(slab, request.tenant, parse_mode(request.mode), request.expires)
            case Revoke():
                return self.access.revoke(slab, request.tenant)
            case Grants():
                return GrantList(grants=self.access.of_slab(slab))


async def _made_after(looking: Awaitable[object], session: Session, make: Callable[[], BeingMade]) -> Attached:
    await looking
    if not session.alive:
        raise PermissionDenied(f"session {session.id} ended before there was room for its slab")
    made = make()
    return made if isinstance(made, Attached) else await made


async def _done_after(removal: Awaitable[object]) -> Done:
    try:
        await removal
    except OSError as error:
        raise FarpoolError(f"the slab has ended, but its file could not be removed: {error.strerror}") from error
    return Done()


def _domain_of(request: Allocate) -> str:
    """Return whose atomics the words of a new slab belong to: the transport's that it is allocated over."""
    domain = request.atomics or ("rdma" if request.transport == "rdma" else "cpu")
    if domain not in ("cpu", "rdma"):
        raise InvalidArgument(f'atomics are "cpu" or "rdma", not {domain!r}')
    return domain
