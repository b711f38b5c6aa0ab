"""Which kind of arena a path names: a device, or a file that stands for one, or a directory with a file a slab."""

from __future__ import annotations

from pathlib import Path

from farpool.server.arena import Arena
from farpool.server.device_arena import DeviceArena
from farpool.server.directory_arena import DirectoryArena
from farpool.server.settings import ConfigurationError, ServerSettings

__all__ = ["open_arena"]


def open_arena(settings: ServerSettings, lock_fd: int | None = None) -> Arena:
    """Open the arena that the settings name, with its lock if we have inherited that; raise ``ConfigurationError``."""
    incoherent = settings.coherence == "software"
    deaf = [name for name in settings.transports if name != "cxl"]
    if incoherent and deaf:
        raise ConfigurationError(
            f'coherence = "software" is for cxl alone: {", ".join(deaf)} would move bytes through this host\'s caches, '
            "which other hosts do not see; serve with --transports cxl"
        )
    path = Path(settings.arena)
    if path.is_dir() or (not path.exists() and not settings.arena.startswith("/dev/dax")):
        return DirectoryArena(settings.arena, lock_fd)
    return DeviceArena(settings.arena, settings.state_dir, incoherent=incoherent, lock_fd=lock_fd)
