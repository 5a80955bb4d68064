"""Archives from a server that means no good, and directories that change while they are packed."""

import asyncio
import io
import os
import tarfile
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxagent.client.archives import leads_out, make_archive, pack_in_threads, unpack
from sandboxagent.client.errors import ClientError, ConnectionLost
from tests.support.archives import extended, header
from tests.support.client import run


def member(name: str, content: bytes = b"", **facts: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in facts.items():
        setattr(info, key, value)
    return info, content


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(mode="w", fileobj=written) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return written.getvalue()


async def pieces(data: bytes, size: int = 1000) -> AsyncGenerator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def ignore(name: str, why: str) -> None:
    """What is left out does not matter here."""


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def taken(data: bytes, target: Path, size: int = 1000) -> list[str]:
    """Unpack it, from pieces; what was left out."""
    left: list[str] = []
    run(unpack(pieces(data, size), target, lambda name, why: left.append(name)))
    return left


DIRECTORY = member("d", type=tarfile.DIRTYPE)
EVIL = {
    "a file by the parent's name": [member("../evil", b"x")],
    "a file by an absolute name": [member("/tmp/evil", b"x")],
    "a file through a link out": [link("a", ".."), member("a/evil", b"x")],
    "a file through a link that stays": [DIRECTORY, link("a", "d"), member("a/evil", b"x")],
    "a file below a link": [link("a", "."), member("a/evil", b"x")],
    "a file below a link that is left out": [link("a", ".."), member("a/b", b"x"), link("b", "a/../..")],
    "a file in the place of a link": [link("a", "evil"), member("a", b"x")],
    "a file below a link in other letters": [link("A", "."), member("a/evil", b"x")],
    "a link below a link": [link("a", "."), link("a/b", "..")],
    "a link that leads out through another": [link("a/b", ".."), link("c", "a/b/..")],
    "a hard link out": [member("evil", type=tarfile.LNKTYPE, linkname="../outside")],
    "a hard link to a link": [link("a", "b"), member("h", type=tarfile.LNKTYPE, linkname="a")],
    "a pipe": [member("pipe", type=tarfile.FIFOTYPE)],
    "a device": [member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)],
}


@pytest.mark.parametrize("name", EVIL)
def test_nothing_is_written_outside(tmp_path: Path, name: str) -> None:
    target = tmp_path / "inside" / "target"
    (tmp_path / "outside").write_text("untouched")

    try:
        taken(archive(*EVIL[name]), target)
    except ClientError:
        assert not target.exists(), "and nothing inside"
    assert {path.name for path in (tmp_path / "inside").iterdir()} <= {"target"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inside", "outside"]
    assert (tmp_path / "outside").read_text() == "untouched"
    for path in target.rglob("*"):
        assert path.resolve().is_relative_to(target.resolve())
        assert path.is_file() or path.is_dir() or path.is_symlink()


def test_what_is_neither_file_nor_directory_nor_link_is_left_out(tmp_path: Path) -> None:
    hard = member("hard", type=tarfile.LNKTYPE, linkname="f")
    odd = [member("pipe", type=tarfile.FIFOTYPE), hard, member("f", b"x")]

    assert taken(archive(*odd), tmp_path / "t") == ["pipe", "hard"]
    assert tree(tmp_path / "t") == ["f"]


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "d/../../outside"])
def test_a_link_that_leads_out_is_left_out_and_the_rest_is_taken(tmp_path: Path, target: str) -> None:
    assert taken(archive(member("one", b"1"), link("out", target), member("two", b"2")), tmp_path / "in") == ["out"]
    assert tree(tmp_path / "in") == ["one", "two"]


def test_a_link_of_this_machine_is_not_followed_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "mine").symlink_to(tmp_path / "outside")
    (tmp_path / "outside").mkdir()

    with pytest.raises(ClientError, match="is in the way of a directory; nothing was changed"):
        taken(archive(member("mine/evil", b"x")), tmp_path / "in")

    assert tree(tmp_path / "outside") == []


def test_only_the_owner_may_write_what_came(tmp_path: Path) -> None:
    taken(archive(member("x", b"x", mode=0o6777)), tmp_path)

    assert (tmp_path / "x").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("cut", [0, 1, 100, 600, 1500, 1536, 2000, 3072, 3584])
def test_an_archive_that_breaks_off_changes_nothing(tmp_path: Path, cut: int, there: bool) -> None:
    whole = archive(member("one", b"1" * 1000), member("two", b"2" * 1000))
    if there:
        (tmp_path / "t").mkdir()
        (tmp_path / "t" / "one").write_text("old")

    with pytest.raises(ClientError):
        taken(whole[:cut], tmp_path / "t")

    assert tree(tmp_path) == (["t", "t/one"] if there else [])
    assert not there or (tmp_path / "t" / "one").read_text() == "old"


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="the archive from the server is damaged"):
        taken(b"x" * 5000, tmp_path / "t")


def test_something_in_the_way_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()

    with pytest.raises(ClientError, match="two is a directory, in the way of a file; nothing was changed"):
        taken(archive(member("one", b"1"), member("two", b"2")), tmp_path)

    assert tree(tmp_path) == ["two"]


