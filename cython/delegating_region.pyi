from collections.abc import Callable, Mapping
from typing import Any, Final

from farpool.native.remote_region import RemoteRegion

DONE: Final[int]
"""The operation took effect."""
REFUSED: Final[int]
"""The slab's handle is no longer good: it is attached again, and the operation tried once more."""
GONE: Final[int]
"""The connection was lost, and what took effect is unknown."""
OVERDUE: Final[int]
"""The deadline passed, and what took effect is unknown."""

class DelegatingRegion(RemoteRegion):
    """A slab whose attempts are made in Python, by the ``execute`` of a subclass.

    *params* are what the server published. *domain* names the transport's atomics, and *atomics* says that the slab's
    words belong to them. One operation has at most *most_parts* parts. *renew* attaches again.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        *,
        generation: int,
        nbytes: int,
        writable: bool,
        atomics: bool,
        domain: str,
        label: str,
        timeout: float,
        most_parts: int,
        renew: Callable[[float], Mapping[str, Any]],
    ) -> None: ...
    @property
    def params(self) -> Mapping[str, Any]:
        """What the server published last."""
    def execute(
        self,
        code: str,
        offset: int,
        length: int,
        operand: int,
        parts: list[tuple[int, memoryview, object]],
        deadline: float,
    ) -> tuple[int, int]:
        """Try one operation once; return how it ended, and the old value of a word.

        *code* is ``read`` or ``write``, which move each of *parts* (offset in the slab, bytes, their owner), or
        ``load``, ``store``, ``fetch_add`` or ``compare_swap`` on the word at *offset*: *operand* is the new value or
        the addend, *length* what the word is expected to be. *deadline* is a time of ``time.monotonic``. The views
        end with the call. What it raises means that nothing was sent.
        """
