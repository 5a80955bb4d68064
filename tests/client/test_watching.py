"""Watching files through the SDK."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from sandboxagent.client.api import Api
from sandboxagent.client.errors import ConnectionLost, ForeignAnswer, ServerProblem
from sandboxagent.client.files import Change, Files, Watch
from tests.support.client import run
from tests.support.loopback import Asked, Loopback, Play, answer
from tests.support.running import BOUND, TOKEN, Server

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n: watching\n\n"


def using(server: Server, use: Callable[[Files], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        api = Api(server.url, TOKEN)
        try:
            await use(Files(api))
        finally:
            await api.close()

    run(main())


async def until(watch: Watch, kind: str, path: Path) -> None:
    """Read changes up to one."""
    async with asyncio.timeout(BOUND):
        async for change in watch:
            if change == Change(kind=kind, path=str(path)):
                return
    raise AssertionError(f"ended: {watch.ended}")


def told(*changes: tuple[str, str]) -> bytes:
    listed = ",".join(f'{{"kind":"{kind}","path":"{path}"}}' for kind, path in changes)
    return f'event: changes\ndata: {{"changes":[{listed}]}}\n\n'.encode()


# --- a real server ----------------------------------------------------------------------------------------------------


def test_nothing_is_missed_from_the_beginning_of_the_block(server: Server, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()

    async def use(files: Files) -> None:
        async with files.watch(tmp_path) as changes:
            (tmp_path / "deep" / "new").write_text("1")
            await until(changes, "added", tmp_path / "deep" / "new")
            (tmp_path / "deep" / "new").unlink()
            await until(changes, "deleted", tmp_path / "deep" / "new")

    using(server, use)


def test_without_a_block_it_begins_by_itself(server: Server, tmp_path: Path) -> None:
    async def use(files: Files) -> None:
        watch = files.watch(tmp_path, recursive=False)
        first = asyncio.ensure_future(anext(watch))
        number = 0
        async with asyncio.timeout(BOUND):
            while not first.done():
                (tmp_path / f"{number}").touch()
                number += 1
                await asyncio.wait({first}, timeout=0.1)
        assert (await first).kind == "added"
        await watch.close()

    using(server, use)


def test_it_ends_when_what_is_watched_is_gone(server: Server, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()

    async def use(files: Files) -> None:
        async with files.watch(tmp_path / "here") as changes:
            (tmp_path / "here").rmdir()
            async with asyncio.timeout(BOUND):
                async for _ in changes:
                    pass
            assert changes.ended == "gone"

    using(server, use)


def test_what_cannot_be_watched_is_a_problem_at_once(server: Server, tmp_path: Path) -> None:
    async def use(files: Files) -> None:
        with pytest.raises(ServerProblem) as refused:
            async with files.watch(tmp_path / "missing"):
                pass
        assert refused.value.slug == "file-not-found"
        with pytest.raises(ServerProblem):
            await anext(files.watch(tmp_path / "missing"))

    using(server, use)


def test_it_goes_on_when_the_server_was_started_again(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    server = Server("--no-persist", directory=tmp_path / "server").start()
    port = server.url.rpartition(":")[2]
    again = Server("--no-persist", "--port", port, directory=tmp_path / "server")

    async def use(files: Files) -> None:
        async with files.watch(place) as changes:
            (place / "one").touch()
            await until(changes, "added", place / "one")
            server.stop()
            (place / "unseen").touch()
            await asyncio.to_thread(again.start)
            await until(changes, "overflow", place)
            (place / "two").touch()
            await until(changes, "added", place / "two")

    using(server, use)
    again.stop()


# --- a server that plays ----------------------------------------------------------------------------------------------


def watching(*plays: bytes | Play, timeout: float = BOUND) -> list[Change]:
    """What a watch gives when each connection is answered with the next of these."""

    async def main() -> list[Change]:
        left = list(plays)

        async def play(asked: Asked, writer: asyncio.StreamWriter) -> None:
            what = left.pop(0)
            if isinstance(what, bytes):
                writer.write(what)
            else:
                await what(asked, writer)

        async with Loopback({"/v1/fs/watch": play}) as loopback:
            api = Api(loopback.url(""))
            watch = Watch(api, "/a", {"path": "/a"}, timeout=timeout)
            try:
                return [change async for change in watch]
            finally:
                await watch.close()
                await api.close()

    return run(main())


GONE = b'event: ended\ndata: {"reason": "gone"}\n\n'
STOPPING = b'event: ended\ndata: {"reason": "stopping"}\n\n'
OVERFLOW = Change(kind="overflow", path="/a")


def test_a_connection_that_breaks_is_made_again_and_the_gap_is_explicit() -> None:
    assert watching(
        HEAD + told(("added", "/a/x")),
        HEAD + told(("modified", "/a/x"), ("deleted", "/a/y")) + STOPPING,
        b"",
        answer(b"<html>", "502 Bad Gateway", Content_Type="text/html"),
        HEAD + GONE,
    ) == [
        Change(kind="added", path="/a/x"),
        OVERFLOW,
        Change(kind="modified", path="/a/x"),
        Change(kind="deleted", path="/a/y"),
        OVERFLOW,
    ]


def test_unknown_members_and_unknown_updates_are_passed_over() -> None:
    overflow = b'event: overflow\ndata: {"detail": "more"}\n\nevent: weather\ndata: sunny\n\n'

    assert watching(HEAD + overflow + told(("melted", "/a/x")) + GONE) == [OVERFLOW, Change(kind="melted", path="/a/x")]


def test_a_server_that_does_not_come_back_is_lost() -> None:
    async def vanish(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)

    with pytest.raises(ConnectionLost):
        watching(vanish, *[b""] * 20, timeout=0.3)


def test_a_problem_that_stays_is_raised() -> None:
    problem = b'{"type":"urn:sandbox-agent:error:file-not-found","title":"File Not Found","status":404,"detail":"/a"}'

    with pytest.raises(ServerProblem, match="File Not Found"):
        watching(HEAD, answer(problem, "404 Not Found", Content_Type="application/problem+json"))
    with pytest.raises(ForeignAnswer):
        watching(answer(b"<html>", Content_Type="text/html"))
