"""The lab: what the command prints and its exit code come through, bounds hold, the devices work, nothing stays.

Every guest here runs without an accelerator: a boot takes ten to thirty seconds.
"""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from tests.lab.conftest import ROOT_OF_CHECKOUT, RunLab, StartLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

LINES = 300
ADDITIONS = 5_000_000
COUNTING = """
import sys
for number in range({lines}):
    print(f"out {{number}}", flush=True)
    print(f"err {{number}}", file=sys.stderr, flush=True)
print("no newline at the end", end="")
sys.exit({code})
"""


def qemus_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return [child for child in psutil.Process(process.pid).children(recursive=True) if "qemu" in child.name()]


@pytest.mark.parametrize("code", [0, 1, 42])
def test_output_and_exit_code_come_through(run_lab: RunLab, code: int) -> None:
    done = run_lab("--", "python", "-c", COUNTING.format(lines=LINES, code=code))
    assert done.returncode == code
    assert done.stdout.splitlines() == [*(f"out {number}" for number in range(LINES)), "no newline at the end"]
    assert done.stderr.splitlines() == [f"err {number}" for number in range(LINES)]


def test_a_guest_writes_to_the_folder_of_results_alone(run_lab: RunLab, tmp_path: Path) -> None:
    script = """
        set -e
        command -v farpool python
        echo one >tests/lab/written; cat tests/lab/written
        echo two >"$LAB_RESULTS/written"
        echo three >/tmp/written; echo four >/root/written
        touch /dev/shm/mine
        sleep 1000 & # holds our output open, and must not hold up the end
    """
    done = run_lab("--", "bash", "-c", script)
    assert done.returncode == 0, done.stderr
    programs = [f"{ROOT_OF_CHECKOUT}/.venv/bin/{name}" for name in ("farpool", "python")]
    assert done.stdout.splitlines() == [*programs, "one"]
    assert not (ROOT_OF_CHECKOUT / "tests/lab/written").exists()
    assert (tmp_path / "written").read_text() == "two\n"


def test_a_command_that_hangs_is_killed(run_lab: RunLab) -> None:
    done = run_lab("--timeout", "5", "--", "bash", "-c", "exec sleep 1000")
    assert done.returncode == 124
    assert "its command had not ended within 5 s (--timeout)" in done.stderr.splitlines()[-1]


def test_a_boot_that_hangs_is_killed(run_lab: RunLab) -> None:
    done = run_lab("--boot-timeout", "0.5", "--", "true")
    assert done.returncode == 125
    assert "it had not come up within 0.5 s (--boot-timeout)" in done.stderr.splitlines()[-1]


def test_a_guest_that_crashes_is_reported(run_lab: RunLab) -> None:
    done = run_lab("--", "bash", "-c", "echo c >/proc/sysrq-trigger; exec sleep 1000")
    assert done.returncode == 125
    assert "sysrq triggered crash" in done.stderr
    assert "the guest ended before its command did" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_run_that_is_ended_leaves_nothing(start_lab: StartLab, number: signal.Signals, code: int) -> None:
    with start_lab("--verbose", "--hosts", "2", "--cxl", "256M", "--", "sleep", "1000") as process:
        assert process.stderr is not None
        assert process.stderr.readline()  # the first line of a console: both guests run
        guests = qemus_of(process)
        process.send_signal(number)
        process.communicate()
    assert process.returncode == code
    assert len(guests) == 2
    assert psutil.wait_procs(guests, timeout=30)[1] == []


def test_the_devices_of_one_guest(run_lab: RunLab) -> None:
    done = run_lab("--rdma", "--cxl", "256M", "--", "bash", "tests/lab/programs/devices.sh")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\s*rxe0\b", done.stdout, re.MULTILINE)
    assert re.search(r"^\s*64\s+20\s", done.stdout, re.MULTILINE), "the row of ib_read_lat: bytes, iterations"
    assert re.search(r"^/dev/dax0.0: \d+ bytes$", done.stdout, re.MULTILINE)
    assert done.stdout.splitlines()[-2:] == ["cxl: 65536 bytes", "tcp: 65536 bytes"]


@pytest.mark.parametrize("kind", ["pmem", "nvdimm"])
def test_two_hosts(run_lab: RunLab, kind: str) -> None:
    options = ["--hosts", "2", "--rdma", "--cxl", "256M", "--cxl-kind", kind]
    done = run_lab(*options, "--", "bash", "tests/lab/programs/two_hosts.sh")
    assert done.returncode == 0, done.stderr
    expected = [f"{host}| {word}" for host in "AB" for word in ("pinged", "read", "exchanged")]
    assert sorted(done.stdout.splitlines()) == sorted(expected)


def test_atomics_of_two_hosts_on_an_nvdimm(run_lab: RunLab, tmp_path: Path) -> None:
    """QEMU must make them atomic, although a guest has one processor: two guests, two processes of the host."""
    program = tmp_path / "adds"
    subprocess.run(["cc", "-O2", "-o", program, ROOT_OF_CHECKOUT / "tests/lab/programs/adds.c"], check=True)
    options = ["--hosts", "2", "--cxl", "256M", "--cxl-kind", "nvdimm"]
    done = run_lab(*options, "--", "bash", "-c", f'"$LAB_RESULTS/adds" "$LAB_DAX" $LAB_NAME {ADDITIONS}')
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"A| {2 * ADDITIONS}", f"B| {2 * ADDITIONS}"]


def test_the_exit_code_of_two_hosts_is_the_first_that_is_not_0(run_lab: RunLab) -> None:
    done = run_lab("--hosts", "2", "--", "bash", "-c", "[[ $LAB_NAME == A ]] || exit 7")
    assert done.returncode == 7


LOSING = """
if [[ $LAB_NAME == A ]]; then echo b >/proc/sysrq-trigger; exec sleep 1000; fi
while ping -q -c 1 -W 1 "$LAB_PEER_IP" >/dev/null; do :; done
echo went on
exit 3
"""


@pytest.mark.parametrize(("options", "code"), [(["--lost", "A"], 3), ([], 125)], ids=["expected", "unexpected"])
def test_a_host_is_lost_and_the_other_goes_on(run_lab: RunLab, options: list[str], code: int) -> None:
    done = run_lab("--hosts", "2", *options, "--", "bash", "-c", LOSING)
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines() == ["B| went on"]
    reported = "guest A ended before its command did" in done.stderr
    assert reported == (code == 125)


def test_a_host_that_was_to_be_lost_and_ends_is_reported(run_lab: RunLab) -> None:
    done = run_lab("--hosts", "2", "--lost", "B", "--", "true")
    assert done.returncode == 125
    assert done.stderr.splitlines()[-1] == "farpool-lab: guest B was to be lost (--lost), and its command ended"


def test_what_cannot_be_asked_for(run_lab: RunLab) -> None:
    done = run_lab("--cxl", "100M", "--", "true")
    assert done.returncode == 2
    assert "'100M' is not a multiple of 256M up to 4G" in done.stderr
    done = run_lab("--lost", "A", "--", "true")
    assert done.returncode == 2
    assert "--lost needs a second host that goes on: --hosts 2" in done.stderr
