"""A directory as a tar archive: what is in it, and what is not."""

import io
import os
import socket
import tarfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from sandboxagent.server.files.download import READ_BYTES, bundle


def archive(directory: Path) -> bytes:
    written: list[bytes] = []
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        bundle(descriptor, written.append)
    finally:
        os.close(descriptor)
    return b"".join(written)


def content(data: bytes) -> dict[str, object]:
    found: dict[str, object] = {}
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as tar:
        for info in tar:
            file = tar.extractfile(info) if info.isreg() else None
            found[info.name] = file.read() if file else info.linkname or info.type
    return found


def test_files_folders_and_links_are_in_it_with_modes_and_times(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/file").write_bytes(b"x" * 70_000)
    (tmp_path / "a/file").chmod(0o750)
    os.utime(tmp_path / "a/file", (0, 1_700_000_000))
    (tmp_path / "link").symlink_to("a/file")
    (tmp_path / "out").symlink_to("/etc")
    long = "l" * 200
    (tmp_path / long).write_text("long")
    odd = os.fsdecode(b"caf\xe9")
    (tmp_path / odd).write_text("odd")
    data = archive(tmp_path)
    assert content(data) == {
        "a": tarfile.DIRTYPE,
        "a/b": tarfile.DIRTYPE,
        "a/file": b"x" * 70_000,
        "link": "a/file",
        "out": "/etc",
        long: b"long",
        odd: b"odd",
    }
    assert len(data) % tarfile.RECORDSIZE == 0
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        info = tar.getmember("a/file")
        assert (info.mode, info.mtime) == (0o750, 1_700_000_000)


def test_pipes_sockets_and_devices_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        assert content(archive(tmp_path)) == {"file": b"x"}


@pytest.mark.parametrize("becomes", [0, 100, 3 * READ_BYTES])
def test_a_file_that_changes_while_it_is_read_has_the_size_that_was_said(tmp_path: Path, becomes: int) -> None:
    size = READ_BYTES + 1000
    (tmp_path / "file").write_bytes(b"x" * size)
    written: list[bytes] = []

    def write(data: bytes) -> None:
        if not written:  # Its header is out.
            os.truncate(tmp_path / "file", becomes)
        written.append(data)

    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    bundle(descriptor, write)
    os.close(descriptor)
    (got,) = content(b"".join(written)).values()
    expected = (b"x" * min(size, becomes)).ljust(size, b"\0")
    assert got == expected


def test_a_file_that_cannot_be_read_ends_it(tmp_path: Path) -> None:
    (tmp_path / "closed").write_text("x")
    (tmp_path / "closed").chmod(0)
    tmp_path.chmod(0o755)
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)  # Root reads everything.
    try:
        with pytest.raises(PermissionError):
            bundle(descriptor, lambda data: None)
    finally:
        os.seteuid(before)
        os.close(descriptor)


def deepen(top: Path, levels: int) -> None:
    here = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("deep" * 10, dir_fd=here)
        below = os.open("deep" * 10, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def test_a_very_deep_tree_needs_few_descriptors(tmp_path: Path) -> None:
    deepen(tmp_path, 250)
    assert len(content(archive(tmp_path))) == 250


def test_a_tree_that_is_too_deep_is_no_archive(tmp_path: Path) -> None:
    deepen(tmp_path, 300)
    with pytest.raises(OSError, match="more than 256 levels deep"):
        archive(tmp_path)


def test_a_folder_that_becomes_a_link_leads_nowhere(tmp_path: Path) -> None:
    """In a loop: an attacker exchanges a directory for a link that leads out."""
    root, secret = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "a", secret):
        folder.mkdir(parents=True)
    (secret / "secret").write_text("secret")
    (root / "a/file").write_text("x")
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
        for _ in range(300):
            assert not [name for name in content(archive(root)) if "secret" in name]
    finally:
        over.set()
        swapping.join()
