"""Archives that clients send: all of one is moved in, or nothing is changed, and nothing ever appears elsewhere."""

import asyncio
import gzip
import os
import stat
import tarfile
import tempfile
import threading
import tracemalloc
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxagent.protocol.errors import (
    ArchiveTooLarge,
    BadArchive,
    FileConflict,
    FileProblem,
    NoRoom,
    OutsideRoots,
    SandboxAgentError,
)
from sandboxagent.server.files.confined import Confined
from sandboxagent.server.files.flow import Abandoned, Inflow
from sandboxagent.server.files.roots import encode_name
from sandboxagent.server.files.upload import MAX_PATHS, SLACK_BYTES, Uploaded, UploadLimits, receive
from tests.support.archives import extended, folder, hardlink, header, member, packed, symlink
from tests.support.client import run
from tests.support.small_disk import mounted

LIMITS = UploadLimits(bytes=1 << 20, entries=100, ratio=10)
MIB = 1 << 20

Member = tuple[tarfile.TarInfo, bytes]


def send(root: Path, data: bytes, *, to: str = "", limits: UploadLimits = LIMITS, ends: bool = True) -> Uploaded:
    """Send an archive in small pieces; without an end, as a client that goes away."""

    async def main() -> Uploaded:
        inflow = Inflow()
        work = asyncio.create_task(asyncio.to_thread(receive, Confined([str(root)]), f"{root}{to}", inflow, limits))
        # Who has given up takes nothing more.
        work.add_done_callback(lambda _: inflow.abandon())
        for at in range(0, len(data), 10_000):
            if not work.done():
                await inflow.feed(data[at : at + 10_000])
        inflow.finish() if ends else inflow.abandon()
        return await work

    return run(main())


def everything(top: Path) -> dict[str, object]:
    """All that is below a directory: content, targets, and what kind a thing is."""
    found: dict[str, object] = {}
    for path in top.rglob("*"):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = path.readlink()
        else:
            found[name] = path.read_bytes() if path.is_file() else stat.S_IFMT(path.lstat().st_mode)
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("old")
    return tmp_path / "root"


# --- what is sound ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd.compress], ids=["plain", "gzip", "zstd"])
def test_an_archive_is_unpacked_however_it_is_packed(root: Path, pack: object) -> None:
    assert callable(pack)
    data = packed(
        folder("./"),
        folder("./bin/"),
        member("./bin/run", b"#!", mode=0o755),
        member("data", b"x" * 50_000),
        symlink("lib/now", "../bin"),
        hardlink("bin/other", "bin/run"),
    )
    answer = send(root, pack(data), to="/new/deep")
    into = root / "new/deep"
    assert answer == Uploaded([f"{into}/{name}" for name in ("bin/run", "data", "bin/other", "lib/now")], False)
    assert everything(into) == {
        "bin": stat.S_IFDIR,
        "bin/run": b"#!",
        "bin/other": b"#!",
        "data": b"x" * 50_000,
        "lib": stat.S_IFDIR,
        "lib/now": Path("../bin"),
    }
    assert os.access(into / "bin/run", os.X_OK)
    assert os.access(into / "bin/other", os.X_OK)
    assert not os.access(into / "data", os.X_OK)
    assert os.listdir(root) == ["new"]


def test_directories_are_merged_and_files_replaced(root: Path) -> None:
    (root / "a").mkdir()
    (root / "a/old").write_text("stays")
    (root / "a/file").write_text("old")
    (root / "link").symlink_to("a/old")
    with (root / "a/file").open() as reader:
        send(root, packed(member("a/file", b"new"), member("link", b"a file now"), folder("a/empty")))
        assert reader.read() == "old"
    assert everything(root) == {
        "a": stat.S_IFDIR,
        "a/old": b"stays",
        "a/file": b"new",
        "a/empty": stat.S_IFDIR,
        "link": b"a file now",
    }


def test_names_that_are_not_text_and_backslashes_are_kept(root: Path) -> None:
    name = "caf\udce9\\x2d"
    answer = send(root, packed(member(name, b"x"), member("l" * 200 + "/" + "ü" * 100, b"y")))
    assert os.fsencode(name) in os.listdir(os.fsencode(root))
    assert answer.paths[0] == f"{root}/{encode_name(name)}"
    assert (root / ("l" * 200) / ("ü" * 100)).read_text() == "y"


def test_only_the_first_paths_are_listed(root: Path) -> None:
    limits = UploadLimits(1 << 20, MAX_PATHS + 10, 10)
    exactly = [member(f"{number}") for number in range(MAX_PATHS)]
    assert not send(root, packed(*exactly), limits=limits).truncated
    answer = send(root, packed(*exactly, member("more")), limits=limits)
    assert (len(answer.paths), answer.truncated) == (MAX_PATHS, True)
    assert (root / "more").exists()


