"""The slabs that are alive, who owns and who holds them, and the bytes that they are charged for.

A slab is ``live`` or ``orphaned`` while it can be found, ``reclaiming`` from its end until nobody holds its memory, and
``gone`` then. No I/O but a slab's own mapping; the service keeps arena, catalog and data planes in step with it.
"""

from __future__ import annotations

import asyncio
import bisect
import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from farpool.native.mapping import Mapping as MemoryMapping
from farpool.protocol.errors import FarpoolError, NameTaken, PoolFull, SlabNotFound, StaleSlab
from farpool.protocol.units import Lease, format_bytes
from farpool.server.arena import Arena
from farpool.server.own_mappings import OwnMappings, close_mapping
from farpool.server.quotas import Account
from farpool.transports.contract import Mode

__all__ = ["Checksums", "Slab", "SlabTable"]

State = Literal["live", "reclaiming", "gone"]


class Checksums(NamedTuple):
    """What was recorded of committed bytes: the crc32c of each ``block`` bytes, 0 where none were asked for."""

    block: int = 0
    words: bytes = b""


class Slab:
    """One slab; what transports see of it is :class:`farpool.transports.contract.ServedSlab`."""

    __slots__ = (
        "_arena",
        "_mapped_for",
        "_mapping",
        "_mappings",
        "atomics",
        "called_off",
        "charged",
        "checksums",
        "commits",
        "deadline",
        "draft_of",
        "exclusive",
        "generation",
        "holders",
        "id",
        "lease",
        "life",
        "memory_id",
        "moving",
        "name",
        "nbytes",
        "owner",
        "published",
        "slot",
        "state",
        "tenant",
    )

    def __init__(
        self,
        arena: Arena,
        mappings: OwnMappings,
        *,
        id: int,  # noqa: A002  the contract's name
        generation: int,
        slot: int,
        nbytes: int,
        tenant: str,
        name: str | None,
        lease: Lease,
        owner: int | None,
        atomics: str = "cpu",
        draft_of: int | None = None,
    ) -> None:
        self._arena = arena
        self._mappings = mappings
        self._mapped_for = tenant
        """Whom the mapping that it has now is counted for."""
        self.atomics = atomics
        self._mapping: MemoryMapping | None = None
        self.id = id
        self.generation = generation
        """Of the memory that it has now; ``slot`` has its word."""
        self.slot = slot
        self.memory_id = id
        """What the arena calls that memory."""
        self.life = generation
        """The slab's own generation, which stays when its memory is replaced."""
        self.commits = 0
        """How often a draft has replaced its memory; from the first on nobody else writes to it."""
        self.checksums = Checksums()
        self.draft_of = draft_of
        """The slab whose memory it is to replace, if it is a draft: nobody else finds it then."""
        self.called_off: FarpoolError | None = None
        """Why it must not live, if that was found out while it was being made."""
        self.exclusive: int | None = None
        """Session that alone may attach it."""
        self.moving: asyncio.Event | None = None
        """Set once its memory has moved, while that is under way: nobody is let in meanwhile."""
        self.nbytes = nbytes
        self.charged = arena.charge(nbytes)
        self.tenant = tenant
        self.name = name
        self.lease = lease
        self.owner = owner
        """Session whose end ends this slab, or that renews its lease."""
        self.deadline = math.inf
        """When a leased slab ends that has no owner any more, on the server's clock."""
        self.state: State = "live"
        self.holders: dict[tuple[int, str], Mode] = {}
        """(session, transport) to the widest mode that was granted."""
        self.published: set[str] = set()
        """Transports that know its memory; all of them must have revoked it before that is closed."""

    @property
    def ttl(self) -> float | None:
        """Seconds of the lease, None unless it is a time to live."""
        return None if isinstance(self.lease, str) else self.lease

    @property
    def label(self) -> str:
        """How messages name the slab."""
        return f"slab {self.id}" if self.name is None else f'slab {self.id} "{self.name}"'

    @property
    def granted(self) -> Mode:
        """The widest mode that anyone may reach its bytes in."""
        return "r" if self.commits else "rw"

    @property
    def attached(self) -> int:
        """Sessions that have it attached."""
        return len({session for session, _ in self.holders})

    @property
    def offset(self) -> int:
        """Where its memory begins in what :meth:`open_descriptor` opens."""
        return self._arena.offset(self.memory_id) or 0

    @property
    def lost(self) -> bool:
        """Tell whether a client has cut its file short, which the server saw as it reached for it."""
        return self._mapping is not None and self._mapping.lost

    def memory(self) -> MemoryMapping:
        """Return the server's own mapping, made on first use; raise ``TransportUnavailable`` if it has too many."""
        if self._mapping is None:
            self._mapping = self._mappings.make(self.tenant, self._arena, self.memory_id, self.nbytes)
            self._mapped_for = self.tenant
        return self._mapping

    def open_descriptor(self, mode: Mode) -> int:
        """Return a new descriptor of the memory; the caller closes it."""
        return self._arena.open_descriptor(self.memory_id, mode)

    def exchange_memory(self, draft: Slab) -> None:
        """Take the draft's memory, and give it ours. No transport may know either when this is called."""
        for name in ("memory_id", "generation", "slot", "_mapping", "_mapped_for"):
            ours, theirs = getattr(self, name), getattr(draft, name)
            setattr(self, name, theirs)
            setattr(draft, name, ours)

    def take_memory(self) -> MemoryMapping | None:
        """Give the server's own mapping away, if there is one, for the caller to close."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            self._mappings.give_back(self._mapped_for)
        return mapping

    def close_memory(self) -> None:
        """Unmap the server's own mapping, if there is one."""
        close_mapping(self.take_memory())


