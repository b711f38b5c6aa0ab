"""``farpool get``: bring a slab back into a file, and verify it."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from crc32c import crc32c

import farpool
from farpool.cli.file_trailer import TRAILER_NBYTES, FileTrailer
from farpool.cli.options import AsJson, DataTransport, Tenant, Timeout, Url, name_or_id
from farpool.cli.output import warn
from farpool.cli.screens import Advance, progress_bar
from farpool.cli.transfers import CHUNK_NBYTES, Transfer
from farpool.protocol.errors import CorruptData, InvalidArgument

if TYPE_CHECKING:
    from farpool.client.slab import Slab

__all__ = ["get"]


def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The slab's name, or its id.", show_default=False)],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.", show_default=False)],
    transport: DataTransport = "auto",
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    timeout: Timeout = 10.0,
) -> None:
    """Write a slab to a file; what `put` stored is verified, and a damaged file is never left behind."""
    target = _target(file)
    with (
        farpool.connect(url, tenant=tenant, transport=transport, timeout=timeout) as pool,
        pool.open(name_or_id(name), mode="r") as slab,
    ):
        trailer = _trailer(slab, name)
        nbytes = slab.nbytes if trailer is None else trailer.nbytes
        started = time.perf_counter()
        with _replacing(target) as sink, progress_bar(name, nbytes) as advance:
            checksum = _load(slab, nbytes, sink, advance)
            if trailer is not None and checksum != trailer.checksum:
                found = f"crc32c {checksum:08x}, not {trailer.checksum:08x} as put"
                raise CorruptData(f"the bytes of slab {name!r} are damaged: {found}; no file was written")
        if trailer is None:
            warn(f"slab {name!r} was not stored by put: all its bytes were copied, with no checksum to verify")
        transfer = Transfer(
            op="get",
            id=slab.id,
            name=slab.name,
            nbytes=nbytes,
            crc32c=None if trailer is None else f"{checksum:08x}",
            transport=slab.transport,
            seconds=time.perf_counter() - started,
        )
    transfer.report(as_json=as_json)


def _target(file: Path) -> Path:
    """Return the file to replace, behind all links; ``InvalidArgument`` if it cannot be a regular one."""
    if str(file) == "-":
        raise InvalidArgument(
            'get writes no standard output, since it verifies first; name a file ("./-" for that one)'
        )
    target = Path(os.path.realpath(file))
    if not target.parent.is_dir():
        raise InvalidArgument(f"there is no directory {str(target.parent)!r} to write to")
    if target.exists() and not target.is_file():
        raise InvalidArgument(f"{str(file)!r} is no regular file; name a file to write")
    return target


def _trailer(slab: Slab, name: str) -> FileTrailer | None:
    if slab.nbytes < TRAILER_NBYTES:
        return None
    trailer = FileTrailer.unpack(slab.read(TRAILER_NBYTES, slab.nbytes - TRAILER_NBYTES), slab.nbytes)
    if trailer is not None and not trailer.complete:
        mend = "wait for it, or free the slab and put the file again"
        raise CorruptData(f"slab {name!r} holds half a file: its put is still running or was killed; {mend}")
    return trailer


def _load(slab: Slab, nbytes: int, sink: FileIO, advance: Advance) -> int:
    """Copy the slab's first *nbytes* into *sink*; return their CRC-32C."""
    buffer = memoryview(bytearray(min(CHUNK_NBYTES, nbytes)))
    checksum = 0
    for position in range(0, nbytes, CHUNK_NBYTES):
        chunk = buffer[: nbytes - position]
        slab.read_into(chunk, position)
        checksum = crc32c(chunk, checksum)
        _write_all(sink, chunk)
        advance(len(chunk))
    return checksum


def _write_all(sink: FileIO, chunk: memoryview) -> None:
    while chunk:
        chunk = chunk[sink.write(chunk) :]


@contextmanager
def _replacing(target: Path) -> Generator[FileIO]:
    """Give a file beside *target* that takes its place if the block ends well, and vanishes otherwise."""
    part = target.with_name(f"{target.name}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with FileIO(os.open(part, flags, 0o666), "wb") as sink:
        _take_over(sink, part)
        try:
            yield sink
            part.replace(target)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise


def _take_over(sink: FileIO, part: Path) -> None:
    """Empty what a killed get may have left at *part*, unless another get is writing there now."""
    if not stat.S_ISREG(os.fstat(sink.fileno()).st_mode):
        raise InvalidArgument(f"{str(part)!r} is in the way and no regular file; remove it")
    try:
        fcntl.flock(sink, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours = os.path.samestat(os.fstat(sink.fileno()), part.lstat())
    except (BlockingIOError, FileNotFoundError):
        ours = False
    if not ours:
        raise InvalidArgument(f"another farpool get is writing {str(part)!r}; wait until it has ended")
    sink.truncate(0)