def test_a_directory_of_the_target_may_be_another_file_system(root: Path, small_disk: Path) -> None:
    (small_disk / "old").write_text("old")
    send(root, packed(member("disk/old", b"new", mode=0o755), symlink("disk/link", "old"), member("file", b"x")))
    assert everything(small_disk) == {"old": b"new", "link": Path("old")}
    assert os.access(small_disk / "old", os.X_OK)


# --- what is not ------------------------------------------------------------------------------------------------------


def sparse() -> bytes:
    info, content = member("sparse", b"4\n0\n1\n8589934592\n0\n" + bytes(493) + b"x" * 512)
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "8589934592"}
    return packed((info, content))


def lying(**headers: str) -> bytes:
    """An archive whose extended headers say something else than its headers."""
    info, content = member("lie", b"x" * 100)
    info.pax_headers = headers
    return packed(member("fine", b"x"), (info, content))


def relinked() -> bytes:
    info, content = symlink("a", "b")
    info.pax_headers = {"linkpath": "../outside"}
    return packed((info, content))


def wide(data: bytes) -> bytes:
    """Packed so that a reader would need 128 MiB."""
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    return compressor.compress(data) + compressor.flush()


ATTACKS = {
    "absolute": packed(member("/outside/new", b"x")),
    "twice absolute": packed(member("//outside/new", b"x")),
    "up": packed(member("../outside/new", b"x")),
    "up further in": packed(member("a/../../outside/new", b"x")),
    "up and back": packed(member("../root/new", b"x")),
    "folder up": packed(folder("../outside/new")),
    "a link out": packed(symlink("a", "../outside")),
    "a link to the root of all": packed(symlink("a", "/")),
    "a link to a secret": packed(symlink("a", "../outside/secret")),
    "a link, then a file through it": packed(symlink("a", "../outside"), member("a/secret", b"new")),
    "a link inside, then a file through it": packed(folder("b"), symlink("a", "b"), member("a/x", b"new")),
    "links that lead out together": packed(symlink("x", "a/b/up/.."), symlink("a/b/up", "../..")),
    "a link, then a file in its place": packed(symlink("a", "b"), member("a", b"new")),
    "a file, then a folder in its place": packed(member("a", b"x"), member("a/b", b"x")),
    "a hard link out": packed(hardlink("a", "../outside/secret")),
    "an absolute hard link": packed(hardlink("a", "/etc/passwd")),
    "a hard link to a link": packed(symlink("l", "x"), hardlink("a", "l")),
    "a hard link to what is there": packed(hardlink("a", "there")),
    "a character device": packed(member("null", type=tarfile.CHRTYPE)),
    "a block device": packed(member("sda", type=tarfile.BLKTYPE)),
    "a pipe": packed(member("pipe", type=tarfile.FIFOTYPE)),
    "an unknown kind": packed(member("odd", type=b"Z")),
    "a sparse file": sparse(),
    "an old sparse file": packed(member("sparse", bytes(512), type=tarfile.GNUTYPE_SPARSE)),
    "a path that pax overrides": lying(path="../outside/new"),
    "a link that pax overrides": relinked(),
    "a size below zero": lying(size="-512"),
    "a size that is none": lying(size="x"),
    "a long name": packed(member("n" * 256, b"x")),
    "no name": packed(member("", b"x")),
    "the same name twice": packed(member("a", b"1"), member("./a", b"2")),
    "cut off": packed(member("a", b"x" * 5000))[:3000],
    "without an end": packed(member("a", b"x"))[:1100],
    "garbage": os.urandom(5000),
    "garbage after a file": packed(member("a", b"x"))[:1024] + b"garbage" * 200,
    "empty": b"",
    "gzip, cut off": gzip.compress(packed(member("a", os.urandom(5000))))[:3000],
    "gzip, another checksum": gzip.compress(packed(member("a", b"x")))[:-8] + bytes(8),
    "zstd, cut off": zstd.compress(packed(member("a", os.urandom(5000))))[:3000],
    "zstd, a wide window": wide(packed(member("a", b"x"))),
    "bzip2": b"BZh9" + bytes(100),
    "packed twice": gzip.compress(gzip.compress(packed(member("a", b"x")))),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_archive_that_breaks_a_rule_changes_nothing(root: Path, name: str) -> None:
    (root / "there").write_text("old")
    before = everything(root.parent)
    with pytest.raises(BadArchive) as refused:
        send(root, ATTACKS[name])
    msgspec.json.encode([str(refused.value), refused.value.fields])
    with pytest.raises(BadArchive):
        send(root, ATTACKS[name], to="/new/target")
    assert everything(root.parent) == before


@pytest.mark.parametrize(
    "data",
    [
        packed(member("a", bytes(MIB + 1))),
        packed(*(member(f"{number}", bytes(MIB // 4)) for number in range(5))),
        packed(*(member(f"{number}") for number in range(101))),
        packed(folder("/".join("abcdefghij" * 11))),
        packed(member("a", b"x" * 600_000), hardlink("b", "a")),
    ],
    ids=["one large file", "many that are large together", "too many", "too deep", "a hard link counts"],
)
def test_an_archive_over_a_limit_is_too_large_and_changes_nothing(root: Path, data: bytes) -> None:
    with pytest.raises(ArchiveTooLarge) as refused:
        send(root, data)
    assert refused.value.fields["limit"] in (LIMITS.bytes, LIMITS.entries)
    assert os.listdir(root) == []


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress], ids=["gzip", "zstd"])
def test_an_archive_that_unfolds_into_far_more_than_it_is_is_stopped(root: Path, pack: object) -> None:
    assert callable(pack)
    bomb = pack(packed(member("a", bytes(SLACK_BYTES + 20 * MIB))))
    with pytest.raises(ArchiveTooLarge) as refused:
        send(root, bomb, limits=UploadLimits(1 << 40, 100, 10))
    assert refused.value.fields["limit"] < SLACK_BYTES + 11 * len(bomb)
    assert os.listdir(root) == []


def test_a_client_that_goes_away_leaves_nothing(root: Path) -> None:
    data = packed(member("a", b"x"), member("b", b"x" * 100_000))
    for size in (0, 3, 600, 2000, 50_000, len(data)):
        with pytest.raises(Abandoned):
            send(root, data[:size], ends=False)
        assert os.listdir(root) == []


def test_what_is_in_the_way_is_said_before_anything_is_changed(root: Path) -> None:
    (root / "b/is-a-folder").mkdir(parents=True)
    (root / "file").write_text("old")
    (root / "out").symlink_to("../outside")
    before = everything(root.parent)
    for bad, problem in [
        (member("b/is-a-folder", b"x"), FileConflict),
        (member("file/x", b"x"), FileConflict),
        (folder("file"), FileConflict),
        (member("out/secret", b"new"), OutsideRoots),
        (folder("out/new"), OutsideRoots),
    ]:
        with pytest.raises(problem) as refused:
            send(root, packed(member("first", b"x"), bad))
        assert isinstance(refused.value, FileProblem)
        assert str(root) in str(refused.value.fields["path"])
        assert everything(root.parent) == before
    with pytest.raises(OutsideRoots):
        send(root, packed(member("first", b"x")), to="/out")
    assert everything(root.parent) == before


def test_a_link_in_the_target_that_stays_inside_is_followed(root: Path) -> None:
    (root / "real").mkdir()
    (root / "link").symlink_to("real")
    send(root, packed(member("link/file", b"x")))
    assert everything(root) == {"real": stat.S_IFDIR, "real/file": b"x", "link": Path("real")}


def test_a_full_disk_is_no_room_and_changes_nothing(root: Path, small_disk: Path) -> None:
    (small_disk / "a").write_text("old")
    for members in ([member("a", os.urandom(2 * MIB))], [symlink(f"{number}", "x") for number in range(40)]):
        with pytest.raises(NoRoom):
            send(small_disk, packed(*members), limits=UploadLimits(1 << 30, 100, 10))
        assert everything(small_disk) == {"a": b"old"}


def test_a_folder_that_becomes_a_link_while_files_are_moved_in_leads_nowhere(root: Path) -> None:
    """In a loop: an attacker exchanges a directory of the target for a link that leads out."""
    (root / "a").mkdir()
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            with suppress(OSError):
                (root / "a").rename(root / "was")
                (root / "a").symlink_to("../outside")
            with suppress(OSError):
                (root / "a").unlink()
                (root / "was").rename(root / "a")

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        data = packed(*(member(f"a/{number}", b"x") for number in range(20)), member("a/secret", b"new"))
        for _ in range(60):
            with suppress(FileProblem):
                send(root, data)
    finally:
        over.set()
        swapping.join()
    assert everything(root.parent / "outside") == {"secret": b"old"}
    assert not [name for name in os.listdir(root) if name.startswith(".")]


# --- whatever comes ---------------------------------------------------------------------------------------------------

PART = st.sampled_from(["a", "b", "A", "..", ".", "", "root", "outside"]) | st.text("aB./\\\0é\udcff", max_size=4)
NAME = st.lists(PART, min_size=1, max_size=4).map("/".join)
PROPER = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
TARGET = st.lists(st.sampled_from(["a", "b", "..", "outside"]), min_size=1, max_size=5).map("/".join)
KIND = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
LINKING = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.SYMTYPE])
ENTRIES = st.lists(st.tuples(KIND, NAME, NAME), max_size=6) | st.lists(st.tuples(LINKING, PROPER, TARGET), max_size=6)


@settings(deadline=None)
@given(first=ENTRIES, second=ENTRIES)
def test_whatever_names_and_links_come_nothing_appears_outside(
    first: list[tuple[bytes, str, str]], second: list[tuple[bytes, str, str]]
) -> None:
    """Two archives, so that the second meets the links of the first."""
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory).resolve()
        (top / "outside").mkdir()
        (top / "outside/a").write_text("old")
        (top / "root").mkdir()
        for entries in (first, second):
            before = everything(top / "root")
            content = [
                member(name, b"new" if type == tarfile.REGTYPE else b"", type=type, to=to, mode=0o6777)
                for type, name, to in entries
            ]
            try:
                send(top / "root", packed(*content))
            except SandboxAgentError as refused:
                msgspec.json.encode([str(refused), refused.fields])
                assert everything(top / "root") == before
            assert everything(top / "outside") == {"a": b"old"}
            assert sorted(os.listdir(top)) == ["outside", "root"]
            for path in (top / "root").rglob("*"):
                assert path.is_symlink() or path.lstat().st_mode & 0o7000 == 0
                assert not path.name.startswith(".sandbox-agent")


