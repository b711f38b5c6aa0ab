"""The trailer that tells a stored file from any other slab."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farpool.cli.file_trailer import TRAILER_NBYTES, FileTrailer
from farpool.protocol.errors import CorruptData

sizes = st.integers(1, (1 << 62) - TRAILER_NBYTES)
checksums = st.integers(0, (1 << 32) - 1)


@given(sizes, checksums, st.booleans())
def test_what_is_packed_is_unpacked(nbytes: int, checksum: int, complete: bool) -> None:
    trailer = FileTrailer(nbytes, checksum, complete)
    packed = trailer.pack()
    assert len(packed) == TRAILER_NBYTES
    assert FileTrailer.unpack(packed, nbytes + TRAILER_NBYTES) == trailer


@given(st.binary(max_size=2 * TRAILER_NBYTES), st.integers(1, 1 << 62))
def test_any_other_bytes_are_no_trailer_or_a_damaged_one(tail: bytes, nbytes: int) -> None:
    try:
        assert FileTrailer.unpack(tail, nbytes) is None
    except CorruptData:
        assert tail.startswith(b"FARPFILE")


@given(sizes, checksums, st.integers(8, TRAILER_NBYTES - 1), st.integers(0, 7))
def test_one_flipped_bit_is_seen(nbytes: int, checksum: int, position: int, bit: int) -> None:
    packed = bytearray(FileTrailer(nbytes, checksum, complete=True).pack())
    packed[position] ^= 1 << bit
    with pytest.raises(CorruptData):
        FileTrailer.unpack(bytes(packed), nbytes + TRAILER_NBYTES)


def test_a_trailer_of_another_slab_is_damage() -> None:
    packed = FileTrailer(100, 7, complete=True).pack()
    with pytest.raises(CorruptData, match="size"):
        FileTrailer.unpack(packed, 101 + TRAILER_NBYTES)
