"""Sizes, leases and names as people write them. Pure functions."""

from __future__ import annotations

import math
import operator
import re
import unicodedata
from typing import Literal, SupportsIndex, cast

from farpool.protocol.errors import InvalidArgument

__all__ = [
    "MAX_NAME_BYTES",
    "MAX_SLAB_BYTES",
    "Lease",
    "Mode",
    "format_bytes",
    "parse_atomics",
    "parse_lease",
    "parse_mode",
    "parse_size",
    "shown",
    "validate_name",
    "validate_tenant",
]

MAX_NAME_BYTES = 255
"""Longest slab name in UTF-8 bytes: what Linux allows a file name (NAME_MAX in limits.h)."""

MAX_SLAB_BYTES = 1 << 62
"""Sizes and offsets stay below this, so that no sum of two of them overflows a signed 64-bit word."""

MAX_LEASE_SECONDS = 10 * 365 * 86400.0

Lease = str | float
"""``"session"``, ``"persistent"`` or a time to live in seconds."""

Mode = Literal["r", "rw"]
"""Reading only, or reading and writing."""

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40, "PIB": 1 << 50}
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z", re.ASCII)
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z", re.ASCII)
_LONGEST_NUMBER = 400
"""Digits of a size that are worth reading; Python refuses to convert 4,300 and more."""

_SHOWN_CHARACTERS = 80


def shown(value: object) -> str:
    """Return *value* as an error message shows it: its ``repr``, cut short."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integers of over 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def parse_size(value: object, *, what: str = "size") -> int:
    """Return *value* in bytes.

    An int is bytes; a string is a number with an optional binary unit: ``"64MiB"``, ``"1.5 GiB"``, ``"4096"``.

    Raises:
        InvalidArgument: zero, negative, a fraction of a byte, not a size, or 2**62 bytes and more.
    """
    if isinstance(value, str):
        nbytes = _parse_size_text(value, what)
    elif isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidArgument(f'{what} must be bytes as an int or a string like "64MiB", not {shown(value)}')
    else:
        nbytes = operator.index(cast("SupportsIndex", value))
    if nbytes <= 0:
        raise InvalidArgument(f"{what} must be at least 1 byte, not {shown(value)}", asked=max(nbytes, -MAX_SLAB_BYTES))
    if nbytes >= MAX_SLAB_BYTES:
        raise InvalidArgument(f"{what} {shown(value)} is over the limit of 2**62 bytes")
    return nbytes


def _parse_size_text(text: str, what: str) -> int:
    match = _SIZE.match(text)
    scale = _UNITS.get(match[2].upper()) if match else None
    if match is None or scale is None or len(match[1]) > _LONGEST_NUMBER:
        raise InvalidArgument(
            f"{what} {shown(text)} is not a size; "
            'write bytes or a number with a unit: B, KiB, MiB, GiB, TiB, PiB: "64KiB"'
        )
    if "." not in match[1]:
        return int(match[1]) * scale
    nbytes = float(match[1]) * scale
    if not nbytes.is_integer():
        raise InvalidArgument(f"{what} {shown(text)} is not a whole number of bytes")
    return int(nbytes)


def format_bytes(nbytes: int) -> str:
    """Return *nbytes* for people: ``1.5 GiB``, ``64 KiB``, ``12 B``."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} PiB"


def parse_lease(value: object) -> Lease:
    """Return the lease that *value* names.

    Raises:
        InvalidArgument: neither ``"session"`` nor ``"persistent"`` nor a positive number of seconds.
    """
    if value in ("session", "persistent"):
        return str(value)
    seconds = math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value) if value <= MAX_LEASE_SECONDS else math.inf  # float() refuses 10**400
    elif isinstance(value, str):
        try:
            seconds = float(value.removesuffix("s"))
        except ValueError:
            seconds = math.nan
    if not 0 < seconds <= MAX_LEASE_SECONDS:
        raise InvalidArgument(
            f'lease must be "session", "persistent" or seconds (over 0, at most ten years), not {shown(value)}'
        )
    return seconds


def parse_atomics(atomics: str | None) -> str:
    """Return what a request says of *atomics*; raise ``InvalidArgument`` for what is no domain."""
    if atomics not in (None, "cpu", "rdma"):
        raise InvalidArgument(f'atomics are "cpu" (cxl and tcp) or "rdma", not {atomics!r}')
    return atomics or ""


def parse_mode(mode: object) -> Mode:
    """Return *mode*; raises ``InvalidArgument`` unless it is ``"r"`` or ``"rw"``."""
    if mode == "r":
        return "r"
    if mode == "rw":
        return "rw"
    raise InvalidArgument(f'mode must be "r" or "rw", not {shown(mode)}')


def validate_name(name: object) -> str:
    """Return *name* if a slab may have it: 1 to 255 UTF-8 bytes, no control characters or surrogates, not all digits.

    Raises:
        InvalidArgument: anything else.
    """
    if not isinstance(name, str):
        raise InvalidArgument(f"a slab's name is a string, not {type(name).__name__}")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"name {name!r} is not valid Unicode text") from None
    if not encoded or len(encoded) > MAX_NAME_BYTES:
        raise InvalidArgument(f"a slab's name has 1 to {MAX_NAME_BYTES} bytes in UTF-8; this one has {len(encoded)}")
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise InvalidArgument(f"name {name!r} has control characters; leave them out")
    if name.isdecimal():  # the command line takes a slab by name or by id
        raise InvalidArgument(f"name {name!r} has digits only, as an id has; add a letter, for example {'n' + name!r}")
    return name


def validate_tenant(name: object) -> str:
    """Return *name* if a tenant may have it; raises ``InvalidArgument`` otherwise."""
    if not isinstance(name, str) or _TENANT.match(name) is None:
        raise InvalidArgument(
            "a tenant's name has 1 to 64 letters (A to Z), digits, dots, dashes and underscores, and begins with "
            f"a letter or a digit; not {shown(name)}"
        )
    return name
