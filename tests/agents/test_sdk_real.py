"""The Python SDK with real agents: what a program sees that never looks at an envelope."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sandboxagent import (
    Answer,
    Decision,
    ElicitationRequest,
    PermissionRequest,
    QuestionRequest,
    RequestError,
    SandboxAgent,
    Session,
    SessionEnded,
    Turn,
    TurnEnded,
    UnknownUpdate,
    text_of,
)
from tests.agents.asker import ASKERS, CHOICES
from tests.agents.conftest import parameters
from tests.agents.real import RealAgent, told
from tests.agents.recipes import RECIPES
from tests.support.client import run
from tests.support.cutting import proxy
from tests.support.model.script import Say, Script
from tests.support.sdk import connected, log_of

_folders = count(1)


def agents(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("real", parameters(*names), indirect=True)


three = agents("claude", "codex", "opencode")
# What the agent does here is the same for each of them, and the tests of the matrix show that for all.
one = agents("codex")
permitted = agents(*(recipe.agent for recipe in RECIPES if recipe.asks))


@asynccontextmanager
async def opened(real: RealAgent, **handlers: Any) -> AsyncGenerator[tuple[SandboxAgent, Session]]:
    """A client with a session of its own; ended afterwards, for each takes its memory."""
    async with connected(real.server, agent=real.recipe.agent, **handlers) as client:
        session = await new_session(real, client)
        yield client, session
        await session.terminate()


async def new_session(real: RealAgent, client: SandboxAgent, **options: Any) -> Session:
    folder = Path(real.server.work) / f"sdk-{next(_folders)}"
    folder.mkdir()
    return await client.sessions.create(cwd=folder, **options)


async def asking_session(real: RealAgent, client: SandboxAgent) -> Session:
    """A session in which the agent may ask."""
    asker = ASKERS[real.recipe.agent]
    session = await new_session(real, client, mode=asker.mode)
    for option, value in asker.options:
        await session.set_config_option(option, value)
    return session


def ask(session: Session, script: Script, **options: Any) -> Turn:
    return session.prompt(f"Please do what {script.marker} says", **options)


async def said(turn: Turn, text: str) -> None:
    """Read a turn until its agent says this."""
    async for item in turn:
        if text in text_of(item):
            return
    raise AssertionError(f"the turn has ended, and no update said {text}")


@three
def test_turn_is_streamed_as_typed_updates_and_ends_with_its_end(real: RealAgent) -> None:
    async def scenario() -> None:
        gate = real.model.gate()
        script = real.model.script(Say("one ", gate, "two"))
        async with opened(real) as (_, session):
            turn = ask(session, script)
            await said(turn, "one")
            gate.open()
            rest = [item async for item in turn]

        assert "two" in "".join(map(text_of, rest))
        assert not [item for item in rest if isinstance(item, UnknownUpdate)]
        assert isinstance(rest[-1], TurnEnded)
        assert rest[-1].stop_reason == "end_turn"

    run(scenario())


@permitted
def test_handler_decides_whether_a_file_is_written(real: RealAgent) -> None:
    requests: list[PermissionRequest] = []

    def decide(request: PermissionRequest) -> Answer:
        requests.append(request)
        return request.allow() if len(requests) == 1 else request.reject()

    async def scenario() -> None:
        async with opened(real, on_permission=decide, user="ada") as (_, session):
            for allowed in (True, False):
                file = Path(session.cwd) / f"{allowed}.txt"
                script = real.model.script([Say("I write."), real.recipe.write(file, "hello")], Say("Done."))
                updates = session.updates()
                ended = await ask(session, script)
                async for item in updates:
                    if isinstance(item, Decision):
                        break
                request = requests[-1]
                kinds = {option.option_id: option.kind for option in request.options}

                # What it was given is an option of the agent's own, and not a cancel for want of one.
                assert kinds[item.raw["optionId"]] == ("allow_once" if allowed else "reject_once")
                assert (item.kind, item.by["user"]) == ("permission", "ada")
                assert request.session_id == session.id
                assert request.tool_call.tool_call_id
                assert file.exists() == allowed
                assert ended.stop_reason == ("end_turn" if allowed else real.recipe.reject_ends)
        assert len(requests) == 2

    run(scenario())


@three
def test_question_is_answered_by_a_handler(real: RealAgent) -> None:
    requests: list[QuestionRequest] = []

    async def answer(request: QuestionRequest) -> Answer:
        requests.append(request)
        (postgres,) = [each.id for each in request.questions[0].options if each.label == "Postgres"]
        return request.answer(postgres)

    async def scenario() -> None:
        asker = ASKERS[real.recipe.agent]
        script = real.model.script(asker.one, Say("I see."))
        async with connected(real.server, agent=real.recipe.agent, on_question=answer) as client:
            session = await asking_session(real, client)
            text = await ask(session, script).text()
            await session.terminate()

        (request,) = requests
        (question,) = request.questions
        assert (question.header, question.question, question.multi_select) == ("Database", "Which database?", False)
        assert [option.label for option in question.options][:3] == list(CHOICES)
        assert asker.heard.format("Postgres") in told(script.requests[1])
        assert text.endswith("I see.")

    run(scenario())


@agents("claude", "codex")
def test_question_is_answered_as_a_form_by_a_handler_of_forms(real: RealAgent) -> None:
    requests: list[ElicitationRequest] = []

    async def scenario() -> None:
        asker = ASKERS[real.recipe.agent]
        script = real.model.script(asker.one, Say("I see."))

        def fill_in(request: ElicitationRequest) -> Answer:
            requests.append(request)
            return request.accept({asker.field: "Postgres"})

        async with connected(real.server, agent=real.recipe.agent, on_elicitation=fill_in) as client:
            session = await asking_session(real, client)
            ended = await ask(session, script)
            await session.terminate()

        (request,) = requests
        assert (request.mode, request.session_id) == ("form", session.id)
        assert asker.field in request.schema["properties"]  # type: ignore[operator]
        assert asker.heard.format("Postgres") in told(script.requests[1])
        assert ended.stop_reason == "end_turn"

    run(scenario())


@agents("opencode")
def test_question_that_was_left_open_is_answered_later_by_its_id(real: RealAgent) -> None:
    async def scenario() -> None:
        asker = ASKERS[real.recipe.agent]
        script = real.model.script(asker.one, Say("I see."))
        asked: asyncio.Queue[QuestionRequest] = asyncio.Queue()
        async with connected(real.server, agent=real.recipe.agent, on_question=asked.put_nowait) as client:
            session = await asking_session(real, client)
            turn = ask(session, script)
            request = await asked.get()
            assert session.requests() == [request]
            await client.reply_question(request.id, ["a text file"])
            ended = await turn
            assert client.requests() == []
            await session.terminate()

        assert "a text file" in told(script.requests[1])
        assert ended.stop_reason == "end_turn"

    run(scenario())


@one
def test_turn_that_is_cancelled_while_it_streams_ends_so_and_the_next_works(real: RealAgent) -> None:
    async def scenario() -> None:
        gate = real.model.gate()
        endless, after = real.model.script(Say("first ", gate, "never")), real.model.script(Say("here again"))
        async with opened(real) as (_, session):
            turn = ask(session, endless)
            await said(turn, "first")
            await turn.cancel()
            rest = [item async for item in turn]
            text = await ask(session, after).text()

        assert isinstance(rest[-1], TurnEnded)
        assert rest[-1].stop_reason == "cancelled"
        assert "never" not in "".join(map(text_of, rest))
        assert text.endswith("here again")

    run(scenario())


@one
def test_attached_file_reaches_the_model(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Say("I know that file"))
        async with opened(real) as (_, session):
            await session.files.write("notes.txt", "what the file says")
            ended = await ask(session, script, attachments=["notes.txt"])

        assert ended.stop_reason == "end_turn"
        assert "notes.txt" in told(script.requests[0])

    run(scenario())


@one
def test_agent_that_is_killed_fails_the_turn_alone_and_the_next_knows_what_was_said(real: RealAgent) -> None:
    async def scenario() -> None:
        before, endless, after = (
            real.model.script(Say("remember blue")),
            real.model.script(Say("first ", real.model.gate(), "never")),
            real.model.script(Say("here again")),
        )
        async with opened(real) as (client, session):
            await ask(session, before)
            updates = session.updates()
            turn = ask(session, endless)
            await said(turn, "first")
            real.crash()
            with pytest.raises(RequestError) as failed:
                await turn
            ended = await anext(item async for item in updates if isinstance(item, SessionEnded))
            real.age()
            elsewhere = await client.sessions.create("mock", cwd=session.cwd)
            assert (await elsewhere.prompt("hello")).stop_reason == "end_turn"
            text = await ask(session, after).text()

        assert failed.value.code == -32603
        assert isinstance(failed.value.data, dict)
        assert (failed.value.data["type"], failed.value.data["signal"]) == ("agent-exited", "SIGKILL")
        assert isinstance(ended, SessionEnded)
        assert (ended.reason, ended.terminated_by) == ("error", "agent")
        assert text.endswith("here again")
        assert "remember blue" in told(after.requests[0])

    run(scenario())


@one
def test_client_and_session_go_on_when_the_server_was_restarted(real: RealAgent) -> None:
    async def scenario() -> None:
        before, here, there = (real.model.script(Say(text)) for text in ("remember grey", "here again", "there, too"))
        async with proxy(real.server.url) as way, connected(real.server, way.url, agent=real.recipe.agent) as client:
            session = await new_session(real, client)
            await ask(session, before)
            await asyncio.to_thread(restart, real)
            way.target = real.server.url
            # The same client, which was not told.
            assert (await ask(session, here).text()).endswith("here again")
            async with connected(real.server) as another:
                resumed = await another.sessions.resume(session.id)
                assert (await ask(resumed, there).text()).endswith("there, too")
            prompts = [event for event in await log_of(session) if event.envelope.get("method") == "session/prompt"]
            await session.terminate()

        assert len(prompts) == 3
        assert "remember grey" in told(here.requests[0])
        assert "remember grey" in told(there.requests[0])
        assert "here again" in told(there.requests[0])

    run(scenario())


def restart(real: RealAgent) -> None:
    """Others use this server, too: whatever happens, it runs afterwards."""
    try:
        assert real.server.stop() == 0
        real.age()
    finally:
        real.server.start()
