"""The client half of cxl: it fetches descriptors from the server's socket and maps them, or finds the device."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakSet

from farpool.native.cxl_region import CxlRegion
from farpool.native.mapping import Mapping as MemoryMapping
from farpool.protocol.errors import (
    AuthenticationFailed,
    DeadlineExceeded,
    FarpoolError,
    ProtocolError,
    ServerLost,
    StaleSlab,
    TransportUnavailable,
    out_of_descriptors,
)
from farpool.protocol.messages import Offer
from farpool.transports.contract import AwaitableRegion, Probe, Region, Ticket
from farpool.transports.cxl import descriptors
from farpool.transports.cxl.awaitable import AwaitableCxlRegion
from farpool.transports.cxl.coherence import make_region
from farpool.transports.cxl.descriptors import DescriptorAnswer, DescriptorRequest
from farpool.transports.cxl.device_client import DeviceClient
from farpool.transports.ending import Ending

__all__ = ["CxlClient"]

PROBE_SECONDS = 2.0

BUSY_PAUSE = 0.010
"""Seconds before a socket whose queue of connections is full is tried again."""


@dataclass(slots=True)
class _Link:
    """One connection to the server's descriptor socket, and the generation words of the arena behind it."""

    connection: socket.socket
    path: str
    generations: MemoryMapping | None = None


class CxlClient(Ending):
    """One for a session. Thread-safe: a lock keeps request and answer together."""

    BUSY = "another thread waited for a descriptor until the deadline; is the server stopped? else raise timeout="

    def __init__(self) -> None:
        super().__init__()
        self._born = os.getpid()
        self._link: _Link | None = None
        self._regions: WeakSet[CxlRegion] = WeakSet()
        self._device = DeviceClient()
        _clients.add(self)

    def probe(self, offer: Offer, seconds: float) -> Probe:
        """Find the server's device, or ask its socket which arena answers: another's is not ours."""
        if "device" in offer.params:
            try:
                self._device.find(offer.params, time.monotonic() + min(seconds, PROBE_SECONDS))
            except FarpoolError as error:
                return Probe(usable=False, reason=error.message)
            return Probe(usable=True)
        path = str(offer.params.get("socket", ""))
        try:
            deadline = time.monotonic() + min(seconds, PROBE_SECONDS)
            with _connect(path, deadline, self.ended) as connection:
                connection.settimeout(_left(deadline))
                answer, received = _ask(connection, descriptors.PROBE)
                for descriptor in received:
                    os.close(descriptor)
        except (FileNotFoundError, ConnectionRefusedError):
            return Probe(
                usable=False,
                reason=f"there is no server behind {path} on this host: cxl needs the server's own host "
                "(and, in a container, the directory of its sockets mounted)",
            )
        except PermissionError:
            return Probe(usable=False, reason=f"no permission to reach {path}; see the server's socket_mode")
        except (OSError, FarpoolError) as error:
            if (shortage := out_of_descriptors(error)) is not None:
                return Probe(usable=False, reason=shortage.message)
            return Probe(usable=False, reason=f"the server's socket {path} does not answer ({error})")
        if answer.arena != offer.params.get("arena"):
            return Probe(
                usable=False,
                reason=f"another server answers at {path}: the pool is on another host, where cxl does not reach",
            )
        return Probe(usable=True)

    def attach(self, ticket: Ticket, seconds: float) -> Region:
        """Map the slab: its extent of the device, or its file, of which the descriptor is fetched."""
        params = ticket.params
        deadline = time.monotonic() + seconds
        if "device" in params:
            region = self._device.attach(ticket, deadline)
            with self.held(deadline):
                self._regions.add(region)
            return region
        request = DescriptorRequest(
            session=params["session"],
            secret=params["secret"],
            slab=ticket.slab_id,
            generation=ticket.generation,
            writable=ticket.writable,
        )
        with self.held(deadline):
            descriptor = self._fetch(params, request, deadline)
            try:
                generations = self._generations(params, request, deadline)
                mapping = MemoryMapping(descriptor, ticket.nbytes, writable=ticket.writable)
            except OSError as error:
                if isinstance(error, FarpoolError):
                    raise
                raise TransportUnavailable(
                    f"slab {ticket.label} cannot be mapped ({error.strerror}); see ulimit -v and vm.max_map_count"
                ) from error
            finally:
                os.close(descriptor)
            region = make_region(ticket, mapping, generations)
            self._regions.add(region)
        return region

    def _generations(self, params: Mapping[str, Any], request: DescriptorRequest, deadline: float) -> MemoryMapping:
        link = self._link
        assert link is not None
        if link.generations is None:
            descriptor = self._fetch(params, DescriptorRequest(request.session, request.secret), deadline)
            assert self._link is not None
            link = self._link
            try:
                link.generations = MemoryMapping(descriptor, params["generations_nbytes"], writable=False)
            finally:
                os.close(descriptor)
        return link.generations

    def _fetch(self, params: Mapping[str, Any], request: DescriptorRequest, deadline: float) -> int:
        """Return the descriptor that *request* asks for, over the connection that is open or a new one."""
        for attempt in ("kept", "fresh"):
            self.check()
            if self._link is None or self._link.path != params["socket"] or attempt == "fresh":
                self._drop_link()
                connection = _connect_or_raise(params["socket"], deadline, self.ended)
                self._link = _Link(connection, params["socket"])
                if self.ended.is_set():
                    continue  # close may have looked for a link before this one was there to be shut
            try:
                self._link.connection.settimeout(_left(deadline))
                answer, received = _ask(self._link.connection, request)
            except TimeoutError:
                self._drop_link()
                raise DeadlineExceeded("the server did not pass a descriptor in time; raise timeout=") from None
            except (OSError, ProtocolError) as error:
                self._drop_link()
                if attempt == "fresh" and not self.ended.is_set():
                    raise ServerLost(f"the server's descriptor socket {params['socket']} ended ({error})") from None
                continue
            except BaseException:  # Ctrl-C: the answer that is still to come must not be the next request's
                self._drop_link()
                raise
            return _take_descriptor(answer, received)
        raise StaleSlab("the pool was closed meanwhile; connect again")

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.connection.close()
            self._link = None

    def awaitable(self, region: Region, ticket: Ticket) -> AwaitableRegion:
        """Return the twin of *region*, which copies in bounded steps."""
        return AwaitableCxlRegion(cast("CxlRegion", region))

    def close(self) -> None:
        """Close the connection and the device. Regions that views keep open serve those views alone from now on."""
        self.ended.set()
        link = self._link
        if link is not None and os.getpid() == self._born:  # in a forked child it is the parent's connection too
            with suppress(OSError):
                link.connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for an answer, with the lock
        self.end()
        self._device.end()

    def _let_go(self) -> None:
        self._drop_link()
        for region in list(self._regions):
            region.retire()

    def leave_in_child(self) -> None:
        """Unmap what a forked child has inherited and cannot use, but for what its views show. Takes no lock."""
        for region in list(self._regions):
            region.leave_in_child()


