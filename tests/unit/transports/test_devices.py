"""What is wrong with a DAX device, in one line with the command that mends it; on machines that this one is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from farpool.protocol.errors import TransportUnavailable
from farpool.transports.cxl.devices import dax_names, open_device, problem_of

UNIT = 2 << 20


def make_dax(root: Path, name: str, *, driver: str = "device_dax", size: int = 8 * UNIT) -> Path:
    """Make what sysfs says of one DAX device."""
    node = root / "devices/platform/region0" / name
    node.mkdir(parents=True)
    (node / "size").write_text(f"{size}\n")
    (node / "align").write_text(f"{UNIT}\n")
    (root / "bus/dax/devices").mkdir(parents=True, exist_ok=True)
    (root / "bus/dax/devices" / name).symlink_to(node)
    if driver:
        (root / "bus/dax/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (node / "driver").symlink_to(root / "bus/dax/drivers" / driver)
    return node


def test_a_working_device_has_no_problem(tmp_path: Path) -> None:
    make_dax(tmp_path, "dax1.0")
    make_dax(tmp_path, "dax0.0")
    assert dax_names(tmp_path) == ["dax0.0", "dax1.0"]
    assert problem_of("dax0.0", tmp_path) is None
    assert dax_names(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("driver", "size", "cause", "mend"),
    [
        ("kmem", UNIT, "system-ram mode", "daxctl reconfigure-device --force --mode=devdax dax0.0"),
        ("", UNIT, "no driver", "daxctl reconfigure-device --force --mode=devdax dax0.0"),
        ("fsdev_dax", UNIT, "the driver fsdev_dax", "daxctl reconfigure-device --force --mode=devdax dax0.0"),
        ("device_dax", 0, "no memory", "daxctl reconfigure-device --size=SIZE dax0.0"),
    ],
)
def test_each_problem_has_its_cause_and_command(tmp_path: Path, driver: str, size: int, cause: str, mend: str) -> None:
    make_dax(tmp_path, "dax0.0", driver=driver, size=size)
    problem = problem_of("dax0.0", tmp_path)
    assert problem is not None
    assert cause in problem
    assert mend in problem
    assert "\n" not in problem
    with pytest.raises(TransportUnavailable) as caught:  # such a device has no node in /dev
        open_device(str(tmp_path / "dev/dax0.0"), writable=True, sys_root=tmp_path)
    assert str(caught.value) == problem


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TransportUnavailable, match=r"there is no .*; run: daxctl list -D"):
        open_device(str(tmp_path / "dax0.0"), writable=True, sys_root=tmp_path)
    make_dax(tmp_path, "dax0.0")
    with pytest.raises(TransportUnavailable, match="no device node; run: udevadm trigger"):
        open_device(str(tmp_path / "dax0.0"), writable=True, sys_root=tmp_path)


@pytest.mark.parametrize("path", ["/dev/null", "/tmp"])
def test_what_is_no_memory_is_refused(path: str) -> None:
    with pytest.raises(TransportUnavailable, match="neither a DAX device nor a file"):
        open_device(path, writable=True)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TransportUnavailable, match="neither"):
        open_device(str(tmp_path / "pipe"), writable=False)


def test_no_permission_names_who_and_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "memory"
    path.write_bytes(bytes(UNIT))

    def refuse(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(TransportUnavailable, match=rf"no permission to open {path}: .* setfacl -m u:\w+:rw {path}"):
        open_device(str(path), writable=True)


def test_a_file_stands_for_a_device(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_bytes(bytes(UNIT + 5))
    device = open_device(str(path), writable=True)
    assert (device.kind, device.nbytes, device.align) == ("file", UNIT, UNIT)
    with device.map(0, 1, writable=True) as mapping:
        assert mapping.nbytes == UNIT
    device.close()
    device.close()
