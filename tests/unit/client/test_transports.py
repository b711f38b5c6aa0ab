"""Which transport a session takes, and what it says of the others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from farpool.client.transports import Selection, TransportReport, select_transport
from farpool.protocol.errors import InvalidArgument, TransportUnavailable
from farpool.protocol.messages import Offer
from farpool.transports.contract import (
    AwaitableRegion,
    ClientContext,
    ClientTransport,
    Probe,
    Region,
    Ticket,
    Transport,
)

if TYPE_CHECKING:
    from typing import NoReturn


@dataclass
class Half:
    """A client half that is only ever probed."""

    probe_result: Probe | Exception = field(default_factory=lambda: Probe(usable=True))
    closed: bool = False

    def probe(self, offer: Offer, seconds: float) -> Probe:
        if isinstance(self.probe_result, Exception):
            raise self.probe_result
        return self.probe_result

    def attach(self, ticket: Ticket, seconds: float) -> Region:
        raise AssertionError

    def awaitable(self, region: Region, ticket: Ticket) -> AwaitableRegion:
        raise AssertionError

    def close(self) -> None:
        self.closed = True


class Installed:
    """The transports that are installed in a test, and what was loaded of them."""

    def __init__(self, **halves: Half | Exception) -> None:
        self.halves = halves
        self.found: list[str] = []
        self.loaded: list[str] = []

    def __call__(self, name: str) -> Transport:
        if name not in self.halves:
            raise InvalidArgument(f'there is no transport "{name}"')
        self.found.append(name)

        def client(context: ClientContext) -> ClientTransport:
            self.loaded.append(name)
            half = self.halves[name]
            if isinstance(half, Exception):
                raise half
            return half

        return Transport(name, {"cxl": 10, "rdma": 20, "tcp": 30}[name], no_server, client)


def no_server() -> NoReturn:
    raise AssertionError("a client has no use for the server half")


def offers(*names: str, **unavailable: str) -> list[Offer]:
    return [Offer(transport=name, available=True) for name in names] + [
        Offer(transport=name, available=False, reason=reason) for name, reason in unavailable.items()
    ]


def test_auto_takes_the_lowest_rank() -> None:
    installed = Installed(tcp=Half(), cxl=Half(), rdma=Half())
    selection = select_transport(offers("tcp", "rdma", "cxl"), "auto", installed)
    assert selection.name == "cxl"
    assert installed.loaded == ["cxl"], "those that rank after it are not loaded"
    assert [(report.name, report.status) for report in selection.report] == [
        ("cxl", "chosen"),
        ("rdma", "untried"),
        ("tcp", "untried"),
    ]


def test_auto_says_why_others_were_passed_over() -> None:
    cxl = Half(Probe(usable=False, reason="the server is on another host"))
    installed = Installed(cxl=cxl, tcp=Half())
    selection = select_transport(offers("cxl", "tcp", "warp", rdma="no device"), "auto", installed)
    assert selection.name == "tcp"
    reasons = {report.name: report.reason for report in selection.report}
    assert reasons["cxl"] == "the server is on another host"
    assert "not installed here" in reasons["warp"]
    assert "not installed here" in reasons["rdma"]
    assert reasons["tcp"] == ""
    assert cxl.closed, "the half that is not taken holds nothing"


def test_auto_takes_the_servers_reason() -> None:
    installed = Installed(rdma=Half(), tcp=Half())
    selection = select_transport(offers("tcp", rdma="no device; see farpool doctor"), "auto", installed)
    assert selection.report[0] == TransportReport("rdma", "unusable", "no device; see farpool doctor")
    assert installed.loaded == ["tcp"]


@pytest.mark.parametrize("half", [Half(OSError("it broke")), ImportError("it broke")])
def test_auto_survives_a_transport_that_fails(half: Half | Exception) -> None:
    selection = select_transport(offers("cxl", "tcp"), "auto", Installed(cxl=half, tcp=Half()))
    assert selection.name == "tcp"
    assert "it broke" in selection.report[0].reason


def test_auto_with_none_usable_lists_all_reasons() -> None:
    installed = Installed(cxl=Half(Probe(usable=False, reason="another host")), rdma=Half())
    with pytest.raises(TransportUnavailable, match=r"another host.*no device"):
        select_transport(offers("cxl", rdma="no device"), "auto", installed)
    with pytest.raises(TransportUnavailable, match="offers none"):
        select_transport([], "auto", installed)


@pytest.mark.parametrize(
    ("offered", "match"),
    [
        (offers("cxl", rdma="no device"), "no device"),
        (offers("cxl"), "does not offer"),
        (offers("cxl", "rdma"), "told so"),
    ],
)
def test_explicit_transport_is_never_switched(offered: list[Offer], match: str) -> None:
    """Lessons row 19."""
    installed = Installed(cxl=Half(), rdma=Half(Probe(usable=False, reason="told so")))
    with pytest.raises(TransportUnavailable, match=match):
        select_transport(offered, "rdma", installed)
    assert "cxl" not in installed.found


def test_explicit_transport_leaves_others_alone() -> None:
    """Lessons row 19."""
    installed = Installed(cxl=Half(), rdma=Half(), tcp=Half())
    selection: Selection = select_transport(offers("cxl", "rdma", "tcp"), "tcp", installed)
    assert installed.found == ["tcp"]
    assert {report.name: report.status for report in selection.report} == {
        "tcp": "chosen",
        "cxl": "untried",
        "rdma": "untried",
    }


def test_name_that_is_not_installed() -> None:
    with pytest.raises(InvalidArgument, match="warp"):
        select_transport(offers("tcp"), "warp", Installed(tcp=Half()))


# With real entry points -----------------------------------------------------------------------------

PACKAGE = """
from farpool.transports.contract import Probe, Transport

class Half:
    def probe(self, offer, seconds):
        return Probe(True)
    def close(self):
        pass

TRANSPORT = Transport({name!r}, 5, server=None, client=lambda context: Half())
"""

CHOICE = """
import sys
from farpool.client.transports import select_transport
from farpool.protocol.messages import Offer
offers = [Offer(transport=name, available=True) for name in ("near", "far", "cxl", "rdma", "tcp")]
print(select_transport(offers, "near").name)
print(*sorted(name for name in sys.modules if name in ("near", "far") or name.startswith("farpool.transports.")))
"""


@pytest.fixture
def install(tmp_path: Path) -> Callable[[str], Path]:
    """Install a package that offers a transport, in a folder for ``sys.path``."""

    def write(name: str) -> Path:
        (tmp_path / f"{name}.py").write_text(PACKAGE.format(name=name))
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[farpool.transports]\n{name} = {name}:TRANSPORT\n")
        return tmp_path

    return write


def test_asking_for_one_imports_no_other(install: Callable[[str], Path]) -> None:
    """Lessons row 19."""
    install("far")
    folder = install("near")
    program = f"import sys; sys.path.insert(0, {str(folder)!r})\n{CHOICE}"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.split("\n")[:2] == [
        "near",
        " ".join(f"farpool.transports.{name}" for name in ("contract", "reaching", "registry", "served")) + " near",
    ]
