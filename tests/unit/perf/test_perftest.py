"""perftest's programs as limits: what their reports say, and programs that do not work."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from farpool import ServerLost
from farpool.perf.perftest import LATENCY, THROUGHPUT, PerftestLimits, is_installed, parse_report
from farpool.perf.rdma_port import RdmaPort

PORT = RdmaPort("rxe0", 1, 1, emulated=True)

LATENCY_REPORT = """\
                    RDMA_Read Latency Test
 Dual-port       : OFF		Device         : rxe0
 Outstand reads  : 128
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0011 PSN 0xb84b4d OUT 0x80 RKey 0x0003fe VAddr 0x0055fbf5a01000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:77:00:01
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% [usec]
 64      2000          25.97          385.39       52.28    	       47.79       	19.75  		133.23
---------------------------------------------------------------------------------------
"""

THROUGHPUT_REPORT = """\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      500              61.15              50.00  		   0.000866
"""

PROGRAM = """\
#!/bin/sh
case "$*" in
*127.0.0.1) {client} ;;
*) {server} ;;
esac
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a folder first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def install(folder: Path, name: str, *, client: str, server: str = "exec sleep 60") -> None:
    path = folder / name
    path.write_text(PROGRAM.format(client=client, server=server))
    path.chmod(0o755)


def print_report(report: str) -> str:
    return f"cat <<'END'\n{report}END\n"


def test_the_number_that_counts() -> None:
    assert parse_report(LATENCY, LATENCY_REPORT) == 52.28
    assert parse_report(THROUGHPUT, THROUGHPUT_REPORT) == 50.0


@pytest.mark.parametrize("report", ["", "Couldn't connect to 127.0.0.1:18515\n", " 64 2000\n", "64 a b c d e\n"])
def test_a_report_without_a_number(report: str) -> None:
    with pytest.raises(ServerLost, match="ib_read_lat has reported no number"):
        parse_report(LATENCY, report)


def test_a_single_read_is_one_of_ib_read_lat(programs: Path) -> None:
    install(programs, LATENCY, client=print_report(LATENCY_REPORT))
    samples = array("q", [0, 0])
    limit = PerftestLimits(PORT).read(array("q", [0]), bytearray(64), 64)
    assert limit.name == LATENCY
    assert limit.run is not None
    assert limit.run(1, samples, 0.1) == 1
    assert limit.run(10, samples, 0.1) == 1
    assert samples.tolist() == [522_800, 0]


def test_a_batch_is_one_of_ib_read_bw(programs: Path) -> None:
    install(programs, THROUGHPUT, client=print_report(THROUGHPUT_REPORT))
    samples = array("q", [0])
    limit = PerftestLimits(PORT).read(array("q", [0]), bytearray(16 << 16), 1 << 16)
    assert limit.name == THROUGHPUT
    assert limit.run is not None
    assert limit.run(1, samples, 0.1) == 1
    assert samples.tolist() == [20_000_000]  # 1 MiB at 50 MiB/s


def test_a_client_waits_until_its_server_listens(programs: Path, tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    install(programs, LATENCY, client=f"[ -e {tried} ] || {{ touch {tried}; exit 1; }}; {print_report(LATENCY_REPORT)}")
    limit = PerftestLimits(PORT).read(array("q", [0]), bytearray(64), 64)
    assert limit.run is not None
    assert limit.run(1, array("q", [0]), 0.1) == 1


def test_a_server_that_ends_says_why(programs: Path) -> None:
    install(programs, LATENCY, client="exit 1", server="echo no such device >&2; exit 1")
    limit = PerftestLimits(PORT).read(array("q", [0]), bytearray(64), 64)
    assert limit.run is not None
    with pytest.raises(ServerLost, match="ib_read_lat does not run here: no such device"):
        limit.run(1, array("q", [0]), 0.1)


def test_without_both_programs_there_is_no_such_limit(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(programs))
    assert not is_installed()
    install(programs, LATENCY, client="true")
    assert not is_installed()
    install(programs, THROUGHPUT, client="true")
    assert is_installed()
