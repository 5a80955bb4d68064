"""Tar archives into a tree: how they are packed, as a stream that only goes forward. What unpacks them tests more."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zlib
from pathlib import Path

import pytest
from backports import zstd

from sandboxagent.core.archives.tar import (
    DAMAGE,
    MAX_MEMORY_BYTES,
    MAX_WINDOW_LOG,
    Packing,
    detect_packing,
    make_packer,
    unpack,
    unpack_stream,
)
from sandboxagent.core.archives.tree import Damaged, Folder, Tree
from sandboxagent.protocol.errors import UnsafeArchive
from tests.support.archives import member, tar


class Dripping:
    """A stream that gives little at a time, and counts."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)
        self.given = 0

    def read(self, size: int, /) -> bytes:
        part = self._stream.read(min(size, 77))
        self.given += len(part)
        return part


def test_a_stream_that_gives_little_at_a_time_is_read_to_its_end(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar", *(member(f"d/{number}", b"x" * 700) for number in range(20)), packing="")
    stream = Dripping(archive.read_bytes())
    tree = Tree(Folder(tmp_path / "into"), "a", max_bytes=20_000, max_entries=100)
    unpack(stream, tree, max_bytes=20_000, max_entries=100)
    tree.finish()
    assert len(list((tmp_path / "into/d").iterdir())) == 20
    assert stream.given == archive.stat().st_size


def test_no_more_than_is_allowed_by_now_is_read(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar", member("a", bytes(500_000)), packing="")
    stream = Dripping(archive.read_bytes())
    tree = Tree(Folder(tmp_path / "into"), "a", max_bytes=1 << 20, max_entries=100)
    with pytest.raises(UnsafeArchive, match="far more than its own size"):
        unpack(stream, tree, max_bytes=1 << 20, max_entries=100, allowed=lambda: 100_000)
    assert stream.given < 200_000


def test_a_header_that_makes_no_sense_is_damage_and_an_error_of_the_disk_is_not(tmp_path: Path) -> None:
    tree = Tree(Folder(tmp_path / "into"), "a", max_bytes=1000, max_entries=10)
    with pytest.raises(Damaged):
        unpack(Dripping(b"x" * tarfile.BLOCKSIZE), tree, max_bytes=1000, max_entries=10)
    (tmp_path / "into").rmdir()
    archive = tar(tmp_path / "a.tar", member("a", b"x"), packing="")
    with pytest.raises(FileNotFoundError):
        unpack(Dripping(archive.read_bytes()), tree, max_bytes=1000, max_entries=10)


DATA = b"some text " * 1000
PACKED: dict[Packing, bytes] = {
    "": DATA,
    "gz": gzip.compress(DATA),
    "bz2": bz2.compress(DATA),
    "xz": lzma.compress(DATA),
    "zst": zstd.compress(DATA),
}


@pytest.mark.parametrize("kind", PACKED)
def test_a_stream_is_known_by_its_first_bytes_and_unpacked(kind: Packing) -> None:
    assert detect_packing(PACKED[kind][:6]) == kind
    stream = unpack_stream(io.BytesIO(PACKED[kind]), kind)
    assert b"".join(iter(lambda: stream.read(999), b"")) == DATA


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst"])
def test_what_is_cut_off_or_changed_is_damage(kind: Packing) -> None:
    noise = os.urandom(50_000)
    whole = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd.compress}[kind](noise)
    for data in (whole[:-5], whole[: len(whole) // 2]):
        with pytest.raises(DAMAGE):
            unpack_stream(io.BytesIO(data), kind).read(100_000)


def test_zstd_may_not_ask_for_much_memory() -> None:
    def packed(window: int) -> bytes:
        compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: window})
        return compressor.compress(DATA) + compressor.flush()

    assert unpack_stream(io.BytesIO(packed(MAX_WINDOW_LOG)), "zst").read(100_000) == DATA
    with pytest.raises(DAMAGE):
        unpack_stream(io.BytesIO(packed(MAX_WINDOW_LOG + 1)), "zst").read(100_000)


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_what_is_packed_piece_by_piece_can_be_unpacked(kind: Packing) -> None:
    assert kind in ("gz", "zst")
    pack = make_packer(kind)
    data = b"".join(pack.compress(DATA[at : at + 77]) for at in range(0, len(DATA), 77)) + pack.flush()
    stream = unpack_stream(io.BytesIO(data), kind)
    assert b"".join(iter(lambda: stream.read(9999), b"")) == DATA


def test_xz_may_not_ask_for_much_memory() -> None:
    def packed(size: int) -> bytes:
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": size}]
        return lzma.compress(DATA, filters=filters)

    def rewritten(size_code: int) -> bytes:
        """As if it had been packed with a larger dictionary, which the header alone says."""
        data = bytearray(packed(1 << 20))
        data[16] = size_code
        data[20:24] = zlib.crc32(data[12:20]).to_bytes(4, "little")
        return bytes(data)

    assert unpack_stream(io.BytesIO(packed(MAX_MEMORY_BYTES // 2)), "xz").read(100_000) == DATA
    with pytest.raises(DAMAGE):
        unpack_stream(io.BytesIO(rewritten(40)), "xz").read(100_000)


def test_xz_archives_may_follow_each_other() -> None:
    data = lzma.compress(DATA) + bytes(8) + lzma.compress(DATA) + bytes(4)
    assert unpack_stream(io.BytesIO(data), "xz").read(100_000) == DATA * 2
    with pytest.raises(DAMAGE):
        unpack_stream(io.BytesIO(data + b"junk"), "xz").read(100_000)
