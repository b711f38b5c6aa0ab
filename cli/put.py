"""``farpool put``: store a file in a slab, with its checksum."""

from __future__ import annotations

import os
import stat
import time
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from crc32c import crc32c

import farpool
from farpool.cli.file_trailer import TRAILER_NBYTES, FileTrailer
from farpool.cli.options import AsJson, DataTransport, KeptLease, Tenant, Timeout, Url, parse_kept_lease
from farpool.cli.output import warn
from farpool.cli.screens import Advance, progress_bar
from farpool.cli.transfers import CHUNK_NBYTES, Transfer
from farpool.protocol.errors import CorruptData, FarpoolError, InvalidArgument

if TYPE_CHECKING:
    from farpool.client.slab import Slab

__all__ = ["put"]


def put(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to store.", show_default=False)],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The slab's name. Default: that of the file.")
    ] = None,
    lease: KeptLease = "persistent",
    transport: DataTransport = "auto",
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    timeout: Timeout = 10.0,
) -> None:
    """Store a file in a slab of its own, with a checksum that `get` verifies."""
    kept = parse_kept_lease(lease)
    with (
        _open_regular(file) as source,
        farpool.connect(url, tenant=tenant, transport=transport, timeout=timeout) as pool,
    ):
        nbytes = os.fstat(source.fileno()).st_size
        slab = pool.allocate(nbytes + TRAILER_NBYTES, name=file.name if name is None else name, lease=kept)
        started = time.perf_counter()
        try:
            with progress_bar(file.name, nbytes) as advance:
                checksum = _store(source, file, nbytes, slab, advance)
        except BaseException:
            _free_quietly(slab)
            raise
        transfer = Transfer(
            op="put",
            id=slab.id,
            name=slab.name,
            nbytes=nbytes,
            crc32c=f"{checksum:08x}",
            transport=slab.transport,
            seconds=time.perf_counter() - started,
        )
        slab.close()
    transfer.report(as_json=as_json)


def _open_regular(file: Path) -> FileIO:
    """Open *file* for reading; raises ``InvalidArgument`` unless it is a regular file with some bytes."""
    try:
        # Without O_NONBLOCK a FIFO that nobody writes to would block for good.
        source = FileIO(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except FileNotFoundError:
        if str(file) == "-":
            raise InvalidArgument(
                "put reads no standard input: its size is not known; save it to a file first"
            ) from None
        raise InvalidArgument(f"there is no file {str(file)!r}") from None
    except IsADirectoryError:
        raise InvalidArgument(f"{str(file)!r} is a directory; put stores one file") from None
    facts = os.fstat(source.fileno())
    if stat.S_ISREG(facts.st_mode) and facts.st_size > 0:
        return source
    made_when_read = stat.S_ISREG(facts.st_mode) and source.read(1) != b""
    source.close()
    if made_when_read:
        raise InvalidArgument(f"{str(file)!r} has no size before it is read; copy it to a file first, and put that")
    if stat.S_ISREG(facts.st_mode):
        raise InvalidArgument(f"{str(file)!r} is empty: there is nothing to put")
    raise InvalidArgument(f"{str(file)!r} is no regular file, so its size is not known; save it to a file first")


def _store(source: FileIO, file: Path, nbytes: int, slab: Slab, advance: Advance) -> int:
    """Copy the file and seal it with its trailer; return the CRC-32C of its bytes."""
    before = os.fstat(source.fileno())
    slab.write(FileTrailer(nbytes).pack(), nbytes)
    buffer = memoryview(bytearray(min(CHUNK_NBYTES, nbytes)))
    checksum = position = 0
    while position < nbytes:
        count = source.readinto(buffer[: nbytes - position])
        if not count:
            break
        chunk = buffer[:count]
        checksum = crc32c(chunk, checksum)
        slab.write(chunk, position)
        position += count
        advance(count)
    after = os.fstat(source.fileno())
    if position < nbytes or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise CorruptData(f"{str(file)!r} changed while it was read; put it again when nobody writes to it")
    slab.write(FileTrailer(nbytes, checksum, complete=True).pack(), nbytes)
    return checksum


def _free_quietly(slab: Slab) -> None:
    """Free the slab of a put that failed; the first error will be raised, so another is only mentioned."""
    try:
        slab.free()
    except FarpoolError as error:
        warn(f"slab {slab.id} could not be freed: {error.message}")
