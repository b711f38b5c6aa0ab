"""What a server's parts stand on, without a server: a lifecycle over a real arena and catalog."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from farpool.server.catalog import Catalog
from farpool.server.dataplanes import DataPlanes
from farpool.server.deadlines import Deadlines
from farpool.server.directory_arena import DirectoryArena
from farpool.server.generations import GenerationFile
from farpool.server.lifecycle import Lifecycle
from farpool.server.settings import ServerSettings

__all__ = ["House", "Silent"]


class Silent:
    """A channel to nobody."""

    def send(self, frame: bytes) -> None:
        """Nobody listens."""

    def close(self, reason: str) -> None:
        """Nothing to close."""


class House:
    """A lifecycle over a real arena and catalog, with planes of the test."""

    def __init__(self, folder: Path, planes: DataPlanes) -> None:
        self.arena = DirectoryArena(f"{folder}/arena")
        self.catalog = Catalog(f"{self.arena.control_path}/catalog.sqlite", durable=False)
        self.generations = GenerationFile(f"{self.arena.control_path}/generations", self.arena.control_fd)
        self.generations.restore({})
        self.executor = ThreadPoolExecutor(1)
        loop = asyncio.get_running_loop()
        deadlines = Deadlines(loop.time, loop.call_later, lambda: None)
        self.life = Lifecycle(
            arena=self.arena,
            catalog=self.catalog,
            generations=self.generations,
            planes=planes,
            timing=ServerSettings(),
            capacity=128 << 20,
            clock=loop.time,
            deadlines=deadlines,
            executor=self.executor,
        )
        self._deadlines = deadlines

    def close(self) -> None:
        """Close all of it."""
        self._deadlines.close()
        self.executor.shutdown()
        self.life.close_memory()
        for part in (self.generations, self.catalog, self.arena):
            part.close()
