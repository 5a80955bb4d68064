"""Archives: fetched whole or not at all, and unpacked without touching anything outside."""

import io
import lzma
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxagent.protocol.errors import InstallFailed, UnsafeArchive
from sandboxagent.server.agents.install.archive import extract
from tests.support.archives import (
    claiming,
    folder,
    hardlink,
    member,
    symlink,
    tar,
    zip_member,
    zip_symlink,
    zipped,
)
from tests.support.unpacking import MIB, damage, listing, refusal, unpack

# --- unpacking what is sound ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "packing"), [(".tar", ""), (".tar.gz", "gz"), (".tar.bz2", "bz2"), (".tar.xz", "xz")]
)
@pytest.mark.parametrize("named", [True, False])
def test_a_tar_archive_is_unpacked_however_it_is_packed_and_named(
    tmp_path: Path, suffix: str, packing: str, named: bool
) -> None:
    archive = tar(
        tmp_path / f"a{suffix}",
        folder("./"),
        folder("./bin/"),
        member("./bin/agent", b"#!/bin/sh\n", mode=0o755),
        member("share/data", b"x" * 100_000, mode=0o640),
        symlink("lib/current", "../bin"),
        hardlink("bin/other", "bin/agent"),
        packing=packing,
    )

    into = unpack(archive, name=None if named else "https://example.com/download?id=1")

    assert listing(into) == {
        Path("bin"): None,
        Path("bin/agent"): b"#!/bin/sh\n",
        Path("bin/other"): b"#!/bin/sh\n",
        Path("lib"): None,
        Path("lib/current"): Path("../bin"),
        Path("share"): None,
        Path("share/data"): b"x" * 100_000,
    }
    assert os.access(into / "bin/agent", os.X_OK)
    assert os.access(into / "bin/other", os.X_OK)
    assert (into / "share/data").stat().st_mode & 0o111 == 0


@pytest.mark.parametrize("named", [True, False])
def test_a_zip_archive_is_unpacked_with_its_modes_and_links(tmp_path: Path, named: bool) -> None:
    archive = zipped(
        tmp_path / "a.zip",
        zip_member("bin/", mode=stat.S_IFDIR | 0o755),
        zip_member("bin/agent", b"#!/bin/sh\n", mode=stat.S_IFREG | 0o755),
        zip_member("stored", b"y", method=zipfile.ZIP_STORED, mode=0),
        zip_member("packed", b"z" * 100_000, method=zipfile.ZIP_BZIP2),
        zip_member("empty/", mode=0),
        zip_symlink("current", "bin/agent"),
    )

    into = unpack(archive, name=None if named else "download")

    assert listing(into) == {
        Path("bin"): None,
        Path("bin/agent"): b"#!/bin/sh\n",
        Path("stored"): b"y",
        Path("packed"): b"z" * 100_000,
        Path("empty"): None,
        Path("current"): Path("bin/agent"),
    }
    assert os.access(into / "bin/agent", os.X_OK)
    assert (into / "stored").stat().st_mode & 0o111 == 0


@pytest.mark.parametrize("head", [b"\x7fELF", b"#!/bin/sh\n", b"\xcf\xfa\xed\xfe"])
def test_a_plain_program_is_copied_under_the_last_part_of_its_name(tmp_path: Path, head: bytes) -> None:
    (tmp_path / "download").write_bytes(head + bytes(100_000))

    into = unpack(tmp_path / "download", name="https://example.com/v1/agent-linux?token=x")

    assert listing(into) == {Path("agent-linux"): head + bytes(100_000)}
    assert os.access(into / "agent-linux", os.X_OK)


def test_a_program_that_carries_a_zip_archive_is_a_program(tmp_path: Path) -> None:
    carried = zipped(tmp_path / "carried", zip_member("a", b"x")).read_bytes()
    (tmp_path / "agent").write_bytes(b"\x7fELF" + carried)

    assert list(listing(unpack(tmp_path / "agent"))) == [Path("agent")]


def test_names_may_be_long_and_need_not_be_english(tmp_path: Path) -> None:
    long = "/".join(["läng" * 20] * 8)
    archive = tar(tmp_path / "a.tar.gz", member(long, b"x"), symlink("zu", long))

    into = unpack(archive)

    assert (into / long).read_bytes() == b"x"
    assert (into / "zu").read_bytes() == b"x"


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_all_dialects_of_tar_are_understood(tmp_path: Path, format: int) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=format, pax_headers={"comment": "x" * 1000}) as archive:
        for info, content in (member("a/b", b"x"), member("c" * 99, b"y")):
            info.mtime = 1.5  # A reason for an extended header.
            archive.addfile(info, io.BytesIO(content))

    assert sorted(map(str, listing(unpack(tmp_path / "a.tar")))) == ["a", "a/b", "c" * 99]


# --- what reaches out -------------------------------------------------------------------------------------------------

OUTWARD = [
    ("/etc/x", "absolute"),
    ("../x", "'..'"),
    ("a/../../x", "'..'"),
    ("..", "'..'"),
    ("a\\..\\x", "backslash"),
    ("C:\\x", "backslash"),
]


