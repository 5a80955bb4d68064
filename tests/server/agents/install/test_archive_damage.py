"""Archives that are damaged, made by chance, or unpacked onto a full disk: whole or not at all."""

import bz2
import os
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxagent.protocol.errors import DiskFull, InstallFailed, SandboxAgentError, UnsafeArchive
from sandboxagent.server.agents.install.archive import extract
from tests.support.archives import (
    folder,
    hardlink,
    member,
    symlink,
    tar,
    zip_member,
    zip_symlink,
    zipped,
)
from tests.support.small_disk import mounted
from tests.support.unpacking import MIB, beside, damage, refusal, unpack

# --- what is damaged --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", ["", "gz", "bz2", "xz"])
def test_an_archive_that_is_cut_off_is_damaged(tmp_path: Path, packing: str) -> None:
    files = [member(f"{number}", os.urandom(3000)) for number in range(5)]
    whole = tar(tmp_path / "whole", *files, packing=packing).read_bytes()
    archive = tmp_path / f"a.tar.{packing}"
    for kept in (20, 600, len(whole) // 2, 12_000):
        archive.write_bytes(whole[:kept])
        damage(archive)


def test_a_checksum_at_the_end_is_looked_at(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar.gz", member("a", b"x"))
    whole = bytearray(archive.read_bytes())
    whole[-6] ^= 1
    archive.write_bytes(whole)
    assert "CRC" in damage(archive)

    packed = zipped(tmp_path / "a.zip", zip_member("b", b"sound", method=zipfile.ZIP_STORED))
    packed.write_bytes(packed.read_bytes().replace(b"sound", b"found"))
    assert "CRC" in damage(packed)


def test_garbage_between_the_files_is_damage(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar", member("a", b"x"), member("b", b"y"), packing="")
    whole = bytearray(archive.read_bytes())
    whole[1024:1030] = b"\xff" * 6
    archive.write_bytes(whole)

    assert "bad checksum" in damage(archive)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.zip", b"#!/bin/sh\n", "not the archive that its name promises"),
        ("a.tgz", b"<html>", "not the archive that its name promises"),
        ("a", b"<!DOCTYPE html>", "neither an archive nor a program"),
        ("a", b"", "neither an archive nor a program"),
        ("a.tar", b"", "not the archive that its name promises"),
        ("a.tar", b"x" * 2000, "cannot be unpacked"),
        ("a.zip", b"PK\x03\x04" + bytes(100), "cannot be unpacked"),
        ("a.gz", bz2.compress(b"not a tar archive"), "cannot be unpacked"),
        ("a.tar.zst", b"\x28\xb5\x2f\xfd" + bytes(100), "ended"),
    ],
)
def test_what_is_no_archive_is_named(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)

    assert reason in damage(tmp_path / name)


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", zip_member("a", b"x"))
    data = bytearray(archive.read_bytes())
    data[data.find(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(data)

    assert refusal(archive) == ("a", "is encrypted")


# --- whatever comes ---------------------------------------------------------------------------------------------------

PART = st.sampled_from(["a", "b", "A", "..", ".", "", "into", "outside"]) | st.text("aB./\\\0é\udcff", max_size=4)
NAME = st.lists(PART, min_size=1, max_size=4).map("/".join)
KIND = st.sampled_from(["file", "folder", "symlink", "hardlink", "fifo"])


# Proper names, so that more than the first entry is looked at; where links lead to is another matter.
PROPER = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
TARGET = st.lists(st.sampled_from(["a", "b", "..", "outside"]), min_size=1, max_size=5).map("/".join)
LINKING = st.sampled_from(["file", "folder", "symlink", "symlink", "symlink"])
ENTRIES = st.lists(st.tuples(KIND, NAME, NAME), min_size=1, max_size=6) | st.lists(
    st.tuples(LINKING, PROPER, TARGET), min_size=1, max_size=6
)


def as_tar(path: Path, entries: list[tuple[str, str, str]]) -> Path:
    types = {
        "file": tarfile.REGTYPE,
        "folder": tarfile.DIRTYPE,
        "symlink": tarfile.SYMTYPE,
        "hardlink": tarfile.LNKTYPE,
        "fifo": tarfile.FIFOTYPE,
    }
    members = [
        member(name, b"new" if kind == "file" else b"", type=types[kind], to=to, mode=0o4755)
        for kind, name, to in entries
    ]
    return tar(path, *members)


def as_zip(path: Path, entries: list[tuple[str, str, str]]) -> Path:
    modes = {"file": stat.S_IFREG, "folder": stat.S_IFDIR, "symlink": stat.S_IFLNK, "hardlink": 0, "fifo": stat.S_IFIFO}
    path.write_bytes(b"")
    with zipfile.ZipFile(path, "w") as archive:
        for kind, name, to in entries:
            info, _ = zip_member("x", mode=modes[kind] | 0o4755)
            info.filename = name.encode("utf-8", "replace").decode()
            archive.writestr(info, to.encode("utf-8", "replace") if kind == "symlink" else b"new")
    return path


@pytest.mark.filterwarnings("ignore:Duplicate name")
@settings(deadline=None)
@given(entries=ENTRIES, zip=st.booleans())
def test_whatever_the_entries_are_called_nothing_appears_outside(
    entries: list[tuple[str, str, str]], zip: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory).resolve()
        (top / "outside").mkdir()
        (top / "outside/a").write_text("old")
        archive = as_zip(top / "archive", entries) if zip else as_tar(top / "archive", entries)
        before = beside(archive)
        with suppress(UnsafeArchive, InstallFailed):
            unpack(archive)

        assert beside(archive) == before
        for path in list((top / "into").rglob("*")):
            about = path.lstat()
            assert path.is_symlink() or stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)
            assert path.is_symlink() or about.st_mode & 0o7000 == 0
            # What the kernel makes of a link: a write through it stays inside.
            for through in (path, path / "new"):
                with suppress(OSError), through.open("ab") as file:
                    file.write(b"x")
        assert beside(archive) == before


def sound(directory: Path, kind: str) -> bytes:
    archive = directory / f"sound-{kind}"
    if kind == "zip":
        zipped(archive, zip_member("a/b", b"text" * 100, mode=stat.S_IFREG | 0o755), zip_symlink("c", "a/b"))
    else:
        info, content = member("a/" + "b" * 120, b"text" * 100)
        info.pax_headers = {"comment": "x", "size": "400"}
        tar(archive, (info, content), symlink("c", "a"), hardlink("d", info.name), packing="")
    return archive.read_bytes()


@settings(deadline=None)
@given(
    kind=st.sampled_from(["zip", "tar"]),
    changes=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=8),
)
def test_whatever_bytes_are_changed_the_failure_has_a_name(kind: str, changes: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        data = bytearray(sound(Path(directory), kind))
        for at, value in changes:
            data[at % len(data)] = value
        archive = Path(directory) / f"a.{kind}"
        archive.write_bytes(data)
        # Any other exception would be ours; and what it says can be sent.
        with suppress(SandboxAgentError):
            try:
                unpack(archive)
            except SandboxAgentError as failed:
                msgspec.json.encode([str(failed), failed.fields])
                raise


# --- a full disk ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A file system of one MiB."""
    with mounted(tmp_path / "disk", f"size={MIB},nr_inodes=20") as disk:
        yield disk


def test_a_full_disk_has_a_name(tmp_path: Path, small_disk: Path) -> None:
    large = os.urandom(2 * MIB)
    archives = [
        tar(tmp_path / "a.tar.gz", member("a", large)),
        zipped(tmp_path / "b.zip", zip_member("a", large)),
        tar(tmp_path / "c.tar.gz", *(folder(f"{number}") for number in range(40))),
        tar(tmp_path / "d.tar.gz", *(symlink(f"{number}", "x") for number in range(40))),
    ]
    (tmp_path / "program").write_bytes(b"#!" + large)
    for number, archive in enumerate([*archives, tmp_path / "program"]):
        into = small_disk / f"{number}"
        with pytest.raises(DiskFull) as full:
            extract(archive, into, name=archive.name, max_bytes=10 * MIB, max_entries=100)
        assert full.value.fields["directory"] == str(into)
        shutil.rmtree(into)


def test_a_zip_that_needs_much_memory_to_unpack_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", zip_member("a", b"x" * 1000, method=zipfile.ZIP_LZMA))
    assert refusal(archive) == ("a", "has a compression method that is not supported: only deflate and bzip2 are")


def test_a_list_of_entries_that_is_larger_than_any_needs_to_be_is_not_read(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", zip_member("a", b"x"))
    data = archive.read_bytes()
    at = data.rindex(b"PK\x05\x06")
    end = bytearray(data[at:])
    struct.pack_into("<L", end, 12, (65 << 20) + 46)
    with archive.open("wb") as file:
        file.write(data[:at])
        file.seek(65 << 20, os.SEEK_CUR)
        file.write(end)
    assert refusal(archive) == ("", "has a list of entries of more than 67108864 bytes")


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_tree_that_is_too_deep_is_refused(tmp_path: Path, kind: str) -> None:
    name = "d/" * 300 + "f"
    if kind == "tar":
        archive = tar(tmp_path / "a.tar.gz", member(name, b"x"))
    else:
        archive = zipped(tmp_path / "a.zip", zip_member(name, b"x"))
    assert refusal(archive) == (name[:300], "is more than 256 levels deep")
