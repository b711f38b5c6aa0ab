"""Frames of the control plane: a 4-byte little-endian length, then one msgpack array.

No I/O here: bytes go in, messages come out. Limits on frame size, strings, arrays, maps and nesting hold while
decoding, so that a stranger's bytes cost at most one frame of memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final, TypeGuard

import msgpack as _untyped_msgpack  # type: ignore[import-untyped]  # it ships no types

from farpool.protocol.errors import ProtocolError

__all__ = ["MAX_FRAME_BYTES", "MAX_REQUEST_BYTES", "FrameDecoder", "decode_payload", "encode_frame"]

MAX_FRAME_BYTES: Final = 1 << 20
"""Longest payload of one frame in bytes; a list of slabs is paged to stay below it."""

MAX_REQUEST_BYTES: Final = 64 << 10
"""Longest payload that a server takes: requests have a few hundred bytes, and a stranger's frame must cost little."""

MAX_STRING_BYTES: Final = 64 << 10
MAX_ITEMS: Final = 4096
"""Most items of one array or map; a page of a listing has 1,000. msgpack makes room for what an array announces."""

MAX_DEPTH: Final = 16
"""Deepest nesting of arrays and maps; no message of ours passes 6. (msgpack itself stops at 1,024.)"""

BUFFER_BYTES: Final = 4 << 10
"""What a message is packed into at first, and most fit: msgpack's own 256 KiB are more than a server at the end of its
memory has."""

_msgpack: Any = _untyped_msgpack
_pack: Callable[[object], bytes] = partial(_msgpack.packb, buf_size=BUFFER_BYTES)
_unpack: Callable[..., object] = _msgpack.unpackb

_LENGTH = struct.Struct("<I")
LENGTH_BYTES: Final = _LENGTH.size


def encode_frame(message: list[Any]) -> bytes:
    """Return *message* as one frame, its length in front.

    Raises:
        ProtocolError: the message holds what msgpack cannot say, or is longer than a frame may be.
    """
    try:
        payload = _pack(message)
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"cannot encode a control message: {error}") from error
    if len(payload) > MAX_FRAME_BYTES:
        raise ProtocolError(
            f"a control message of {len(payload)} bytes is over the limit of {MAX_FRAME_BYTES}; ask for less at once"
        )
    return _LENGTH.pack(len(payload)) + payload


def decode_payload(payload: bytes | memoryview) -> list[Any]:
    """Return the array that one frame's *payload* holds.

    Raises:
        ProtocolError: not one msgpack array, or over a limit.
    """
    try:
        message = _unpack(
            payload,
            strict_map_key=True,
            max_str_len=MAX_STRING_BYTES,
            max_bin_len=MAX_STRING_BYTES,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
            max_ext_len=0,
        )
    except (ValueError, _msgpack.UnpackException, RecursionError):
        raise ProtocolError("a control frame is not valid msgpack, or over a limit") from None
    if not _is_list(message):
        raise ProtocolError(f"a control frame holds {type(message).__name__}, not an array")
    _check_depth(message, MAX_DEPTH)
    return message


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_map(value: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


_CONTAINERS: Final = frozenset((list, dict))


def _check_depth(items: Collection[Any], left: int) -> None:
    if left < 0:
        raise ProtocolError(f"a control frame nests deeper than {MAX_DEPTH} levels")
    if _CONTAINERS.isdisjoint(map(type, items)):
        return
    for item in items:
        if _is_list(item):
            _check_depth(item, left - 1)
        elif _is_map(item):
            _check_depth(item.values(), left - 1)


class FrameDecoder:
    """Cut a stream of bytes into the payloads of its frames.

    ``feed`` takes what has come and returns every payload that is whole now; ``add`` and ``take`` do so a few at a
    time. Not thread-safe.
    """

    __slots__ = ("_buffer", "_limit")

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self._limit = limit

    @property
    def buffered(self) -> int:
        """Bytes of the unfinished frame that are held now."""
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Add *data* and return the payloads that are complete, oldest first.

        Raises:
            ProtocolError: a frame announces more than the limit; the stream cannot be read any further.
        """
        self.add(data)
        return self.take(len(self._buffer))

    def add(self, data: bytes | memoryview) -> None:
        """Add what has come."""
        self._buffer += data

    def take(self, most: int) -> list[bytes]:
        """Return at most *most* of the payloads that are complete, oldest first; raise as :meth:`feed` does."""
        buffer = self._buffer
        payloads: list[bytes] = []
        start = 0
        while len(buffer) - start >= LENGTH_BYTES and len(payloads) < most:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > self._limit:
                raise ProtocolError(
                    f"a frame announces {length} bytes, the limit is {self._limit}: is this Farpool's protocol?"
                )
            end = start + LENGTH_BYTES + length
            if len(buffer) < end:
                break
            payloads.append(bytes(buffer[start + LENGTH_BYTES : end]))
            start = end
        if start:
            del buffer[:start]
        return payloads
