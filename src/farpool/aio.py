"""The awaitable twin of ``farpool``: the same names, awaited.

::

    async with farpool.aio.connect(url) as pool:
        slab = await pool.allocate("64MiB")
        await slab.write(b"hello")
"""

from farpool.client.aio import Connecting, Draft, Pool, Slab, connect

__all__ = ["Connecting", "Draft", "Pool", "Slab", "connect"]
