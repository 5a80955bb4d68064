"""Sessions of the Python SDK: making, finding and changing them, and the protocol beneath."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sandboxagent import (
    Attachment,
    ClientError,
    ConnectionLost,
    LogEvent,
    RequestError,
    SandboxAgent,
    ServerProblem,
    SessionEnded,
    Updates,
    text_of,
)
from sandboxagent.protocol.acp import TextContentBlock
from tests.support.client import run
from tests.support.running import BOUND, Server, alive, scripted
from tests.support.sdk import connected, log_of, new_session, play


def test_what_is_asked_for_is_what_the_session_has(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(
                client, server, title="Fix it", metadata={"ticket": 7}, mode="plan", session_id=f"alias-{id(client)}"
            )
            info = await client.sessions.get(f"alias-{id(client)}")
            assert (info.session_id, info.agent, info.title, info.mode) == (session.id, "scripted", "Fix it", "plan")
            assert info.metadata["ticket"] == 7
            assert session.warnings == []
            assert [option.id for option in session.config_options]

    run(scenario())


def test_what_cannot_be_had_is_a_warning(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server, model="no-such-model")
            assert "no-such-model" in session.warnings[0]

    run(scenario())


def test_sessions_are_listed_and_found_again_by_another_client(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            await play(session, [["say", "one"]])
        async with connected(server) as client:
            listed = [info.session_id async for info in client.sessions.list(cwd=server.work)]
            assert session.id in listed
            back = await client.sessions.attach(session.id)
            assert (back.agent, back.cwd) == ("scripted", server.work)
            assert await play(back, [["say", "two"]]).text() == "two"
            await client.sessions.terminate(session.id)
            assert (await client.sessions.get(session.id)).ended

    run(scenario())


def test_sessions_can_be_closed_resumed_forked_and_deleted(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            await session.close()
            assert (await session.info()).ended
            session = await client.sessions.resume(session.id)
            assert not (await session.info()).ended
            fork = await client.sessions.fork(session.id)
            assert fork.id != session.id
            assert await play(fork, [["say", "forked"]]).text() == "forked"
            await client.sessions.delete(session.id)
            with pytest.raises(ServerProblem) as gone:
                await client.sessions.get(session.id)
            assert gone.value.slug == "session-not-found"

    run(scenario())


def test_modes_models_and_options_are_read_and_set(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await client.sessions.create("mock", cwd=server.work)
            assert (await session.models()).current_model_id == "mock-small"
            await session.set_model("mock-large")
            assert (await session.models()).current_model_id == "mock-large"
            await session.set_mode("plan")
            modes = await session.modes()
            assert modes.current_mode_id == "plan"
            assert "plan" in [mode.id for mode in modes.available_modes]
            await session.set_config_option("model", "mock-small")
            assert session.config_options[0].current_value == "mock-small"
            with pytest.raises(RequestError) as wrong:
                await session.set_mode("no-such-mode")
            assert wrong.value.data["available"]

    run(scenario())


def test_metadata_is_merged(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server, metadata={"a": 1, "b": 2})
            assert await session.set_metadata({"a": None, "c": 3}) == {"b": 2, "c": 3}

    run(scenario())


def test_attachments_and_blocks_reach_the_agent(server: Server) -> None:
    async def scenario() -> None:
        (Path(server.work) / "notes.txt").write_text("remember")
        async with connected(server) as client:
            session = await new_session(client, server)
            sent: list[dict[str, Any]] = []
            stop = client.tap(lambda direction, envelope, _: sent.append(envelope) if direction == "sent" else None)
            blocks = [TextContentBlock(text='[["say", "ok"]]')]
            files = ["notes.txt", Attachment(Path(server.work) / "notes.txt", filename="again.txt")]
            with pytest.raises(RequestError, match="attached already"):
                await session.prompt(blocks, attachments=files)
            assert (await session.prompt(blocks, attachments=files[:1], meta={"mine": True})).stop_reason
            stop()
            received = await client.request("x/received")
            assert "resource_link" in str(received["lines"])
            assert sent[-1]["params"]["_meta"]["mine"] is True

    run(scenario())


def test_raw_requests_notifications_and_taps(server: Server) -> None:
    async def scenario() -> None:
        seen: list[tuple[str, str | None, int | None]] = []
        async with connected(server, agent="scripted") as client:
            stop = client.tap(lambda direction, envelope, id: seen.append((direction, envelope.get("method"), id)))
            client.tap(lambda *_: 1 / 0)  # A tap that fails does no harm.
            result = await client.request("x/echo", {"hello": 1})
            assert result["params"]["hello"] == 1
            with pytest.raises(RequestError) as failed:
                await client.request("x/error", {"code": -32099, "message": "no"})
            assert failed.value.code == -32099
            session = await new_session(client, server)
            await play(session, [["say", "x"]])
            stop()
            stop()  # Once more does no harm.
            count = len(seen)
            await client.notify("x/note", {})
            assert len(seen) == count
        assert ("sent", "x/echo", None) in seen
        ids = [id for direction, _, id in seen if direction == "received" and id is not None]
        assert ids == sorted(ids)
        assert ids

    run(scenario())


def test_a_raw_request_needs_to_know_for_which_agent(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            with pytest.raises(ClientError, match="no agent is named"):
                await client.request("x/echo")

    run(scenario())


def test_an_agent_that_does_not_start_fails_the_call_and_can_be_tried_again(tmp_path: Path) -> None:
    marker = tmp_path / "works"
    command = [
        "sh",
        "-c",
        f"test -e {marker} || exit 7; exec {sys.executable} -m sandboxagent.adapters.mock",
    ]

    async def scenario(server: Server) -> None:
        async with connected(server) as client:
            with pytest.raises(ServerProblem) as failed:
                await new_session(client, server, "late")
            assert failed.value.slug == "agent-boot-failed"
            marker.touch()
            assert (await new_session(client, server, "late")).id

    with Server(agents={"late": f"command = {command!r}"}, directory=tmp_path / "server") as server:
        run(scenario(server))


def test_connect_wants_to_know_the_directory(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            with pytest.raises(ClientError, match="cwd is needed"):
                await client.sessions.create("scripted")

    run(scenario())


def test_a_server_of_our_own_is_gone_with_the_block(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with SandboxAgent.start(agent="mock", data_dir=tmp_path) as client:
            session = await client.sessions.create(cwd=tmp_path)
            assert "hello" in await session.prompt("hello").text()
            agent = (await client.agents.get("mock")).server_status.pid
            assert agent is not None
            assert alive(agent)
        assert not alive(agent)
        async with SandboxAgent.start(data_dir=tmp_path) as client:
            assert [info.session_id async for info in client.sessions.list()] == [session.id]
            back = await client.sessions.attach(session.id)
            assert "again" in await back.prompt("again").text()

    run(scenario())


def test_two_agents_share_one_connection(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            one, two = await asyncio.gather(new_session(client, server), new_session(client, server, "other"))
            texts = await asyncio.gather(play(one, [["say", "1"]]).text(), play(two, [["say", "2"]]).text())
            assert texts == ["1", "2"]
            assert (await client.health()).status == "ok"

    run(scenario())


def test_a_private_server_that_dies_releases_every_caller() -> None:
    async def scenario() -> None:
        async with SandboxAgent.start(agent="mock") as client:
            session = await client.sessions.create()
            updates = session.updates()
            following = session.log(after=10**12)
            turn = session.prompt("slow")
            await anext(turn)
            agent = (await client.agents.get("mock")).server_status.pid
            assert agent is not None
            reaper = psutil.Process(agent).parent()
            assert reaper is not None
            os.kill(reaper.ppid(), signal.SIGKILL)
            async with asyncio.timeout(BOUND):
                for waiting in (turn.text(), anext(following), session.models(), _all(updates)):
                    with pytest.raises(ConnectionLost, match="SIGKILL"):
                        await waiting

    run(scenario())


async def _all(updates: AsyncIterator[object]) -> list[object]:
    return [item async for item in updates]


def test_the_log_of_a_session_can_be_read_without_its_agent(tmp_path: Path) -> None:
    async def first(server: Server) -> str:
        async with connected(server) as client:
            session = await new_session(client, server, "passing")
            await play(session, [["say", "remember"]])
            return session.id

    async def second(server: Server, session_id: str) -> None:
        async with connected(server) as client:
            session = await client.sessions.attach(session_id)
            assert "remember" in str(await log_of(session))

    with Server(directory=tmp_path, agents={"passing": scripted()}) as server:
        session_id = run(first(server))
    with Server(directory=tmp_path, agents={"passing": scripted("--exit-at-once")}) as server:
        run(second(server, session_id))


def test_a_prompt_attaches_again_after_a_detach(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            await session.detach()
            assert await play(session, [["say", "back"]]).text() == "back"
            following = session.log()
            await session.terminate()
            assert len([event async for event in following]) > 3

    run(scenario())


def test_a_session_that_is_over_is_read_to_its_end_and_forgotten(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client, connected(server) as other:
            session = await new_session(client, server)
            await play(session, [["say", "one"]])
            await session.terminate()
            log = await log_of(session)
            last = log[-1]
            assert isinstance(last, LogEvent)
            elsewhere = await other.sessions.attach(session.id)
            async with asyncio.timeout(BOUND):
                for each in (session, elsewhere):
                    assert [event async for event in each.log()] == log
                    assert [event async for event in each.log(after=last.id)] == []
                    assert [item async for item in each.updates()] == []
            assert not client._connection.is_attached(session.id)
            assert not other._connection.is_attached(session.id)

    run(scenario())


def test_readers_of_a_session_that_is_deleted_come_to_an_end_with_that(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client, connected(server) as other:
            session = await new_session(client, server)
            readers = [session.updates(), (await other.sessions.attach(session.id)).updates()]
            await client.sessions.delete(session.id)
            async with asyncio.timeout(BOUND):
                for updates in readers:
                    [ended] = [item async for item in updates]
                    assert isinstance(ended, SessionEnded)
                    assert ended.reason == "deleted"

    run(scenario())


def test_updates_tell_of_a_crash_and_go_on(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server, "isolated")
            updates, following = session.updates(), session.log()
            with pytest.raises(RequestError) as failed:
                await play(session, [["exit", 3]])
            assert (failed.value.slug, failed.value.fields["exitCode"]) == ("agent-exited", 3)
            async with asyncio.timeout(BOUND):
                ended = await _until_end(updates)
                assert (ended.reason, ended.raw["exitCode"]) == ("error", 3)
                await play(session, [["say", "back again"]])
                async for item in updates:
                    if text_of(item) == "back again":
                        break
                await session.terminate()
                assert (await _until_end(updates)).reason == "terminated"
                assert await _all(updates) == []
                assert len(await _all(following)) > 3

    run(scenario())


async def _until_end(updates: Updates) -> SessionEnded:
    async for item in updates:
        if isinstance(item, SessionEnded):
            return item
    raise AssertionError("it ended without saying so")


@pytest.mark.parametrize("behind", [False, True], ids=["live", "behind"])
def test_following_ends_cleanly_when_the_session_is_deleted(server: Server, behind: bool) -> None:
    async def scenario() -> None:
        async with connected(server) as client, connected(server, buffer=1) as other:
            session = await new_session(client, server)
            elsewhere = await other.sessions.attach(session.id)
            readers = [session.log(), elsewhere.log()]
            updates = elsewhere.updates()
            waiting = [] if behind else [asyncio.create_task(_all(each)) for each in readers]
            await play(session, [["flood", 20, 100]])
            await client.sessions.delete(session.id)
            async with asyncio.timeout(BOUND):
                for each in waiting or [_all(each) for each in readers]:
                    await each
                ended = (await _all(updates))[-1]
                assert isinstance(ended, SessionEnded)
                assert ended.reason == "deleted"

    run(scenario())


def test_a_session_that_we_left_tells_nothing(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            await session.detach()
            async with asyncio.timeout(BOUND):
                assert [item async for item in session.updates()] == []

    run(scenario())
