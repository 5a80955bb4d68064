"""The bundled mock agent, driven over stdio by the upstream SDK as its client.

One process serves most of these tests, each in a session of its own; what ends or restarts the agent starts its own.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import acp
import pytest
from acp.client.connection import ClientSideConnection
from acp.schema import (
    AcceptElicitationResponse,
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    AllowedOutcome,
    ClientCapabilities,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    DeclineElicitationResponse,
    DeniedOutcome,
    ElicitationCapabilities,
    ElicitationFormCapabilities,
    ElicitationFormSessionMode,
    FileEditToolCallContent,
    RequestPermissionResponse,
    SessionConfigOptionSelect,
    SessionInfoUpdate,
    TextContentBlock,
    ToolCallProgress,
    ToolCallStart,
    UserMessageChunk,
)
from pydantic import BaseModel

T = TypeVar("T")

COMMAND = (sys.executable, "-m", "sandbox_agent.agents.mock")
WAIT = 60.0
FORMS = ClientCapabilities(elicitation=ElicitationCapabilities(form=ElicitationFormCapabilities()))


async def within(coroutine: Coroutine[Any, Any, T]) -> T:
    async with asyncio.timeout(WAIT):
        return await coroutine


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner() as runner:
        return runner.run(coroutine)


class Person:
    """The client: keeps every update, and answers by what the test put into `answers` for the session."""

    def __init__(self) -> None:
        self.updates: defaultdict[str, list[Any]] = defaultdict(list)
        self.asked: defaultdict[str, asyncio.Queue[dict[str, Any]]] = defaultdict(asyncio.Queue)
        self.answers: dict[str, Any] = {}
        self.news = asyncio.Condition()

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        self.updates[session_id].append(update)
        async with self.news:
            self.news.notify_all()

    async def request_permission(self, session_id: str, **request: Any) -> RequestPermissionResponse:
        return await self._answer(session_id, request)

    async def create_elicitation(self, mode: ElicitationFormSessionMode, **request: Any) -> Any:
        return await self._answer(mode.session_id, {"mode": mode, **request})

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return await self._answer(params["sessionId"], {"method": method, **params})

    async def _answer(self, session_id: str, request: dict[str, Any]) -> Any:
        await self.asked[session_id].put(request)
        if session_id not in self.answers:
            await asyncio.Event().wait()
        return self.answers[session_id]

    async def until(self, session_id: str, holds: Callable[[list[Any]], bool]) -> None:
        async with self.news:
            await self.news.wait_for(lambda: holds(self.updates[session_id]))


@dataclass
class Talk:
    """One session and what was said in it."""

    agent: ClientSideConnection
    person: Person
    session_id: str
    config_options: list[Any] = field(default_factory=list)

    @property
    def updates(self) -> list[Any]:
        return self.person.updates[self.session_id]

    @property
    def words(self) -> list[str]:
        return [it.content.text for it in self.updates if isinstance(it, AgentMessageChunk)]

    @property
    def text(self) -> str:
        return "".join(self.words)

    def only(self, kind: type[T]) -> list[T]:
        return [it for it in self.updates if isinstance(it, kind)]

    async def prompt(self, *blocks: Any, **meta: Any) -> str:
        content = [acp.text_block(it) if isinstance(it, str) else it for it in blocks]
        return (await self.agent.prompt(session_id=self.session_id, prompt=content, **meta)).stop_reason


@dataclass
class Mock:
    """A running mock agent that was greeted."""

    agent: ClientSideConnection
    person: Person
    process: asyncio.subprocess.Process
    greeting: acp.InitializeResponse

    async def talk(self, cwd: str = "/somewhere", **meta: Any) -> Talk:
        created = await self.agent.new_session(cwd=cwd, **meta)
        return Talk(self.agent, self.person, created.session_id, created.config_options or [])


@asynccontextmanager
async def started(state: Path, capabilities: ClientCapabilities = FORMS) -> AsyncIterator[Mock]:
    person = Person()
    environment = {"MOCK_AGENT_STATE_DIR": str(state)}
    async with acp.spawn_agent_process(
        cast("acp.Client", person), *COMMAND, env=environment, use_unstable_protocol=True
    ) as (agent, process):
        greeting = await within(agent.initialize(acp.PROTOCOL_VERSION, client_capabilities=capabilities))
        yield Mock(agent, person, process, greeting)


class Shared:
    """The process that most tests use."""

    def __init__(self, runner: asyncio.Runner, mock: Mock) -> None:
        self._runner, self.mock = runner, mock

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(within(coroutine))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with asyncio.Runner() as runner:
        process = started(tmp_path_factory.mktemp("state"))
        yield Shared(runner, runner.run(process.__aenter__()))
        runner.run(process.__aexit__(None, None, None))


def test_it_introduces_itself_and_what_it_can(shared: Shared) -> None:
    greeting = shared.mock.greeting

    assert greeting.protocol_version == 1
    assert greeting.agent_info is not None
    assert greeting.agent_info.name == "mock"
    offered = greeting.agent_capabilities
    assert offered is not None
    assert offered.load_session
    assert offered.prompt_capabilities is not None
    assert offered.prompt_capabilities.image
    assert offered.prompt_capabilities.embedded_context
    sessions = offered.session_capabilities
    assert sessions is not None
    assert all(it is not None for it in (sessions.list, sessions.resume, sessions.fork, sessions.close))


def test_a_new_session_has_an_id_of_its_own_modes_and_a_model_option(shared: Shared) -> None:
    async def scene() -> None:
        first = await shared.mock.agent.new_session(cwd="/a")
        second = await shared.mock.agent.new_session(cwd="/a")

        assert first.session_id != second.session_id
        assert first.modes is not None
        assert first.modes.current_mode_id == "default"
        assert [mode.id for mode in first.modes.available_modes] == ["default", "plan", "yolo"]
        assert first.config_options is not None
        (model,) = first.config_options
        assert isinstance(model, SessionConfigOptionSelect)
        assert (model.category, model.current_value) == ("model", "mock-small")

    shared.run(scene())


def test_a_prompt_is_echoed_word_by_word(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()

        assert await talk.prompt("good morning to you") == "end_turn"

        assert talk.text.startswith("You said: good morning to you")
        assert talk.words[:4] == ["You ", "said: ", "good ", "morning "]

    shared.run(scene())


def test_what_is_attached_is_listed_with_name_uri_and_type(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        await talk.prompt(
            "look",
            acp.resource_link_block("notes.md", "file:///tmp/notes.md", mime_type="text/markdown"),
            acp.image_block("aGk=", "image/png"),
            acp.resource_block(acp.embedded_text_resource("file:///tmp/a.txt", "hi", mime_type="text/plain")),
        )

        assert "- notes.md (file:///tmp/notes.md, text/markdown)\n" in talk.text
        assert "- image (image/png)\n" in talk.text
        assert "- a.txt (file:///tmp/a.txt, text/plain)\n" in talk.text

    shared.run(scene())


def test_the_first_prompt_gives_the_session_a_title(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        await talk.prompt("name this session")
        await talk.prompt("and do not rename it")

        assert [it.title for it in talk.only(SessionInfoUpdate)] == ["name this session"]

    shared.run(scene())


def test_help_lists_every_word(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        await talk.prompt("HELP, what is a permission?")

        words = ["help", "permission", "question", "form", "tool", "plan", "think", "slow", "crash", "big"]
        assert [line.split()[1].rstrip(":") for line in talk.text.splitlines() if line.startswith("- ")] == words

    shared.run(scene())


def test_a_word_inside_another_word_does_not_count(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        await talk.prompt("explain the platform")

        assert talk.text.startswith("You said: explain the platform")

    shared.run(scene())


def test_metadata_cannot_replace_arguments(shared: Shared) -> None:
    async def scene() -> None:
        meta: dict[str, Any] = {"sandboxagent.dev": {"agent": "mock"}, "self": 1, "cwd": "/elsewhere"}
        talk = await shared.mock.talk("/somewhere", **{"sandboxagent.dev": {"agent": "mock"}})
        raw = {"sessionId": talk.session_id, "prompt": [{"type": "text", "text": "hi"}]}
        answer = await shared.mock.agent._conn.send_request(
            "session/prompt", {**raw, "_meta": {**meta, "session_id": "another", "prompt": []}}
        )
        created = await shared.mock.agent._conn.send_request(
            "session/new", {"cwd": "/meta", "mcpServers": [], "_meta": meta}
        )

        assert answer == {"stopReason": "end_turn"}
        assert talk.text.startswith("You said: hi")
        listed = await shared.mock.agent.list_sessions(cwd="/meta")
        assert [it.session_id for it in listed.sessions] == [created["sessionId"]]

    shared.run(scene())


@pytest.mark.parametrize(
    ("option", "status"), [("allow_once", "completed"), ("allow_always", "completed"), ("reject_once", "failed")]
)
def test_permission_is_asked_and_the_choice_reported(shared: Shared, option: str, status: str) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        chosen = AllowedOutcome(outcome="selected", option_id=option)
        shared.mock.person.answers[talk.session_id] = RequestPermissionResponse(outcome=chosen)

        assert await talk.prompt("ask for permission") == "end_turn"

        request = await shared.mock.person.asked[talk.session_id].get()
        assert [it.kind for it in request["options"]] == ["allow_once", "allow_always", "reject_once"]
        (call,) = talk.only(ToolCallStart)
        assert request["tool_call"].tool_call_id == call.tool_call_id
        assert [it.status for it in talk.only(ToolCallProgress)] == [status]
        assert talk.text == f"You chose: {option}"

    shared.run(scene())


def test_a_cancelled_permission_is_reported(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        refusal = RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        shared.mock.person.answers[talk.session_id] = refusal

        assert await talk.prompt("permission") == "end_turn"

        assert talk.text == "You chose: cancelled"

    shared.run(scene())


@pytest.mark.parametrize("word", ["permission", "question", "form"])
def test_cancel_ends_a_turn_that_waits_for_an_answer(shared: Shared, word: str) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        turn = asyncio.create_task(talk.prompt(word))
        await shared.mock.person.asked[talk.session_id].get()

        await talk.agent.cancel(session_id=talk.session_id)

        assert await turn == "cancelled"
        assert await talk.prompt("hello again") == "end_turn"

    shared.run(scene())


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"status": "answered", "answers": [["green"]]}, 'You answered: [["green"]]'),
        ({"status": "rejected"}, "The question was rejected."),
        ({"unexpected": True}, "The client's answer is not what ACP says it should be."),
    ],
)
def test_a_question_is_asked_and_the_answer_reported(shared: Shared, answer: dict[str, Any], text: str) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        shared.mock.person.answers[talk.session_id] = answer

        assert await talk.prompt("I have a question") == "end_turn"

        request = await shared.mock.person.asked[talk.session_id].get()
        assert request["method"] == "sandboxagent/session/request_question"
        assert request["options"] == [["red", "Red"], ["green", "Green"], ["blue", "Blue"]]
        (question,) = request["questions"]
        assert [it["id"] for it in question["options"]] == ["red", "green", "blue"]
        assert request["questionId"]
        assert talk.text == text

    shared.run(scene())


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            AcceptElicitationResponse(action="accept", content={"color": "red", "gift": True, "amount": 2}),
            'You filled in: {"amount": 2, "color": "red", "gift": true}',
        ),
        (DeclineElicitationResponse(action="decline"), "You answered the form with: decline"),
    ],
)
def test_a_form_is_shown_and_what_was_filled_in_reported(shared: Shared, answer: Any, text: str) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        shared.mock.person.answers[talk.session_id] = answer

        assert await talk.prompt("show me a form") == "end_turn"

        request = await shared.mock.person.asked[talk.session_id].get()
        fields = request["mode"].requested_schema.properties
        assert {name: it.type for name, it in fields.items()} == {
            "color": "string",
            "gift": "boolean",
            "amount": "number",
            "note": "string",
        }
        assert fields["color"].enum == ["red", "green", "blue"]
        assert talk.text == text

    shared.run(scene())


def test_without_elicitation_it_says_that_it_cannot_show_a_form(tmp_path: Path) -> None:
    async def scene() -> None:
        async with started(tmp_path, ClientCapabilities()) as mock:
            talk = await within(mock.talk())
            assert await within(talk.prompt("form")) == "end_turn"
            assert "elicitation.form" in talk.text

    run(scene())


def test_a_tool_call_has_a_diff_and_goes_from_pending_to_completed(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk("/project")
        assert await talk.prompt("use a tool") == "end_turn"

        (call,) = talk.only(ToolCallStart)
        assert (call.kind, call.status) == ("edit", "pending")
        assert call.content is not None
        (diff,) = call.content
        assert isinstance(diff, FileEditToolCallContent)
        assert (diff.path, diff.old_text, diff.new_text) == ("/project/greeting.txt", "Hello.\n", "Hello, world!\n")
        assert [it.status for it in talk.only(ToolCallProgress)] == ["in_progress", "completed"]

    shared.run(scene())


def test_a_plan_goes_from_pending_to_completed(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        assert await talk.prompt("make a plan") == "end_turn"

        states = [[entry.status for entry in plan.entries] for plan in talk.only(AgentPlanUpdate)]
        assert states == [
            ["pending", "pending", "pending"],
            ["in_progress", "pending", "pending"],
            ["completed", "in_progress", "pending"],
            ["completed", "completed", "in_progress"],
            ["completed", "completed", "completed"],
        ]

    shared.run(scene())


def test_it_thinks_before_it_speaks(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        assert await talk.prompt("think about it") == "end_turn"

        kinds = [type(it) for it in talk.updates if isinstance(it, AgentThoughtChunk | AgentMessageChunk)]
        assert kinds[:3] == [AgentThoughtChunk] * 3
        assert set(kinds[3:]) == {AgentMessageChunk}

    shared.run(scene())


def test_slow_streams_for_as_long_as_it_was_told(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        begin = asyncio.get_running_loop().time()
        assert await talk.prompt("slow 0.5") == "end_turn"

        assert asyncio.get_running_loop().time() - begin >= 0.5
        assert talk.words[:3] == ["word 1 ", "word 2 ", "word 3 "]

    shared.run(scene())


def test_cancel_ends_a_slow_turn_at_once(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        turn = asyncio.create_task(talk.prompt("slow 3600"))
        await shared.mock.person.until(talk.session_id, lambda updates: any(map(is_text, updates)))

        await talk.agent.cancel(session_id=talk.session_id)

        assert await turn == "cancelled"

    shared.run(scene())


def test_cancel_request_ends_the_turn_and_answers_with_an_error(tmp_path: Path) -> None:
    with subprocess.Popen(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MOCK_AGENT_STATE_DIR": str(tmp_path)},
    ) as mock:
        assert mock.stdin is not None
        assert mock.stdout is not None

        def send(**envelope: Any) -> None:
            print(json.dumps({"jsonrpc": "2.0", **envelope}), file=mock.stdin, flush=True)

        def answer(id: int) -> dict[str, Any]:
            return next(each for line in mock.stdout or () if (each := json.loads(line)).get("id") == id)

        send(id=1, method="session/new", params={"cwd": "/somewhere", "mcpServers": []})
        session = answer(1)["result"]["sessionId"]
        prompt = [{"type": "text", "text": "slow 3600"}]
        send(id=2, method="session/prompt", params={"sessionId": session, "prompt": prompt})
        send(method="$/cancel_request", params={"requestId": 2})
        assert answer(2)["error"]["code"] == -32800
        prompt = [{"type": "text", "text": "hello"}]
        send(id=3, method="session/prompt", params={"sessionId": session, "prompt": prompt})
        assert answer(3)["result"]["stopReason"] == "end_turn"
        mock.stdin.close()


def test_a_cancel_that_follows_the_prompt_at_once_ends_it(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        turn = asyncio.create_task(talk.prompt("slow 3600"))
        cancel = asyncio.create_task(talk.agent.cancel(session_id=talk.session_id))

        assert await turn == "cancelled"
        await cancel

    shared.run(scene())


def test_sessions_do_not_wait_for_one_another(shared: Shared) -> None:
    async def scene() -> None:
        slow, quick = await shared.mock.talk(), await shared.mock.talk()
        turn = asyncio.create_task(slow.prompt("slow 3600"))
        await shared.mock.person.until(slow.session_id, lambda updates: any(map(is_text, updates)))

        assert await quick.prompt("hello") == "end_turn"

        assert not turn.done()
        assert quick.text.startswith("You said: hello")
        await slow.agent.cancel(session_id=slow.session_id)
        assert await turn == "cancelled"

    shared.run(scene())


def test_a_second_prompt_in_a_busy_session_is_refused(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        turn = asyncio.create_task(talk.prompt("slow 3600"))
        await shared.mock.person.until(talk.session_id, lambda updates: any(map(is_text, updates)))

        with pytest.raises(acp.RequestError) as refused:
            await talk.prompt("me too")

        assert refused.value.code == -32600
        await talk.agent.cancel(session_id=talk.session_id)
        assert await turn == "cancelled"

    shared.run(scene())


def test_big_sends_exactly_as_many_updates_in_order(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        assert await talk.prompt("big 1000") == "end_turn"

        assert talk.words == [f"{index} " for index in range(1000)]

    shared.run(scene())


def test_big_sends_updates_of_the_given_size(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        assert await talk.prompt("big 5 20000") == "end_turn"

        assert [len(word) for word in talk.words] == [20000] * 5

    shared.run(scene())


def test_cancel_ends_a_burst(shared: Shared) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        turn = asyncio.create_task(talk.prompt("big 1000000"))
        await shared.mock.person.until(talk.session_id, lambda updates: any(map(is_text, updates)))

        await talk.agent.cancel(session_id=talk.session_id)

        assert await turn == "cancelled"

    shared.run(scene())


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
            begin = asyncio.get_running_loop().time()
            assert mock.process.stdin is not None
            mock.process.stdin.close()

            assert await within(mock.process.wait()) == 0

            # It takes 0.1 s, or 0.2 s with a full pipe; the rest is for a machine that is busy.
            assert asyncio.get_running_loop().time() - begin < 2
            assert mock.process.stderr is not None
            assert await within(mock.process.stderr.read()) == b""
            with pytest.raises(ConnectionError):
                await within(turn)

    run(scene())


def is_text(update: Any) -> bool:
    return isinstance(update, AgentMessageChunk) and isinstance(update.content, TextContentBlock)
