"""Files of a server's machine through the SDK: single files, directories, and whole trees."""

import asyncio
import hashlib
import io
import os
import tarfile
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from itertools import count
from pathlib import Path, PurePosixPath

import pytest

from sandboxagent.client.api import Api
from sandboxagent.client.errors import ConnectionLost, ForeignAnswer, LocalFileFailed, ServerProblem
from sandboxagent.client.files import Files, Uploaded, Written
from tests.support.client import Client, run
from tests.support.loopback import Loopback, answer
from tests.support.running import TOKEN, Server, eventually

MIB = 1 << 20
LARGE = 48 * MIB
BOUNDED = 12 * MIB
"""What may be in memory of something large."""

NAMES = count()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def confined(root: Path) -> Generator[Server]:
    with Server(
        "--no-persist", "--fs-root", str(root), "--max-file", f"{LARGE}", "--archive-entries", "500"
    ) as running:
        yield running


@pytest.fixture
def place(root: Path) -> Path:
    """A folder of its own for each test, on the server's machine, which is this one."""
    folder = root / f"test{next(NAMES)}"
    folder.mkdir()
    return folder


Use = Callable[[Files], Coroutine[None, None, None]]


@pytest.fixture
def using(confined: Server, place: Path) -> Callable[[Use], None]:
    """Runs a coroutine with the files of the server."""

    def using(use: Use) -> None:
        async def main() -> None:
            api = Api(confined.url, TOKEN)
            try:
                await use(Files(api))
            finally:
                await api.close()

        run(main())

    return using


