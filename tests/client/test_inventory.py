"""What is told of sessions over HTTP, through the SDK."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from sandbox_agent.client.api import Api
from sandbox_agent.client.errors import ServerProblem
from sandbox_agent.client.session import fetch_session, fetch_sessions
from tests.support.client import Client, run
from tests.support.loopback import Loopback, answer
from tests.support.running import TOKEN, Server


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
