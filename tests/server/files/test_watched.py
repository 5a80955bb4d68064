"""A directory that is watched: what happens in it, below it, and to it."""

import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from sandboxagent.server.files.confined import Confined, Outside
from sandboxagent.server.files.watch import MAX_DEPTH, Directories, EventsDropped, Gone, Watched


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/a/b").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "root/link").symlink_to("../outside")
    return tmp_path / "root"


@pytest.fixture
def directories() -> Generator[Directories]:
    directories = Directories(1000)
    yield directories
    directories.close()


@pytest.fixture
def watched(directories: Directories, root: Path) -> Generator[Watched]:
    watched = Watched(directories, Confined([str(root)]), str(root), recursive=True)
    yield watched
    watched.close()
    assert len(directories) == 0


def seen(watched: Watched) -> set[tuple[str, str]]:
    watched._directories.read()  # pyright: ignore[reportPrivateUsage]
    return {(kind, "/".join(parts)) for kind, parts in watched.changes()}


def all_of(watched: Watched) -> None:
    while seen(watched):
        pass


def test_what_happens_anywhere_below_is_seen(watched: Watched, root: Path) -> None:
    (root / "a/b/file").write_text("x")
    assert seen(watched) == {("added", "a/b/file"), ("modified", "a/b/file")}
    (root / "a/b/file").write_text("y")
    assert seen(watched) == {("modified", "a/b/file")}
    (root / "a/b/file").rename(root / "moved")
    assert seen(watched) == {("deleted", "a/b/file"), ("added", "moved")}
    (root / "moved").unlink()
    assert seen(watched) == {("deleted", "moved")}
    assert seen(watched) == set()


def test_a_file_without_a_name_is_not_reported_until_it_has_one(watched: Watched, root: Path) -> None:
    folder = os.open(root / "a", os.O_RDONLY)
    file = os.open(".", os.O_TMPFILE | os.O_WRONLY, dir_fd=folder)
    os.write(file, b"x")
    os.fchmod(file, 0o600)
    assert seen(watched) == set()
    os.link(f"/proc/self/fd/{file}", "named", dst_dir_fd=folder, follow_symlinks=True)
    os.close(file)
    os.close(folder)
    assert seen(watched) == {("added", "a/named")}


def test_a_file_that_is_named_like_one_without_a_name_is_seen(watched: Watched, root: Path) -> None:
    (root / "a/#1").write_text("x")
    assert seen(watched) == {("added", "a/#1"), ("modified", "a/#1")}
    (root / "a/#1").write_text("y")
    assert seen(watched) == {("modified", "a/#1")}
    (root / "a/#1").unlink()
    assert seen(watched) == {("deleted", "a/#1")}


def test_a_new_folder_is_watched_with_what_is_in_it_already(watched: Watched, root: Path) -> None:
    (root / "new/deep").mkdir(parents=True)
    (root / "new/deep/file").write_text("x")
    assert seen(watched) >= {("added", "new"), ("added", "new/deep"), ("added", "new/deep/file")}
    (root / "new/deep/later").write_text("x")
    assert ("added", "new/deep/later") in seen(watched)


def test_a_folder_that_is_moved_is_followed_to_its_new_name(watched: Watched, root: Path) -> None:
    (root / "a").rename(root / "c")
    assert seen(watched) == {("deleted", "a"), ("added", "c"), ("added", "c/b")}
    (root / "c/b/file").write_text("x")
    assert ("added", "c/b/file") in seen(watched)
    shutil.move(root / "c", root.parent / "outside")
    assert seen(watched) == {("deleted", "c")}
    (root.parent / "outside/c/b/other").write_text("x")
    assert seen(watched) == set()


def test_what_a_link_leads_to_is_not_watched(watched: Watched, root: Path) -> None:
    (root.parent / "outside/file").write_text("x")
    (root / "other").symlink_to("../outside")
    assert seen(watched) == {("added", "other")}
    (root.parent / "outside/file").write_text("y")
    assert seen(watched) == set()


def test_without_what_is_below_only_the_directory_itself_is_watched(directories: Directories, root: Path) -> None:
    watched = Watched(directories, Confined([str(root)]), str(root), recursive=False)
    (root / "a/file").write_text("x")
    (root / "new").mkdir()
    (root / "new/file").write_text("x")
    assert seen(watched) == {("added", "new")}
    watched.close()


@pytest.mark.parametrize("end", [shutil.rmtree, lambda root: root.rename(root.parent / "elsewhere")])
def test_a_directory_that_goes_ends_it(watched: Watched, root: Path, end: object) -> None:
    assert callable(end)
    end(root)
    with pytest.raises(Gone):
        all_of(watched)


def test_what_cannot_be_watched_is_an_error(directories: Directories, root: Path) -> None:
    (root / "file").write_text("x")
    confined = Confined([str(root)])
    for path, error in [
        (root / "none", FileNotFoundError),
        (root / "file", NotADirectoryError),
        (root / "link", Outside),
        (root.parent / "outside", Outside),
    ]:
        with pytest.raises(error):
            Watched(directories, confined, str(path), recursive=True)
    assert len(directories) == 0


def test_events_that_the_kernel_drops_are_said_to_be_missed(watched: Watched, root: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    (root / "a/x").write_text("")
    (root / "a/y").write_text("")
    for _ in range(most // 2 + 10):  # Two names in turn: the kernel merges what is alike.
        os.utime(root / "a/x")
        os.utime(root / "a/y")
    with pytest.raises(EventsDropped):
        all_of(watched)
    all_of(watched)
    (root / "a/b/file").write_text("x")
    assert ("added", "a/b/file") in seen(watched)


def test_what_is_too_deep_is_not_watched_and_costs_nothing(directories: Directories, root: Path) -> None:
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(MAX_DEPTH + 100):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    watched = Watched(directories, Confined([str(root)]), str(root), recursive=True)
    try:
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here))
        (root / ("d/" * MAX_DEPTH) / "file").write_text("x")
        assert seen(watched) == {(kind, "d/" * MAX_DEPTH + "file") for kind in ("added", "modified")}
    finally:
        watched.close()
        os.close(here)
