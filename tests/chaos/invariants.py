"""The servers of a run, and what must hold of each when no client is left."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from tests.chaos.crew import Crew
from tests.chaos.findings import Broken, Finding
from tests.chaos.patience import RESUME_GRACE, SESSION_TIMEOUT, WITHIN
from tests.chaos.plan import Lane, Round
from tests.conformance.variants import VARIANTS, Variant
from tests.conftest import links_of

import farpool

__all__ = ["Place", "lanes_here", "patiently"]

OWNED_BYTES = 256 << 10
WAIT_SECONDS = 0.005

T = TypeVar("T")


def lanes_here() -> list[Lane]:
    """Return every way to reach memory that this machine has."""
    networks = ["tcp", "rdma"] if any(Path("/sys/class/infiniband").glob("*")) else ["tcp"]
    lanes = [Lane(place, transport) for place in ("files", "device") for transport in ("cxl", *networks)]
    return [*lanes, Lane("tls", "tcp")] if find_spec("farpool.native.tls") else lanes


def patiently(call: Callable[[], T]) -> T:
    """Ask again what a server that has just come back did not answer."""
    deadline = time.monotonic() + WITHIN
    while True:
        try:
            return call()
        except (farpool.ServerLost, farpool.DeadlineExceeded):
            if time.monotonic() > deadline:
                raise


class Place:
    """A server, and a client that looks on. What it holds at first is what it must hold after each round."""

    def __init__(self, name: str, lanes: list[Lane], undo: ExitStack) -> None:
        self.name = name
        self.transports = [lane.transport for lane in lanes if lane.place == name]
        plain = Variant(name, "cxl")
        variant = {"device": VARIANTS["cxl-device"], "tls": VARIANTS["tls"]}.get(name, plain)
        self.server = undo.enter_context(
            farpool.serve_embedded(
                capacity="256MiB",
                transports=self.transports,
                session_timeout=SESSION_TIMEOUT,
                resume_grace=RESUME_GRACE,
                **variant.serving(undo, os.environ.get("FARPOOL_TEST_DAX")),
            )
        )
        self.url = self.server.tcp_url if variant.encrypted else self.server.url
        self._look = undo.enter_context(farpool.connect(self.server.url, transport="tcp"))
        self._warm_up()
        self._before = self._held()

    def _warm_up(self) -> None:
        """Do once what opens files and connections that stay."""
        for transport in self.transports:
            with farpool.connect(self.url, transport=transport) as pool, pool.allocate(8) as slab:
                with slab.reserve() as draft:
                    draft.write(b"x")
                    draft.commit()
                slab.free()
        self.wait(self._is_empty, lambda: "the first clients' slabs are gone")

    def make(self, plan: Round) -> Mapping[str, Any]:
        """Make the slabs that a round's clients share, and return their names."""
        names = {"versions": [f"{plan.number} a", f"{plan.number} b"], "owned": f"{plan.number} owned"}
        for name in names["versions"]:
            self._look.allocate(plan.version_bytes, name=name, lease="persistent").close()
        self._look.allocate(OWNED_BYTES, name=str(names["owned"]), lease="persistent").close()
        return names

    def free(self, names: Mapping[str, Any]) -> None:
        """Free a round's slabs; a crash has lost none."""
        for name in (*names["versions"], names["owned"]):
            try:
                patiently(partial(self._look.open, name)).free()
            except farpool.FarpoolError as error:
                raise Broken(Finding.ERROR, f"slab {name!r} of the round cannot be freed: {error}") from error

    def states(self) -> dict[int, str]:
        """Return the state of each slab that is charged to anyone."""
        return {info.id: info.state for info in patiently(self._look.slabs)}

    def bystander(self, transport: str) -> farpool.Pool:
        """Return another client, that nothing happens to."""
        return farpool.connect(self.url, transport=transport, timeout=WITHIN)

    # What must hold --------------------------------------------------------------------------------------------

    def check_empty(self) -> None:
        """Raise if anything is left of the round."""
        self.wait(self._is_empty, lambda: f"no byte and no session is left: {patiently(self._look.stat)}")
        self.wait(
            lambda: not self._held() - self._before, lambda: f"the server holds {self._held() - self._before} more"
        )

    def _is_empty(self) -> bool:
        stat = patiently(self._look.stat)
        return (stat.allocated, stat.reclaiming, stat.slabs, stat.sessions, stat.quarantined) == (0, 0, 0, 1, [])

    def _more(self) -> Counter[str]:
        return self._held() - self._before

    def _held(self) -> Counter[str]:
        """Count files of slabs, sockets, descriptors but those of the catalog, queue pairs and children."""
        server = self.server
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        transports = patiently(self._look.stat).transports
        return Counter(
            {
                "files of slabs": len([*Path(server.arena).glob("slab-*")]),
                "sockets": len([*Path(server.url.removeprefix("unix://")).parent.iterdir()]),
                "descriptors": len([link for link in links_of(server.pid) if "catalog" not in link]),
                "queue pairs": transports.get("rdma", {}).get("queue_pairs", 0),
                "children": len(children),
            }
        )

    def wait(self, true: Callable[[], bool], what: Callable[[], str]) -> None:
        """Wait for *true* while no client is there to listen to."""
        deadline = time.monotonic() + WITHIN
        while not true():
            if time.monotonic() > deadline:
                raise Broken(Finding.LEAK, f"not within {WITHIN:g} s: {what()}")
            time.sleep(WAIT_SECONDS)

    def wait_for_end(self, crew: Crew, slab: int, *, mapped: bool = False) -> None:
        """Wait until a slab has ended; its bytes are charged on if *mapped*, while its holder has not let go."""
        still = ("live", "orphaned") if mapped else ("live", "orphaned", "reclaiming")
        crew.until(lambda: self.states().get(slab) not in still, f"slab #{slab} of a client that is gone ends")
