"""A whole server: built from its settings, run until a signal, taken down in order: :func:`serve`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog
import uvloop

from farpool.protocol.addresses import Address
from farpool.protocol.errors import FarpoolError
from farpool.protocol.units import format_bytes
from farpool.server import logs
from farpool.server.arena import MEMORY_FILE_SYSTEMS, Arena
from farpool.server.arenas import open_arena
from farpool.server.audit import AuditLog
from farpool.server.catalog import Catalog
from farpool.server.control import ControlPlane
from farpool.server.dataplanes import DataPlanes, transport_settings
from farpool.server.deadlines import Deadlines, boot_clock
from farpool.server.descriptor_limit import raise_descriptor_limit
from farpool.server.encryption import Keys
from farpool.server.generations import Generations
from farpool.server.handover import Handover
from farpool.server.lifecycle import Lifecycle
from farpool.server.likeness import exposure_of
from farpool.server.listeners import UnixListener, bind_tcp, refuse_exposure
from farpool.server.live_settings import LiveSettings
from farpool.server.long_work import threads_for_long_work
from farpool.server.memory_watch import MemoryWatch
from farpool.server.notify import notify, notify_reloading
from farpool.server.peers import ProcessWatch
from farpool.server.rationing import RationedLog
from farpool.server.reconcile import reconcile
from farpool.server.service import RESERVED_SESSIONS, PoolService
from farpool.server.settings import ConfigurationError, ServerSettings, unknown_variables
from farpool.server.takeover import Inherited, take_over
from farpool.server.tenants import Tenants
from farpool.server.turns import Turns
from farpool.transports.contract import ServerContext

__all__ = ["Embedding", "serve"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.server")

IDLE_SECONDS: Final = 0.5
"""A drain ends when nothing was asked for so long."""


@dataclasses.dataclass(frozen=True, slots=True)
class Embedding:
    """What a server needs to know that lives for one parent process alone."""

    parent: int
    """Its pid: the server ends when it does, or when ``lifeline`` reaches its end."""
    lifeline: int
    """Descriptor of a pipe whose other end the parent holds."""
    remove: tuple[str, ...] = ()
    """Directories to remove when the parent is gone without having stopped the server."""


def serve(settings: ServerSettings, embedding: Embedding | None = None, *, takeover: bool = False) -> None:
    """Run a server until a signal ends it. Blocks, and takes over the process's signals and logging.

    With *takeover* it takes the place of the server that runs with these settings.

    Raises:
        ConfigurationError: it cannot start as it was told to.
    """
    logs.configure(settings.log_level, settings.log_format)
    os.umask(0o077)
    uvloop.run(_run(settings, embedding, takeover=takeover))


async def _run(settings: ServerSettings, embedding: Embedding | None, *, takeover: bool) -> None:
    server = Server(settings, takeover=takeover)
    orphaned = False
    try:
        server.watch_signals()
        await server.start()
        if embedding is not None:
            server.watch_parent(embedding)
        server.announce()
        orphaned = await server.until_told()
        if server.handover.begun:
            await server.hand_over()
        else:
            await server.drain(at_once=orphaned)
    finally:
        await server.stop()
        if orphaned and embedding is not None:
            for folder in embedding.remove:
                shutil.rmtree(folder, ignore_errors=True)


class Server:
    """One running server. The event loop's thread alone uses it."""

    def __init__(self, settings: ServerSettings, *, takeover: bool = False) -> None:
        self._settings = LiveSettings(settings)
        self.handover = Handover(settings.arena, settings.state_dir, self._descriptors, self._exposure, self._tell)
        self._takeover = takeover
        self.addresses: list[Address] = []
        self._loop = asyncio.get_running_loop()
        self._undo = contextlib.AsyncExitStack()
        self._told = asyncio.Event()
        self._told_again = asyncio.Event()
        self._orphaned = False
        self._ready = False

    # Start --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the arena, bring back what survived, and listen; the Unix socket has no name yet."""
        settings = self._settings.current
        if not self._settings.authentication_required and not settings.insecure:
            refuse_exposure(settings.listen)
        raise_descriptor_limit(settings.max_sessions)
        if unknown := unknown_variables(os.environ):
            log.warning("environment variables ignored: no such settings", names=unknown)
        self._keys = Keys(settings.tls) if settings.tls is not None else None
        audit = AuditLog(settings.audit_log, boot_clock)
        self._undo.callback(audit.close)
        self._undo.callback(self.handover.close)
        inherited = await asyncio.to_thread(take_over, settings) if self._takeover else Inherited({})
        self._undo.callback(inherited.close)
        arena = open_arena(settings, inherited.take("lock"))
        self._undo.callback(self._close_arena, arena)
        arena.use_reserve()
        self._warn_of_room(arena)
        self._unix = UnixListener(settings.unix, settings.socket_bits, inherited.take_listener("unix"))
        self._undo.callback(self._unix.close)
        catalog = Catalog(f"{arena.control_path}/catalog.sqlite", durable=not arena.volatile)
        self._undo.callback(catalog.close)
        generations = arena.open_generations()
        self._undo.callback(generations.close)
        planes = DataPlanes()
        life = self._make_life(arena, catalog, generations, planes)
        self._undo.callback(MemoryWatch(self._loop, life).close)
        restored = reconcile(catalog, arena, generations, life.slabs, life.sessions, boot_clock)
        life.watch_restored()
        for row in catalog.quarantine():
            life.quarantine.restore(row)
        epoch = catalog.meta_int("epoch", 0) + 1
        catalog.set_meta("epoch", epoch)
        kept = arena.keep_reserve()
        if not (generations.keep_session_words(settings.max_sessions + RESERVED_SESSIONS) and kept):
            log.warning("arena is full", arena=arena.path)
        self._undo.callback(life.close_memory)
        self._undo.push_async_callback(planes.stop)
        self._undo.push_async_callback(self._finish)
        await self._start_planes(planes, generations, life, audit)
        tenants = Tenants(catalog, settings.tenants)
        turns = Turns(self._loop.call_soon)
        self.service = PoolService(life, tenants, audit, self._settings, boot_clock, epoch, turns)
        self.service.handover = self.handover
        life.slabs.mappings.several_tenants = self._several_tenants
        await self._listen(inherited)
        log.info("arena ready", arena=arena.path, epoch=epoch, **dataclasses.asdict(restored))

    def _make_life(self, arena: Arena, catalog: Catalog, generations: Generations, planes: DataPlanes) -> Lifecycle:
        executor = threads_for_long_work()
        self._undo.callback(executor.shutdown)
        deadlines = Deadlines(boot_clock, self._loop.call_later, self._stalled)
        self._undo.callback(deadlines.close)
        self._deadlines = deadlines
        self.life = Lifecycle(
            arena=arena,
            catalog=catalog,
            generations=generations,
            planes=planes,
            timing=self._settings,
            capacity=self._settings.current.capacity,
            clock=boot_clock,
            deadlines=deadlines,
            executor=executor,
        )
        return self.life

    async def _start_planes(
        self, planes: DataPlanes, generations: Generations, life: Lifecycle, audit: AuditLog
    ) -> None:
        settings = self._settings.current
        for name in settings.transports:
            context = ServerContext(
                loop=self._loop,
                socket_path=settings.unix,
                generations_path=generations.path,
                generations_nbytes=generations.nbytes,
                settings=transport_settings(settings, name),
                report=_reporter(name, RationedLog(self._loop)),
                session_of=life.sessions.served,
                device=life.arena.device,
                socket_mode=settings.socket_bits,
                coherence=settings.coherence,
                encryptor=None if self._keys is None else self._keys.encryptor,
                watched_offset=generations.watched_offset,
                several_tenants=self._several_tenants,
                in_thread=life.work.in_thread,
                changed=self._changed,
                refused=self._noter(audit, name),
            )
            await planes.start(name, context)
        planes.require_one()

    def _several_tenants(self) -> bool:
        return len(self.service.tenants) > 1

    def _noter(self, audit: AuditLog, transport: str) -> Callable[[str, FarpoolError, Mapping[str, Any]], None]:
        def note(act: str, error: FarpoolError, about: Mapping[str, Any]) -> None:
            self._loop.call_soon_threadsafe(audit.data_refusal, transport, act, error, about)

        return note

    def _changed(self, slab_id: int) -> None:
        self.service.waiting.changed(slab_id)

    async def _listen(self, inherited: Inherited) -> None:
        self._control = ControlPlane(self.service, self._loop, self._keys)
        listener, address = bind_tcp(self._settings.current.listen, inherited.take_listener("listen"))
        address = dataclasses.replace(address, tls=self._keys is not None)
        self._undo.callback(listener.close)
        self._sockets = {"listen": listener, "unix": self._unix.socket}
        self._listening = [
            await self._loop.create_server(self._control.connection, sock=listener),
            await self._loop.create_unix_server(self._control.connection, sock=self._unix.socket),
        ]
        self._undo.callback(self._close_listeners)
        self._undo.callback(self._control.close)
        self.addresses = [Address(path=self._settings.current.unix), address]
        self.service.addresses = [str(address) for address in self.addresses]

    def announce(self) -> None:
        """Show the Unix socket, and say on stdout and to systemd that the server is ready."""
        self._unix.show()
        with contextlib.suppress(OSError):  # nobody has to read it
            print("farpool ready:", *self.addresses, flush=True)
        self._ready = True
        notify("READY=1\nSTATUS=serving")
        log.info("ready", addresses=self.service.addresses, pid=os.getpid())

    def _warn_of_room(self, arena: Arena) -> None:
        if arena.file_system not in MEMORY_FILE_SYSTEMS:
            log.warning("arena is not on a memory file system", arena=arena.path, type=arena.file_system or "unknown")
        if not arena.sees_holders and not arena.reuses_memory:
            log.warning("arena's files have no leases: clients are believed what they have mapped", arena=arena.path)
        if arena.room < self._settings.current.capacity:
            log.warning(
                "arena is smaller than the capacity",
                arena=arena.path,
                room=format_bytes(arena.room),
                capacity=format_bytes(self._settings.current.capacity),
            )

    # Run ----------------------------------------------------------------------------------------------

    def watch_signals(self) -> None:
        """SIGTERM and SIGINT end the server, a second one at once; SIGHUP reads the settings again."""
        for number, act in ((signal.SIGTERM, self._tell), (signal.SIGINT, self._tell), (signal.SIGHUP, self._reload)):
            before = signal.getsignal(number)
            self._loop.add_signal_handler(number, act)
            self._undo.callback(signal.signal, number, before or signal.SIG_DFL)
            self._undo.callback(self._loop.remove_signal_handler, number)
        self._loop.set_exception_handler(_log_loop_error)

    def watch_parent(self, embedding: Embedding) -> None:
        """End at once when the parent is gone: its pipe ends or, should a fork hold that, its process."""
        self._loop.add_reader(embedding.lifeline, self._parent_gone, embedding.lifeline)
        watch = ProcessWatch(self._loop, embedding.parent, lambda: self._parent_gone(None))
        self._undo.callback(watch.close)
        if os.getppid() != embedding.parent:
            self._parent_gone(None)

    async def until_told(self) -> bool:
        """Wait for a signal or the parent's end; return whether it was the latter."""
        await self._told.wait()
        return self._orphaned

    async def drain(self, *, at_once: bool) -> None:
        """Accept nobody any more, and wait until the clients are done, time is over or a second signal."""
        notify("STOPPING=1")
        log.info("draining", sessions=self.life.sessions.connected(), at_once=at_once)
        self.service.draining = True
        self._close_listeners()
        self._control.broadcast("draining")
        deadline = boot_clock() + self._settings.current.drain_timeout
        counters, quiet_since = self.life.planes.counters(), self.service.last_request
        while not at_once and boot_clock() < deadline and self.life.sessions.connected():
            if (now := self.life.planes.counters()) != counters:
                counters, quiet_since = now, boot_clock()
            if boot_clock() - max(quiet_since, self.service.last_request) > IDLE_SECONDS:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told_again.wait(), 0.05)
                at_once = True

    def _descriptors(self) -> dict[str, int]:
        """Return what a successor needs; each name but the lock is a listening socket's."""
        return {"lock": self.life.arena.lock_fd, **{name: each.fileno() for name, each in self._sockets.items()}}

    def _exposure(self) -> dict[str, str]:
        return exposure_of(self._settings.current, self.addresses[1].port)

    async def hand_over(self) -> None:
        """Do what is under way, and nothing more; the successor has our sockets, and clients come to it."""
        log.info("handing over", sessions=self.life.sessions.connected())
        self._unix.leave()
        self._close_listeners()
        self._deadlines.close()
        await self.life.hand_over()

    async def _finish(self) -> None:
        await (self.life.hand_over() if self.handover.begun else self.life.finish())

    async def stop(self) -> None:
        """Undo everything that :meth:`start` made; leased and persistent slabs stay."""
        await self._undo.aclose()
        if self._ready:
            log.info("stopped")

    def _close_arena(self, arena: Arena) -> None:
        if not self._ready:
            arena.discard()
        arena.close()

    def _tell(self) -> None:
        if self._told.is_set():
            self._told_again.set()
        self._told.set()

    def _parent_gone(self, lifeline: int | None) -> None:
        if lifeline is not None and os.read(lifeline, 4096):
            return
        if lifeline is not None:
            self._loop.remove_reader(lifeline)
        self._orphaned = True
        self._told.set()
        self._told_again.set()

    def _stalled(self) -> None:
        log.warning("the server itself was stopped for a while; silence is counted anew")
        self.life.sessions.forgive_silence()

    def _close_listeners(self) -> None:
        self._unix.close()
        for listening in self._listening:
            listening.close()

    def _reload(self) -> None:
        if not self._ready:
            return
        notify_reloading()
        self.service.audit.reopen()
        who = {"address": "signal", "administrator": True}  # the kernel does not say whose
        try:
            changes = self._settings.reload(self._keys)
        except ConfigurationError as error:
            self.service.audit.note(who, "reload", {}, "failed", reason=str(error))
            log.error("settings not reloaded", reason=str(error))
        else:
            current = self._settings.current
            self.life.slabs.capacity = current.capacity
            self.service.tenants.configure(current.tenants)
            logs.configure(current.log_level, current.log_format)
            about = {"settings": sorted(changes.now)}
            if changes.unread:
                self.service.audit.note(who, "reload", about, "failed", reason=changes.unread)
            else:
                self.service.audit.note(who, "reload", about, "done")
            log.info("settings reloaded", changed=changes.now, need_a_restart=changes.later)
        notify("READY=1")


def _reporter(transport: str, rationed: RationedLog) -> Any:
    def report(event: str, fields: Mapping[str, Any]) -> None:
        rationed.warning(f"data plane: {event}", transport=transport, **fields)

    return report


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    log.error("event loop", message=str(context.get("message", "")), exc_info=error)
