"""Tar archives into a tree: as a stream that only goes forward. What may be in one is tested by those who unpack."""

import io
import tarfile
from pathlib import Path

import pytest

from sandbox_agent.archives.tarball import unpack
from sandbox_agent.archives.tree import Damaged, Folder, Tree
from sandbox_agent.install_errors import UnsafeArchive
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
    with pytest.raises(UnsafeArchive, match="far more than it is"):
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
