"""Archives that were tampered with: nothing lands outside, all of one or nothing is there, and work has a bound.

`corpus/archives/` has an archive for each way in which one can break out, or cost much. Each is tried as it is, and is
where changes begin. Put there what Hypothesis finds.
"""

import gzip
import io
import os
import tarfile
import tempfile
import tracemalloc
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from backports import zstd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxagent.core.archives.tar import DAMAGE, detect_packing, unpack_stream
from sandboxagent.protocol.errors import (
    ArchiveTooLarge,
    BadArchive,
    DiskFull,
    FileProblem,
    InstallFailed,
    UnsafeArchive,
)
from sandboxagent.server.agents.install.archive import extract
from sandboxagent.server.files.confined import Confined
from sandboxagent.server.files.upload import UploadLimits, receive
from tests.support.archives import extended, header

CORPUS = sorted((Path(__file__).parent / "corpus" / "archives").iterdir())
LIMITS = UploadLimits(bytes=1 << 20, entries=200, ratio=20, depth=64)
MEMORY = 16 << 20
"""Bytes that unpacking any of these may take."""
LARGEST = 1 << 16
"""Bytes of what changes begin with."""

bounded = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


class Sent:
    """What a client sends, as a thread reads it."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BufferedReader(io.BytesIO(data))  # pyright: ignore[reportArgumentType]
        self.count = 0

    def peek(self, size: int) -> bytes:
        return self._stream.peek(size)[:size]

    def read(self, size: int, /) -> bytes:
        part = self._stream.read(min(size, 4096))
        self.count += len(part)
        return part


@contextmanager
def place() -> Generator[Path]:
    """A root, with something in it, and something outside that must stay as it is."""
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory)
        (top / "root/into/old").mkdir(parents=True)
        (top / "root/into/file").write_text("old")
        (top / "outside").mkdir()
        (top / "outside/secret").write_text("secret")
        yield top
        assert sorted(os.listdir(top)) == ["outside", "root"]
        assert os.listdir(top / "outside") == ["secret"]
        assert (top / "outside/secret").read_text() == "secret"


@contextmanager
def bounded_memory() -> Generator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def listing(top: Path) -> dict[str, object]:
    """What is below a directory, however deep."""
    found: dict[str, object] = {}
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = Path(folder, name)
            kind = path.readlink() if path.is_symlink() else path.is_dir() or path.read_bytes()
            found[str(path.relative_to(top))] = kind
    return found


def check_upload(data: bytes) -> bool:
    """Send it as a client would; whether it was taken."""
    with place() as top:
        root = top / "root"
        before = listing(root)
        confined = Confined([str(root)], pinned=True)
        try:
            with bounded_memory():
                receive(confined, f"{root}/into", cast("Any", Sent(data)), LIMITS)
            taken = True
        except (ArchiveTooLarge, BadArchive, FileProblem):
            taken = False
        finally:
            confined.close()
        if taken:
            check_tree(root, listing(root))
        else:
            assert listing(root) == before
        return taken


def check_install(data: bytes, name: str) -> bool:
    """Unpack it as the archive of an agent."""
    with place() as top:
        archive, into = top / "root/archive", top / "root/new"
        archive.write_bytes(data)
        limits: dict[str, int] = {"max_bytes": LIMITS.bytes, "max_entries": LIMITS.entries}
        try:
            with bounded_memory():
                extract(archive, into, name=name, **limits)
        except (UnsafeArchive, InstallFailed, DiskFull):
            return False
        check_tree(into, listing(into))
        return True


def check_tree(top: Path, found: dict[str, object]) -> None:
    assert len(found) <= LIMITS.entries + 2
    assert sum(len(each) for each in found.values() if isinstance(each, bytes)) <= LIMITS.bytes + len(b"old")
    inside = os.path.realpath(top)
    for name, content in found.items():
        assert not Path(name).name.startswith(".sandbox-agent"), name
        if isinstance(content, Path):
            assert os.path.commonpath([inside, os.path.realpath(top / name)]) == inside, name


# --- as they are ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_an_archive_of_the_corpus_is_taken_whole_or_refused(path: Path) -> None:
    sound = path.name.startswith("sound")
    data = path.read_bytes()
    if path.suffix != ".zip":
        assert check_upload(data) is sound
    assert check_install(data, path.name) is sound


# --- changed ----------------------------------------------------------------------------------------------------------


def plain(path: Path) -> bytes:
    """Without its packing, as far as that goes."""

    data = path.read_bytes()
    try:
        return unpack_stream(io.BytesIO(data), detect_packing(data)).read(LARGEST)
    except DAMAGE:
        return data


TARS = [data for path in CORPUS if path.suffix != ".zip" if (data := plain(path))]
ZIPS = [path.read_bytes() for path in CORPUS if path.suffix == ".zip"]
FIELDS = {
    "name": (0, 100),
    "mode": (100, 8),
    "size": (124, 12),
    "type": (156, 1),
    "link": (157, 100),
    "prefix": (345, 155),
}
TYPES = [b"0", b"1", b"2", b"3", b"5", b"6", b"7", b"g", b"x", b"X", b"L", b"K", b"S", b"\0", b"Q"]
SIZES = [
    b"00000000000\0",
    b"00000000001\0",
    b"00000001000\0",
    b"77777777777\0",
    b"\x80" + b"\xff" * 11,
    b"\xff" * 12,
    b"x" * 12,
]
NAMES = [
    "a",
    "a/b",
    "../x",
    "/etc/x",
    "a/../../x",
    ".",
    "",
    "link",
    "link/x",
    "LINK/x",
    "file",
    "old",
    "d/" * 40 + "f",
    "n" * 300,
]
NAMES += ["d/" * 3000, "a\0b", "a\\..\\b", "grün\udcff", "./" * 50 + "x", "//x", "a/", "into/../../outside/secret"]
RECORDS = ["path", "linkpath", "size", "GNU.sparse.map", "GNU.sparse.major", "comment", "hdrcharset", "mtime"]
VALUES = [*NAMES[:15], "-1", "0", "5", "9" * 30, "1e9", "BINARY", "x" * 5000]

blocks = st.integers(0, 40)
values = st.sampled_from([*SIZES, *TYPES, *(name.encode("utf-8", "surrogateescape") for name in NAMES)])
changes = st.one_of(
    st.tuples(st.just("byte"), st.integers(0, LARGEST), st.binary(min_size=1, max_size=8)),
    st.tuples(st.just("field"), blocks, st.sampled_from(sorted(FIELDS)), values),
    st.tuples(st.just("records"), blocks, st.sampled_from([tarfile.XHDTYPE, tarfile.XGLTYPE]), st.data()),
    st.tuples(st.just("drop"), blocks, st.integers(1, 4)),
    st.tuples(st.just("repeat"), blocks, st.integers(1, 4), st.integers(1, 60)),
    st.tuples(st.just("cut"), st.integers(0, LARGEST)),
)
packings = st.sampled_from([bytes, lambda data: gzip.compress(data, 1), zstd.compress])


def changed(data: bytearray, change: tuple[Any, ...]) -> bytearray:
    match change:
        case "byte", at, value:
            at %= len(data) + 1
            data[at : at + len(value)] = value
        case "field", block, field, value:
            data = with_field(data, block * 512, FIELDS[field], value)
        case "records", block, type, draw:
            said = draw.draw(st.dictionaries(st.sampled_from(RECORDS), st.sampled_from(VALUES), max_size=3))
            data[block * 512 : block * 512] = extended(type=type, **said)
        case "drop", block, count:
            del data[block * 512 : (block + count) * 512]
        case "repeat", block, count, times:
            data[block * 512 : block * 512] = data[block * 512 : (block + count) * 512] * times
        case _, at:
            del data[at % (len(data) + 1) :]
    return data


def with_field(data: bytearray, at: int, field: tuple[int, int], value: bytes) -> bytearray:
    """Another field in a header, which then has the checksum that it needs."""
    head = data[at : at + 512]
    if len(head) < 512:
        return data
    start, length = field
    head[start : start + length] = value[:length].ljust(length, b"\0")
    head[148:156] = b" " * 8
    head[148:156] = f"{sum(head):06o}\0 ".encode()
    data[at : at + 512] = head
    return data


@bounded
@given(
    seed=st.sampled_from(TARS),
    changing=st.lists(changes, min_size=1, max_size=6),
    pack=packings,
    damage=st.none() | st.tuples(st.integers(0, LARGEST), st.integers(0, 255)),
)
def test_a_tar_archive_that_was_changed_is_taken_whole_or_refused(
    seed: bytes, changing: list[tuple[Any, ...]], pack: Any, damage: tuple[int, int] | None
) -> None:
    data = bytearray(seed)
    for change in changing:
        data = changed(data, change)[: 4 * LARGEST]
    packed = bytearray(pack(bytes(data)))
    if damage is not None and packed:
        packed[damage[0] % len(packed)] = damage[1]
    check_upload(bytes(packed))


@bounded
@given(
    seed=st.sampled_from(ZIPS),
    changing=st.lists(st.tuples(st.integers(0, LARGEST), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6),
    cut=st.none() | st.integers(0, LARGEST),
)
def test_a_zip_archive_that_was_changed_is_unpacked_or_refused(
    seed: bytes, changing: list[tuple[int, bytes]], cut: int | None
) -> None:
    data = bytearray(seed)
    for at, value in changing:
        data = changed(data, ("byte", at, value))
    check_install(bytes(data[:cut]), "a.zip")


entries = st.tuples(
    st.sampled_from(NAMES), st.sampled_from(TYPES), st.sampled_from(NAMES), st.integers(0, 3), st.booleans()
)


@bounded
@given(entries=st.lists(entries, max_size=12), pack=packings)
def test_an_archive_of_any_entries_is_taken_whole_or_refused(
    entries: list[tuple[str, bytes, str, int, bool]], pack: Any
) -> None:
    data = b""
    for name, type, target, size, spelled in entries:
        said = {"path": name, "linkpath": target} if spelled else {}
        data += extended(**said) if said else b""
        data += header(name if not spelled else "x", type=type, size=size * 300, to=target if not spelled else "y")
        data += b"x" * (-(-size * 300 // 512) * 512)
    check_upload(pack(data + bytes(1024)))
