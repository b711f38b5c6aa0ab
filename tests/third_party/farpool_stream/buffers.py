"""What callers hand over, checked: buffers as bytes, words as unsigned numbers, timeouts as deadlines."""

from __future__ import annotations

import time
from operator import index
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from farpool.protocol.errors import InvalidArgument, UnsuitableBuffer
from farpool_stream.wire import Bytes, Left

if TYPE_CHECKING:
    from typing_extensions import Buffer


def deadline_after(timeout: float | None, default: float) -> Left:
    """Start an operation's clock."""
    seconds = default if timeout is None else _parse(timeout)
    end = time.monotonic() + min(seconds, 1e6)

    return lambda: max(0.0, end - time.monotonic())


def _parse(timeout: object) -> float:
    try:
        if isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and timeout > 0:
            return float(timeout)
    except OverflowError:
        pass
    raise InvalidArgument("timeout must be seconds, more than 0")


def target_of(buffer: Buffer) -> Bytes:
    """Return the bytes of a writable buffer."""
    target = source_of(buffer)
    if not target.flags.writeable:
        raise UnsuitableBuffer(f"read_into needs a writable buffer, and this {type(buffer).__name__} is read-only")
    return target


def source_of(buffer: Buffer) -> Bytes:
    """Return the bytes of a buffer."""
    try:
        given = cast(Any, buffer)
        kind = np.asarray(given).dtype if type(given) is memoryview else getattr(given, "dtype", None)
        if kind is not None and kind.hasobject:
            raise UnsuitableBuffer("the array holds Python objects, which are no bytes")
        return np.frombuffer(given, np.uint8)
    except (ValueError, BufferError) as error:
        raise InvalidArgument(f"the buffer must be C-contiguous ({error})") from None
    except TypeError:
        raise UnsuitableBuffer(f"a buffer of bytes is needed, not {type(buffer).__name__}") from None


def as_word(value: int) -> int:
    """Return an unsigned 64-bit word."""
    if not 0 <= index(value) < 1 << 64:
        raise InvalidArgument(f"a word is 0 to 2**64 - 1, not {value}")
    return index(value)
