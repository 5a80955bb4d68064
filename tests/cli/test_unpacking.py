"""Archives as directories: what a server that means no good could send."""

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_agent.cli.remote import Refused
from sandbox_agent.cli.unpacking import unpack
from sandbox_agent.client.trees import archived
from sandbox_agent.errors import UnsafeArchive
from tests.support.archives import extended, hardlink, header, member, symlink

Member = tuple[tarfile.TarInfo, bytes]


def archive(*members: Member) -> bytes:
    written = io.BytesIO()
    with tarfile.open(mode="w", fileobj=written) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return written.getvalue()


def taken(data: bytes, target: Path, size: int = 1000) -> list[str]:
    """Unpack it, from pieces; what was left out."""
    left: list[str] = []
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    unpack(pieces, target, lambda name, why: left.append(name))
    return left


EVIL = {
    "a file by the parent's name": [member("../evil", b"x")],
    "a file by an absolute name": [member("/tmp/evil", b"x")],
    "a file below a link": [symlink("a", "."), member("a/evil", b"x")],
    "a file below a link that is left out": [symlink("a", ".."), member("a/b", b"x"), symlink("b", "a/../..")],
    "a file in the place of a link": [symlink("a", "b"), member("a", b"x")],
    "a link that leads out through another": [symlink("a/b", ".."), symlink("c", "a/b/..")],
}


@pytest.mark.parametrize("members", EVIL.values(), ids=EVIL)
def test_nothing_is_written_outside(members: list[Member], tmp_path: Path) -> None:
    target = tmp_path / "inside" / "target"
    try:
        taken(archive(*members), target)
    except (UnsafeArchive, Refused):
        assert not target.exists(), "and nothing inside"
    assert {path.name for path in (tmp_path / "inside").iterdir()} <= {"target"}
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    for path in target.rglob("*"):
        assert path.resolve().is_relative_to(target.resolve())


def test_what_is_neither_file_nor_directory_nor_link_is_left_out(tmp_path: Path) -> None:
    odd = [member("pipe", type=tarfile.FIFOTYPE), hardlink("hard", "f"), member("f", b"x")]

    assert taken(archive(*odd), tmp_path / "t") == ["pipe", "hard"]
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["f"]


@pytest.mark.parametrize("cut", [1, 511, 700, 1024])
def test_half_an_archive_is_refused_and_leaves_nothing(cut: int, tmp_path: Path) -> None:
    whole = archive(member("f", bytes(2000)))

    with pytest.raises(Refused):
        taken(whole[:cut], tmp_path / "t")

    assert list(tmp_path.iterdir()) == []


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="what the server sends is no archive"):
        taken(b"x" * 5000, tmp_path / "t")


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=40).filter(
            lambda name: name not in (".", "..") and len(name.encode()) < 200
        ),
        st.binary(max_size=2000),
        max_size=6,
    ),
    st.integers(1, 4000),
)
def test_whatever_is_packed_is_unpacked(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], size: int
) -> None:
    tmp_path = tmp_path_factory.mktemp("packed")
    (tmp_path / "a" / "deep").mkdir(parents=True)
    for name, content in files.items():
        (tmp_path / "a" / "deep" / name).write_bytes(content)

    left = taken(b"".join(archived(tmp_path / "a", lambda name, why: None)), tmp_path / "b", size)

    assert left == []
    assert {path.name: path.read_bytes() for path in (tmp_path / "b" / "deep").iterdir()} == files


COSTLY = {
    "a path of many levels": extended(path="a/" * 31_000 + "f") + header("f"),
    "a tree that is too deep": extended(path="a/" * 300 + "f") + header("f"),
    "a header that claims to be huge": header("x", type=tarfile.XHDTYPE, size=1 << 33),
    "a thousand headers in a row": extended(type=tarfile.XGLTYPE, comment="") * 1200 + header("f"),
}


@pytest.mark.parametrize("name", COSTLY)
def test_an_archive_that_costs_much_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises((UnsafeArchive, Refused)):
        taken(COSTLY[name] + bytes(1024), tmp_path / "target")
    assert list(tmp_path.iterdir()) == []
