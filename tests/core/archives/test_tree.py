"""A folder that fills from an archive: nothing lands outside, nothing is made twice, and links stay inside."""

import os
import tracemalloc
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest

from sandboxagent.core.archives.tree import Folder, Parts, Tree
from sandboxagent.protocol.errors import UnsafeArchive


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(Folder(tmp_path / "into"), "tested.tar", max_bytes=1000, max_entries=20)


def refused(entry: str, rule: str) -> "pytest.RaisesExc[UnsafeArchive]":
    return pytest.raises(
        UnsafeArchive, check=lambda error: error.fields["entry"] == entry and rule in str(error.fields["rule"])
    )


def test_files_and_folders_are_made_with_the_folders_above_them(tree: Tree, tmp_path: Path) -> None:
    tree.file("./a//b/./c", 0o644, [b"x", b"y"])
    tree.folder("d/e/")
    tree.folder("a")
    tree.folder(".")
    tree.finish()

    assert (tmp_path / "into/a/b/c").read_bytes() == b"xy"
    assert (tmp_path / "into/d/e").is_dir()


@pytest.mark.parametrize(
    ("mode", "kept"), [(0o644, 0o644), (0o600, 0o644), (0o755, 0o755), (0o500, 0o755), (0o4755, 0o755), (0o7666, 0o644)]
)
def test_of_a_mode_only_the_right_to_run_is_kept(tree: Tree, tmp_path: Path, mode: int, kept: int) -> None:
    tree.file("a", mode, [])

    assert (tmp_path / "into/a").stat().st_mode & 0o7777 == kept & ~os.umask(os.umask(0o22))


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("/a", "absolute"),
        ("//a", "absolute"),
        ("..", "'..'"),
        ("a/../b", "'..'"),
        ("a/..", "'..'"),
        ("a\0b", "NUL"),
        ("..\\a", "backslash"),
        ("", "no name"),
        (".", "no name"),
        ("a" * 300, "too long"),
    ],
)
def test_a_name_that_is_none_is_refused(tree: Tree, tmp_path: Path, name: str, rule: str) -> None:
    with refused(name, rule):
        tree.file(name, 0o644, [b"x"])
    other = Tree(Folder(tmp_path / "into"), "tested.tar", max_bytes=1000, max_entries=20)
    with refused(name, rule):
        other.link(name, "b")
        other.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["into"]


def test_a_name_is_made_once(tree: Tree) -> None:
    tree.file("a", 0o644, [])
    tree.link("b", "a")
    tree.folder("c")

    for name in ("a", "./a", "b", "c"):
        with refused(name, "another entry"):
            tree.file(name, 0o644, [])
        with refused(name, "another entry"):
            tree.link(name, "a")
    for name in ("a", "b"):
        with refused(name, "where another entry is"):
            tree.folder(name)
    for name in ("a/x", "b/x"):
        with refused(name, "where another entry is"):
            tree.file(name, 0o644, [])


@pytest.mark.parametrize("name", ["link/x", "link", "file"])
def test_what_was_there_before_is_not_touched(tree: Tree, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "into/link").symlink_to(tmp_path / "outside")
    (tmp_path / "into/file").write_text("old")

    with refused(name, "taken"):
        tree.file(name, 0o644, [b"new"])
    assert list((tmp_path / "outside").iterdir()) == []
    assert (tmp_path / "into/file").read_text() == "old"


def test_bytes_are_counted_as_they_come(tree: Tree, tmp_path: Path) -> None:
    taken: list[int] = []

    def many() -> Iterator[bytes]:
        for _ in range(100):
            taken.append(1)
            yield bytes(300)

    tree.file("a", 0o644, [bytes(300)])
    with refused("b", "1000 bytes"):
        tree.file("b", 0o644, many())
    assert len(taken) == 3
    assert (tmp_path / "into/b").stat().st_size <= 600


def test_unlisted_folders_count_too(tree: Tree) -> None:
    deep = "/".join("abcdefghijklmnopqrstuvwxyz")

    with refused(deep, "20 files and folders"):
        tree.folder(deep)


def test_a_hard_link_becomes_a_copy_of_an_earlier_file(tree: Tree, tmp_path: Path) -> None:
    tree.file("a/program", 0o755, [b"x" * 400])
    tree.copy("b", "./a/program")

    assert (tmp_path / "into/b").read_bytes() == b"x" * 400
    assert (tmp_path / "into/b").stat().st_nlink == 1
    assert os.access(tmp_path / "into/b", os.X_OK)
    with refused("c", "1000 bytes"):
        tree.copy("c", "b")


@pytest.mark.parametrize(
    "original", ["missing", "self", "folder", "link", "/file", "/etc/passwd", "../outside", "folder/../file", "", "a\0"]
)
def test_a_hard_link_to_anything_else_is_refused(tree: Tree, tmp_path: Path, original: str) -> None:
    (tmp_path / "outside").write_text("secret")
    tree.file("file", 0o644, [])
    tree.folder("folder")
    tree.link("link", "folder")

    with refused("self", "hard link"):
        tree.copy("self", original)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("a", "b"),
        ("a", "missing"),
        ("a", "."),
        ("a", "a"),
        ("x/y/a", "../../b"),
        ("x/y/a", "./..//../x/y"),
        ("readme", "README"),
        ("x/a", "b/../../x"),
    ],
)
def test_a_link_that_stays_inside_is_made_as_it_is(tree: Tree, tmp_path: Path, name: str, target: str) -> None:
    tree.file("README", 0o644, [])
    tree.link(name, target)
    tree.finish()

    assert (tmp_path / "into" / name).readlink() == Path(target)


