"""Who holds a file, as the kernel sees it: tried with real descriptors, mappings and processes on tmpfs."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farpool.native.mapping import Mapping
from farpool.server.held_files import sees_holders, take_back

NBYTES = 1 << 16

HOLDER = """
import os, sys
from farpool.native.mapping import Mapping
fd = os.open(sys.argv[1], os.O_RDONLY)
mapping = Mapping(fd, 4096, writable=False)
os.close(fd)
child = os.fork()
if child:
    print(child, flush=True)
sys.stdin.read()
"""

OPENER = """
import os, sys
print("begun", flush=True)
while True:
    try:
        os.close(os.open(sys.argv[1], os.O_RDWR))
    except FileNotFoundError:
        pass
"""

TAKER = """
import os, sys
from farpool.server.held_files import take_back
folder = os.open(sys.argv[1], os.O_RDONLY)
for turn in range(3000):
    fd = os.open("file", os.O_RDWR | os.O_CREAT, 0o600, dir_fd=folder)
    os.posix_fallocate(fd, 0, 4096)
    os.close(fd)
    while not take_back("file", folder):
        pass
print("done")
"""


@pytest.fixture
def folder(memory_folder: Path) -> Iterator[int]:
    descriptor = os.open(memory_folder, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def file(memory_folder: Path) -> Path:
    path = memory_folder / "file"
    path.write_bytes(b"x" * NBYTES)
    return path


def test_what_nobody_holds_goes(file: Path, folder: int) -> None:
    assert take_back("file", folder)
    assert not file.exists()
    assert take_back("file", folder), "what is not there is nobody's"


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
def test_an_open_file_is_held(file: Path, folder: int, flags: int) -> None:
    descriptor = os.open(file, flags)
    twin = os.dup(descriptor)
    os.close(descriptor)
    assert not take_back("file", folder)
    assert file.read_bytes() == b"x" * NBYTES
    os.close(twin)
    assert take_back("file", folder)


@pytest.mark.parametrize("writable", [False, True])
def test_a_mapped_file_is_held(file: Path, folder: int, writable: bool) -> None:
    descriptor = os.open(file, os.O_RDWR if writable else os.O_RDONLY)
    mapping = Mapping(descriptor, 4096, writable=writable)
    os.close(descriptor)
    assert not take_back("file", folder)
    with memoryview(mapping) as view:
        assert bytes(view[:4]) == b"xxxx"
    mapping.close()
    assert take_back("file", folder)


def test_a_descriptor_that_nobody_has_received_holds(file: Path, folder: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        with file.open("rb") as opened:
            socket.send_fds(ours, [b"!"], [opened.fileno()])
        assert not take_back("file", folder)
        _, received, _, _ = socket.recv_fds(theirs, 1, 1)
        assert not take_back("file", folder)
        os.close(*received)
    assert take_back("file", folder)


def test_a_childs_mapping_holds_until_the_child_is_dead(file: Path, folder: int) -> None:
    command = [sys.executable, "-W", "ignore", "-c", HOLDER, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            parent.wait()
            assert not take_back("file", folder)
            signal.pidfd_send_signal(child, signal.SIGKILL)
            assert select.select([child], [], [], 20)[0]
            assert take_back("file", folder)
        finally:
            os.close(child)


def test_a_descriptor_without_rights_keeps_no_page(file: Path, folder: int) -> None:
    descriptor = os.open(file, os.O_PATH)
    try:
        assert take_back("file", folder)
        assert (os.fstat(descriptor).st_blocks, os.fstat(descriptor).st_nlink) == (0, 0)
    finally:
        os.close(descriptor)


def test_who_opens_the_file_meanwhile_does_not_harm_us(memory_folder: Path) -> None:
    """A broken lease is told by a signal, which ends a process unless it is another one."""
    opener = [sys.executable, "-c", OPENER, str(memory_folder / "file")]
    with subprocess.Popen(opener, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"begun\n"
            taker = [sys.executable, "-c", TAKER, str(memory_folder)]
            done = subprocess.run(taker, capture_output=True, text=True, timeout=60, check=False)
            assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
            assert other.poll() is None
        finally:
            other.kill()


def test_the_trial_leaves_nothing(folder: int) -> None:
    assert sees_holders(folder)
    assert os.listdir(folder) == []


def test_where_there_are_no_leases_nothing_is_seen() -> None:
    folder = os.open("/proc/self", os.O_RDONLY)
    try:
        assert not sees_holders(folder)
    finally:
        os.close(folder)
