"""A slab whose memory is replaced, by a commit or a move, while it is attached: handles follow to the new memory.

What is attached is always one version of the slab: each has a region of its own, and an operation that its end
interrupts is begun anew on the next, whole. So no read mixes two versions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import BytesIO
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar

from farpool.client.attachment import Attachment, Attachments
from farpool.client.deadlines import deadline_after, seconds_left
from farpool.client.succession import Bond, ended
from farpool.client.verified import as_target, in_order, plan, verify
from farpool.native.equal_parts import list_parts
from farpool.protocol.errors import DeadlineExceeded, InvalidArgument, ReadOnly, RegionInUse, StaleSlab
from farpool.protocol.messages import SlabInfo
from farpool.transports.contract import Mode
from farpool.transports.gathering import gathering_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["BriefRegion", "VersionedRegion", "Versions", "refuse_write"]

T = TypeVar("T")

WORD_BYTES = 8

LOOP_SECONDS: Final = 0.25
"""How long an event loop may stand still while a slab's new memory is attached."""


class Versions:
    """Which attachment reaches a slab's bytes now, for one handle. Thread-safe.

    It does not hold the handle's first region, which calls :meth:`follow` when its memory has been replaced.
    """

    def __init__(self, owner: Attachments, info: SlabInfo, mode: Mode, bond: Bond) -> None:
        self.owner = owner
        self.info = info
        self.mode: Mode = mode
        self.bond = bond
        self.current: Attachment | None = None
        self.exclusive = 0
        """Number by which the handle has the slab for itself; 0 if it has not."""
        self._closed = False
        self._lock = threading.Lock()

    @property
    def alone(self) -> bool:
        """Whether the handle has the slab for its session alone now."""
        return self.owner.holdings.exclusives.has(self.info.id, self.exclusive)

    def follow(self, error: StaleSlab, timeout: float | None = None) -> VersionedRegion:
        """Return what reaches the slab's new memory, for one operation that ends within *timeout* seconds from now.

        Raises *error* if the slab has ended or the handle is closed.
        """
        deadline = deadline_after(timeout, self.owner.timeout)
        self.renew(None, error, deadline)
        return VersionedRegion(self, deadline)

    def renew(self, seen: Attachment | None, error: StaleSlab, deadline: float) -> Attachment:
        """Attach what has replaced the memory that *seen* reaches, unless another thread has done so already."""
        if not self._lock.acquire(timeout=seconds_left(deadline)):
            raise DeadlineExceeded("another thread waited for the slab's new memory until the deadline") from error
        try:
            self.check(error)
            current = self.current
            if current is None or current is seen:
                if monotonic() >= deadline:
                    raise DeadlineExceeded(
                        f"slab {self.info.name or self.info.id} was replaced again and again until the deadline; raise "
                        "timeout=, or read less at once"
                    ) from error
                current = self.current = self._attach(error, deadline)
                if seen is not None:
                    _let_go(seen)
                if self._closed:  # meanwhile: see close
                    _let_go(current)
                    raise error
            return current
        finally:
            self._lock.release()

    def check(self, error: StaleSlab) -> None:
        """Raise *error* if there is nothing to follow to: the handle is closed, or the operation must not be redone."""
        if self._closed or self.owner.session.closed or error.details.get("begun"):
            raise error

    def _attach(self, error: StaleSlab, deadline: float) -> Attachment:
        self._check_alone(error)
        try:
            attachment = self.owner.attach_again(self.info, self.mode, self.bond, deadline)
        except InvalidArgument:
            if self.owner.session.closed:
                raise error from None  # closed meanwhile
            raise
        try:
            self._check_alone(error)  # by now what came before the reply is known
        except StaleSlab:
            attachment.close()
            raise
        self.bond = attachment.bond
        return attachment

    def _check_alone(self, error: StaleSlab) -> None:
        """Raise ``StaleSlab`` for a handle that had the slab alone, and has no more."""
        if self.bond.alone and not self.alone and not self._closed:
            raise ended(self.bond) from error

    def close(self) -> None:
        """Do what :meth:`let_go` does, and tell the server."""
        self.let_go()
        self.owner.session.flush()

    def let_go(self) -> bool:
        """Let go of the version that is attached; ``RegionInUse`` while views of it live. Idempotent.

        Return whether there is something to tell the server. It waits for no thread that attaches another version at
        the moment, for as long as that thread's own deadline lets it: whichever of the two comes last lets go of that.
        """
        seen, told = self.current, self.alone
        if seen is not None:
            told |= seen.let_go()
        self.close_quietly()
        attached = self.current
        if attached is not None and attached is not seen:
            with suppress(RegionInUse):  # views go on showing the version that they were made from
                told |= attached.let_go()
        return told

    def close_quietly(self) -> None:
        """Follow to no new memory any more, and let others attach the slab; the caller lets go of what is attached."""
        self._closed = True
        number, self.exclusive = self.exclusive, 0
        if number and not self.owner.session.forked:
            self.owner.holdings.exclusives.give_up(self.info.id, number)

    def __del__(self) -> None:
        # The collector runs in any thread, with any lock held: what it takes is noted, and no more.
        if getattr(self, "exclusive", 0):
            self.owner.holdings.exclusives.dropped.append((self.info.id, self.exclusive))


