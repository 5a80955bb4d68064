"""Files that are attached: which one is meant, whether it may be had, and what it is."""

import errno
import os
import socket
from collections.abc import Generator
from pathlib import Path

import pytest

from sandboxagent.server.files.attached import AttachedFiles, image_type, is_text, locate, type_by_name
from sandboxagent.server.files.confined import Confined, Outside
from sandboxagent.server.files.descriptors import NotAFile
from tests.support.pictures import large, png

ROOM = 1 << 20


@pytest.fixture(autouse=True)
def no_descriptor_stays_open() -> Generator[None]:
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def files() -> AttachedFiles:
    return AttachedFiles()


# Which file is meant


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("/a/b.txt", "/a/b.txt"),
        ("b.txt", "/w/b.txt"),
        ("./sub//b.txt", "/w/sub/b.txt"),
        ("sub/", "/w/sub/"),
        ("/", "/"),
        ("//a/b.txt", "/a/b.txt"),
        ("~/b.txt", "/w/~/b.txt"),
        ("a%20b.txt", "/w/a%20b.txt"),
        ("file:///a/b.txt", "/a/b.txt"),
        ("FILE://localhost/a/b.txt", "/a/b.txt"),
        ("file:///a/d%C3%A9j%C3%A0%20vu%231.txt", "/a/déjà vu#1.txt"),
        ("file:///a/déjà vu.txt", "/a/déjà vu.txt"),
        ("file:///a/%ff.txt", "/a/\udcff.txt"),
        ("file:///a/%zz.txt", "/a/%zz.txt"),
        ("http://host/a", "/w/http:/host/a"),
    ],
)
def test_paths_and_uris_lead_to_an_absolute_path(given: str, meant: str) -> None:
    assert locate(given, "/w") == meant


@pytest.mark.parametrize("given", ["file://other/a", "file://", "file://a", "file:///a?b", "file:///a#b"])
def test_uri_that_cannot_be_a_file_of_this_host_is_refused(given: str) -> None:
    with pytest.raises(OSError, match="URI") as caught:
        locate(given, "/w")

    assert caught.value.errno == errno.EINVAL


def test_path_that_leads_back_is_followed_as_the_file_system_does(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    (tmp_path / "real" / "file").write_text("x")

    assert locate("link/../file", str(tmp_path)) == str(tmp_path / "real" / "file")


# What it is


def test_text_is_told_from_other_files(files: AttachedFiles, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("déjà vu")
    (tmp_path / "empty").write_text("")
    (tmp_path / "latin").write_bytes("déjà vu".encode("latin-1"))
    (tmp_path / "binary").write_bytes(b"a\0b")
    (tmp_path / "long").write_text("x" * (ROOM + 1))

    def text(name: str, room: int = ROOM) -> bool:
        return files.look(str(tmp_path / name), None, None, text_room=room).text

    assert [text(name) for name in ("text", "empty", "latin", "binary", "long")] == [True, True, False, False, False]
    assert not text("text", room=0)
    assert not text("empty", room=0)


def test_image_is_read_when_there_is_room_for_it(files: AttachedFiles, tmp_path: Path) -> None:
    file = tmp_path / "picture"
    file.write_bytes(large(1000))

    found = [files.look(str(file), None, None, image_room=room) for room in (1000, 999, 0)]

    assert [one.image for one in found] == [large(1000), None, None]
    assert [one.mime for one in found] == ["image/png"] * 3


def test_image_is_what_it_is_and_not_what_it_is_called(files: AttachedFiles, tmp_path: Path) -> None:
    (tmp_path / "picture.jpg").write_bytes(png())
    (tmp_path / "text.png").write_text("no picture")

    picture = files.look(str(tmp_path / "picture.jpg"), None, "image/jpeg", image_room=ROOM)
    text = files.look(str(tmp_path / "text.png"), None, None, image_room=ROOM)
    said_otherwise = files.look(str(tmp_path / "picture.jpg"), None, "text/plain", image_room=ROOM)

    assert (picture.mime, picture.image) == ("image/png", png())
    assert (text.mime, text.image) == ("image/png", None)
    assert (said_otherwise.mime, said_otherwise.image) == ("text/plain", None)


def test_file_that_is_larger_than_its_size_is_not_read_to_its_end(files: AttachedFiles) -> None:
    # Its size is said to be nothing, and it has some.
    found = files.look("/proc/self/status", None, None, text_room=ROOM)

    assert not found.text


def test_directory_is_told_from_a_file(files: AttachedFiles, tmp_path: Path) -> None:
    found = [files.look(f"{tmp_path}{end}", None, None) for end in ("", "/")]

    assert [(one.path, one.directory, one.mime) for one in found] == [(str(tmp_path), True, "inode/directory")] * 2
    assert files.look("/", None, None).name == "/"


def test_name_is_the_last_part_unless_another_is_given(files: AttachedFiles, tmp_path: Path) -> None:
    (tmp_path / "a b.txt").write_text("x")
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt"))
    odd.write_text("x")

    assert files.look(f"{tmp_path}/a b.txt", None, None).name == "a b.txt"
    assert files.look(f"{tmp_path}/a b.txt", "other", None).name == "other"
    assert files.look(str(odd), None, None).name == "\ufffd.txt"


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("a.py", "text/x-python"),
        ("A.PDF", "application/pdf"),
        ("a.md", "text/markdown"),
        ("a.tar.gz", "application/octet-stream"),
        ("Makefile", "application/octet-stream"),
    ],
)
def test_type_of_a_file_follows_from_its_name(name: str, type: str) -> None:
    assert type_by_name(f"/folder.txt/{name}") == type