@pytest.mark.parametrize(("name", "rule"), OUTWARD)
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str, rule: str) -> None:
    for archive in (
        tar(tmp_path / "a.tar.gz", member("fine", b"x"), member(name, b"x")),
        tar(tmp_path / "b.tar.gz", member("fine", b"x"), folder(name)),
        zipped(tmp_path / "c.zip", zip_member("fine", b"x"), zip_member(name, b"x")),
        zipped(tmp_path / "d.zip", zip_member("fine", b"x"), zip_symlink(name, "fine")),
    ):
        entry, broken = refusal(archive)
        assert (entry, rule in broken) == (name, True)


def test_a_nul_in_a_name_is_refused(tmp_path: Path) -> None:
    info, _ = member("x")
    info.pax_headers = {"path": "fine\0/../x"}
    archive = tar(tmp_path / "a.tar.gz", (info, b""))
    assert "NUL" in refusal(archive)[1]

    marked = zipped(tmp_path / "a.zip", zip_member("a!b", b"x"))
    marked.write_bytes(marked.read_bytes().replace(b"a!b", b"a\0b"))
    assert refusal(marked) == ("a\0b", "has a NUL or a backslash in its name")


LINKS: list[tuple[Callable[..., Any], Callable[..., Any], Callable[..., Path], str]] = [
    (symlink, member, tar, "a.tar.gz"),
    (zip_symlink, zip_member, zipped, "a.zip"),
]


@pytest.mark.parametrize(("link", "file", "pack", "name"), LINKS, ids=["tar", "zip"])
def test_a_file_through_a_link_is_refused_wherever_the_link_leads(
    tmp_path: Path, link: Callable[..., Any], file: Callable[..., Any], pack: Callable[..., Path], name: str
) -> None:
    (tmp_path / "outside").mkdir()
    for target in ("../outside", str(tmp_path / "outside"), "inside"):
        for order in (1, -1):
            members = [link("a", target), file("a/x", b"x")][::order]
            where = tmp_path / f"{len(target)}{order}"
            where.mkdir()
            refusal(pack(where / name, *members))
            assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize(("link", "file", "pack", "name"), LINKS, ids=["tar", "zip"])
@pytest.mark.parametrize(
    ("target", "rule"), [("..", "out of the folder"), ("/etc/passwd", "absolute"), ("a/../../x", "out of the folder")]
)
def test_a_link_that_leads_out_is_refused(
    tmp_path: Path,
    link: Callable[..., Any],
    file: Callable[..., Any],
    pack: Callable[..., Path],
    name: str,
    target: str,
    rule: str,
) -> None:
    entry, broken = refusal(pack(tmp_path / name, file("fine", b"x"), link("bad", target)))

    assert (entry, rule in broken) == ("bad", True)
    assert listing(tmp_path / "into") == {Path("fine"): b"x"}


def test_a_file_in_place_of_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("old")
    archive = tar(tmp_path / "a.tar.gz", symlink("a", "b"), member("a", b"new"))

    assert refusal(archive) == ("a", "has the name of another entry")
    tar(archive, symlink("a", "../outside"), member("a", b"new"))
    # Python's own filter, which its first releases of 3.11 lack, looks at the link before the file comes.
    assert refusal(archive) in [("a", "is a link that leads out of the folder"), ("a", "has the name of another entry")]
    assert (tmp_path / "outside").read_text() == "old"


@pytest.mark.parametrize("target", ["../outside", "/etc/passwd", "later", "a/../../outside"])
def test_a_hard_link_that_leads_out_or_nowhere_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").write_text("secret")

    assert refusal(tar(tmp_path / "a.tar.gz", hardlink("a", target)))[0] == "a"


def test_a_hard_link_to_a_link_is_refused(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar.gz", symlink("a", "b"), hardlink("c", "a"), member("b", b"x"))

    assert refusal(archive)[0] == "c"


@pytest.mark.parametrize("type", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"Q"])
def test_devices_pipes_and_unknown_kinds_are_refused(tmp_path: Path, type: bytes) -> None:
    assert refusal(tar(tmp_path / "a.tar.gz", member("a", type=type)))[0] == "a"


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK])
def test_devices_and_pipes_in_a_zip_are_refused(tmp_path: Path, kind: int) -> None:
    assert refusal(zipped(tmp_path / "a.zip", zip_member("a", mode=kind | 0o644)))[0] == "a"


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6777, 0o1777])
def test_special_bits_of_a_mode_are_dropped(tmp_path: Path, mode: int) -> None:
    for archive in (
        tar(tmp_path / "a.tar.gz", member("a", b"x", mode=mode)),
        zipped(tmp_path / "a.zip", zip_member("b", b"x", mode=stat.S_IFREG | mode)),
    ):
        into = tmp_path / archive.suffix[1:]
        extract(archive, into, name=archive.name, max_bytes=MIB, max_entries=9)
        (file,) = into.iterdir()
        assert file.stat().st_mode & 0o7022 == 0
        assert os.access(file, os.X_OK)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    assert refusal(tar(tmp_path / "a.tar.gz", member("a", b"1"), member("./a", b"2")))[0] == "./a"
    assert refusal(zipped(tmp_path / "a.zip", zip_member("b", b"1"), zip_member("b", b"2")))[0] == "b"


