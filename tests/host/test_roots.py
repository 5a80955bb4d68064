"""Trees, and what a path means in them: contract, section 13."""

import os
from pathlib import Path

import pytest

from sandbox_agent.host.confined import Outside
from sandbox_agent.host.roots import Roots


@pytest.mark.parametrize(
    ("path", "directory", "expected"),
    [
        ("file", None, "/base/file"),
        ("file", "/session", "/session/file"),
        ("/file", "/session", "/file"),
        (".", None, "/base"),
        ("./a//b/./c", None, "/base/a/b/c"),
        ("a/../b", None, "/base/a/../b"),
        ("a/", None, "/base/a/"),
        ("/", None, "/"),
        ("//", None, "/"),
        ("~/file", None, "/base/~/file"),
    ],
)
def test_a_path_is_made_absolute_and_its_dots_are_left_for_the_walk(
    path: str, directory: str | None, expected: str
) -> None:
    assert Roots([], "/base").absolute(path, directory) == expected
    assert Roots(["/base", "/other"], "/elsewhere").absolute(path, directory) == expected


def test_what_is_within_directories_is_also_within_the_roots(tmp_path: Path) -> None:
    for name in ("root/session", "root/other", "outside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    (tmp_path / "root" / "out").symlink_to(tmp_path / "outside")
    (tmp_path / "into").symlink_to(tmp_path / "root" / "session")
    roots = Roots([str(tmp_path / "root")], "/")

    def reachable(session: str, path: str) -> bool:
        try:
            roots.within([str(tmp_path / session)]).open(str(tmp_path / path)).close()
        except (Outside, FileNotFoundError):
            return False
        return True

    assert reachable("root/session", "root/session/file")
    assert not reachable("root/session", "root/other/file")
    assert reachable("", "root/other/file")
    assert not reachable("", "outside/file")
    assert not reachable("outside", "outside/file")
    # By its name it is inside, and where it leads is not.
    assert not reachable("root/out", "root/out/file")
    assert not reachable("root/out", "outside/file")
    # A spelling that goes through what is outside is none of ours; where it leads is.
    assert not reachable("into", "into/file")
    assert reachable("into", "root/session/file")


def test_without_roots_a_session_has_all_of_its_directories(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    Roots([], "/").within([str(tmp_path)]).open(str(tmp_path / "file")).close()


def test_a_root_the_base_and_what_is_above_them_are_protected_by_whatever_name(tmp_path: Path) -> None:
    for name in ("root/inner/deep", "base", "root/other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("root")
    roots = Roots([str(tmp_path / "link"), str(tmp_path / "root" / "inner")], str(tmp_path / "base"))

    def protected(name: str) -> bool:
        node = os.open(tmp_path / name, os.O_PATH)
        try:
            return roots.protects(node)
        finally:
            os.close(node)

    assert [
        name for name in ("root", "link", "root/inner", "", "root/other", "root/inner/deep") if protected(name)
    ] == [
        "root",
        "link",
        "root/inner",
        "",
    ]
