"""A pool as an application holds it: connect, allocate, open, look, close."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from time import monotonic
from types import TracebackType
from typing import NoReturn, Self, SupportsIndex

from farpool.client import freeing
from farpool.client.attachment import Attachment, Attachments
from farpool.client.credentials import find_credentials
from farpool.client.deadlines import deadline_after, parse_timeout
from farpool.client.dialing import find_address
from farpool.client.draft import Draft, DraftHandle
from farpool.client.encryption import Tls, find_tls
from farpool.client.listing import list_slabs
from farpool.client.session import GOODBYE_SECONDS, Session
from farpool.client.slab import Slab, SlabHandle, keep_error
from farpool.client.transports import AUTO, Selection, TransportReport, client_context, select_transport
from farpool.protocol.errors import InvalidArgument
from farpool.protocol.messages import (
    Allocate,
    Open,
    Quarantined,
    Release,
    ServerStat,
    SlabInfo,
    Stat,
)
from farpool.protocol.units import (
    MAX_SLAB_BYTES,
    Lease,
    parse_atomics,
    parse_lease,
    parse_mode,
    parse_size,
    shown,
    validate_name,
    validate_tenant,
)

__all__ = ["DEFAULT_TIMEOUT", "Pool", "PoolHandle", "connect", "open_session"]

DEFAULT_TIMEOUT = 10.0
"""Seconds that a call may take, unless ``connect`` or the call says otherwise."""


class PoolHandle:
    """What a pool and its awaitable twin have in common: the facts, and the requests as blocking calls."""

    _label = "farpool.Pool"

    def __init__(self, session: Session, selection: Selection, timeout: float) -> None:
        self._session = session
        self._selection = selection
        self._timeout = timeout
        self._attachments = Attachments(session, selection.name, selection.client, timeout)

    @property
    def url(self) -> str:
        """Address of the server."""
        return str(self._session.address)

    @property
    def transport(self) -> str:
        """Name of the transport that slabs are attached over."""
        return self._selection.name

    @property
    def transport_report(self) -> Sequence[TransportReport]:
        """For each transport that the server offers: its name, whether it was chosen, and if not, why."""
        return self._selection.report

    @property
    def timeout(self) -> float:
        """Default timeout of a call in seconds."""
        return self._timeout

    @property
    def session_id(self) -> int:
        """Number of the session on the server; changes only if the session ended and a new one was opened."""
        return self._session.welcome.session

    @property
    def tenant(self) -> str:
        """Whom the pool's slabs are charged to."""
        return self._session.welcome.tenant

    @property
    def epoch(self) -> int:
        """Count of the server's starts, as of the last connection."""
        return self._session.welcome.epoch

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._session.closed

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<{self._label} {self.url} over {self.transport}, {state}>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"a {self._label} is one session of one process: it is neither copied nor pickled; connect again"
        )

    def _allocate(
        self, nbytes: int | str, name: str | None, lease: Lease, atomics: str | None, deadline: float
    ) -> Attachment:
        request = Allocate(
            nbytes=parse_size(nbytes),
            name=None if name is None else validate_name(name),
            lease=parse_lease(lease),
            transport=self.transport,
            atomics=parse_atomics(atomics),
        )
        return self._attachments.allocate(request, deadline)

    def _open(self, slab: str | int, mode: str, exclusive: bool, tenant: str | None, deadline: float) -> Attachment:
        wanted = parse_mode(mode)
        owner = None if tenant is None else validate_tenant(tenant)
        if isinstance(slab, str):
            request = Open(
                name=validate_name(slab), mode=wanted, transport=self.transport, exclusive=exclusive, tenant=owner
            )
        elif isinstance(slab, bool) or not isinstance(slab, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgument(f"open takes a slab's name or id, not {slab!r}")
        elif not 0 < slab < MAX_SLAB_BYTES:
            raise InvalidArgument(f"a slab's id is a number over 0, not {slab}")
        else:
            request = Open(id=slab, mode=wanted, transport=self.transport, exclusive=exclusive, tenant=owner)
        return self._attachments.open(request, wanted, deadline)

    def _allocate_many(self, sizes: Iterable[int | str], lease: Lease, deadline: float) -> list[Attachment]:
        parsed = parse_lease(lease)
        requests = [Allocate(nbytes=parse_size(nbytes), lease=parsed, transport=self.transport) for nbytes in sizes]
        return self._attachments.allocate_many(requests, deadline)

    def _free_many(self, slabs: Iterable[SlabHandle], deadline: float) -> None:
        freeing.free_many(self._attachments, [_attachment_of(slab) for slab in slabs], deadline)

    def _reserve(self, slab: SlabHandle, copy: bool, deadline: float) -> Attachment:
        return self._attachments.reserve(slab.attachment, copy=copy, deadline=deadline)

    def commit_drafts(self, drafts: Sequence[DraftHandle], deadline: float) -> list[SlabInfo]:
        """Commit drafts of this session, all or none."""
        for draft in drafts:
            if not isinstance(draft, DraftHandle):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidArgument(f"commit takes drafts, not {shown(draft)}; slab.reserve() makes one")
        committed = self._attachments.commit([(draft.attachment, draft.withdraw) for draft in drafts], deadline)
        for draft in drafts:
            draft.committed = True
        return committed

    def _deadline(self, timeout: float | None) -> float:
        return deadline_after(timeout, self._timeout)

    def goodbye_deadline(self) -> float:
        """Return until when what is closed now may wait for the server."""
        return monotonic() + min(GOODBYE_SECONDS, self._timeout)

    def _stat(self, deadline: float) -> ServerStat:
        self._attachments.holdings.sweep()
        return self._session.call(Stat(), ServerStat, deadline)

    def _release_host(self, host: str, deadline: float) -> Quarantined:
        if not isinstance(host, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgument(f"a host is named as stat() names it in quarantined, not {shown(host)}")
        return self._session.call(Release(host=host), Quarantined, deadline)

    def _slabs(self, deadline: float) -> list[SlabInfo]:
        return list_slabs(self._session, deadline)

    def _end(self, patience: float = GOODBYE_SECONDS) -> None:
        """Close all that is open, and wait at most *patience* seconds, or a call's, for the server's answer."""
        if self._session.closed:
            return
        patience = min(patience, self._timeout)
        if self._session.forked:
            self._session.close(patience)
            return
        try:
            self._attachments.close()
        finally:  # a transport of somebody else's may fail to close; the session ends all the same
            self._session.close(patience, self._attachments.holdings.mapped())


class Pool(PoolHandle):
    """One session with one pool server; :func:`farpool.connect` makes it. Thread-safe.

    Every call takes ``timeout`` in seconds. A server that restarts is reached again within it, and the
    session goes on. ``close`` ends the session, which frees its session slabs; so does the end of a ``with``
    block. A forked child gets ``ForkedSession`` from every call and connects for itself.
    """

    # Slabs --------------------------------------------------------------------------------------------------

    def allocate(
        self,
        nbytes: int | str,
        *,
        name: str | None = None,
        lease: Lease = "session",
        atomics: str | None = None,
        timeout: float | None = None,
    ) -> Slab:
        """Make a slab of zeroed memory, and attach it for reading and writing.

        *nbytes* is bytes, or a string such as ``"64MiB"``. *lease* is ``"session"`` (it ends with this
        session), ``"persistent"``, or the seconds that it lives without this session. *atomics* says whose
        atomic operations its words are for, ``"cpu"`` (cxl and tcp) or ``"rdma"``: a NIC's and a CPU's are not
        atomic together. By default those of this pool's transport.

        Raises:
            PoolFull: no room; the message has the bytes asked, free and in all.
            NameTaken: another slab has the name.
            InvalidArgument: a size, name or lease that cannot be.
            ServerLost: the server went away meanwhile; whether a slab was made is unknown.
        """
        return Slab(self, self._allocate(nbytes, name, lease, atomics, self._deadline(timeout)))

    def open(
        self,
        slab: str | int,
        *,
        mode: str = "rw",
        exclusive: bool = False,
        tenant: str | None = None,
        timeout: float | None = None,
    ) -> Slab:
        """Attach a slab that exists, by name or id; *mode* ``"r"`` allows reading only.

        A slab of another *tenant* is found if that has granted it; it need not be named unless several have granted
        one of that name, or this tenant has one itself.

        With *exclusive* no other session can attach it until this handle is closed or this session ends. If a session
        that has ended without a word may still have its memory mapped, the slab is first copied to other memory.

        Raises:
            SlabNotFound: there is none of that name or id that this tenant may see.
            PermissionDenied: it was granted for reading only.
            SlabBusy: another session has it for itself, or has it attached and *exclusive* was asked for.
        """
        return Slab(self, self._open(slab, mode, exclusive, tenant, self._deadline(timeout)))

    def reserve(self, slab: Slab, *, copy: bool = False, checksum: bool = True, timeout: float | None = None) -> Draft:
        """Return a draft of *slab*: what :meth:`farpool.Slab.reserve` does."""
        return Draft(self, self._reserve(slab, copy, self._deadline(timeout)), slab.info, checksum=checksum)

    def commit(self, drafts: Iterable[Draft], *, timeout: float | None = None) -> None:
        """Let drafts take the place of their slabs' bytes, all or none; see :meth:`farpool.Draft.commit`.

        Whoever has read the new bytes of one of the slabs reads no old ones of another from then on.
        """
        self.commit_drafts(list(drafts), self._deadline(timeout))

    def allocate_many(
        self, sizes: Iterable[int | str], *, lease: Lease = "session", timeout: float | None = None
    ) -> list[Slab]:
        """Make many slabs without names; the requests are pipelined. If one cannot be made, none is kept."""
        made = self._allocate_many(sizes, lease, self._deadline(timeout))
        return [Slab(self, attachment) for attachment in made]

    def free_many(self, slabs: Iterable[Slab], *, timeout: float | None = None) -> None:
        """Free many slabs; the requests are pipelined. All are tried; then the first error is raised."""
        self._free_many(slabs, self._deadline(timeout))

    # Looking ------------------------------------------------------------------------------------------------

    def stat(self, *, timeout: float | None = None) -> ServerStat:
        """Return the pool's numbers: bytes, slabs, sessions, transports; a little more to administrators."""
        return self._stat(self._deadline(timeout))

    def slabs(self, *, timeout: float | None = None) -> list[SlabInfo]:
        """Return what is known of every slab that this tenant may see, in the order of their ids."""
        return self._slabs(self._deadline(timeout))

    # For the operator ---------------------------------------------------------------------------------------

    def release_host(self, host: str, *, timeout: float | None = None) -> Quarantined:
        """Tell the server that nothing on *host* maps device memory of its ended sessions any more.

        Their extents become the next slabs' memory: a process there that still had them mapped would write into
        those. *host* is named as in ``stat().quarantined``. Returns what has come back.

        Raises:
            InvalidArgument: no ended session of that host holds any; the message names those that do.
            PermissionDenied: asked by another than root or the server's own user, or from another host.
        """
        return self._release_host(host, self._deadline(timeout))

    # The end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the session: session slabs are freed, and handles go stale. Idempotent; never raises.

        Waits at most 1 s for the server's answer, or the pool's ``timeout`` if that is less. Arrays that are alive keep
        their memory.
        """
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with keep_error(error):
            self.close()

    def __del__(self) -> None:
        session: Session | None = getattr(self, "_session", None)
        if session is None or session.closed or session.forked:
            return
        try:
            warnings.warn(f"{self!r} was never closed; use a with block", ResourceWarning, source=self, stacklevel=2)
        finally:
            self._end(patience=0.0)


def _attachment_of(slab: object) -> Attachment:
    if isinstance(slab, SlabHandle):
        return slab.attachment
    raise InvalidArgument(f"free_many takes slabs, not {shown(slab)}; open one by its name or id first")


def connect(
    url: str | None = None,
    *,
    transport: str = AUTO,
    timeout: float = DEFAULT_TIMEOUT,
    tenant: str | None = None,
    token: str | None = None,
    tls: Tls | None = None,
) -> Pool:
    """Open a session with a pool server, and choose how its memory is reached.

    *url* is ``farpool://HOST:PORT``, ``farpools://HOST:PORT`` with TLS, or ``unix:///PATH``; without one
    ``FARPOOL_URL`` is taken, else the default Unix socket if there is one, else 127.0.0.1:7700. *transport* is a
    name, or ``"auto"`` for the fastest that works from here; ``Pool.transport_report`` says why others were passed
    over. *timeout* is the default of every call, in seconds. *tenant* is whom slabs are charged to, and *token* what
    `farpool tenant add` printed for it; without them ``FARPOOL_TENANT`` and ``FARPOOL_TOKEN``, or the file that
    ``FARPOOL_TOKEN_FILE`` names, are taken. The token itself is never sent. *tls* says whose certificates are accepted
    over TLS, and what this client shows; without it the system's authorities, or what ``FARPOOL_TLS_CA`` and the like
    name.

    Raises:
        InvalidArgument: an address, transport or token that cannot be.
        AuthenticationFailed: the server does not accept the token, wants one, or does not know it itself; or a
            certificate, of either side, is not accepted.
        ServerLost: no server answers there.
        DeadlineExceeded: something accepts connections there, and says nothing.
        TransportUnavailable: the transport cannot be used from here; another one is never taken silently.
    """
    return Pool(*open_session(url, transport, timeout, tenant, token, tls))


def open_session(
    url: str | None, transport: str, timeout: float, tenant: str | None, token: str | None, tls: Tls | None
) -> tuple[Session, Selection, float]:
    """Open a session and choose its transport: what a pool and its awaitable twin are made of."""
    address = find_address(url)
    session = Session(address, find_credentials(tenant, token), find_tls(address, tls))
    default = parse_timeout(timeout)
    try:
        deadline = deadline_after(None, default)
        session.open(deadline)
        context_of = partial(client_context, session)
        selection = select_transport(session.welcome.offers, transport, context_of=context_of, deadline=deadline)
        return session, selection, default
    except BaseException:
        session.close()
        raise