@settings(deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=8))
def test_whatever_bytes_are_changed_the_failure_has_a_name(changes: list[tuple[int, int]]) -> None:
    info, content = member("a/" + "b" * 120, b"text" * 100)
    info.pax_headers = {"comment": "x", "size": "400"}
    data = bytearray(packed((info, content), symlink("c", "a"), hardlink("d", info.name)))
    for at, value in changes:
        data[at % len(data)] = value
    with tempfile.TemporaryDirectory() as directory, suppress(SandboxAgentError):
        send(Path(directory), bytes(data))


@pytest.fixture
def small_disk(root: Path) -> Generator[Path]:
    """A file system of its own inside the root, with room for a MiB and some files."""
    with mounted(root / "disk", f"size={MIB},nr_inodes=20") as disk:
        yield disk


# --- depth and headers ------------------------------------------------------------------------------------------------


def test_an_archive_may_be_so_deep_and_no_deeper(root: Path) -> None:
    limits = UploadLimits(1 << 20, 1000, 10, depth=200)
    send(root, packed(member("d/" * 199 + "f", b"x")), to="/good", limits=limits)
    assert (root / "good" / ("d/" * 199) / "f").read_bytes() == b"x"
    with pytest.raises(ArchiveTooLarge, match="more than 200 levels deep") as refused:
        send(root, packed(member("first", b"x"), member("d/" * 200 + "f", b"x")), to="/bad", limits=limits)
    assert refused.value.fields["limit"] == 200
    assert str(refused.value.fields["entry"]).startswith("d/d/")
    assert os.listdir(root) == ["good"]


