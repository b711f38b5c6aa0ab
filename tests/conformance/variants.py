"""The ways to serve and reach a transport that the suite is run on; most names are a transport as it comes.

``cxl-device`` serves a device cut into extents: a file that stands for one, or the real one that ``FARPOOL_TEST_DAX``
names for the servers that tests share, since one server at a time can have it.
``cxl-software`` writes cache lines back and drops them, by this processor's instructions. ``cxl-simulated`` puts a
model of incoherent caches between each region and its memory, so that a flush that is missing shows. ``tls`` is tcp
with both planes encrypted.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from tests.certificates import authority

import farpool
from farpool.cli.main import main
from farpool.server.embedded import EmbeddedServer

__all__ = ["OURS", "Serving", "Variant", "variant_of"]

DEVICE_BYTES = 514 << 20
"""The capacity of the suite's servers, and the superblock's extent before it."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way; ``name`` is what the test's id shows."""

    name: str
    transport: str
    device: bool = False
    encrypted: bool = False
    """Reached by the server's port with TLS, and not by its Unix socket."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the URL says after ``?``."""

    @property
    def plain(self) -> bool:
        """Tell whether one server can serve it beside the other plain ones."""
        return not self.device and not self.settings and not self.encrypted

    def serving(self, undo: ExitStack, device: str | None = None) -> dict[str, Any]:
        """Return the settings of a server, on *device* or a file that stands for one."""
        if self.encrypted:
            return {"tls": authority().server().settings, **self.settings}
        if not self.device:
            return dict(self.settings)
        folder = tempfile.mkdtemp(prefix="farpool-device-", dir="/dev/shm")
        undo.callback(shutil.rmtree, folder)
        if device is None:
            device = f"{folder}/memory"
            with Path(device).open("wb") as file:
                file.truncate(DEVICE_BYTES)
        else:
            assert main(["format", "--yes", device]) == 0  # whatever an earlier run left there
        return {"arena": device, "state_dir": f"{folder}/state", **self.settings}


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("cxl-device", "cxl", device=True),
        Variant("cxl-software", "cxl", settings={"coherence": "software"}),
        Variant("tls", "tcp", encrypted=True),
        Variant("cxl-simulated", "cxl", environment={"FARPOOL_CXL_COHERENCE": "simulated"}),
    )
}
BUILT = tuple(name for name, each in VARIANTS.items() if not each.encrypted or find_spec("farpool.native.tls"))
OURS = ("cxl", *BUILT, "tcp", "stream")


def variant_of(name: str) -> Variant:
    """Return the variant of that name; any other is a transport, with options of its server and URL behind ``?``."""
    transport, _, query = name.partition("?")
    options = dict(parse_qsl(query))
    settings = {"transport_settings": {transport: options}} if options else {}
    return VARIANTS.get(name, Variant(name, transport, settings=settings, options=options))


class Serving:
    """The servers that a worker's tests share, one for each way to serve."""

    def __init__(self, capacity: str, plain: tuple[str, ...], undo: ExitStack) -> None:
        self._capacity = capacity
        self._plain = plain
        self._undo = undo
        self._running: dict[str, tuple[EmbeddedServer, ExitStack]] = {}

    def serve(self, variant: Variant) -> EmbeddedServer:
        """Return the server for *variant*, started on first use."""
        key = "" if variant.plain else variant.name
        if key not in self._running:
            undo = self._undo.enter_context(ExitStack())
            settings = variant.serving(undo, os.environ.get("FARPOOL_TEST_DAX"))
            transports = self._plain if variant.plain else (variant.transport,)
            served = farpool.serve_embedded(capacity=self._capacity, transports=transports, **settings)
            self._running[key] = undo.enter_context(served), undo
        return self._running[key][0]