_clients: WeakSet[CxlClient] = WeakSet()


def _leave_in_child() -> None:
    for client in list(_clients):
        client.leave_in_child()


os.register_at_fork(after_in_child=_leave_in_child)


def _left(deadline: float) -> float:
    """Return the seconds until *deadline*; raises ``TimeoutError`` if it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    return min(left, threading.TIMEOUT_MAX)


def _connect(path: str, deadline: float, closing: threading.Event) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(_left(deadline))
        while True:
            try:
                connection.connect(path)
            except BlockingIOError:  # its queue of connections is full
                if time.monotonic() >= deadline:
                    raise TimeoutError("its queue of connections stayed full") from None
                if closing.wait(BUSY_PAUSE):
                    raise StaleSlab("the pool was closed meanwhile; connect again") from None
            else:
                return connection
    except BaseException:
        connection.close()
        raise


def _connect_or_raise(path: str, deadline: float, closing: threading.Event) -> socket.socket:
    try:
        return _connect(path, deadline, closing)
    except TimeoutError as error:
        raise DeadlineExceeded(f"the server's descriptor socket {path} cannot be reached in time: {error}") from None
    except OSError as error:
        if isinstance(error, FarpoolError):
            raise
        lost = ServerLost(f"the server's descriptor socket {path} cannot be reached ({error})")
        raise out_of_descriptors(error) or lost from None


def _ask(connection: socket.socket, request: DescriptorRequest) -> tuple[DescriptorAnswer, list[int]]:
    connection.sendall(request.encode())
    packet, received, _, _ = socket.recv_fds(connection, descriptors.ANSWER_BYTES + 1, 1)
    try:
        if not packet:
            raise ConnectionResetError("it closed the connection")
        return DescriptorAnswer.decode(packet), received
    except BaseException:
        for descriptor in received:
            os.close(descriptor)
        raise


def _take_descriptor(answer: DescriptorAnswer, received: list[int]) -> int:
    if answer.status == descriptors.OK and len(received) == 1:
        return received[0]
    for descriptor in received:
        os.close(descriptor)
    if (refusal := descriptors.refusal_for_number(answer.status)) is not None:
        raise refusal
    if answer.status == descriptors.REFUSED:
        raise AuthenticationFailed("the server's descriptor socket does not know this session (any more)")
    if answer.status == descriptors.STALE:
        raise StaleSlab("the slab was freed before its memory could be mapped")
    if answer.status == descriptors.NO_DESCRIPTORS:
        raise TransportUnavailable("the server has no file descriptor left; raise its RLIMIT_NOFILE")
    raise TransportUnavailable("no descriptor came: this process is at its limit of open files; raise ulimit -n")