def test_a_few_bytes_that_unfold_into_thousands_of_levels_cost_nothing(root: Path) -> None:
    data = gzip.compress(extended(path="a/" * 31_000 + "f") + header("f") + bytes(1024))
    assert len(data) < 1000
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveTooLarge, match="more than 4095 bytes") as refused:
            send(root, data)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()
    assert refused.value.fields["limit"] == 4095
    assert os.listdir(root) == []


def test_a_path_that_is_too_long_at_its_place_is_known_before_anything_is_changed(root: Path) -> None:
    name = "/".join(["d" * 250] * 16 + ["d" * 60])
    assert len(name) < 4095 < len(f"{root}/new/{name}")
    with pytest.raises(BadArchive, match="too long"):
        send(root, packed(member("first", b"x"), member(name, b"x")), to="/new")
    assert os.listdir(root) == []


def test_headers_for_all_entries_have_a_bound(root: Path) -> None:
    flood = extended(type=tarfile.XGLTYPE, **{f"k{number}": "" for number in range(6000)})
    data = b"".join(flood + header(f"f{number}") for number in range(20))
    with pytest.raises(ArchiveTooLarge, match="for all entries") as refused:
        send(root, data)
    assert refused.value.fields["limit"] == 1 << 20
    assert os.listdir(root) == []


def test_headers_count_in_what_an_archive_unfolds_into(root: Path) -> None:
    """Folders have no content at all."""
    heads = b"".join(header(f"{number}/", type=tarfile.DIRTYPE) for number in range(3000))
    data = gzip.compress(heads + bytes(SLACK_BYTES) + bytes(1024), 1)
    with pytest.raises(ArchiveTooLarge, match="unpack to") as refused:
        send(root, data, limits=UploadLimits(1 << 40, 10_000, 1))
    assert "limit" in refused.value.fields
    assert os.listdir(root) == []
