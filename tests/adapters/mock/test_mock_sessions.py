"""Sessions of the bundled mock agent: kept, loaded, forked, listed; and how its process ends."""

import asyncio
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any, cast

import acp
import pytest
from acp.schema import (
    ConfigOptionUpdate,
    CurrentModeUpdate,
    ToolCallProgress,
    UserMessageChunk,
)
from pydantic import BaseModel

from sandboxagent.adapters.mock.agent import Sessions
from tests.support.mocking import COMMAND, WAIT, Shared, Talk, is_text, run, started, within


def test_crash_writes_to_stderr_and_exits_with_3(tmp_path: Path) -> None:
    async def scene() -> None:
        async with started(tmp_path) as mock:
            talk = await within(mock.talk())

            with pytest.raises(ConnectionError):
                await within(talk.prompt("crash, please"))

            assert await within(mock.process.wait()) == 3
            assert mock.process.stderr is not None
            assert b"crashing" in await within(mock.process.stderr.read())

    run(scene())


def test_a_session_can_be_loaded_after_a_restart_and_is_replayed(tmp_path: Path) -> None:
    async def scene() -> None:
        async with started(tmp_path) as mock:
            talk = await within(mock.talk())
            await within(talk.prompt("remember me"))
            await within(talk.prompt("use a tool"))
            await within(talk.agent.set_config_option("model", talk.session_id, "mock-large"))
            said = talk.text
        async with started(tmp_path) as mock:
            with pytest.raises(acp.RequestError):
                await within(mock.agent.prompt(talk.session_id, [acp.text_block("not loaded yet")]))
            loaded = await within(mock.agent.load_session(cwd="/somewhere", session_id=talk.session_id))
            again = Talk(mock.agent, mock.person, talk.session_id)

            assert [it.content.text for it in again.only(UserMessageChunk)] == ["remember me", "use a tool"]
            assert again.text == said
            assert [it.status for it in again.only(ToolCallProgress)] == ["in_progress", "completed"]
            assert loaded.config_options is not None
            assert loaded.config_options[0].current_value == "mock-large"
            assert await within(again.prompt("and now")) == "end_turn"

    run(scene())


def test_a_crash_does_not_lose_the_prompt(tmp_path: Path) -> None:
    async def scene() -> None:
        async with started(tmp_path) as mock:
            talk = await within(mock.talk())
            with pytest.raises(ConnectionError):
                await within(talk.prompt("crash"))
        async with started(tmp_path) as mock:
            await within(mock.agent.load_session(cwd="/somewhere", session_id=talk.session_id))
            again = Talk(mock.agent, mock.person, talk.session_id)
            assert [it.content.text for it in again.only(UserMessageChunk)] == ["crash"]

    run(scene())


