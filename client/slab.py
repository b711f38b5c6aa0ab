"""A slab as an application holds it. Its data methods are the region's own, no Python between."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from math import prod
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self, SupportsIndex, cast

from farpool.client import freeing, grants
from farpool.client.attachment import Attachment
from farpool.client.deadlines import deadline_after
from farpool.client.signatures import (
    Batch,
    CompareSwap,
    FetchAdd,
    Gather,
    Load,
    Read,
    Scatter,
    Store,
    Sync,
    Transfer,
    View,
)
from farpool.client.versions import VersionedRegion, Versions
from farpool.client.waiting import Waiter, notify
from farpool.protocol.errors import InvalidArgument, OutOfBounds, RegionInUse
from farpool.protocol.grant_messages import GrantInfo
from farpool.protocol.messages import SlabInfo
from farpool.protocol.units import Lease, parse_size
from farpool.transports.contract import Mode, Region
from farpool.transports.gathering import gathering_of

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from farpool.client.draft import Draft
    from farpool.transports.contract import Following

__all__ = ["DATA_METHODS", "Slab", "SlabHandle", "keep_error"]

DATA_METHODS = {
    "read_into": "``read_into(buffer, offset=0, timeout=None)``: fill *buffer*; return the bytes read.",
    "read": "``read(nbytes, offset=0, timeout=None)``: return new bytes from the slab.",
    "write": "``write(buffer, offset=0, timeout=None)``: copy *buffer* in; return the bytes written.",
    "readv": "``readv(parts, timeout=None)``: fill many ``(offset, buffer)`` in one batch; return the sum.",
    "writev": "``writev(parts, timeout=None)``: write many ``(offset, buffer)`` in one batch; return the sum",
    "gather": (
        "``gather(offsets, nbytes, out, timeout=None)``: fill *out* with the *nbytes* at each of *offsets*, an array "
        "of 8-byte integers, one part after the other; return the sum."
    ),
    "scatter": (
        "``scatter(offsets, nbytes, source, timeout=None)``: write *source* to the *nbytes* at each of *offsets*; "
        "return the sum. Of parts that overlap, any may be the last."
    ),
    "load": "``load(offset, timeout=None)``: return the aligned unsigned little-endian 8-byte word.",
    "store": "``store(offset, value, timeout=None)``: set the aligned word; readers see old or new, no mix.",
    "fetch_add": "``fetch_add(offset, value, timeout=None)``: add to the word, modulo 2**64; return the old one",
    "compare_swap": (
        "``compare_swap(offset, expected, new, timeout=None)``: set the word to *new* if it is *expected*; "
        "return the old value."
    ),
}
"""The methods that a region and its awaitable twin share, each with the docstring that ``help`` shows."""

MAPPED_METHODS = {
    "flush": "``flush(offset=0, nbytes=None)``: make our stores visible to other hosts.",
    "invalidate": "``invalidate(offset=0, nbytes=None)``: make other hosts' stores visible to our loads.",
    "view": "``view(offset=0, nbytes=None)``: the slab's memory, as a memoryview; ``NotMappable`` but on cxl.",
}


class Reserver(Protocol):
    """What a slab needs of its pool."""

    def reserve(self, slab: Slab, *, copy: bool, checksum: bool, timeout: float | None) -> Draft:
        """Make a draft of *slab*."""
        ...


class SlabHandle:
    """What a slab and its awaitable twin have in common: the facts, and the memory where it can be shown."""

    __slots__ = {
        "_attachment": "What was attached first.",
        "_pool": "A slab keeps its pool open.",
        "versions": "The memory that the slab has had since; not for applications.",
        **MAPPED_METHODS,
    }

    _label = "farpool.Slab"

    flush: Sync
    invalidate: Sync
    view: View

    def __init__(self, pool: object, attachment: Attachment) -> None:
        self._pool = pool
        self._attachment = attachment
        self.versions = Versions(attachment.owner, attachment.info, attachment.mode, attachment.bond)
        self.versions.exclusive = attachment.exclusive
        region = self._region()
        self.flush = region.flush
        self.invalidate = region.invalidate
        self.view = region.view

    def _region(self) -> Region:
        """Return what the methods are taken from: the transport's own region, if nothing must stand before it."""
        return self._attachment.region

    @property
    def attachment(self) -> Attachment:
        """The client's own record of what is attached now; not for applications."""
        return self.versions.current or self._attachment

    @property
    def exclusive(self) -> bool:
        """Whether this session alone may have the slab attached, by this handle."""
        return self.versions.alone

    @property
    def id(self) -> int:
        """Number of the slab; never used twice in one arena."""
        return self.attachment.info.id

    @property
    def generation(self) -> int:
        """Number of this life of the slab, which commits leave as it is; another one is another slab."""
        return self.attachment.info.generation

    @property
    def nbytes(self) -> int:
        """Size in bytes, as it was asked for."""
        return self.attachment.info.nbytes

    @property
    def name(self) -> str | None:
        """Name, unique in the tenant; None for a slab without one."""
        return self.attachment.info.name

    @property
    def lease(self) -> Lease:
        """``"session"``, ``"persistent"``, or seconds to live without its owner."""
        return self.attachment.info.lease

    @property
    def mode(self) -> Mode:
        """``"r"`` or ``"rw"``."""
        return self.attachment.mode

    @property
    def transport(self) -> str:
        """Name of the transport that its bytes travel by."""
        return self.attachment.transport

    @property
    def info(self) -> SlabInfo:
        """What the server said of the slab when it was attached."""
        return self.attachment.info

    def array(self, dtype: DTypeLike, shape: SupportsIndex | Iterable[SupportsIndex], offset: int = 0) -> NDArray[Any]:
        """Return the slab's own memory as a numpy array, read-only in mode ``"r"``.

        The array keeps the memory mapped for as long as it lives; ``close`` and ``free`` refuse until it is
        gone.

        Raises:
            NotMappable: this transport has no memory to show; read into an array of your own.
            OutOfBounds: the array would reach past the slab's end.
            InvalidArgument: a dtype of Python objects, or a negative shape.
        """
        import numpy as np  # noqa: PLC0415  not every user needs arrays

        kind = np.dtype(dtype)
        lengths = _parse_shape(shape)
        nbytes = prod(lengths) * kind.itemsize
        if kind.hasobject:
            raise InvalidArgument(f"far memory holds plain bytes; dtype {kind} has Python objects in it")
        if offset < 0 or offset + nbytes > self.nbytes:
            raise OutOfBounds(
                f"an array of {nbytes} bytes at offset {offset} reaches past the end of slab "
                f"{self.name or f'#{self.id}'}, which has {self.nbytes} bytes",
                offset=offset,
                asked=nbytes,
                nbytes=self.nbytes,
            )
        view = self.view(offset, nbytes)
        if not nbytes:
            return np.ndarray(lengths, kind)
        # Not ndarray(buffer=view): that takes the memory from the view, and doesn't keep the view alive.
        return np.frombuffer(view, kind).reshape(lengths)

    def map(self, *, cache: int | str = "16MiB") -> memoryview:
        """Return the slab as local memory; over cxl it is the slab's own, and *cache* is not needed.

        Raises:
            NotMappable: over other transports.
        """
        parse_size(cache, what="cache")
        return self.view()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"a {self._label} is attached by one process: it is neither copied nor pickled; "
            "pass its name or id, and open it there"
        )

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name is not None else ""
        return f"<{self._label}{name} #{self.id} {self.nbytes} bytes {self.mode} over {self.transport}>"


