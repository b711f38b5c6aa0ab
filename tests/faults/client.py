"""A client process: it transfers without end, and says in lines of JSON what stops it.

``python client.py URL TRANSPORT API TIMEOUT NBYTES [held]``. After a failure, and if held before the first transfers,
it obeys the lines of its stdin: ``again`` goes on with the transfers, ``try`` makes one, ``allocate`` takes a new slab,
``close`` ends it in order.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import time
from collections.abc import Coroutine
from typing import Any

import farpool


class Client:
    """A pool, a slab, and a counter of transfers."""

    def __init__(self, pool: Any, nbytes: int) -> None:
        self.pool = pool
        self.slab: Any = None
        self._buffer = bytearray(nbytes)
        self._turn = 0

    async def allocate(self) -> None:
        """Take a new slab."""
        self.slab = await result_of(self.pool.allocate(len(self._buffer)))
        say("allocated", slab=self.slab.id, session=self.pool.session_id)

    async def transfer(self) -> None:
        """Write the whole slab, read it back, and ask the control plane for something."""
        self._turn += 1
        block = self._turn.to_bytes(8, "little") * (len(self._buffer) // 8)
        await result_of(self.slab.write(block))
        await result_of(self.slab.read_into(self._buffer))
        assert self._buffer == block, "these are not the bytes that were written"
        await result_of(self.pool.stat())

    async def transfer_until_it_fails(self) -> None:
        """Transfer, and say what stops it and how long that took."""
        begun = time.monotonic()
        try:
            while True:
                begun = time.monotonic()
                await self.transfer()
        except (farpool.FarpoolError, KeyboardInterrupt) as error:
            say("failed", error=type(error).__name__, message=str(error), seconds=time.monotonic() - begun)

    async def obey(self) -> bool:
        """Do what stdin says; return False when it is time to end."""
        for line in sys.stdin:
            try:
                match line.strip():
                    case "again":
                        return True
                    case "try":
                        await self.transfer()
                        say("worked")
                    case "allocate":
                        await self.allocate()
                    case _:
                        break
            except farpool.FarpoolError as error:
                say("failed", error=type(error).__name__, message=str(error), seconds=0.0)
        return False


async def result_of(value: Any) -> Any:
    """Return what the synchronous API returned, or what the awaitable one gives."""
    return await value if inspect.isawaitable(value) else value


def say(event: str, **fields: Any) -> None:
    """Tell the test."""
    print(json.dumps({"event": event, **fields}), flush=True)


async def work(url: str, transport: str, api: str, timeout: float, nbytes: int, *, held: bool) -> None:
    """Connect, transfer, and end in order."""
    connect: Any = farpool.connect if api == "sync" else farpool.aio.connect
    client = Client(await result_of(connect(url, transport=transport, timeout=timeout)), nbytes)
    await client.allocate()
    await client.transfer()
    say("ready")
    if not held:
        await client.transfer_until_it_fails()
    while await client.obey():
        await client.transfer_until_it_fails()
    await result_of(client.pool.close())
    say("closed")


def run_without_a_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run what never waits: every value of the synchronous API is there at once."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("the synchronous API gave an awaitable")


if __name__ == "__main__":
    job = work(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5]), held="held" in sys.argv[6:])
    if sys.argv[3] == "aio":
        asyncio.run(job)
    else:
        run_without_a_loop(job)
