"""The bundled mock agent, driven over stdio by the upstream SDK as its client.

One process serves most of these tests, each in a session of its own; what ends or restarts the agent starts its own.
"""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import acp
import pytest
from acp.schema import (
    AcceptElicitationResponse,
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    AllowedOutcome,
    ClientCapabilities,
    DeclineElicitationResponse,
    DeniedOutcome,
    FileEditToolCallContent,
    RequestPermissionResponse,
    SessionConfigOptionSelect,
    SessionInfoUpdate,
    ToolCallProgress,
    ToolCallStart,
)

from tests.support.mocking import COMMAND, HOST, Shared, is_text, run, started, within


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

        words = [
            "help",
            "write",
            "run",
            "permission",
            "question",
            "form",
            "tool",
            "plan",
            "think",
            "slow",
            "crash",
            "big",
        ]
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


@pytest.mark.parametrize(
    ("prompt", "content"),
    [
        ("write notes.txt", "The mock agent wrote this.\n"),
        ("Write notes.txt: buy Milk\nand eggs", "buy Milk\nand eggs\n"),
        ("  write İ.txt  x", "x\n"),
    ],
)
def test_write_writes_the_file_after_permission(tmp_path: Path, prompt: str, content: str) -> None:
    async def scene() -> None:
        async with started(tmp_path, HOST) as mock:
            talk = await within(mock.talk("/somewhere"))
            name = prompt.split()[1].rstrip(":")
            path = f"/somewhere/{name}"
            mock.person.files[path] = "before\n"
            chosen = AllowedOutcome(outcome="selected", option_id="allow_once")
            mock.person.answers[talk.session_id] = RequestPermissionResponse(outcome=chosen)

            assert await within(talk.prompt(prompt)) == "end_turn"

            (call,) = talk.only(ToolCallStart)
            assert (call.content[0].path, call.content[0].old_text, call.content[0].new_text) == (
                path,
                "before\n",
                content,
            )
            assert mock.person.files == {path: content}
            assert [it.status for it in talk.only(ToolCallProgress)] == ["in_progress", "completed"]
            assert talk.text == f"I wrote {name}."

    run(scene())


def test_write_without_permission_writes_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with started(tmp_path, HOST) as mock:
            talk = await within(mock.talk("/somewhere"))
            chosen = AllowedOutcome(outcome="selected", option_id="reject_once")
            mock.person.answers[talk.session_id] = RequestPermissionResponse(outcome=chosen)

            assert await within(talk.prompt("write notes.txt")) == "end_turn"

            assert mock.person.files == {}
            assert [it.status for it in talk.only(ToolCallProgress)] == ["failed"]
            assert "did not write notes.txt" in talk.text

    run(scene())


def test_run_runs_the_command_in_a_terminal_after_permission(tmp_path: Path) -> None:
    async def scene() -> None:
        async with started(tmp_path, HOST) as mock:
            talk = await within(mock.talk("/somewhere"))
            chosen = AllowedOutcome(outcome="selected", option_id="allow_once")
            mock.person.answers[talk.session_id] = RequestPermissionResponse(outcome=chosen)

            assert await within(talk.prompt("run ls -l && exit 3")) == "end_turn"

            (call,) = talk.only(ToolCallStart)
            assert (call.title, call.kind, call.raw_input) == (
                "ls -l && exit 3",
                "execute",
                {"command": "ls -l && exit 3"},
            )
            assert mock.person.commands == [("/bin/sh", ["-c", "ls -l && exit 3"])]
            assert mock.person.released == ["terminal-1"]
            assert [it.status for it in talk.only(ToolCallProgress)] == ["in_progress", "failed"]
            assert talk.text == "The command ended with exit code 3."

    run(scene())


@pytest.mark.parametrize(("prompt", "missing"), [("write a.txt", "fs.writeTextFile"), ("run ls", "terminal")])
def test_without_the_capability_it_says_that_it_cannot(shared: Shared, prompt: str, missing: str) -> None:
    async def scene() -> None:
        talk = await shared.mock.talk()
        assert await talk.prompt(prompt) == "end_turn"
        assert missing in talk.text

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