@pytest.mark.parametrize(
    ("name", "target", "rule"),
    [
        ("a", "..", "out of the folder"),
        ("a", "../into/b", "out of the folder"),
        ("x/a", "../..", "out of the folder"),
        ("x/a", "missing/../../../b", "out of the folder"),
        ("a", "/etc/passwd", "absolute"),
        ("a", "", "no proper name"),
        ("a", "b\0", "no proper name"),
        ("a", "..\\b", "no proper name"),
        ("a", "b/" * 3000, "no proper name"),
    ],
)
def test_a_link_that_leads_out_is_not_made(tree: Tree, tmp_path: Path, name: str, target: str, rule: str) -> None:
    tree.link("fine", "x")

    with refused(name, rule):
        tree.link(name, target)
        tree.finish()
    assert not os.path.lexists(tmp_path / "into" / name)


def test_links_are_followed_through_links_as_the_kernel_does(tree: Tree, tmp_path: Path) -> None:
    # By its text alone, `out` stays inside: a/b/up/.. looks like a/b, but is what is above the folder.
    tree.link("out", "a/b/up/..")
    tree.link("a/b/up", "../..")

    with refused("out", "out of the folder"):
        tree.finish()
    assert not os.path.lexists(tmp_path / "into/out")


def test_links_are_followed_as_where_upper_case_is_not_known(tree: Tree) -> None:
    tree.link("out", "a/B/up/..")
    tree.link("a/b/UP", "../..")

    with refused("out", "out of the folder"):
        tree.finish()


def test_links_in_a_circle_are_harmless(tree: Tree, tmp_path: Path) -> None:
    tree.link("a", "b/x")
    tree.link("b", "a/x")
    tree.finish()

    with pytest.raises(OSError, match="symbolic links"):
        (tmp_path / "into/a").stat()


def test_a_name_that_is_not_text_can_be_told(tree: Tree) -> None:
    with pytest.raises(UnsafeArchive) as error:
        tree.file("/\udcff", 0o644, [])

    assert error.value.fields["entry"] == "/\\udcff"
    str(error.value).encode()


def test_a_path_may_be_so_deep_and_no_deeper(tmp_path: Path) -> None:
    def made(depth: int) -> Tree:
        return Tree(Folder(tmp_path / str(depth)), "deep.tar", max_bytes=1000, max_entries=1000, max_depth=depth)

    made(40).file("d/" * 39 + "f", 0o644, [b"x"])
    for put in (
        lambda tree: tree.file("d/" * 39 + "f", 0o644, [b"x"]),
        lambda tree: tree.folder("d/" * 40),
        lambda tree: tree.link("d/" * 39 + "f", "x"),
    ):
        with pytest.raises(UnsafeArchive, match="more than 39 levels deep") as refused:
            put(made(39))
        assert refused.value.fields["limit"] == 39
    assert not list((tmp_path / "39").iterdir())


def test_a_path_of_many_levels_is_refused_before_it_costs_anything(tmp_path: Path) -> None:
    tree = Tree(Folder(tmp_path / "into"), "deep.tar", max_bytes=1000, max_entries=100_000, max_depth=100_000)
    tracemalloc.start()
    try:
        with pytest.raises(UnsafeArchive, match="more than 4095 bytes"):
            tree.file("a/" * 31_000 + "f", 0o644, [b"x"])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_all_paths_together_have_a_bound_in_levels() -> None:
    tree = Tree(Nowhere(), "deep.tar", max_bytes=1000, max_entries=5000, max_depth=2000)

    def fill() -> None:
        for number in range(5000):
            tree.file(f"{'d/' * 1000}{number}", 0o644, [])

    with pytest.raises(UnsafeArchive, match="levels together"):
        fill()


def test_links_that_lead_through_each_other_for_ever_have_a_bound() -> None:
    tree = Tree(Nowhere(), "links.tar", max_bytes=1000, max_entries=5000)
    tree.folder("d")
    for number in range(400):
        tree.link(f"l{number}", "d/../" * 100 + f"l{(number + 1) % 400}")
    with pytest.raises(UnsafeArchive, match="levels together"):
        tree.finish()


def test_a_link_leads_through_so_many_names_and_no_more(tree: Tree) -> None:
    tree.link("near", "d/../" * 100 + "x")
    with pytest.raises(UnsafeArchive, match="through more than 256 names") as refused:
        tree.link("far", "d/../" * 800 + "x")
    assert refused.value.fields["limit"] == 256


class Nowhere:
    """A shelf that keeps nothing."""

    name = "nowhere"

    def folder(self, parts: Parts) -> None: ...

    def file(self, parts: Parts, *, runs: bool) -> FileIO:
        return FileIO(os.devnull, "wb")

    def read(self, parts: Parts) -> FileIO:
        return FileIO(os.devnull, "rb")

    def link(self, parts: Parts, target: str) -> None: ...
