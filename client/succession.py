"""The sessions that a client has had, one after the other, and in which of them a handle may be used.

A handle belongs to the session that it was made in. Once that has ended, another client may have had the slab, and what
this one meant to write or to read is overtaken: the handle raises ``StaleSlab``. There is one exception. If the server
was stopped in order, the client was there to the end; its handles go on in the session after it, but for those that had
a slab alone, since that ended.
"""

from __future__ import annotations

from typing import NamedTuple

from farpool.protocol.errors import AuthenticationFailed, StaleSlab

__all__ = ["Bond", "Succession", "ended"]


class Bond(NamedTuple):
    """What a handle is bound to."""

    serial: int
    """The session that it was made in; sessions of a client are counted from 1."""
    label: str
    """How messages name its slab."""
    alone: bool = False
    """Whether it ends with that session in any case."""


class Succession:
    """Counts one client's sessions. Changed by who connects, one at a time; anybody may look."""

    def __init__(self) -> None:
        self.serial = 0
        """The session that the client has now."""
        self._oldest = 0
        self._stopped = False

    def note_end(self, refusal: AuthenticationFailed) -> None:
        """Learn from the server why the session cannot be resumed."""
        self._stopped = bool(refusal.details.get("stopped"))

    def begin(self) -> None:
        """Count a new session."""
        if not self._stopped:
            self._oldest = self.serial + 1
        self._stopped = False
        self.serial += 1

    def allows(self, bond: Bond, serial: int) -> bool:
        """Tell whether a handle may be used in session *serial*."""
        return bond.serial == serial or (not bond.alone and bond.serial >= self._oldest)

    def check(self, bond: Bond, serial: int) -> None:
        """Raise ``StaleSlab`` unless a handle may be used in session *serial*."""
        if not self.allows(bond, serial):
            raise ended(bond)


def ended(bond: Bond) -> StaleSlab:
    """Return the error of a handle whose session has ended."""
    return StaleSlab(
        f"the session that had slab {bond.label} attached has ended, or the slab was taken from it: others may have "
        "had it since; open it again",
        session_ended=True,
    )
