"""What a pool should look like: slabs as bytearrays, and handles that know what they may raise."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.conformance.driving import AnyPool, AnySlab

import farpool

__all__ = ["Handle", "ModelPool", "ModelSlab", "Pick", "Session"]

Errors = tuple[type[Exception], ...]

Pick = tuple[int, bool]
"""A number that stands for a handle, and whether it may be one that has ended."""


@dataclass(eq=False)
class Session:
    """One of the sessions; its number changes when it ends and another takes its place."""

    pool: AnyPool
    number: int


@dataclass(eq=False)
class ModelSlab:
    """One slab as it should be."""

    id: int
    name: str | None
    lease: str | float
    owner: int
    memory: bytearray
    alive: bool = True


@dataclass(eq=False)
class Handle:
    """A slab of one of the sessions, and what it stands for."""

    slab: AnySlab
    model: ModelSlab
    writable: bool
    session: int
    open: bool = True

    @property
    def usable(self) -> bool:
        return self.open and self.model.alive

    def range(self, place: int, nbytes: int, wild: bool) -> tuple[int, int]:
        """Return the offset and the length of an access that begins at *place* thousandths of the slab."""
        size = len(self.model.memory)
        offset = size * place // 1000
        return (offset, nbytes) if wild else (offset, min(nbytes, size - offset))

    def errors(self, offset: int = 0, nbytes: int = 0, *, writes: bool = False) -> Errors:
        """Return what this access may raise; nothing if it must succeed."""
        found: list[type[Exception]] = []
        if not self.usable:
            found.append(farpool.StaleSlab)
        if offset + nbytes > len(self.model.memory):
            found.append(farpool.OutOfBounds)
        if writes and not self.writable:
            found.append(farpool.ReadOnly)
        return tuple(found)


@dataclass
class ModelPool:
    """All slabs and handles that there ever were."""

    slabs: list[ModelSlab] = field(default_factory=list[ModelSlab])
    handles: list[Handle] = field(default_factory=list[Handle])

    def add(self, slab: AnySlab, name: str | None, lease: str | float, session: Session) -> Handle:
        """Note a new slab, which is zero, and its first handle."""
        model = ModelSlab(slab.id, name, lease, session.number, bytearray(slab.nbytes))
        self.slabs.append(model)
        return self.hold(slab, model, session, writable=True)

    def hold(self, slab: AnySlab, model: ModelSlab, session: Session, *, writable: bool) -> Handle:
        """Note a handle."""
        handle = Handle(slab, model, writable, session.number)
        self.handles.append(handle)
        return handle

    def pick(self, pick: Pick) -> Handle | None:
        """Return the handle that *pick* stands for, if there is one."""
        number, ended = pick
        found = [handle for handle in self.handles if ended or handle.usable]
        return found[number % len(found)] if found else None

    def named(self, name: str | None) -> ModelSlab | None:
        """Return the slab that has the name now."""
        return next((slab for slab in self.slabs if slab.alive and slab.name == name is not None), None)

    def end_session(self, number: int) -> None:
        """End the session slabs of a session, and close its handles."""
        for slab in self.slabs:
            if slab.owner == number and slab.lease == "session":
                slab.alive = False
        for handle in self.handles:
            if handle.session == number:
                handle.open = False

    def listing(self) -> set[tuple[int, str | None, int]]:
        """Return id, name and size of each slab that is alive."""
        return {(slab.id, slab.name, len(slab.memory)) for slab in self.slabs if slab.alive}