@settings(max_examples=25, deadline=None)
@given(st.binary(max_size=3000))
def test_no_bytes_make_it_fail_in_another_way(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    with suppress(ClientError):
        taken(data, tmp_path_factory.mktemp("any"))


def test_error_of_the_source_is_raised_as_it_is(tmp_path: Path) -> None:
    async def broken() -> AsyncGenerator[bytes]:
        yield archive(member("one", b"1" * 5000))[:600]
        raise ConnectionLost("gone")

    with pytest.raises(ConnectionLost, match="gone"):
        run(unpack(broken(), tmp_path, ignore))
    assert tree(tmp_path) == []


def test_a_file_that_is_no_directory_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")

    with pytest.raises(OSError, match="file"):
        taken(archive(member("one", b"1")), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@settings(max_examples=20, deadline=None)
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
    tmp_path = tmp_path_factory.mktemp("pack_in_threads")
    (tmp_path / "a" / "deep").mkdir(parents=True)
    for name, content in files.items():
        (tmp_path / "a" / "deep" / name).write_bytes(content)

    left = taken(b"".join(make_archive(tmp_path / "a", ignore)), tmp_path / "b", size)

    assert left == []
    assert {path.name: path.read_bytes() for path in (tmp_path / "b" / "deep").iterdir()} == files


# --- packing ----------------------------------------------------------------------------------------------------------


def test_a_file_that_becomes_shorter_while_it_is_sent_is_named(tmp_path: Path) -> None:
    with (tmp_path / "shrinking").open("wb") as file:
        file.truncate(8 << 20)

    async def main() -> None:
        blocks = pack_in_threads(tmp_path, ignore)
        await anext(blocks)
        with (tmp_path / "shrinking").open("wb") as file:
            file.truncate(1 << 20)
        with pytest.raises(OSError, match="shrinking became shorter while it was sent; nothing was copied"):
            async for _ in blocks:
                pass

    run(main())


def test_a_file_that_grows_while_it_is_sent_is_as_long_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "growing").write_bytes(b"x" * (1 << 20))

    async def main() -> bytes:
        data = bytearray()
        async for block in pack_in_threads(tmp_path, ignore):
            data += block
            with (tmp_path / "growing").open("ab") as file:
                file.write(b"y" * 1000)
        return bytes(data)

    with tarfile.open(fileobj=io.BytesIO(run(main()))) as tar:
        (found,) = tar.getmembers()
        assert found.size == 1 << 20


def test_packing_that_is_left_closes_its_files(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(4 << 20))

    async def main() -> None:
        blocks = pack_in_threads(tmp_path, ignore)
        await anext(blocks)
        working = asyncio.ensure_future(anext(blocks))
        await asyncio.sleep(0)
        working.cancel()
        await asyncio.wait({working})
        await blocks.aclose()

    # An open file would be a warning, and warnings are errors.
    run(main())


def test_archives_do_not_tell_who_owns_the_files(tmp_path: Path) -> None:
    (tmp_path / "x").touch()

    async def main() -> bytes:
        return b"".join([block async for block in pack_in_threads(tmp_path, ignore)])

    with tarfile.open(fileobj=io.BytesIO(run(main()))) as tar:
        (found,) = tar.getmembers()
        assert (found.uid, found.gid, found.uname, found.gname) == (0, 0, "", "")


def sent(root: Path, left: list[str]) -> list[str]:
    """Names in its archive; what is not in it goes to `left`, with the reason."""
    data = b"".join(make_archive(root, lambda name, why: left.append(f"{name}: {why}")))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return sorted(tar.getnames())


def test_what_is_left_out_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "up").symlink_to("..")
    os.mkfifo(tmp_path / "pipe")
    left: list[str] = []

    assert sent(tmp_path, left) == []
    assert left == ["pipe: neither a file nor a directory nor a link", "up: a link to .."]


def test_a_link_that_other_links_lead_out_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "top").symlink_to("..")
    (tmp_path / "beyond").symlink_to("a/top/..")
    (tmp_path / "further").symlink_to("a/top/../x")
    (tmp_path / "beside").symlink_to("a/top/x")
    left: list[str] = []

    assert sent(tmp_path, left) == ["a", "a/top", "beside"]
    assert left == ["beyond: a link to a/top/..", "further: a link to a/top/../x"]


def test_a_link_to_one_that_is_left_out_is_sent(tmp_path: Path) -> None:
    (tmp_path / "absolute").symlink_to("/etc/passwd")
    (tmp_path / "fine").symlink_to("absolute")

    assert sent(tmp_path, []) == ["fine"]


@pytest.mark.parametrize(
    ("name", "target", "out"),
    [
        ("a", "b", False),
        ("a", ".", False),
        ("a", "..", True),
        ("a", "/b", True),
        ("a/b", "..", False),
        ("a/b", "../..", True),
        ("a/b", "../../a", True),
        ("a/b", "c/../../d", False),
        ("a", "..b", False),
    ],
)
def test_a_link_leads_out_by_its_text(name: str, target: str, out: bool) -> None:
    assert leads_out(name, target) is out


COSTLY = {
    "a path of many levels": extended(path="a/" * 31_000 + "f") + header("f"),
    "a tree that is too deep": extended(path="a/" * 300 + "f") + header("f"),
    "a path that is too long": extended(path="a" * 5000) + header("f"),
    "a header that claims to be huge": header("x", type=tarfile.XHDTYPE, size=1 << 33),
    "a thousand headers in a row": extended(type=tarfile.XGLTYPE, comment="") * 1200 + header("f"),
}


@pytest.mark.parametrize("name", COSTLY)
def test_an_archive_that_costs_much_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(ClientError):
        taken(COSTLY[name] + bytes(1024), tmp_path / "inside")
    assert tree(tmp_path) == []