@pytest.mark.parametrize(
    ("head", "type"),
    [
        (png(), "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a\x01", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"RIFF\x00\x00\x00\x00WAVE", None),
        (b"<svg xmlns=", None),
        (b"BM", None),
        (b"", None),
    ],
)
def test_images_that_models_take_are_known_by_their_first_bytes(head: bytes, type: str | None) -> None:
    assert image_type(head) == type


def test_text_is_utf8_without_nul() -> None:
    assert [is_text(content) for content in (b"", "é".encode(), b"\xe9", b"\0")] == [True, True, False, False]


# Whether it may be had


def test_what_is_no_file_is_refused_and_never_waited_for(files: AttachedFiles, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "socket"))
        for path in (tmp_path / "fifo", tmp_path / "socket", Path("/dev/zero"), Path("/dev/tty")):
            with pytest.raises(NotAFile):
                files.look(str(path), None, None, image_room=ROOM, text_room=ROOM)


def test_what_is_not_there_is_refused(files: AttachedFiles, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "round").symlink_to("round")

    for name in ("gone", "broken", "gone/file"):
        with pytest.raises(FileNotFoundError):
            files.look(str(tmp_path / name), None, None)
    for path, number in (
        (f"{tmp_path}/file/", errno.ENOTDIR),
        (f"{tmp_path}/round", errno.ELOOP),
        ("/\0", errno.EINVAL),
    ):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the number says which
            files.look(path, None, None)
        assert caught.value.errno == number


def test_roots_confine_also_through_links(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root, outside):
        folder.mkdir()
        (folder / "file").write_text("x")
    (root / "link").symlink_to(outside / "file")
    (root / "folder").symlink_to(outside)
    files = AttachedFiles(Confined([str(root)]))

    assert files.look(str(root / "file"), None, None).path == str(root / "file")
    assert files.look(str(root), None, None).directory
    for path in (outside / "file", outside / "gone", root / "link", root / "folder", root / "folder" / "file"):
        with pytest.raises(Outside):
            files.look(str(path), None, None)


def test_link_is_attached_by_the_name_it_was_given(files: AttachedFiles, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")

    assert files.look(str(tmp_path / "link"), None, None).path == str(tmp_path / "link")


def test_reading_ends_when_it_takes_too_long_or_the_server_stops(tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(png())
    slow, closed = AttachedFiles(timeout=-1.0), AttachedFiles()
    closed.close()

    for files in (slow, closed):
        with pytest.raises(TimeoutError):
            files.look(str(tmp_path / "picture"), None, None, image_room=ROOM)
