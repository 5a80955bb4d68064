"""The Python SDK when the network breaks and when the server goes away: nothing lost, nothing twice."""

import asyncio
import json
import signal
import socket
from collections.abc import Generator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sandboxagent import (
    ConnectionLost,
    RequestError,
    SandboxAgent,
    ServerProblem,
    SessionEnded,
    SessionItem,
    text_of,
)
from sandboxagent.client.sync import SandboxAgent as BlockingSandboxAgent
from tests.support.client import OUTCOME_UNKNOWN, run
from tests.support.cutting import proxy
from tests.support.running import BOUND, Server, scripted
from tests.support.sdk import asked, connected, log_of, new_session, play, texts


@pytest.fixture(params=["http", "websocket"])
def way(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def own(tmp_path: Path) -> Generator[Server]:
    """A server that the test may end; its agent remembers sessions."""
    keeping = scripted("--state", str(tmp_path / "state"))
    with Server(directory=tmp_path, agents={"keeping": keeping}) as server:
        yield server


def test_stream_that_breaks_in_a_flood_goes_on_where_it_was(way: str, server: Server) -> None:
    async def scenario() -> None:
        async with proxy(server.url) as cutting, connected(server, cutting.url, transport=way) as client:
            session = await new_session(client, server)
            turn = play(session, [["flood", 300, 500], ["ask", "x/go"], ["wait_answer"], ["flood", 300, 500]])
            said: list[str] = []
            async for item in turn:
                said.append(text_of(item))
                if len(said) in (50, 250):
                    cutting.cut()
                if len(said) == 300:
                    await asked(session)
                    await session.cancel()  # Withdraws what it asked, so that it goes on.
            numbers = [int(text.split()[0]) for text in said if text]

        assert numbers == [*range(300), *range(300)]

    run(scenario())


def test_server_that_comes_back_at_another_address_is_found_by_locate(way: str, own: Server) -> None:
    async def scenario() -> None:
        token, first = own.token, own.url
        async with SandboxAgent.connect(
            first, token, agent="keeping", transport=way, reconnect_timeout=BOUND, locate=lambda: (own.url, token)
        ) as client:
            session = await new_session(client, own)
            assert await texts(play(session, [["say", "before"]])) == ["before"]
            assert await asyncio.to_thread(own.stop) == 0
            address = urlsplit(first)
            with socket.create_server((address.hostname or "", address.port or 0)):
                await asyncio.to_thread(own.start)
            assert own.url != first
            assert await texts(play(session, [["say", "after"]])) == ["after"]
            assert client.url == own.url

    run(scenario())


def test_prompt_whose_socket_breaks_still_gets_its_own_end(way: str, server: Server) -> None:
    async def scenario() -> None:
        async with proxy(server.url) as cutting, connected(server, cutting.url, transport=way) as client:
            session = await new_session(client, server)
            turn = play(session, [["say", "before"], ["wait_cancel"], ["say", "after"]])
            await anext(turn)
            seen = cutting.connections
            cutting.cut()
            await cutting.reconnected(seen + (way == "http"))
            await session.cancel()
            assert await texts(turn) == ["after"]
            assert (await turn).stop_reason == "cancelled"
            prompts = [event for event in await log_of(session) if event.envelope.get("method") == "session/prompt"]
            assert len(prompts) == 1, "it was repeated under its key, and did not run twice"

    run(scenario())


def test_an_outage_is_waited_for(way: str, server: Server) -> None:
    async def scenario() -> None:
        async with proxy(server.url) as cutting, connected(server, cutting.url, transport=way) as client:
            session = await new_session(client, server)
            cutting.refusing = True
            cutting.cut()
            turn = play(session, [["say", "hello"]])
            await cutting.reconnected(cutting.connections + 2)
            cutting.refusing = False
            assert await turn.text() == "hello"

    run(scenario())


def test_an_outage_that_lasts_too_long_is_an_error(way: str, server: Server) -> None:
    async def scenario() -> None:
        async with (
            proxy(server.url) as cutting,
            # As long as a busy machine may take to connect again.
            connected(server, cutting.url, transport=way, reconnect_timeout=3) as client,
        ):
            session = await new_session(client, server)
            cutting.refusing = True
            cutting.cut()
            with pytest.raises(ConnectionLost):
                await play(session, [["say", "hello"]])
            cutting.refusing = False
            assert await play(session, [["say", "again"]]).text() == "again"

    run(scenario())


def test_restart_of_the_server_is_survived_by_sessions_and_their_followers(way: str, own: Server) -> None:
    async def scenario() -> list[SessionItem]:
        async with proxy(own.url) as cutting, connected(own, cutting.url, transport=way) as client:
            session = await new_session(client, own, "keeping")
            updates = session.updates()
            await play(session, [["say", "one"]])
            await asyncio.to_thread(own.stop)
            await asyncio.to_thread(own.start)
            cutting.target = own.url
            assert await play(session, [["say", "two"]]).text() == "two"
            # The session ended with the server, and was brought back: that is what a follower sees.
            await session.terminate()
            return [item async for item in updates]

    seen = run(scenario())
    assert [text_of(item) for item in seen if text_of(item)] == ["one", "two"]
    assert [item.reason for item in seen if isinstance(item, SessionEnded)] == ["error", "terminated"]


@pytest.mark.server_alone("a server keeps the token that it has made up on its disk; a gateway has none, and gets one")
def test_a_client_with_the_generated_token_survives_the_servers_crash(tmp_path: Path) -> None:
    keeping = scripted("--state", str(tmp_path / "state"))
    with Server(directory=tmp_path, agents={"keeping": keeping}, token=None) as server:
        # The next start is at the same address, as it is with any port but 0.
        server.flags = ("--port", server.url.rpartition(":")[2])
        token = (tmp_path / "data" / "token").read_text().strip()

        async def scenario() -> None:
            async with SandboxAgent.connect(server.url, token, reconnect_timeout=BOUND) as client:
                session = await new_session(client, server, "keeping")
                assert await play(session, [["say", "one"]]).text() == "one"
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                assert await play(session, [["say", "two"]]).text() == "two"

        run(scenario())
        with BlockingSandboxAgent.connect(server.url, token, reconnect_timeout=BOUND) as client:
            session = client.sessions.create("keeping", cwd=server.work)
            assert session.prompt(json.dumps([["say", "one"]])).text() == "one"
            server.kill()
            server.start()
            assert session.prompt(json.dumps([["say", "two"]])).text() == "two"


def test_turn_that_the_server_took_with_it_fails_and_does_not_run_twice(way: str, own: Server) -> None:
    number = signal.SIGTERM if way == "http" else signal.SIGKILL

    async def scenario() -> None:
        async with proxy(own.url) as cutting, connected(own, cutting.url, transport=way) as client:
            session = await new_session(client, own, "keeping")
            turn = play(session, [["say", "begun"], ["wait_cancel"]])
            assert text_of(await anext(turn)) == "begun"
            await asyncio.to_thread(own.stop, number)
            await asyncio.to_thread(own.start)
            cutting.target = own.url
            with pytest.raises(RequestError) as failed:
                await texts(turn)
            assert failed.value.data["type"] in OUTCOME_UNKNOWN
            prompts = [event for event in await log_of(session) if event.envelope.get("method") == "session/prompt"]
            # A kill may cost what was not yet acknowledged.
            assert len(prompts) <= 1

    run(scenario())


def test_session_that_is_not_kept_is_said_to_be_lost(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        async with proxy(server.url) as cutting, connected(server, cutting.url) as client:
            session = await new_session(client, server)
            updates = session.updates()
            # Not stopped: then it would say that the session has ended.
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            cutting.target = server.url
            lost = await anext(updates)
            assert isinstance(lost, SessionEnded)
            assert lost.reason == "deleted"
            assert [item async for item in updates] == []

    with Server("--no-persist", directory=tmp_path) as server:
        run(scenario(server))


def test_session_new_that_may_have_happened_is_not_repeated_elsewhere(way: str, own: Server) -> None:
    async def scenario() -> None:
        async with proxy(own.url) as cutting, connected(own, cutting.url, transport=way) as client:
            await new_session(client, own)
            hanging = asyncio.create_task(client.request("x/hang"))
            async with asyncio.timeout(BOUND):
                while "x/hang" not in str(await client.request("x/received")):
                    pass
            await asyncio.to_thread(own.stop)
            await asyncio.to_thread(own.start)
            cutting.target = own.url
            with pytest.raises((ConnectionLost, RequestError)) as lost:
                await hanging
            if isinstance(lost.value, ConnectionLost):
                assert lost.value.outcome_unknown
            else:
                # Connections belong to the fleet: this one goes on, and the node says it.
                assert lost.value.data["type"] in OUTCOME_UNKNOWN

    run(scenario())


def test_wrong_token_and_no_server_are_errors_when_connecting(server: Server) -> None:
    async def scenario() -> None:
        with pytest.raises(ServerProblem) as refused:
            async with SandboxAgent.connect(server.url, "wrong"):
                pass
        assert refused.value.slug == "unauthorized"
        with pytest.raises(ConnectionLost):
            async with SandboxAgent.connect("http://127.0.0.1:1", server.token):
                pass

    run(scenario())


def test_closed_client_releases_every_caller(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            turn = play(session, [["say", "x"], ["wait_cancel"]])
            await anext(turn)
            updates = session.updates()
        with pytest.raises(ConnectionLost):
            await turn
        assert [item async for item in updates] == []
        async with connected(server) as client:
            back = await client.sessions.attach(session.id)
            assert (await back.info()).running, "the turn goes on without us"
            await back.cancel()

    run(scenario())


def test_new_sessions_of_a_server_that_kept_nothing_are_heard(way: str, tmp_path: Path) -> None:
    """Its positions begin anew, below those that the client has seen."""

    async def scenario(server: Server) -> None:
        async with proxy(server.url) as cutting, connected(server, cutting.url, transport=way) as client:
            old = await new_session(client, server)
            await play(old, [["flood", 100, 10]])
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            cutting.target = server.url
            session = await new_session(client, server)
            updates = session.updates()
            assert await play(session, [["say", "heard"]]).text() == "heard"
            await session.terminate()
            assert "heard" in [text_of(item) async for item in updates]

    with Server("--no-persist", directory=tmp_path) as server:
        run(scenario(server))


def test_the_past_of_an_idle_session_does_not_come_as_new_after_a_restart(own: Server) -> None:
    async def scenario() -> None:
        async with connected(own) as client:
            session = await new_session(client, own, "keeping")
            await play(session, [["say", "old"]])
        async with proxy(own.url) as cutting, connected(own, cutting.url) as client:
            session = await client.sessions.attach(session.id)
            updates = session.updates()
            await asyncio.to_thread(own.stop)
            await asyncio.to_thread(own.start)
            cutting.target = own.url
            await session.terminate()
            assert "old" not in [text_of(item) async for item in updates]

    run(scenario())
