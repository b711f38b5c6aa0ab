"""Lessons row 5: the data was gone, and a get returned empty bytes with no error.

Here what was never there, what is lost and what is corrupt are three errors, and nothing is ever just empty.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import farpool
from farpool.cli.main import main

if TYPE_CHECKING:
    from farpool.server.embedded import EmbeddedServer


def test_never_there(pool: farpool.Pool) -> None:
    with pytest.raises(farpool.SlabNotFound, match="no slab named"):
        pool.open("never there")


def test_lost(own_server: EmbeddedServer, transport: str) -> None:
    """The file behind a slab disappears while the server is dead."""
    with farpool.connect(own_server.url, transport=transport, timeout=30) as pool:
        slab = pool.allocate(4096, name="lost", lease="persistent")
        slab.write(b"data")
        own_server.kill()
        for path in Path(own_server.arena).glob("slab-*"):
            path.unlink()
        own_server.start()
        pool.stat()
        target = bytearray(b"\xee" * 4)
        with pytest.raises(farpool.StaleSlab, match="freed, revoked or"):
            slab.read(4)
        with pytest.raises(farpool.StaleSlab):
            slab.read_into(target)
        assert target == b"\xee" * 4
        with pytest.raises(farpool.SlabNotFound):
            pool.open("lost")


def test_corrupt(server: EmbeddedServer, pool: farpool.Pool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A byte changed under a file that was put: it does not come back as if it were the file."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"model weights " * 1000)
    assert main(["put", str(source), "--name", "file", "--url", server.url]) == 0
    slab = pool.open("file")
    try:
        slab.write(b"X", offset=777)
        capfd.readouterr()
        assert main(["get", "file", str(target), "--url", server.url]) != 0
        assert "damaged: crc32c" in capfd.readouterr().err
        assert list(tmp_path.iterdir()) == [source]
    finally:
        slab.free()


def test_corrupt_version(own_server: EmbeddedServer, transport: str) -> None:
    """A byte changed under a committed version, behind the server's back."""
    with farpool.connect(own_server.url, transport=transport, timeout=30) as pool:
        slab = pool.allocate(4096, name="version")
        with slab.reserve() as draft:
            draft.write(b"model weights")
            draft.commit()
        (path,) = Path(own_server.arena).glob("slab-*")
        with path.open("r+b") as file:
            file.write(b"M")
        target = bytearray(13)
        for handle in (slab, pool.open("version", mode="r")):
            with pytest.raises(farpool.CorruptData, match="crc32c"):
                handle.read_into(target)


def test_three_errors_apart() -> None:
    for kind in (farpool.SlabNotFound, farpool.StaleSlab, farpool.CorruptData):
        others = {farpool.SlabNotFound, farpool.StaleSlab, farpool.CorruptData} - {kind}
        assert not issubclass(kind, tuple(others))
