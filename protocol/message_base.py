"""What every message of the control plane is made from."""

from __future__ import annotations

from typing import ClassVar

import msgspec

__all__ = ["Done", "Reply", "Request"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every request; ``operation`` is its word on the wire."""

    operation: ClassVar[str]
    reply: ClassVar[type[Reply]]
    once: ClassVar[bool] = False
    """Whether doing it twice would do harm: it is not sent again after a connection that broke under it."""
    administrative: ClassVar[bool] = False
    """Whether an administrator alone may ask it: a local process of the server's own user, or of root."""
    audited: ClassVar[bool] = False
    """Whether the audit log has it although anyone may ask it: it changes who may do what."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every reply."""


class Done(Reply, frozen=True, kw_only=True):
    """The operation is done; there is nothing more to say."""