class SlabTable:
    """Slabs by id, name, owner and holder, with the bytes they are charged. Not thread-safe."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.mappings = OwnMappings()
        """What the server has mapped of them."""
        self.allocated = 0
        """Bytes of slabs that can be found, or are being made."""
        self.reclaiming = 0
        """Bytes of ended slabs that somebody still holds."""
        self._making: dict[int, Slab] = {}
        self._slabs: dict[int, Slab] = {}
        self._names: dict[tuple[str, str], int] = {}
        self._owned: dict[int, dict[int, Slab]] = {}
        self._held: dict[int, dict[int, Slab]] = {}
        self._drafts: dict[int, dict[int, Slab]] = {}
        self._ended: dict[int, Slab] = {}
        self._accounts: dict[str, Account[Slab]] = {}

    def __len__(self) -> int:
        return len(self._slabs) - sum(map(len, self._drafts.values()))

    @property
    def free(self) -> int:
        """Bytes that can be allocated now; 0 if the capacity was lowered below what is in use."""
        return max(0, self.capacity - self.allocated - self.reclaiming)

    # The life of a slab -------------------------------------------------------------------------------

    def check_room(self, tenant: str, name: str | None, charged: int) -> None:
        """Raise ``NameTaken`` or ``PoolFull`` if such a slab cannot be made now."""
        if name is not None and (taken := self._names.get((tenant, name))) is not None:
            raise NameTaken(f'the name "{name}" belongs to slab {taken}; open that one, or choose another', id=taken)
        if charged > self.free:
            waiting = f", {format_bytes(self.reclaiming)} wait for clients to let go" if self.reclaiming else ""
            raise PoolFull(
                f"asked for {format_bytes(charged)}, {format_bytes(self.free)} of the pool's "
                f"{format_bytes(self.capacity)} are "
                f"free{waiting}; free slabs, or serve with more capacity",
                asked=charged,
                free=self.free,
                capacity=self.capacity,
            )

    def account(self, tenant: str) -> Account[Slab]:
        """Return what the tenant is charged for; one that has nothing gets a new account."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = Account()
        return account

    def reserve(self, slab: Slab) -> None:
        """Charge a slab that is about to be made, and take its name."""
        self.allocated += slab.charged
        account = self.account(slab.tenant)
        account.charge(slab)
        account.live += 1
        self._making[slab.id] = slab
        if slab.name is not None:
            self._names[slab.tenant, slab.name] = slab.id

    def abandon(self, slab: Slab) -> None:
        """Undo :meth:`reserve`."""
        self.allocated -= slab.charged
        account = self.account(slab.tenant)
        account.credit(slab)
        account.live -= 1
        del self._making[slab.id]
        if slab.name is not None:
            del self._names[slab.tenant, slab.name]

    def admit(self, slab: Slab) -> None:
        """Let a reserved slab be found from now on."""
        del self._making[slab.id]
        self._slabs[slab.id] = slab
        if slab.draft_of is not None:
            self._drafts.setdefault(slab.draft_of, {})[slab.id] = slab
        if slab.owner is not None:
            self._owned.setdefault(slab.owner, {})[slab.id] = slab

    def retire(self, slab: Slab) -> None:
        """End a slab: it cannot be found any more, its name is free, and its bytes count as reclaiming."""
        del self._slabs[slab.id]
        if slab.name is not None:
            del self._names[slab.tenant, slab.name]
        if slab.draft_of is not None:
            drafts = self._drafts[slab.draft_of]
            del drafts[slab.id]
            if not drafts:
                del self._drafts[slab.draft_of]
        self.own(slab, None)
        slab.state = "reclaiming"
        slab.deadline = math.inf
        self.allocated -= slab.charged
        self.account(slab.tenant).live -= 1
        self.add_reclaiming(slab)

    def add_reclaiming(self, slab: Slab) -> None:
        """Keep an ended slab's bytes charged."""
        self.reclaiming += slab.charged
        self.account(slab.tenant).keep(slab)
        self._ended[slab.generation] = slab

    def settle(self, slab: Slab) -> None:
        """Give an ended slab's bytes back to the pool."""
        slab.state = "gone"
        del self._ended[slab.generation]
        self.reclaiming -= slab.charged
        self.account(slab.tenant).settle(slab)

    def own(self, slab: Slab, owner: int | None) -> None:
        """Change the slab's owner."""
        if slab.owner is not None:
            owned = self._owned.get(slab.owner, {})
            owned.pop(slab.id, None)
            if not owned:
                self._owned.pop(slab.owner, None)
        slab.owner = owner
        if owner is not None:
            self._owned.setdefault(owner, {})[slab.id] = slab

    def hold(self, slab: Slab, session_id: int, transport: str, mode: Mode) -> None:
        """Note that a session has the slab attached over *transport*."""
        slab.holders[session_id, transport] = mode
        self._held.setdefault(session_id, {})[slab.id] = slab

    def let_go(self, slab: Slab, session_id: int, transport: str) -> bool:
        """Undo :meth:`hold`; return whether there was anything to undo."""
        if slab.holders.pop((session_id, transport), None) is None:
            return False
        if all(holder != session_id for holder, _ in slab.holders):
            held = self._held[session_id]
            del held[slab.id]
            if not held:
                del self._held[session_id]
        return True

    def drafts_of(self, slab: Slab) -> list[Slab]:
        """Return the drafts that are to replace the slab's memory."""
        return list(self._drafts.get(slab.id, {}).values())

    def base_of(self, draft: Slab) -> Slab:
        """Return the slab whose memory a draft is to replace; a draft does not outlive it."""
        assert draft.draft_of is not None
        return self._slabs[draft.draft_of]

    # Finding ------------------------------------------------------------------------------------------

    def get(self, tenant: str, slab_id: int) -> Slab:
        """Return the tenant's slab of that id; raise ``SlabNotFound``."""
        slab = self._slabs.get(slab_id)
        if slab is None or slab.tenant != tenant or slab.draft_of is not None:
            raise SlabNotFound(f"there is no slab {slab_id} here; it may have been freed or have expired", id=slab_id)
        return slab

    def get_life(self, tenant: str, slab_id: int, generation: int) -> Slab:
        """Return this very life of the slab; raise ``StaleSlab`` if it has ended."""
        slab = self._slabs.get(slab_id)
        if slab is None or slab.tenant != tenant or slab.life != generation:
            raise StaleSlab(
                f"slab {slab_id} of generation {generation} was freed, revoked or has expired; open it again",
                id=slab_id,
                generation=generation,
            )
        return slab

    def get_named(self, tenant: str, name: str) -> Slab:
        """Return the tenant's slab of that name; raise ``SlabNotFound``."""
        slab = self._slabs.get(self._names.get((tenant, name), 0))
        if slab is None:
            raise SlabNotFound(f'there is no slab named "{name}" here; see `farpool ls`', name=name)
        return slab

    def get_held(self, slab_id: int, generation: int) -> Slab | None:
        """Return whose memory of this generation somebody may let go of: a slab's, or that of one that has ended."""
        slab = self._slabs.get(slab_id)
        return slab if slab is not None and slab.generation == generation else self._ended.get(generation)

    def owned_by(self, session_id: int) -> list[Slab]:
        """Return the slabs that the session owns."""
        return list(self._owned.get(session_id, {}).values())

    def held_by(self, session_id: int) -> list[Slab]:
        """Return the slabs, alive or reclaiming, that the session has attached."""
        return list(self._held.get(session_id, {}).values())

    def ended(self) -> list[Slab]:
        """Return the slabs whose bytes are reclaiming."""
        return list(self._ended.values())

    def being_made(self) -> list[Slab]:
        """Return the slabs that are reserved and not admitted yet."""
        return list(self._making.values())

    def all(self) -> list[Slab]:
        """Return the slabs that can be found, in the order of ids."""
        return list(self._slabs.values())

    def page(self, tenant: str, after: int, limit: int, granted: Iterable[Slab] = ()) -> tuple[list[Slab], bool]:
        """Return at most *limit* of the slabs that the tenant has or was *granted*, and whether there are more.

        In the order of ids, those over *after*; reclaiming slabs of its own are among them.
        """
        seen: dict[int, Slab] = {**self.account(tenant).slabs, **{slab.id: slab for slab in granted}}
        ids = sorted(seen)
        found: list[Slab] = []
        for slab_id in ids[bisect.bisect_right(ids, after) :]:
            slab = seen[slab_id]
            if slab.draft_of is not None or slab_id in self._making:
                continue
            if len(found) == limit:
                return found, True
            found.append(slab)
        return found, False
