"""Lessons row 18: the connection of a queue pair fails or times out, with a GID index that is wrong or has gone.

Here a routable RoCE v2 GID is chosen by itself, a choice that the port does not have is answered with the table, and
connecting a queue pair proves the path before the transport is chosen.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

import farpool
from farpool.transports.rdma import ports
from farpool.transports.rdma.binding import VerbsDevice

LINK_LOCAL = "fe80:0000:0000:0000:5054:00ff:fe77:0001"
GLOBAL = "2001:0db8:0000:0000:0000:0000:0000:0001"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a4d:0001"
V1, V2 = "IB/RoCE v1", "RoCE v2"


class OnePort:
    """As much of a device as the choice looks at."""

    name, port = "nic0", 1


def choose(wanted: int | None, root: Path) -> int:
    """Return the index that is chosen."""
    gid = ports._choose_gid(cast("VerbsDevice", OnePort()), wanted, root)  # pyright: ignore[reportPrivateUsage]
    return gid.index


def write_table(folder: Path, rows: list[tuple[str, str]]) -> None:
    """Write what the kernel shows of a port's GIDs."""
    port = folder / "class/infiniband" / OnePort.name / "ports" / "1"
    for part in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / part).mkdir(parents=True)
    for index, (address, kind) in enumerate(rows):
        (port / "gids" / str(index)).write_text(f"{address}\n")
        (port / "gid_attrs/types" / str(index)).write_text(f"{kind}\n")
        (port / "gid_attrs/ndevs" / str(index)).write_text("eth0\n")
    (port / "gids" / str(len(rows))).write_text("0000:0000:0000:0000:0000:0000:0000:0000\n")


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        ([(LINK_LOCAL, V1), (LINK_LOCAL, V2), (MAPPED, V1), (MAPPED, V2)], 3),
        ([(MAPPED, V2), (GLOBAL, V2)], 0),
        ([(LINK_LOCAL, V2), (GLOBAL, V1), (GLOBAL, V2)], 2),
        ([(GLOBAL, V1), (LINK_LOCAL, V2)], 1),
        ([(LINK_LOCAL, "")], 0),
    ],
)
def test_a_routable_roce_v2_gid_is_chosen(tmp_path: Path, rows: list[tuple[str, str]], chosen: int) -> None:
    write_table(tmp_path, rows)
    assert choose(None, tmp_path) == chosen


def test_another_choice_is_answered_with_the_table(tmp_path: Path) -> None:
    write_table(tmp_path, [(LINK_LOCAL, V1), (MAPPED, V2)])
    assert choose(0, tmp_path) == 0
    with pytest.raises(farpool.TransportUnavailable) as caught:
        choose(7, tmp_path)
    assert "no GID 7 on port 1" in str(caught.value)
    assert "0 (IB/RoCE v1 fe80::" in str(caught.value)
    assert "1 (RoCE v2 ::ffff:" in str(caught.value)


def test_a_port_without_any_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(farpool.TransportUnavailable, match="ip addr add"):
        choose(None, tmp_path)


@pytest.mark.lab
def test_the_choice_is_shown_and_proved(rdma_device: str) -> None:
    with farpool.serve_embedded(capacity="16MiB", transports=["rdma"]) as server:
        assert f"{rdma_device} port 1, GID" in server.log()
        with farpool.connect(server.url, transport="rdma") as pool:
            assert pool.stat().transports["rdma"]["connected"] == 1, "the probe connects a queue pair"
            pool.allocate(64).write(b"proved")
            assert pool.stat().transports["rdma"]["connected"] == 1, "and the first operation uses it"
        with pytest.raises(farpool.TransportUnavailable, match="no GID 77 on port 1; it has") as caught:
            farpool.connect(f"{server.url}?gid_index=77", transport="rdma")
        assert "RoCE v2" in str(caught.value)
