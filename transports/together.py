"""Operations of one call that are in flight together: what the awaitable regions cut large batches into."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

__all__ = ["together"]


async def together(moves: Sequence[Coroutine[Any, Any, int]]) -> int:
    """Await all of *moves* and return the sum of their bytes; if one fails, the others are cancelled."""
    if len(moves) == 1:
        return await moves[0]
    tasks = [asyncio.ensure_future(move) for move in moves]
    try:
        return sum(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