def listing(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


async def refused(work: Coroutine[None, None, object]) -> ServerProblem:
    with pytest.raises(ServerProblem) as problem:
        await work
    return problem.value


# --- single files -----------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_again(using: Callable[[Use], None], place: Path) -> None:
    async def use(files: Files) -> None:
        written = await files.write(PurePosixPath(place, "deep", "notes.txt"), "grüße\u2028!\n")
        data = "grüße\u2028!\n".encode()
        path = str(place / "deep" / "notes.txt")
        assert written == Written(
            path=path, bytes_written=len(data), sha256=hashlib.sha256(data).hexdigest(), etag=written.etag
        )
        assert await files.read(path) == data
        assert await files.read_text(path) == "grüße\u2028!\n"
        assert await files.read_text(path, encoding="latin-1") == data.decode("latin-1")
        assert await files.read(path, start=3, end=5) == data[3:5]
        assert await files.read(path, start=4) == data[4:]
        assert await files.read(path, end=1000) == data

    using(use)


async def several(parts: list[bytes]) -> AsyncGenerator[bytes]:
    for part in parts:
        yield part


@pytest.mark.parametrize("kind", ["bytes", "bytearray", "memoryview", "str", "path", "file", "buffer", "stream"])
def test_a_file_can_be_written_from_anything_that_has_bytes(
    using: Callable[[Use], None], place: Path, tmp_path: Path, kind: str
) -> None:
    local = tmp_path / "local"
    local.write_bytes(b"content")

    async def use(files: Files) -> None:
        with local.open("rb") as file:
            data = {
                "bytes": b"content",
                "bytearray": bytearray(b"content"),
                "memoryview": memoryview(b"content"),
                "str": "content",
                "path": local,
                "file": file,
                "buffer": io.BytesIO(b"content"),
                "stream": several([b"con", b"", b"tent"]),
            }[kind]
            await files.write(place / "target", data)
            assert not file.closed, "it is the caller's"
        assert await files.read(place / "target") == b"content"

    using(use)


def test_an_empty_file_is_written_and_read(using: Callable[[Use], None], place: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    async def use(files: Files) -> None:
        assert (await files.write(place / "a", b"")).bytes_written == 0
        assert (await files.write(place / "b", tmp_path / "empty")).bytes_written == 0
        assert await files.read(place / "a") == await files.read(place / "b") == b""
        assert (await refused(files.read(place / "a", start=1))).slug == "range-not-satisfiable"

    using(use)


def test_a_file_is_only_replaced_if_it_is_the_one_that_was_meant(using: Callable[[Use], None], place: Path) -> None:
    async def use(files: Files) -> None:
        first = await files.write(place / "x", "1", if_none_match="*")
        assert (await refused(files.write(place / "x", "2", if_none_match="*"))).slug == "file-changed"
        second = await files.write(place / "x", "22", if_match=first.etag)
        problem = await refused(files.write(place / "x", "3", if_match=first.etag))
        assert (problem.slug, problem.status, problem.fields["path"]) == ("file-changed", 412, str(place / "x"))
        assert (await files.stat(place / "x")).etag == second.etag
        assert await files.read(place / "x") == b"22"

    using(use)


def test_what_is_not_there_is_a_problem_with_its_path(using: Callable[[Use], None], place: Path) -> None:
    missing = str(place / "missing")

    async def use(files: Files) -> None:
        for work in (files.read(missing), files.stat(missing), files.delete(missing), files.move(missing, place / "x")):
            problem = await refused(work)
            assert (problem.slug, problem.status, problem.fields["path"]) == ("file-not-found", 404, missing)
        with pytest.raises(ServerProblem):
            await anext(files.list(missing))

    using(use)


@pytest.mark.parametrize(("start", "end"), [(-1, None), (5, 5), (5, 4), (0, 0)])
def test_bytes_that_no_file_has_are_refused_without_a_request(
    using: Callable[[Use], None], start: int, end: int | None
) -> None:
    async def use(files: Files) -> None:
        with pytest.raises(ValueError, match="there are no bytes from"):
            await files.read("x", start=start, end=end)

    using(use)


def test_names_that_are_not_utf_8_mean_the_same_file_in_both_directions(
    using: Callable[[Use], None], place: Path
) -> None:
    (place / "\udcff\udce4").write_text("odd")

    async def use(files: Files) -> None:
        assert await files.read(place / "\udcff\udce4") == b"odd", "as Python has it"
        (entry,) = [entry async for entry in files.list(place)]
        assert await files.read(entry.path) == b"odd", "as the server tells it"
        assert await files.read(place / entry.name) == b"odd"
        await files.write(place / "neu\udc80", "new")
        assert (place / "neu\udc80").read_text() == "new"
        await files.move(place / "neu\udc80", place / "&=#?% \n+")
        assert await files.read(place / "&=#?% \n+") == b"new"

    using(use)


def test_a_range_that_is_not_heeded_is_not_taken_for_the_range() -> None:
    async def main() -> None:
        async with Loopback({"/v1/fs/file": answer(b"all of it")}) as loopback:
            api = Api(loopback.url(""))
            with pytest.raises(ForeignAnswer):
                await Files(api).read("x", start=3, end=5)
            await api.close()

    run(main())


def test_a_file_that_breaks_off_is_not_taken_for_a_whole_one() -> None:
    async def main() -> None:
        cut = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
        async with Loopback({"/v1/fs/file": cut}) as loopback:
            api = Api(loopback.url(""))
            with pytest.raises(ConnectionLost):
                await Files(api).read("x")
            await api.close()

    run(main())


def test_what_is_too_large_is_refused_while_it_is_sent(using: Callable[[Use], None], place: Path) -> None:
    async def use(files: Files) -> None:
        problem = await refused(files.write(place / "x", several([bytes(MIB)] * (LARGE // MIB + 10))))
        assert (problem.slug, problem.fields["limit"]) == ("file-too-large", LARGE)
        assert listing(place) == []

    using(use)


def test_what_cannot_be_read_here_changes_nothing_there(using: Callable[[Use], None], place: Path) -> None:
    async def broken() -> AsyncGenerator[bytes]:
        yield b"half"
        raise OSError("my disk is gone")

    async def use(files: Files) -> None:
        await files.write(place / "x", "old")
        with pytest.raises(OSError, match="my disk is gone"):
            await files.write(place / "x", broken())
        with pytest.raises(LocalFileFailed, match="No such file"):
            await files.write(place / "x", place / "missing")
        assert await files.read(place / "x") == b"old"

    using(use)


def test_large_files_go_through_little_memory(using: Callable[[Use], None], place: Path, tmp_path: Path) -> None:
    local = tmp_path / "large"
    with local.open("wb") as file:
        file.truncate(LARGE)

    async def use(files: Files) -> None:
        with tracking() as peak:
            written = await files.write(place / "large", local)
            assert written.bytes_written == LARGE
            received = 0
            async for block in files.stream(place / "large"):
                received += len(block)
            assert received == LARGE
            assert peak() < BOUNDED

    using(use)


class tracking:  # noqa: N801 - used as a context manager
    """Gives a function that says how much memory was in use at most."""

    def __enter__(self) -> Callable[[], int]:
        tracemalloc.start()
        return lambda: tracemalloc.get_traced_memory()[1]

    def __exit__(self, *_: object) -> None:
        tracemalloc.stop()


# --- directories ------------------------------------------------------------------------------------------------------


def test_all_pages_of_a_directory_are_read_by_name(using: Callable[[Use], None], place: Path) -> None:
    names = [f"{number:04}" for number in range(1200)]
    for name in names:
        (place / name).touch()

    async def use(files: Files) -> None:
        assert [entry.name async for entry in files.list(place)] == names

    using(use)


def test_an_entry_says_what_it_is(using: Callable[[Use], None], place: Path) -> None:
    (place / "file").write_text("12345")
    (place / "file").chmod(0o640)
    os.utime(place / "file", (0, 1_700_000_000))
    (place / "directory").mkdir()
    (place / "link").symlink_to("file")

    async def use(files: Files) -> None:
        found = {entry.name: entry async for entry in files.list(place)}
        assert {name: entry.entry_type for name, entry in found.items()} == {
            "directory": "directory",
            "file": "file",
            "link": "symlink",
        }
        file = await files.stat(place / "file")
        assert file == found["file"]
        assert (file.path, file.size, file.mode) == (str(place / "file"), 5, "0640")
        assert file.modified is not None
        assert file.modified.timestamp() == 1_700_000_000
        assert (await files.stat(place / "link")).entry_type == "file"
        assert (await files.stat(place / "link", follow=False)).link_target == "file"

    using(use)


def test_directories_are_made_moved_and_deleted(using: Callable[[Use], None], place: Path) -> None:
    async def use(files: Files) -> None:
        assert await files.mkdir(place / "a" / "b") == str(place / "a" / "b")
        assert await files.mkdir(place / "a" / "b") == str(place / "a" / "b")
        await files.write(place / "a" / "b" / "file", "x")
        assert await files.move(place / "a", place / "c") == str(place / "c")
        await files.write(place / "other", "y")
        assert (await refused(files.move(place / "other", place / "c" / "b" / "file"))).slug == "file-conflict"
        await files.move(place / "other", place / "c" / "b" / "file", overwrite=True)
        assert await files.read(place / "c" / "b" / "file") == b"y"
        assert (await refused(files.delete(place / "c"))).slug == "file-conflict"
        await files.delete(place / "c", recursive=True)
        assert listing(place) == []

    using(use)


def test_paths_of_a_session_are_relative_to_its_directory(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            api = Api(server.url, TOKEN)
            files, name = Files(api, session), f"mine-{session}.txt"
            written = await files.write(name, "hello")
            assert written.path == f"{server.work}/{name}"
            assert await files.read_text(name) == "hello"
            assert name in [entry.name async for entry in files.list()]
            assert await files.move(name, f"{name}.old") == f"{server.work}/{name}.old"
            assert [match.path async for match in files.search(name=f"{name}.old")] == [f"{server.work}/{name}.old"]
            await files.delete(f"{name}.old")
            unknown = await refused(Files(api, "nobody").read(name))
            assert unknown.slug == "session-not-found"
            await api.close()

    run(main())


# --- whole trees ------------------------------------------------------------------------------------------------------


def grow(root: Path) -> dict[str, str]:
    """A tree with a bit of everything; gives its picture."""
    (root / "src" / "deep" / ("long" * 50)).mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "src" / "main.py").write_text("print()")
    (root / "src" / "run").write_text("#!/bin/sh")
    (root / "src" / "run").chmod(0o755)
    (root / "src" / "deep" / ("long" * 50) / ("name" * 60)).write_bytes(b"x" * 1000)
    (root / "src" / "grüße \udcff").write_text("odd")
    (root / "nothing").touch()
    (root / "link").symlink_to("src/main.py")
    (root / "src" / "up").symlink_to("../nothing")
    (root / "dangling").symlink_to("not/there")
    os.link(root / "src" / "main.py", root / "same")
    return picture(root)


def picture(root: Path) -> dict[str, str]:
    """Everything in a tree: what it is, and what is in it."""
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            found[name] = "/"
        else:
            runs = "*" if path.stat().st_mode & 0o100 else ""
            found[name] = runs + hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def test_a_tree_that_was_sent_and_fetched_is_the_same(
    using: Callable[[Use], None], place: Path, tmp_path: Path
) -> None:
    local, back = tmp_path / "local", tmp_path / "new" / "back"
    local.mkdir()
    expected = grow(local)

    async def use(files: Files) -> None:
        uploaded = await files.upload(local, place / "there")
        assert (uploaded.truncated, uploaded.left_out) == (False, [])
        assert str(place / "there" / "src" / "main.py") in uploaded.paths
        assert picture(place / "there") == expected
        assert await files.download(place / "there", back) == []
        assert picture(back) == expected

    using(use)


def test_what_leads_out_of_a_tree_is_left_out_and_told(
    using: Callable[[Use], None], place: Path, tmp_path: Path
) -> None:
    local, back = tmp_path / "local", tmp_path / "back"
    (local / "in").mkdir(parents=True)
    (local / "kept").write_text("kept")
    (local / "in" / "absolute").symlink_to(local / "kept")
    (local / "out").symlink_to("../elsewhere")
    (local / "in" / "around").symlink_to("../../local/kept")
    (local / "here").symlink_to("in")
    (local / "beyond").symlink_to("here/../../elsewhere")
    os.mkfifo(local / "pipe")

    async def use(files: Files) -> None:
        uploaded = await files.upload(local, place / "there")
        assert sorted(uploaded.left_out) == ["beyond", "in/absolute", "in/around", "out", "pipe"]
        assert sorted(picture(place / "there")) == ["here", "in", "kept"]
        (place / "there" / "in" / "passwd").symlink_to("/etc/passwd")
        assert await files.download(place / "there", back) == ["in/passwd"]
        assert sorted(picture(back)) == ["here", "in", "kept"]

    using(use)


def test_a_download_leaves_what_has_another_name(using: Callable[[Use], None], place: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "both").write_text("old")
    (place / "both").write_text("new")

    async def use(files: Files) -> None:
        await files.download(place, tmp_path)
        assert ((tmp_path / "mine").read_text(), (tmp_path / "both").read_text()) == ("mine", "new")

    using(use)


def test_an_archive_that_is_refused_changes_nothing(using: Callable[[Use], None], place: Path, tmp_path: Path) -> None:
    for number in range(501):
        (tmp_path / f"{number}").touch()

    async def use(files: Files) -> None:
        assert (await refused(files.upload(tmp_path, place / "there"))).slug == "archive-too-large"
        assert (await refused(files.upload_archive(place, b"no archive"))).slug == "bad-archive"
        with pytest.raises(LocalFileFailed, match="Not a directory"):
            await files.upload(tmp_path / "1", place)
        with pytest.raises(LocalFileFailed, match="No such file"):
            await files.upload(tmp_path / "missing", place)
        await asyncio.to_thread(eventually, lambda: listing(place) == [])

    using(use)


@pytest.mark.parametrize("format", ["tar", "tar.gz", "tar.zst"])
def test_archives_go_in_and_out_as_they_are(using: Callable[[Use], None], place: Path, format: str) -> None:
    (place / "from").mkdir()
    expected = grow(place / "from")

    async def use(files: Files) -> None:
        archive = b"".join([block async for block in files.download_archive(place / "from", format=format)])  # type: ignore[arg-type]
        uploaded = await files.upload_archive(place / "to", archive)
        assert isinstance(uploaded, Uploaded)
        assert len(uploaded.paths) == len([each for each in expected.values() if each != "/"])
        assert picture(place / "to") == expected

    using(use)


def test_large_trees_go_through_little_memory(using: Callable[[Use], None], place: Path, tmp_path: Path) -> None:
    local, back = tmp_path / "local", tmp_path / "back"
    local.mkdir()
    with (local / "large").open("wb") as file:
        file.truncate(LARGE)

    async def use(files: Files) -> None:
        with tracking() as peak:
            await files.upload(local, place)
            await files.download(place, back)
            assert peak() < BOUNDED
        assert (back / "large").stat().st_size == LARGE

    using(use)


def test_a_download_that_is_cancelled_leaves_nothing(place: Path, tmp_path: Path) -> None:
    member = tarfile.TarInfo("file")
    member.size = LARGE
    begun = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/x-tar\r\nConnection: close\r\n\r\n" + member.tobuf() + bytes(MIB)
    )

    async def main() -> None:
        over = asyncio.Event()

        async def stall(asked: object, writer: asyncio.StreamWriter) -> None:
            writer.write(begun)
            await writer.drain()
            await over.wait()

        def is_begun() -> bool:
            return any(tmp_path.rglob("file")) or (tmp_path / "back").exists()

        async with Loopback({"/v1/fs/archive": stall}) as loopback:
            api = Api(loopback.url(""))
            downloading = asyncio.create_task(Files(api).download("x", tmp_path / "back"))
            await asyncio.to_thread(eventually, is_begun)
            downloading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await downloading
            assert not is_begun()
            over.set()
            await api.close()

    run(main())


def test_files_can_be_read_side_by_side(using: Callable[[Use], None], place: Path) -> None:
    async def use(files: Files) -> None:
        await asyncio.gather(*(files.write(place / str(number), str(number)) for number in range(50)))
        found = await asyncio.gather(*(files.read(place / str(number)) for number in range(50)))
        assert found == [str(number).encode() for number in range(50)]

    using(use)


def test_what_this_machine_refuses_is_an_error_of_the_sdk_and_of_the_system(using: Callable[[Use], None]) -> None:
    async def use(files: Files) -> None:
        for call in (
            files.write("x", Path("/no such file")),
            files.upload("/no such directory", "."),
            files.download(".", "/proc/no such directory"),
        ):
            with pytest.raises(LocalFileFailed) as failed:
                await call
            assert isinstance(failed.value, OSError)
            assert failed.value.slug == "local-file-failed"

    using(use)
