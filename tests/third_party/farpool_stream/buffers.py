"""What callers hand over, checked: buffers as bytes, words as unsigned numbers, timeouts as deadlines."""

from __future__ import annotations

import math
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
    seconds = default if timeout is None else float(timeout)
    if math.isnan(seconds) or seconds < 0:
        raise InvalidArgument(f"a timeout is seconds, 0 or more, not {timeout}")
    end = time.monotonic() + min(seconds, 1e6)

    return lambda: max(0.0, end - time.monotonic())


def target_of(buffer: Buffer) -> Bytes:
    """Return the bytes of a writable buffer."""
    target = source_of(buffer)
    if not target.flags.writeable:
        raise UnsuitableBuffer(f"read_into needs a writable buffer, and this {type(buffer).__name__} is read-only")
    return target


def source_of(buffer: Buffer) -> Bytes:
    """Return the bytes of a buffer."""
    try:
        return np.frombuffer(cast(Any, buffer), np.uint8)
    except (ValueError, BufferError) as error:
        raise InvalidArgument(f"the buffer must be C-contiguous ({error})") from None
    except TypeError:
        raise UnsuitableBuffer(f"a buffer of bytes is needed, not {type(buffer).__name__}") from None


def as_word(value: int) -> int:
    """Return an unsigned 64-bit word."""
    if not 0 <= index(value) < 1 << 64:
        raise InvalidArgument(f"a word is 0 to 2**64 - 1, not {value}")
    return index(value)