class Slab(SlabHandle):
    """One attached slab. Thread-safe; a ``with`` block closes it at its end, and the slab itself lives on.
    A block that an error ends lets that error out, even if views are alive and the slab stays attached.

    Offsets and lengths are bytes, ``timeout`` is seconds (None takes the pool's). Buffers are C-contiguous.
    Every data method raises ``StaleSlab`` once the slab was freed, has expired, or the handle is closed or its session
    has ended (but for shared slabs that outlive a server which stopped in order);
    ``OutOfBounds`` past the end, with no byte moved; ``ReadOnly`` for a write in mode ``"r"``; ``ServerLost``
    or ``DeadlineExceeded`` if the server dies or stops. The slab is let go once the handle, its methods and its
    views are all dropped.
    """

    __slots__ = DATA_METHODS  # a dict gives each slot its docstring

    read_into: Transfer[int]
    read: Read[bytes]
    write: Transfer[int]
    readv: Batch[int]
    writev: Batch[int]
    gather: Gather[int]
    scatter: Scatter[int]
    load: Load[int]
    store: Store[None]
    fetch_add: FetchAdd[int]
    compare_swap: CompareSwap[int]

    _pool: Reserver

    def __init__(self, pool: Reserver, attachment: Attachment) -> None:
        super().__init__(pool, attachment)
        region = self._region()
        self.read_into = region.read_into
        self.read = region.read
        self.write = region.write
        self.readv = region.readv
        self.writev = region.writev
        gathering = gathering_of(region, attachment.ticket.label)
        self.gather = gathering.gather
        self.scatter = gathering.scatter
        self.load = region.load
        self.store = region.store
        self.fetch_add = region.fetch_add
        self.compare_swap = region.compare_swap

    def wait(self, offset: int, expected: int, timeout: float | None = None) -> int:
        """Wait until the aligned word at *offset* is not *expected*, and return what it is then.

        Writes and atomics over cxl and tcp, and ``notify``, wake it at once; what comes through views or RDMA it sees
        after about a millisecond.

        Raises:
            StaleSlab: the slab ended meanwhile.
            DeadlineExceeded: the word has not changed in time.
        """
        deadline = deadline_after(timeout, self.attachment.ticket.timeout)
        return Waiter(self.attachment, self.versions, offset, expected, deadline).wait()

    def notify(self, offset: int, timeout: float | None = None) -> None:
        """Let whoever waits for the aligned word at *offset* look at it now; for stores through a view."""
        notify(self.attachment, self.versions, offset, deadline_after(timeout, self.attachment.ticket.timeout))

    def _region(self) -> Region:
        attachment, versions = self._attachment, self.versions
        if attachment.info.commits or not hasattr(attachment.region, "follow"):
            versions.current = attachment
            return VersionedRegion(versions)
        cast("Following", attachment.region).follow = versions.follow
        return attachment.region

    def reserve(self, *, copy: bool = False, checksum: bool = True, timeout: float | None = None) -> Draft:
        """Return a draft: memory of the same size for the slab's next version, zeroes or with *copy* its bytes of now.

        Readers see nothing of it before :meth:`farpool.Draft.commit`, and all of it after that. From the first commit
        on the slab changes by commits alone: its ordinary writes raise ``ReadOnly``. With *checksum* each block's
        crc32c is kept, and readers verify what they read.

        Raises:
            ReadOnly: this handle is for reading only.
            SlabBusy: another session has the slab for itself.
            PoolFull: there is no room for a second copy.
            StaleSlab: the slab has ended.
        """
        return self._pool.reserve(self, copy=copy, checksum=checksum, timeout=timeout)

    def free(self, *, timeout: float | None = None) -> None:
        """End the slab: its bytes are gone, and every handle of it raises ``StaleSlab``.

        Raises:
            RegionInUse: arrays or views made from this handle are alive; nothing was freed.
            ReadOnly: this handle is for reading only. The client sees to that; the server lets a tenant free its own.
            StaleSlab: it was gone already.
        """
        freeing.free(self.attachment, self._deadline(timeout))

    def grant(
        self, tenant: str, *, mode: str = "r", expires: float | None = None, timeout: float | None = None
    ) -> None:
        """Let another *tenant* attach the slab, in *mode* ``"r"`` or ``"rw"``, for *expires* seconds or its life.

        An earlier grant of that tenant is replaced; what it may do less than before is taken from it at once.

        Raises:
            PermissionDenied: the slab is not this tenant's.
            InvalidArgument: there is no such tenant, or it is this one.
        """
        grants.grant(self.attachment, tenant, mode, expires, self._deadline(timeout))

    def revoke(self, tenant: str, *, timeout: float | None = None) -> None:
        """Take the slab from another *tenant*: its sessions reach it no more when this returns.

        Over cxl the slab is copied to memory that nobody of that tenant has mapped. A tenant without a grant is no
        error.

        Raises:
            PoolFull: there is no room for that copy yet; the grant has ended, but what was mapped stays readable to
                processes of that tenant until the server finds room.
        """
        grants.revoke(self.attachment, tenant, self._deadline(timeout))

    def grants(self, *, timeout: float | None = None) -> Sequence[GrantInfo]:
        """Return the slab's grants: for each its tenant, mode, and the seconds until it ends."""
        return grants.list_grants(self.attachment, self._deadline(timeout))

    def _deadline(self, timeout: float | None) -> float:
        return deadline_after(timeout, self.attachment.ticket.timeout)

    def close(self) -> None:
        """Let go of the slab without freeing it. Idempotent.

        Raises:
            RegionInUse: arrays or views made from it are alive; delete them first.
        """
        self._attachment.let_go()
        self.versions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with keep_error(error):
            self.close()


@contextmanager
def keep_error(error: BaseException | None) -> Generator[None, None, None]:
    """Drop a ``RegionInUse`` if *error* ends the block already: what its traceback holds may well be the views."""
    try:
        yield
    except RegionInUse:
        if error is None:
            raise


def _parse_shape(shape: SupportsIndex | Iterable[SupportsIndex]) -> tuple[int, ...]:
    lengths = tuple(int(length) for length in shape) if isinstance(shape, Iterable) else (int(shape),)
    if any(length < 0 for length in lengths):
        raise InvalidArgument(f"a shape has no negative lengths, as {lengths} does")
    return lengths
