"""Sessions as the server lists them, and a watch over all of them, through the SDK."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandboxagent import SessionChanges, SessionWatch
from sandboxagent.client.api import Api
from sandboxagent.client.errors import ServerProblem
from sandboxagent.client.session import fetch_session, fetch_sessions
from sandboxagent.client.sync import SandboxAgent
from tests.support.client import Client, run
from tests.support.loopback import Loopback, answer
from tests.support.running import BOUND, TOKEN, Server
from tests.support.sdk import connected, new_session, play


@asynccontextmanager
async def calling(server: Server) -> AsyncGenerator[Api]:
    api = Api(server.url, TOKEN)
    try:
        yield api
    finally:
        await api.close()


def test_sessions_are_listed_newest_first_and_looked_up(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, calling(server) as api:
            ids = [await client.new_session() for _ in range(3)]
            await client.prompt(ids[0], "say hello")
            listed = [info async for info in fetch_sessions(api, client.server.work)]
            assert [info.session_id for info in listed if info.session_id in ids] == ids[::-1]
            found = await fetch_session(api, ids[0])
            assert (found.agent, found.cwd, found.ended, found.running) == ("scripted", server.work, False, False)
            assert found.event_count > 0
            assert (found.activity.kind, bool(found.activity.said)) == ("message", True)
            assert found.created_at is not None
            assert found.updated_at is not None
            assert found.created_at <= found.updated_at
            assert [info async for info in fetch_sessions(api, "/nowhere")] == []
            with pytest.raises(ServerProblem) as unknown:
                await fetch_session(api, "no such")
            assert unknown.value.slug == "session-not-found"

    run(main())


def test_all_pages_of_sessions_are_read() -> None:
    async def main() -> None:
        def page(id: str, cursor: str) -> bytes:
            return answer(
                b'{"sessions": [{"sessionId": "%s", "agent": "a", "cwd": "/"}]%s}' % (id.encode(), cursor.encode())
            )

        pages = iter([page("s2", ', "nextCursor": "next"'), page("s1", "")])

        async def play(asked: object, writer: asyncio.StreamWriter) -> None:
            writer.write(next(pages))

        async with Loopback({"/v1/sessions": play}) as loopback:
            api = Api(loopback.url(""))
            assert [info.session_id async for info in fetch_sessions(api)] == ["s2", "s1"]
            await api.close()
        assert [each.path for each in loopback.asked] == ["/v1/sessions", "/v1/sessions?cursor=next"]

    run(main())


# --- kept up to date --------------------------------------------------------------------------------------------------


async def until(watch: SessionWatch, is_wanted: Callable[[SessionChanges], bool]) -> SessionChanges:
    """Read changes up to one."""
    async with asyncio.timeout(BOUND):
        async for changes in watch:
            if is_wanted(changes):
                return changes
    raise AssertionError("it has ended")


def test_all_sessions_come_first_then_what_other_clients_do_then_what_they_delete(server: Server) -> None:
    async def main() -> None:
        async with connected(server) as watcher, connected(server) as other:
            old = await new_session(other, server)
            async with watcher.sessions.watch(every=0) as watch:
                first = await until(watch, lambda _: True)
                assert first.all
                assert old.id in {info.session_id for info in first.sessions}

                made = await new_session(other, server, title="New here")
                turn = play(made, [["say", "Half of it"], ["wait_cancel"]])

                def is_half_done(changes: SessionChanges) -> bool:
                    found = {info.session_id: info.activity.said for info in changes.sessions}
                    return found.get(made.id) == "Half of it"

                running = await until(watch, is_half_done)
                assert not running.all
                assert old.id not in {info.session_id for info in running.sessions}

                await turn.cancel()
                await until(watch, lambda changes: any(each.session_id == made.id for each in changes.sessions))
                await other.sessions.delete(old.id)
                await until(watch, lambda changes: old.id in changes.gone)

    run(main())


def test_after_a_restart_of_the_server_all_sessions_come_again(tmp_path: Path) -> None:
    async def main() -> None:
        with Server(directory=tmp_path) as server:
            server.flags = ["--port", server.url.rpartition(":")[2]]
            async with connected(server) as client:
                session = await new_session(client, server)
                await play(session, [["say", "hello"]])
                async with client.sessions.watch(every=0) as watch:
                    await until(watch, lambda changes: changes.all)
                    await asyncio.to_thread(server.stop)
                    await asyncio.to_thread(server.start)
                    again = await until(watch, lambda changes: changes.all)
                    assert {info.session_id: info.ended for info in again.sessions}[session.id]

    run(main())


def test_a_script_watches_sessions_without_being_async(server: Server) -> None:
    with SandboxAgent.connect(server.url, server.token, reconnect_timeout=BOUND) as client:
        watch = client.sessions.watch(every=0)
        assert next(watch).all
        made = client.sessions.create("scripted", cwd=server.work)
        assert any(info.session_id == made.id for changes in watch for info in changes.sessions)
