"""Wait until a word of a slab has changed: what a slab and its awaitable twin share.

Where this process maps the slab it waits by itself, and asks the server now and then to let others' stores wake it;
elsewhere a request waits at the server. Nothing here waits longer than a second at a time.
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic, sleep
from typing import Final, Protocol, cast

from farpool.client.attachment import Attachment
from farpool.client.versions import Versions
from farpool.protocol.errors import DeadlineExceeded, FarpoolError, InvalidArgument, StaleSlab
from farpool.protocol.message_base import Done
from farpool.protocol.waiting_messages import LONGEST_WAIT, Notify, Wait, Watch, Word
from farpool.transports.threads import not_sent

__all__ = ["Waiter", "notify"]

ALONE_SECONDS: Final = 0.0005
"""How long a region looks by itself before it asks to be woken."""

ASKING_SECONDS: Final = 0.05
"""How long the server may take to say that others' stores wake us; meanwhile nobody looks at the word."""

LAST_SECONDS: Final = 0.05
"""How long before the deadline the server must have answered; from then on we look ourselves."""

LONGEST_PAUSE: Final = 0.001
"""Seconds between two looks."""

ASK_AGAIN_SECONDS: Final = 10.0
"""How long we look by ourselves before we ask a server again that did not answer."""


class _Parking(Protocol):
    """A region that waits by itself."""

    def park(self, offset: int, expected: int, seconds: float) -> int: ...
    def notify(self, offset: int) -> None: ...


class Waiter:
    """One wait for the word at *offset* to be something else than *expected*, until *deadline*."""

    def __init__(self, attachment: Attachment, versions: Versions, offset: int, expected: int, deadline: float) -> None:
        if not 0 <= expected < 1 << 64:
            raise InvalidArgument(f"a word is an unsigned 64-bit number, not {expected}")
        self._attachment = attachment
        self._versions = versions
        self._offset = offset
        self._expected = expected
        self._deadline = deadline
        self._alone_until = 0.0
        self._has_looked = False

    def wait(self) -> int:
        """Return the word once it has changed; raise ``DeadlineExceeded``."""
        while (value := self.look()) is None:
            pass
        return value

    def look(self) -> int | None:
        """Wait for at most a second; return the word if it has changed. Raises ``DeadlineExceeded``."""
        self._attachment.session.check()
        region = _parking(self._attachment)
        is_last = self._left() <= LAST_SECONDS
        try:
            value = self._look_from_afar() if region is None else self._look_at(region)
        except StaleSlab as error:
            self._attachment = self._versions.renew(self._attachment, error, self._deadline)
            return None
        except DeadlineExceeded as error:
            if is_last and self._has_looked:  # it had no time for this look, and that says nothing of the server
                raise self.late() from error
            raise
        if value != self._expected:
            return value
        self._has_looked = True
        if self._left():
            return None
        raise self.late()

    def late(self) -> DeadlineExceeded:
        """Return what to say of a deadline that has passed, now or before the next look could begin."""
        if not self._has_looked:
            return not_sent()
        return DeadlineExceeded(
            f"slab {self._attachment.ticket.label}: the word at offset {self._offset} has stayed {self._expected} "
            "until the deadline; raise timeout=, or see who should change it"
        )

    def _left(self) -> float:
        return max(0.0, self._deadline - monotonic())

    def _look_at(self, region: _Parking) -> int:
        value = region.park(self._offset, self._expected, min(self._left(), ALONE_SECONDS))
        if value != self._expected or not self._left():
            return value
        self._ask_to_be_woken()
        return region.park(self._offset, self._expected, min(self._left(), LONGEST_WAIT))

    def _ask_to_be_woken(self) -> None:
        session = self._attachment.session
        slab_id, generation = self._attachment.info.id, self._attachment.info.generation
        if monotonic() < self._alone_until or not session.is_connected():
            return
        self._alone_until = monotonic() + ASK_AGAIN_SECONDS
        with suppress(FarpoolError):  # looking goes on without it, and tells what is wrong with the slab
            request = Watch(id=slab_id, generation=generation, offset=self._offset)
            self._attachment.call(request, Done, min(self._deadline, monotonic() + ASKING_SECONDS))
            self._alone_until = 0.0

    def _look_from_afar(self) -> int:
        attachment, left = self._attachment, self._left()
        value = attachment.region.load(self._offset, left or None)
        seconds = min(LONGEST_WAIT, self._left() - LAST_SECONDS)
        if value != self._expected or not left:
            return value
        if seconds <= 0:  # the answer would come too late
            sleep(min(self._left(), LONGEST_PAUSE))
            return value
        slab_id, generation = attachment.info.id, attachment.info.generation
        request = Wait(id=slab_id, generation=generation, offset=self._offset, expected=self._expected, seconds=seconds)
        return attachment.call(request, Word, self._deadline).value


def notify(attachment: Attachment, versions: Versions, offset: int, deadline: float) -> None:
    """Let whoever waits for the word at *offset* look at it now."""
    attachment.session.check()
    while (region := _parking(attachment)) is not None:
        try:
            region.notify(offset)
        except StaleSlab as error:
            attachment = versions.renew(attachment, error, deadline)
        else:
            return
    slab_id, generation = attachment.info.id, attachment.info.generation
    attachment.call(Notify(id=slab_id, generation=generation, offset=offset), Done, deadline)


def _parking(attachment: Attachment) -> _Parking | None:
    region: object = attachment.region
    return cast("_Parking", region) if hasattr(region, "park") else None
