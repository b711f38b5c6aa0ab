"""How a session comes to a slab's memory, with others or alone, and lets go of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from farpool.protocol.errors import FarpoolError, InvalidArgument, StaleSlab
from farpool.protocol.messages import Attach, Attached, Detach, Done, Open
from farpool.protocol.units import parse_mode
from farpool.server.access import Access
from farpool.server.lifecycle import Lifecycle
from farpool.server.reports import Reports
from farpool.server.sessions import Session
from farpool.server.slabs import Slab
from farpool.transports.contract import Mode

__all__ = ["Attaching"]


class Attaching:
    """Lets sessions in where they may be. ``move`` gives a slab memory that nobody has mapped yet. Not thread-safe."""

    def __init__(
        self, life: Lifecycle, access: Access, move: Callable[[Slab], Awaitable[None]], reports: Reports, epoch: int
    ) -> None:
        self._life = life
        self._access = access
        self._move = move
        self._reports = reports
        self._epoch = epoch

    def open(self, session: Session, request: Open) -> Attached | Awaitable[Attached]:
        """Find a slab for *session*, and attach it if the request names a transport."""
        mode = parse_mode(request.mode)
        if request.name is not None and request.id is None:
            slab = self._access.named(session, request.name, request.tenant)
        elif request.id is not None and request.name is None:
            slab = self._access.numbered(session, request.id, request.tenant)
        else:
            raise InvalidArgument("open needs a name or an id, and not both")
        if not request.transport:
            return Attached(slab=self._reports.slab(slab), epoch=self._epoch)
        if request.exclusive:
            self._access.check(session, slab, mode, alone=True)
            return self._attach_alone(session, slab, request.transport, mode)
        return self._attached(session, slab, request.transport, mode)

    def attach(self, session: Session, request: Attach) -> Attached | Awaitable[Attached]:
        """Attach this very life of a slab (again), once its memory does not move."""
        slab = self._access.of_life(session, request.id, request.generation)
        if slab.draft_of is not None and slab.owner != session.id:
            raise StaleSlab(f"there is no slab {slab.id} here")
        return self._attached(session, slab, request.transport, parse_mode(request.mode), request.memory)

    def admit(self, session: Session, slab: Slab, transport: str) -> Attached:
        """Let a slab live that was made for *session*, attached if *transport* is not empty."""
        params = self._life.admit(session, slab, transport)
        return Attached(slab=self._reports.slab(slab), epoch=self._epoch, transport=transport, params=params)

    async def admit_long(
        self, session: Session, slab: Slab, transport: str, check: Callable[[], None] = lambda: None
    ) -> Attached:
        """Do the same with a large slab, once its transport is ready; *check* raises if it must not live any more."""
        if transport:
            try:
                preparing = self._life.prepare(session, slab, transport, "rw")
                if preparing is not None:
                    await preparing
                    self._life.making.check(session, slab)
                    check()
            except BaseException:
                self._life.planes.revoke(slab, {transport})
                self._life.making.abandon(slab)
                raise
        return self.admit(session, slab, transport)

    def detach(self, session: Session, request: Detach) -> Done:
        """Take a slab from *session*, which has let go of it; nothing happens if it had none."""
        slab = self._life.slabs.get_held(request.id, request.generation)
        if slab is not None:
            self._life.let_go(slab, session.id, request.transport)
        if request.exclusive:
            self._life.exclusives.give_up(session.id, request.id)
        return Done()

    def _attached(
        self, session: Session, slab: Slab, transport: str, mode: Mode, memory: int = 0
    ) -> Attached | Awaitable[Attached]:
        self._access.check(session, slab, mode)
        self._life.exclusives.check(slab, session)
        if slab.moving is not None:
            return self._attached_then(session, slab, transport, mode, memory)
        if memory not in (0, slab.generation):
            raise StaleSlab(f"{slab.label} has other memory by now; attach it again", id=slab.id, generation=memory)
        self._access.note(session, slab, transport)
        preparing = self._life.prepare(session, slab, transport, mode)
        if preparing is not None:
            return self._attached_after(preparing, session, slab, transport, mode, memory)
        params = self._life.attach(session, slab, transport, mode)
        return Attached(
            slab=self._reports.slab(slab),
            epoch=self._epoch,
            transport=transport,
            params=params,
            block=slab.checksums.block,
            checksums=slab.checksums.words,
        )

    async def _attached_after(
        self, preparing: Awaitable[None], session: Session, slab: Slab, transport: str, mode: Mode, memory: int
    ) -> Attached:
        """Attach a large slab, if it still may be attached once its transport is ready for it."""
        try:
            await preparing
        except FarpoolError:
            await self._wait_out_move(session, slab)  # why it failed, where the slab has ended
            raise
        try:
            await self._wait_out_move(session, slab)
            attached = self._attached(session, slab, transport, mode, memory)
        except BaseException:
            self._life.planes.withdraw(transport, slab, session.id)
            raise
        return attached if isinstance(attached, Attached) else await attached

    async def _attached_then(self, session: Session, slab: Slab, transport: str, mode: Mode, memory: int) -> Attached:
        """Attach a slab once its memory has moved."""
        await self._wait_out_move(session, slab)
        attached = self._attached(session, slab, transport, mode, memory)
        return attached if isinstance(attached, Attached) else await attached

    async def _wait_out_move(self, session: Session, slab: Slab) -> None:
        """Wait until a slab's memory does not move; raise ``StaleSlab`` if it or the session has ended by then."""
        while slab.moving is not None:
            await slab.moving.wait()
        if not session.alive or slab.state != "live":
            raise StaleSlab(f"{slab.label} has ended meanwhile", id=slab.id)

    async def _attach_alone(self, session: Session, slab: Slab, transport: str, mode: Mode) -> Attached:
        """Attach a slab for this session alone; what those who are gone may still map is not its memory any more."""
        self._life.planes.check(transport)
        exclusives = self._life.exclusives
        exclusives.claim(slab, session)
        try:
            while session.alive and slab.state == "live" and self._must_move(slab):
                await self._move(slab)
            await self._wait_out_move(session, slab)
            # A grant that ended meanwhile, to come back narrower perhaps, has let others in again; so has another open
            # of this session that came to nothing.
            self._access.check(session, slab, mode, alone=True)
            exclusives.claim(slab, session)
            attached = await self._attached_then(session, slab, transport, mode, 0)
            exclusives.confirm(slab)
            return attached
        except BaseException:
            exclusives.withdraw(slab, session)
            raise

    def _must_move(self, slab: Slab) -> bool:
        """Tell whether those who are gone may map the slab's memory; it may be on its way, and not get there."""
        return slab.moving is not None or any(self._life.sessions.get(holder) is None for holder, _ in slab.holders)