@pytest.mark.parametrize("bad", ["..", ".", "a\\b"])
def test_a_program_whose_name_is_none_is_refused(tmp_path: Path, bad: str) -> None:
    (tmp_path / "download").write_bytes(b"#!/bin/sh\n")

    with pytest.raises(UnsafeArchive):
        unpack(tmp_path / "download", name=f"https://example.com/{bad}")


# --- what is too large ------------------------------------------------------------------------------------------------


def test_bytes_are_counted_whatever_the_archive_claims(tmp_path: Path) -> None:
    bomb = zipped(tmp_path / "a.zip", zip_member("a", bytes(8 * MIB)))
    assert bomb.stat().st_size < MIB / 50
    for size in (8 * MIB, 0xFFFF_FFF0):
        entry, rule = refusal(claiming(bomb, size))
        assert (entry, rule) == ("a", f"makes the whole larger than {MIB} bytes")
        assert (tmp_path / "into/a").stat().st_size <= MIB

    assert refusal(tar(tmp_path / "b.tar.gz", member("b", bytes(8 * MIB))))[0] == "b"
    assert (tmp_path / "into/b").stat().st_size <= MIB


def test_a_zip_that_claims_less_than_it_holds_is_damaged(tmp_path: Path) -> None:
    damage(claiming(zipped(tmp_path / "a.zip", zip_member("a", bytes(8 * MIB))), 10))
    assert (tmp_path / "into/a").stat().st_size <= 10


def test_many_small_files_are_one_large_one(tmp_path: Path) -> None:
    many = [(f"{number}", bytes(MIB // 10)) for number in range(12)]

    assert refusal(tar(tmp_path / "a.tar.gz", *(member(*each) for each in many)))[0] == "10"
    assert refusal(zipped(tmp_path / "a.zip", *(zip_member(f"z{name}", data) for name, data in many)))[0] == "z10"


def test_entries_are_counted(tmp_path: Path) -> None:
    names = [f"{number}" for number in range(51)]
    for archive in (
        tar(tmp_path / "a.tar.gz", *(member(name) for name in names)),
        tar(tmp_path / "b.tar.gz", *(folder(".") for _ in names)),
        zipped(tmp_path / "c.zip", *(zip_member(f"z{name}") for name in names)),
        tar(tmp_path / "d.tar.gz", member("/".join(f"d{name}" for name in names))),
    ):
        assert "50" in refusal(archive)[1]


def test_a_zip_that_hides_its_number_of_entries_is_not_believed(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", *(zip_member(f"{number}") for number in range(60)))
    data = bytearray(archive.read_bytes())
    end = data.rfind(b"PK\x05\x06")
    data[end + 8 : end + 12] = b"\x01\x00\x01\x00"
    archive.write_bytes(data)

    assert refusal(archive) == ("", "has more than 50 entries")


def test_a_header_that_claims_to_be_huge_is_not_read_into_memory(tmp_path: Path) -> None:
    for number, type in enumerate((tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE)):
        archive = tar(tmp_path / f"{number}.tar.gz", member("a", b"x"), member("long", bytes(MIB), type=type))
        assert refusal(archive) == ("a", "is followed by headers of more than 65536 bytes")


def test_a_size_below_zero_leads_nowhere(tmp_path: Path) -> None:
    for type in (tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, b"Q"):
        info, _ = member("b", type=type)
        header = bytearray(info.tobuf())
        header[124:136] = b"\xff" * 10 + b"\xfc\x00"  # -1024, in base 256.
        header[148:156] = b" " * 8
        header[148:156] = f"{sum(header):06o}\0 ".encode()
        first, _ = member("a")
        (tmp_path / "a.tar").write_bytes(first.tobuf() + header + bytes(2048))
        with pytest.raises((UnsafeArchive, InstallFailed)):
            unpack(tmp_path / "a.tar")


def test_sparse_files_are_refused(tmp_path: Path) -> None:
    old, _ = member("a", type=tarfile.GNUTYPE_SPARSE)
    assert refusal(tar(tmp_path / "a.tar.gz", (old, b""))) == ("a", "is a sparse file")

    for number, headers in enumerate(
        (
            {"GNU.sparse.map": "0,0", "GNU.sparse.size": "10000000000"},
            {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "10000000000"},
        )
    ):
        info, content = member("b", b"1\n0\n0\n".ljust(512, b"\0"))
        info.pax_headers = headers
        assert refusal(tar(tmp_path / f"{number}.tar.gz", (info, content))) == ("b", "is a sparse file")


def test_an_archive_that_goes_on_after_its_end_is_not_followed_for_ever(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar", member("a", b"x"), packing="")
    whole = archive.read_bytes() + bytes(8 * MIB)
    (tmp_path / "b.tar.xz").write_bytes(lzma.compress(whole))

    assert "unpack to" in refusal(tmp_path / "b.tar.xz")[1]