def _let_go(attachment: Attachment) -> None:
    with suppress(RegionInUse):  # views go on showing the version that they were made from
        attachment.close()


def refuse_write(attachment: Attachment) -> None:
    """Raise ``ReadOnly`` if the slab was ever committed."""
    if attachment.info.commits:
        raise ReadOnly(
            f"slab {attachment.ticket.label} changes by commits alone: with slab.reserve() as draft: draft.write(...); "
            "draft.commit()"
        )


class VersionedRegion:
    """A region of a slab whose memory may be replaced; see ``farpool.transports.contract.Region``. Thread-safe."""

    def __init__(self, versions: Versions, until: float = inf) -> None:
        self._versions = versions
        self._until = until

    @property
    def nbytes(self) -> int:
        """Size of the slab in bytes."""
        return self._versions.info.nbytes

    def _run(self, work: Callable[[Attachment, float], T], timeout: float | None) -> T:
        """Carry *work* out on one version of the slab: whole, and again if that ends meanwhile."""
        versions = self._versions
        deadline = min(deadline_after(timeout, versions.owner.timeout), self._until)
        current = versions.current
        assert current is not None
        while True:
            try:
                return work(current, max(deadline - monotonic(), 1e-6))
            except StaleSlab as error:
                current = versions.renew(current, error, deadline)

    def _write(self, work: Callable[[Attachment, float], T], timeout: float | None) -> T:
        def write(current: Attachment, seconds: float) -> T:
            refuse_write(current)
            return work(current, seconds)

        return self._run(write, timeout)

    # Reading ------------------------------------------------------------------------------------------------

    def read_into(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Fill *buffer* from the slab and return the bytes read."""

        def read(current: Attachment, seconds: float) -> int:
            part = as_target(buffer, offset, current.info.nbytes)
            if part is None or current.checksums is None:
                return current.region.read_into(buffer, offset, seconds)
            return _read_verified(current, [part], seconds)

        return self._run(read, timeout)

    def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes:
        """Return new bytes from the slab."""

        def read(current: Attachment, seconds: float) -> bytes:
            if current.checksums is None or not 0 < nbytes <= current.info.nbytes:
                return current.region.read(nbytes, offset, seconds)
            result = BytesIO(bytes(nbytes))
            part = as_target(result.getbuffer(), offset, current.info.nbytes)
            if part is None:
                return current.region.read(nbytes, offset, seconds)
            _read_verified(current, [part], seconds)
            del part
            return result.getvalue()  # its own bytes, not a copy, since nothing borrows them any more

        return self._run(read, timeout)

    def readv(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Fill many buffers in one batch; every range is checked before a byte moves. Return the bytes read."""
        listed = list(parts)

        def read(current: Attachment, seconds: float) -> int:
            targets = [as_target(buffer, offset, current.info.nbytes) for offset, buffer in listed]
            wanted = [target for target in targets if target is not None]
            if current.checksums is None:
                return current.region.readv(listed, seconds)
            _check_parts(current, listed, targets, seconds)
            return _read_verified(current, wanted, seconds)

        return self._run(read, timeout)

    def gather(self, offsets: Buffer, nbytes: int, out: Buffer, timeout: float | None = None) -> int:
        """Fill *out* with the *nbytes* at each of *offsets*; return the bytes read."""

        def read(current: Attachment, seconds: float) -> int:
            label = current.ticket.label
            if current.checksums is None:
                return gathering_of(current.region, label).gather(offsets, nbytes, out, seconds)
            parts = list_parts(offsets, nbytes, out, current.info.nbytes, label, inward=True)
            return _read_verified(current, in_order(parts) if nbytes else [], seconds)

        return self._run(read, timeout)

    def load(self, offset: int, timeout: float | None = None) -> int:
        """Return the aligned unsigned 8-byte little-endian word at *offset*."""

        def load(current: Attachment, seconds: float) -> int:
            word = bytearray(WORD_BYTES)
            part = as_target(word, offset, current.info.nbytes)
            if current.checksums is None or part is None or part[0] % WORD_BYTES:
                return current.region.load(offset, seconds)
            _read_verified(current, [part], seconds)
            return int.from_bytes(word, "little")

        return self._run(load, timeout)

    def view(self, offset: int = 0, nbytes: int | None = None) -> memoryview:
        """Return the memory of the slab's present version, verified now; a later commit does not show in it."""

        def view(current: Attachment, _: float) -> memoryview:
            shown = current.region.view(offset, nbytes)
            checksums = current.checksums
            if checksums is not None and shown.nbytes:
                start = offset // checksums.block * checksums.block
                end = min(current.info.nbytes, -(-(offset + shown.nbytes) // checksums.block) * checksums.block)
                with current.region.view(start, end - start) as whole:
                    verify(whole, start, checksums)
            return shown

        return self._run(view, None)

    # Writing, which a slab that has only moved allows ---------------------------------------------------------

    def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Copy *buffer* into the slab and return the bytes written."""
        return self._write(lambda current, seconds: current.region.write(buffer, offset, seconds), timeout)

    def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Write many buffers in one batch; return the bytes written."""
        listed = list(parts)
        return self._write(lambda current, seconds: current.region.writev(listed, seconds), timeout)

    def scatter(self, offsets: Buffer, nbytes: int, source: Buffer, timeout: float | None = None) -> int:
        """Write *source* to the *nbytes* at each of *offsets*; return the bytes written."""

        def write(current: Attachment, seconds: float) -> int:
            return gathering_of(current.region, current.ticket.label).scatter(offsets, nbytes, source, seconds)

        return self._write(write, timeout)

    def store(self, offset: int, value: int, timeout: float | None = None) -> None:
        """Set the aligned word at *offset*."""
        self._write(lambda current, seconds: current.region.store(offset, value, seconds), timeout)

    def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int:
        """Add *value* (modulo 2**64) to the aligned word at *offset* atomically; return the old value."""
        return self._write(lambda current, seconds: current.region.fetch_add(offset, value, seconds), timeout)

    def compare_swap(self, offset: int, expected: int, new: int, timeout: float | None = None) -> int:
        """Set the aligned word at *offset* to *new* if it is *expected*, atomically; return the old value."""
        return self._write(
            lambda current, seconds: current.region.compare_swap(offset, expected, new, seconds), timeout
        )

    # The rest -------------------------------------------------------------------------------------------------

    def flush(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Make our stores visible to other hosts."""
        self._run(lambda current, _: current.region.flush(offset, nbytes), None)

    def invalidate(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Make other hosts' stores visible to our loads."""
        self._run(lambda current, _: current.region.invalidate(offset, nbytes), None)

    def close(self) -> None:
        """Let go of the slab. Idempotent; ``RegionInUse`` while views live."""
        self._versions.close()


class BriefRegion(VersionedRegion):
    """What a handle of ``farpool.aio`` has for calls that are not awaited: they hold the event loop only briefly."""

    def _run(self, work: Callable[[Attachment, float], T], timeout: float | None) -> T:
        seconds = min(LOOP_SECONDS, self._versions.owner.timeout)
        try:
            return super()._run(work, seconds)
        except DeadlineExceeded as late:
            info = self._versions.info
            raise DeadlineExceeded(
                f"the memory of slab {info.name or f'#{info.id}'} was replaced, and the server has not passed the new "
                f"within {seconds} s (an event loop stands still for {LOOP_SECONDS} s at most, or the pool's timeout); "
                "await a read of the slab, which takes its timeout, and ask again"
            ) from late


def _read_verified(current: Attachment, parts: list[tuple[int, memoryview]], seconds: float) -> int:
    assert current.checksums is not None
    deadline = monotonic() + seconds
    if not parts:
        return current.region.readv([], seconds)
    for batch in plan(parts, current.checksums):
        left = max(deadline - monotonic(), 1e-6)
        if len(batch) == 1:
            current.region.read_into(batch[0].target, batch[0].offset, left)
        else:
            current.region.readv([(piece.offset, piece.target) for piece in batch], left)
        for piece in batch:
            piece.present(current.checksums)
    return sum(view.nbytes for _, view in parts)


def _check_parts(
    current: Attachment, parts: list[tuple[int, Buffer]], targets: list[tuple[int, memoryview] | None], seconds: float
) -> None:
    """Raise what the region says of the parts that cannot be read; those with nothing in them are no mistake."""
    for (offset, buffer), target in zip(parts, targets, strict=True):
        if target is None:
            current.region.readv([(offset, buffer)], seconds)