def test_a_directory_that_cannot_be_written_costs_only_the_restart(tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("not a directory")

    async def scene() -> None:
        async with started(blocked) as mock:
            talk = await within(mock.talk())
            await within(talk.prompt("hello"))
            await within(mock.agent.close_session(talk.session_id))
            talk.updates.clear()

            await within(mock.agent.load_session(cwd="/somewhere", session_id=talk.session_id))

            assert talk.text.startswith("You said: hello")

    run(scene())


def test_resume_replays_nothing(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        await talk.prompt("hello")
        await talk.agent.close_session(talk.session_id)
        talk.updates.clear()

        resumed = await talk.agent.resume_session(session_id=talk.session_id, cwd="/somewhere")

        assert resumed.modes is not None
        assert talk.updates == []
        assert await talk.prompt("still there?") == "end_turn"

    shared.run(scene())


def test_a_fork_has_the_history_and_goes_its_own_way(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        await talk.prompt("before the fork")
        forked = await talk.agent.fork_session(session_id=talk.session_id, cwd="/fork")
        fork = Talk(talk.agent, talk.person, forked.session_id)
        await fork.prompt("after the fork")
        talk.updates.clear()
        fork.updates.clear()

        await talk.agent.load_session(cwd="/somewhere", session_id=talk.session_id)
        await talk.agent.load_session(cwd="/fork", session_id=fork.session_id)

        asked = [it.content.text for it in fork.only(UserMessageChunk)]
        assert asked == ["before the fork", "after the fork"]
        assert [it.content.text for it in talk.only(UserMessageChunk)] == ["before the fork"]

    shared.run(scene())


def test_sessions_are_listed_newest_first_by_directory_with_their_titles(shared: Shared) -> None:
    async def scene() -> None:
        older, newer = await shared.mock.talk("/listed"), await shared.mock.talk("/listed")
        await older.prompt("the older")
        await newer.prompt("the newer")

        listed = (await shared.mock.agent.list_sessions(cwd="/listed")).sessions

        assert [it.session_id for it in listed] == [newer.session_id, older.session_id]
        assert [it.title for it in listed] == ["the newer", "the older"]
        assert len((await shared.mock.agent.list_sessions()).sessions) > 2

    shared.run(scene())


@pytest.mark.parametrize("mask", [0, 0o77, 0o777])
def test_what_is_kept_is_the_users_alone_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    old = os.umask(mask)
    try:
        sessions = Sessions(tmp_path / "new" / "mock")
        sessions.create("/", mode="default", model="mock-small")
    finally:
        os.umask(old)

    (kept,) = (tmp_path / "new" / "mock").iterdir()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (kept, kept.parent, kept.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]


def test_a_long_list_comes_in_pages(tmp_path: Path) -> None:
    async def scene() -> None:
        async with started(tmp_path) as mock:
            created = {(await within(mock.talk())).session_id for _ in range(150)}
            first = await within(mock.agent.list_sessions())
            second = await within(mock.agent.list_sessions(cursor=first.next_cursor))

            assert second.next_cursor is None
            found = [it.session_id for it in first.sessions + second.sessions]
            assert len(found) == 150
            assert set(found) == created
            with pytest.raises(acp.RequestError) as refused:
                await within(mock.agent.list_sessions(cursor="nonsense"))
            assert refused.value.code == -32602

    run(scene())


def test_a_closed_session_is_unknown_until_it_is_loaded(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        turn = asyncio.create_task(talk.prompt("slow 3600"))
        await shared.mock.person.until(talk.session_id, lambda updates: any(map(is_text, updates)))

        await talk.agent.close_session(talk.session_id)

        assert await turn == "cancelled"
        with pytest.raises(acp.RequestError) as refused:
            await talk.prompt("hello")
        assert refused.value.code == -32002

    shared.run(scene())


def test_set_mode_is_announced_and_an_unknown_mode_refused(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        await talk.agent.set_session_mode(session_id=talk.session_id, mode_id="plan")

        assert [it.current_mode_id for it in talk.only(CurrentModeUpdate)] == ["plan"]
        with pytest.raises(acp.RequestError) as refused:
            await talk.agent.set_session_mode(session_id=talk.session_id, mode_id="nonsense")
        assert refused.value.code == -32602

    shared.run(scene())


def test_setting_the_model_answers_and_announces_the_options(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        answer = await talk.agent.set_config_option("model", talk.session_id, "mock-large")

        assert answer.config_options[0].current_value == "mock-large"
        (update,) = talk.only(ConfigOptionUpdate)
        assert update.config_options == answer.config_options
        for config_id, value in (("model", "nonsense"), ("nonsense", "mock-large"), ("model", True)):
            with pytest.raises(acp.RequestError) as refused:
                await talk.agent.set_config_option(config_id, talk.session_id, value)
            assert refused.value.code == -32602

    shared.run(scene())


@pytest.mark.parametrize("session_id", ["nonsense", "mock-" + "0" * 32, "../../etc/passwd"])
def test_an_unknown_session_is_an_error(shared: Shared, session_id: str) -> None:
    async def scene() -> None:
        agent = shared.mock.agent
        for call in (
            agent.prompt(session_id, [acp.text_block("hi")]),
            agent.load_session("/somewhere", session_id),
            agent.resume_session(session_id, "/somewhere"),
            agent.fork_session(session_id, "/somewhere"),
            agent.close_session(session_id),
            agent.set_session_mode(session_id, "plan"),
            agent.set_config_option("model", session_id, "mock-large"),
        ):
            with pytest.raises(acp.RequestError) as refused:
                await call
            assert refused.value.code == -32002

    shared.run(scene())


@pytest.mark.parametrize("method", ["nonsense", "session/set_model", "_private/thing", "authenticate"])
def test_an_unknown_method_is_an_error(shared: Shared, method: str) -> None:
    async def scene() -> None:
        with pytest.raises(acp.RequestError) as refused:
            await shared.mock.agent._conn.send_request(method, {"methodId": "x"})
        assert refused.value.code == -32601

    shared.run(scene())


def test_what_is_piped_in_is_answered_and_nonsense_survived(tmp_path: Path) -> None:
    lines = [
        "not json",
        "[1, 2]",
        '{"id": [1], "result": {}}',
        '{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}',
        '{"jsonrpc":"2.0","id":"one","method":"initialize","params":{"protocolVersion":1}}',
        '{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}',
        '{"jsonrpc":"2.0","id":3,"method":"session/prompt","params":null}',
    ]

    done = subprocess.run(
        COMMAND,
        input="\n".join(lines).encode(),
        capture_output=True,
        timeout=WAIT,
        env={**os.environ, "MOCK_AGENT_STATE_DIR": str(tmp_path)},
    )

    answers = {answer["id"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0
    assert answers["one"]["result"]["protocolVersion"] == 1
    assert answers[2]["result"]["sessionId"]
    assert answers[3]["error"]["code"] == -32602
    assert b"Traceback" not in done.stderr


RESULTS = {
    "initialize": acp.schema.InitializeResponse,
    "session/new": acp.schema.NewSessionResponse,
    "session/load": acp.schema.LoadSessionResponse,
    "session/resume": acp.schema.ResumeSessionResponse,
    "session/fork": acp.schema.ForkSessionResponse,
    "session/list": acp.schema.ListSessionsResponse,
    "session/close": acp.schema.CloseSessionResponse,
    "session/set_mode": acp.schema.SetSessionModeResponse,
    "session/set_config_option": acp.schema.SetSessionConfigOptionResponse,
    "session/prompt": acp.schema.PromptResponse,
}


SAID = {
    "session/update": acp.schema.SessionNotification,
    "session/request_permission": acp.schema.RequestPermissionRequest,
    "elicitation/create": acp.schema.CreateFormSessionElicitationRequest,
}


ANSWERS: dict[str, Any] = {
    "session/request_permission": {"outcome": {"outcome": "selected", "optionId": "allow_once"}},
    "elicitation/create": {"action": "accept", "content": {"color": "red"}},
    "_sandboxagent/session/request_question": {"status": "answered", "answers": [["red"]]},
}


def test_every_line_is_what_the_official_types_say(tmp_path: Path) -> None:
    """Nothing is missing, nothing is beyond them, and nothing only passes because they are lenient."""
    environment = {**os.environ, "MOCK_AGENT_STATE_DIR": str(tmp_path)}
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said: set[str] = set()

        def call(method: str, **params: Any) -> dict[str, Any]:
            write({"id": 7, "method": method, "params": params})
            while "result" not in (line := json.loads(process.stdout.readline())):
                said.add(line["method"])
                if line["method"] in SAID:
                    assert_exact(SAID[line["method"]], line["params"])
                if "id" in line:
                    write({"id": line["id"], "result": ANSWERS[line["method"]]})
            assert line["id"] == 7
            assert_exact(RESULTS[method], line["result"])
            return cast("dict[str, Any]", line["result"])

        def write(envelope: dict[str, Any]) -> None:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **envelope}).encode() + b"\n")
            process.stdin.flush()

        forms = {"elicitation": {"form": {}}}
        call("initialize", protocolVersion=1, clientCapabilities=forms)
        session_id = call("session/new", cwd="/a", mcpServers=[])["sessionId"]
        for word in ("hello", "help", "permission", "question", "form", "tool", "plan", "think", "slow 0.1", "big 3"):
            call("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": word}])
        call("session/set_mode", sessionId=session_id, modeId="plan")
        call("session/set_config_option", sessionId=session_id, configId="model", value="mock-large")
        for method in ("session/load", "session/resume", "session/fork"):
            call(method, sessionId=session_id, cwd="/a", mcpServers=[])
        call("session/list")
        call("session/close", sessionId=session_id)
        process.stdin.close()

    assert said == {*SAID, "_sandboxagent/session/request_question"}


def assert_exact(model: type[BaseModel], value: object) -> None:
    read = model.model_validate(value).model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert read == value


@pytest.mark.parametrize("word", ["slow 3600", "permission", "big 1000000 10000"])
def test_it_ends_soon_after_stdin_does_even_within_a_turn(tmp_path: Path, word: str) -> None:
    async def scene() -> None:
        async with started(tmp_path) as mock:
            talk = await within(mock.talk())
            turn = asyncio.create_task(talk.prompt(word))
            await within(mock.person.until(talk.session_id, lambda updates: len(updates) > 1))
            assert mock.process.stdin is not None
            mock.process.stdin.close()

            # No turn of these would end by itself within the bound.
            assert await within(mock.process.wait()) == 0

            assert mock.process.stderr is not None
            assert await within(mock.process.stderr.read()) == b""
            with pytest.raises(ConnectionError):
                await within(turn)

    run(scene())
