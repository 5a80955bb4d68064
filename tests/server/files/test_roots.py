"""Trees, what a path means in them, names as text, and errors as clients get them: contract, section 13."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.protocol.errors import FileProblem
from sandboxagent.server.files.confined import Outside, Replaced
from sandboxagent.server.files.roots import Roots, decode_name, encode_name, file_problem, file_problems
from tests.support.swapping import exchange, swapping


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
    tmp_path: Path, path: str, directory: str | None, expected: str
) -> None:
    assert Roots([], "/base").absolute(path, directory) == expected
    for each in ("base", "other"):
        (tmp_path / each).mkdir()
    roots = Roots([str(tmp_path / "base"), str(tmp_path / "other")], "/elsewhere")
    assert roots.absolute(path, directory) == expected.replace("/base", str(tmp_path / "base"))


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


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A root, what is outside of it, and a link that leads out."""
    for name, text in (("root", "mine"), ("outside", "secret")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(text)
    (tmp_path / "evil").symlink_to("outside")
    return tmp_path


def test_what_takes_the_place_of_a_root_is_not_entered(place: Path) -> None:
    root = place / "root"
    roots = Roots([str(root)], "/")

    def read(path: Path = root / "file") -> bytes:
        with roots.confined.open(str(path)) as file:
            return file.read()

    assert read() == b"mine"
    root.rename(place / "old")
    with pytest.raises(Replaced):  # It is gone.
        read()
    root.symlink_to("outside")
    with pytest.raises(Replaced):  # A link leads out in its place.
        read()
    with pytest.raises(Outside):
        read(place / "outside/file")
    root.unlink()
    root.mkdir()
    (root / "file").write_text("another")
    with pytest.raises(Replaced):  # Another directory is in its place.
        read()
    (root / "file").unlink()
    root.rmdir()
    root.symlink_to("old")
    assert read() == b"mine"  # It is the same one, by whatever way.
    root.unlink()
    (place / "old").rename(root)
    assert read() == b"mine"


def test_a_root_that_is_a_link_is_where_it_led_at_the_start(place: Path) -> None:
    (place / "link").symlink_to("root")
    roots = Roots([str(place / "link")], "/")
    roots.confined.open(str(place / "link/file")).close()
    roots.confined.open(str(place / "root/file")).close()
    (place / "link").unlink()
    (place / "link").symlink_to("outside")
    with pytest.raises(Replaced):
        roots.confined.open(str(place / "link/file"))
    roots.confined.open(str(place / "root/file")).close()


def test_a_root_that_changes_places_with_a_link_all_the_time_never_leads_out(place: Path) -> None:
    roots = Roots([str(place / "root")], "/")
    seen: set[str] = set()
    with swapping(exchange(place / "root", place / "evil")):
        for _ in range(500):
            try:
                with roots.confined.open(str(place / "root/file")) as file:
                    seen.add(file.read().decode())
            except Replaced:
                seen.add("replaced")
    assert "secret" not in seen
    assert seen


def test_a_session_directory_that_becomes_a_link_leads_out_of_no_root(place: Path) -> None:
    session = place / "root/session"
    session.mkdir()
    (session / "file").write_text("mine")
    roots = Roots([str(place / "root")], "/")
    with roots.within([str(session)]).open(str(session / "file")) as file:
        assert file.read() == b"mine"
    (session / "file").unlink()
    session.rmdir()
    session.symlink_to(place / "outside")
    with pytest.raises(Outside):
        roots.within([str(session)]).open(str(session / "file"))
    # A directory that was made anew is the session's as well: its path is what was agreed upon.
    session.unlink()
    session.mkdir()
    (session / "file").write_text("new")
    with roots.within([str(session)]).open(str(session / "file")) as file:
        assert file.read() == b"new"
    # And with the root itself all of it is gone.
    (place / "root").rename(place / "old")
    (place / "root").symlink_to("outside")
    (place / "outside/session").mkdir()
    (place / "outside/session/file").write_text("secret")
    with pytest.raises((Replaced, Outside)):
        roots.within([str(session)]).open(str(session / "file"))


def test_a_root_that_is_not_there_is_no_root(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Roots([str(tmp_path / "none")], "/")


names = st.binary(min_size=1, max_size=30) | st.text(min_size=1, max_size=10).map(
    lambda text: text.encode(errors="replace")
)


@given(names)
def test_every_name_has_a_text_that_means_it_and_is_unicode(name: bytes) -> None:
    text = encode_name(os.fsdecode(name))
    assert text.encode().decode() == text
    assert os.fsencode(decode_name(text)) == name


@given(names, names)
def test_no_two_names_have_the_same_text(one: bytes, other: bytes) -> None:
    assert (encode_name(os.fsdecode(one)) == encode_name(os.fsdecode(other))) == (one == other)


def test_a_byte_is_shown_as_its_own_character_and_other_names_as_they_are() -> None:
    assert encode_name(os.fsdecode(b"caf\xe9")) == "caf\uefe9"
    assert encode_name("grün 𝄞") == "grün 𝄞"
    assert encode_name("\uefe9") == "\uefee\uefbf\uefa9"
    assert decode_name(os.fsdecode(b"caf\xe9")) == os.fsdecode(b"caf\xe9")


def test_text_that_can_be_no_name_is_passed_on_unchanged() -> None:
    assert decode_name("a\ud800") == "a\ud800"


FAULTLESS = {"EIO", "EMFILE", "ENFILE", "ENOMEM"}
"""What no client can help."""


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (errno.EINVAL, 400),
        (errno.ENAMETOOLONG, 400),
        (errno.ELOOP, 400),
        (errno.EACCES, 403),
        (errno.EROFS, 403),
        (errno.ENOENT, 404),
        (errno.EISDIR, 409),
        (errno.ENOTDIR, 409),
        (errno.ENOTEMPTY, 409),
        (errno.EXDEV, 409),
        (errno.ETXTBSY, 409),
        (errno.EFBIG, 413),
        (errno.ENOSPC, 507),
        (errno.EDQUOT, 507),
        (errno.EIO, 500),
        (errno.EMFILE, 500),
    ],
)
def test_each_errno_has_a_status_and_is_named_with_the_path(number: int, status: int) -> None:
    problem = file_problem(OSError(number, os.strerror(number)), "/a\udcff")
    assert problem.status == status
    assert problem.fields == {"path": "/a\uefff", "errno": errno.errorcode[number]}
    assert os.strerror(number) in str(problem)
    assert (status == 500) == (errno.errorcode[number] in FAULTLESS)


def test_outside_is_its_own_problem_whatever_its_errno() -> None:
    with pytest.raises(FileProblem) as refused, file_problems("/path"):
        raise Outside(errno.EXDEV, "leads out")
    assert (refused.value.status, refused.value.fields) == (403, {"path": "/path"})
