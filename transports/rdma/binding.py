"""The seam between the rdma transport and libibverbs: what a binding offers, and how one is chosen.

``native`` is our own Cython on the public verbs header, and the default. ``pyverbs`` is the binding that rdma-core
ships: the reference that users know, and the measure of what a binding costs. Both pass the same tests.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, Protocol, cast

from farpool.protocol.errors import InvalidArgument, TransportUnavailable
from farpool.transports.contract import AwaitableRegion, Region, Ticket

__all__ = ["BINDINGS", "DEFAULT_BINDING", "Binding", "VerbsDevice", "VerbsDomain", "VerbsMemory", "VerbsPair", "load"]

DEFAULT_BINDING: Final = "native"
BINDINGS: Final[Mapping[str, str]] = {
    "native": "farpool.transports.rdma.native",
    "pyverbs": "farpool.transports.rdma.pyverbs",
}


class VerbsMemory(Protocol):
    """Registered memory; ``close`` deregisters."""

    @property
    def address(self) -> int: ...  # noqa: D102
    @property
    def nbytes(self) -> int: ...  # noqa: D102
    @property
    def lkey(self) -> int: ...  # noqa: D102
    @property
    def rkey(self) -> int: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class VerbsDevice(Protocol):
    """An open device and one of its ports; ``close`` closes what was made from it first."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def port(self) -> int: ...  # noqa: D102
    def limits(self) -> Mapping[str, int]: ...  # noqa: D102
    def port_state(self) -> Mapping[str, int]: ...  # noqa: D102
    def gid(self, index: int) -> bytes: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class VerbsDomain(Protocol):
    """A protection domain."""

    def register(self, owner: object, address: int, nbytes: int, access: int) -> VerbsMemory: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class VerbsPair(Protocol):
    """A reliable connection's queue pair."""

    @property
    def number(self) -> int: ...  # noqa: D102
    @property
    def psn(self) -> int: ...  # noqa: D102

    incarnation: int
    """Number of the server's start that it belongs to, or is connected to; 0 before."""

    def failed(self) -> bool: ...  # noqa: D102
    def connect(  # noqa: D102
        self,
        *,
        number: int,
        psn: int,
        gid: bytes,
        lid: int,
        gid_index: int,
        mtu: int,
        reads_in: int,
        reads_out: int,
        remote_access: int,
    ) -> None: ...
    def close(self) -> None: ...  # noqa: D102


class Lanes(Protocol):
    """A session's connected queue pairs, as the binding's regions use them."""

    def region(self, ticket: Ticket, renew: Callable[[float], Mapping[str, Any]]) -> Region: ...
    def awaitable(self, region: Region, ticket: Ticket) -> AwaitableRegion: ...
    def ping(self, seconds: float) -> None: ...
    def reset(self, incarnation: int) -> None: ...
    def close(self) -> None: ...


OpenPair = Callable[[VerbsPair, float], None]
"""Connect a fresh queue pair to the server's, within seconds."""

Connected = Callable[[], bool]
"""Whether the control plane's connection is up."""


class Binding(Protocol):
    """One way to libibverbs. Access flags are the header's numbers."""

    LOCAL: int
    READ: int
    WRITE: int
    ATOMIC: int

    def prepare_for_fork(self) -> None: ...  # noqa: D102
    def device_names(self) -> list[str]: ...  # noqa: D102
    def open_device(self, name: str, port: int) -> VerbsDevice: ...  # noqa: D102
    def domain(self, device: VerbsDevice) -> VerbsDomain: ...  # noqa: D102
    def pair(self, domain: VerbsDomain, *, depth: int, max_inline: int) -> VerbsPair: ...  # noqa: D102
    def lanes(  # noqa: D102
        self, domain: VerbsDomain, connect: OpenPair, connected: Connected, *, max_message: int, depth: int, spin: float
    ) -> Lanes: ...


@cache
def load(name: str = DEFAULT_BINDING) -> Binding:
    """Import the binding called *name*, and let the process fork from now on.

    Raises:
        InvalidArgument: there is no such binding.
        TransportUnavailable: what it needs is not installed; the message names the package.
    """
    module = BINDINGS.get(name)
    if module is None:
        raise InvalidArgument(f"there is no verbs binding {name!r}; choose {' or '.join(BINDINGS)}")
    try:
        binding = cast("Binding", importlib.import_module(module))
    except ImportError as error:
        raise TransportUnavailable(_why_not(name, error)) from error
    binding.prepare_for_fork()
    return binding


def _why_not(name: str, error: ImportError) -> str:
    if name == "pyverbs":
        return (
            f"the pyverbs binding cannot be imported ({error}); install it and link it into .venv; run: "
            "apt-get install -y python3-pyverbs && make pyverbs"
        )
    if "libibverbs" in str(error):
        return f"libibverbs is missing ({error}); run: apt-get install -y libibverbs1 ibverbs-providers"
    return (
        f"this build of farpool has no rdma ({error}): it was built without libibverbs-dev; run: "
        "apt-get install -y libibverbs-dev && pip install --force-reinstall --no-cache-dir farpool"
    )
