"""The transports' server halves as one: started, offered, published to and revoked together.

A transport that cannot start is offered with its reason. One that nobody has installed is a mistake in the
configuration.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Awaitable, Generator, Mapping
from typing import Any

import structlog

from farpool.protocol.errors import FarpoolError, InvalidArgument, TransportUnavailable
from farpool.protocol.messages import Offer
from farpool.server.long_work import LONG_BYTES
from farpool.server.settings import ConfigurationError, ServerSettings
from farpool.server.slabs import Slab
from farpool.transports.contract import Mode, ServedSession, ServerContext, ServerTransport, Transport
from farpool.transports.registry import find_transport

__all__ = ["DataPlanes", "transport_settings"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.dataplanes")


def transport_settings(settings: ServerSettings, name: str) -> Mapping[str, Any]:
    """Return the settings that the transport called *name* is started with."""
    own = settings.transport_settings.get(name, {})
    if name == "tcp":
        return {"listen": settings.data_address, "threads": settings.data_threads, **own}
    return own


class DataPlanes:
    """The transports of one server by name. All calls come from the loop's thread."""

    def __init__(self) -> None:
        self._planes: dict[str, ServerTransport] = {}
        self._reasons: dict[str, str] = {}

    async def start(self, name: str, context: ServerContext) -> None:
        """Start one transport; raise ``ConfigurationError`` if it is not installed or its port is in use."""
        try:
            plane = _find(name).server()
            await plane.start(context)
        except ConfigurationError:
            raise
        except InvalidArgument as error:
            raise ConfigurationError(f"transport {name}: {error}") from None
        except TransportUnavailable as error:
            if _is_port_problem(error) or _is_port_problem(error.__cause__ or error.__context__):
                raise ConfigurationError(f"transport {name}: {error}") from None
            self._reasons[name] = str(error)
            log.warning("transport unavailable", transport=name, reason=str(error))
        except Exception as error:
            if _is_port_problem(error):
                raise ConfigurationError(f"transport {name}: {error}; choose another with --data-listen") from None
            self._reasons[name] = f"it could not start: {error}"
            log.exception("transport failed to start", transport=name)
        else:
            self._planes[name] = plane

    def require_one(self) -> None:
        """Raise ``ConfigurationError`` if none has started: such a server could give nobody any memory."""
        if not self._planes:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self._reasons.items())
            raise ConfigurationError(f"no transport that was asked for can be offered. {reasons}")

    async def stop(self) -> None:
        """Stop every transport."""
        planes, self._planes = self._planes, {}
        for name, plane in planes.items():
            try:
                await plane.stop()
            except Exception:
                log.exception("transport failed to stop", transport=name)

    def offers(self) -> list[Offer]:
        """Return what a session is told of each transport."""
        offers: list[Offer] = []
        for name, plane in self._planes.items():
            try:
                offers.append(Offer(transport=name, available=True, params=dict(plane.offer())))
            except Exception as error:
                log.exception("transport failed to make its offer", transport=name)
                offers.append(Offer(transport=name, available=False, reason=f"it failed on the server: {error}"))
        offers.extend(Offer(transport=name, available=False, reason=why) for name, why in self._reasons.items())
        return offers

    def check(self, name: str) -> None:
        """Raise ``TransportUnavailable`` unless the transport can be attached over."""
        if name not in self._planes:
            reason = self._reasons.get(name, f"this server offers {', '.join(self._planes) or 'none'}")
            raise TransportUnavailable(f'transport "{name}" is not available on the server: {reason}')

    def prepare(self, name: str, slab: Slab, session: ServedSession, mode: Mode) -> Awaitable[None] | None:
        """Return what to await before a large slab is published, if its transport has any such."""
        self.check(name)
        prepare = getattr(self._planes[name], "prepare", None)
        if prepare is None or slab.charged <= LONG_BYTES:
            return None
        with _as_ours(name, slab):
            preparing = prepare(slab, session, mode)
        return None if preparing is None else self._prepared(name, slab, preparing)

    async def _prepared(self, name: str, slab: Slab, preparing: Awaitable[None]) -> None:
        with _as_ours(name, slab):
            await preparing

    def publish(self, name: str, slab: Slab, session: ServedSession, mode: Mode) -> dict[str, Any]:
        """Let *session* reach *slab* over one transport; return what its client half attaches with."""
        self.check(name)
        with _as_ours(name, slab):
            return dict(self._planes[name].publish(slab, session, mode))

    def negotiate(self, name: str, session: ServedSession, params: Mapping[str, Any]) -> dict[str, Any]:
        """Let the two halves of a transport agree on what they need."""
        self.check(name)
        return dict(self._planes[name].negotiate(session, params))

    def may_map(self, name: str) -> bool:
        """Tell whether clients of this transport reach memory itself.

        Of a transport that an earlier server had and this one has not, only such holders are in the catalog.
        """
        plane = self._planes.get(name)
        return plane is None or plane.holders_may_map()

    def withdraw(self, name: str, slab: Slab, session_id: int) -> None:
        """Take the slab from one session."""
        if (plane := self._planes.get(name)) is not None:
            with _logged(name, "withdraw"):
                plane.withdraw(slab, session_id)

    def revoke(self, slab: Slab, names: set[str]) -> None:
        """Take the slab from everybody who had it over the transports *names*."""
        for name in names:
            if (plane := self._planes.get(name)) is not None:
                with _logged(name, "revoke"):
                    plane.revoke(slab)

    def watch(self, slab: Slab, mark: int) -> None:
        """Tell data planes which word of a slab somebody waits for; not all of them can wake anybody."""
        for name in slab.published:
            watch = getattr(self._planes.get(name), "watch", None)
            if watch is not None:
                with _logged(name, "watch"):
                    watch(slab, mark)

    def end_session(self, session_id: int) -> None:
        """Close what a session has open on any data plane."""
        for name, plane in self._planes.items():
            with _logged(name, "end_session"):
                plane.end_session(session_id)

    def counters(self) -> dict[str, dict[str, Any]]:
        """Return by transport whether it is available, why not, and its counters."""
        report: dict[str, dict[str, Any]] = {
            name: {"available": True, "reason": "", **plane.counters()} for name, plane in self._planes.items()
        }
        report.update({name: {"available": False, "reason": why} for name, why in self._reasons.items()})
        return report


def _find(name: str) -> Transport:
    try:
        return find_transport(name)
    except InvalidArgument as error:
        raise ConfigurationError(f"{error}; name installed ones with --transports") from None


@contextlib.contextmanager
def _logged(transport: str, call: str) -> Generator[None]:
    # What ends must end, whatever a third party's transport makes of it.
    try:
        yield
    except Exception:
        log.exception("transport failed", transport=transport, call=call)


@contextlib.contextmanager
def _as_ours(transport: str, slab: Slab) -> Generator[None]:
    """Say what a system call that failed while a slab was published means for who asked for it."""
    try:
        yield
    except FarpoolError:
        raise
    except OSError as error:
        log.error("publish failed", transport=transport, slab=slab.id, error=str(error))
        hint = {
            errno.EMFILE: "the server has no file descriptor left; raise its limit (LimitNOFILE)",
            errno.ENOMEM: "the server cannot map more; raise vm.max_map_count or its memory limit",
        }.get(error.errno or 0, str(error))
        raise TransportUnavailable(f"cannot attach {slab.label} over {transport}: {hint}") from error


def _is_port_problem(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)
