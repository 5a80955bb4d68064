"""The bridge on a hub in memory: sessions, permissions and questions, from either side. The test plays the agent."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sandbox_agent.envelope import parse
from sandbox_agent.opencode.bus import Bus, Reader
from sandbox_agent.opencode.conversations import Conversations
from sandbox_agent.opencode.hub_client import HubClient
from sandbox_agent.opencode.ids import is_session_id
from sandbox_agent.opencode.naming import Facts, find_session, id_of, project_id
from sandbox_agent.opencode.objects import CommandBody, ModelRef, NewSession, PromptBody, SessionChange
from sandbox_agent.opencode.refusals import Refused
from sandbox_agent.opencode.requests import Requests
from sandbox_agent.opencode.transcripts import Transcripts
from tests.support.world import World, run, world

Json = dict[str, Any]
OFFERED = {"modes": {"currentModeId": "ask", "availableModes": [{"id": "ask"}, {"id": "plan"}]}}
ONLY_ONCE = [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]
ALWAYS = [*ONLY_ONCE, {"optionId": "ever", "kind": "allow_always"}]


class Bridge:
    """The parts of the bridge, over a world."""

    def __init__(self, own: World, memory: int = 1 << 20) -> None:
        self.own = own
        self.bus = Bus(1 << 20, project_id)
        self.transcripts = Transcripts(own.hub, self.bus, memory)
        client = HubClient(own.hub, own.from_client)
        self.requests = Requests(client, self.transcripts, self.bus)
        offerings: Any = SimpleNamespace(
            find=lambda id: own.manifest if id == "a" else None,
            default_agent=lambda: "a",
            takes=lambda *_: True,
            models=lambda _: [("default", "Default")],
            mode_names=lambda _: ["ask", "plan"],
        )
        self.conversations = Conversations(client, self.transcripts, self.bus, offerings, own.hub.clock)
        own.log.follow_history(self.transcripts)
        own.hub.observe(self.requests)

    def listen(self, directory: str | None = None) -> "Listener":
        return Listener(self.bus.open(Listener, wrapped=False, directory=directory))  # type: ignore[arg-type]

    def prompt(self, id: str, text: str = "hello", **more: Any) -> "asyncio.Task[Any]":
        body = PromptBody(parts=[{"type": "text", "text": text}], **more)

        async def answer() -> Any:
            return msgspec.to_builtins(await self.conversations.finish(*await self.conversations.prompt(id, body)))

        return asyncio.create_task(answer())

    async def messages(self, id: str) -> list[Json]:
        transcript = await self.conversations.transcript(id)
        return [] if transcript is None else msgspec.to_builtins(transcript.messages())


class Listener:
    """Reads what is published."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.seen: list[Json] = []

    @staticmethod
    def abort() -> None:
        raise AssertionError("cut off")

    async def until(self, type: str) -> Json:
        """The properties of the next event of a type."""
        while True:
            for number, event in enumerate(self.seen):
                if event["type"] == type:
                    del self.seen[: number + 1]
                    return event["properties"]
            data = await self.reader.next()
            assert data is not None
            self.seen += [json.loads(frame.removeprefix(b"data: ")) for frame in data.split(b"\n\n") if frame]


@asynccontextmanager
async def bridged(path: Path | None = None, **options: Any) -> AsyncGenerator[tuple[World, Bridge]]:
    memory = options.pop("memory", 1 << 20)
    async with world(path, **options) as own:
        yield own, Bridge(own, memory)


async def ask(own: World, options: list[Json], id: int = 0, command: str = "ls", session: str = "s") -> None:
    call = {"toolCallId": f"c{id}", "title": "List", "kind": "execute", "rawInput": {"command": command}}
    own.asks(id, sessionId=session, toolCall=call, options=options)


def answered(own: World, id: int = 0) -> Json:
    """The agent's answer to what it asked."""
    return next(one["result"] for one in own.process.sent if one.get("id") == id and "result" in one)


def is_answered(own: World, id: int = 0) -> bool:
    return any(one.get("id") == id and "result" in one for one in own.process.sent)


def test_a_session_of_another_client_is_found_by_an_id_that_stays() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            id = id_of(own.session)
            assert is_session_id(id)
            assert find_session(own.hub, id, own.hub.clock()) is own.session
            assert [info.id for info in bridge.conversations.find_all(None)] == [id]
            for unknown in ("ses_", "s", "", "ses_000000000000aaaaaaaaaaaaaa", id[:-1] + "-"):
                with pytest.raises(Refused, match="Session not found"):
                    bridge.conversations.find(unknown)

    run(main())


def test_many_sessions_of_one_moment_are_told_apart() -> None:
    async def main() -> None:
        async with bridged() as (own, _):
            sessions = [own.add_session(f"s{number}") for number in range(40)]
            for session in sessions:
                session.facts.created_at = own.session.facts.created_at
            for session in sessions:
                assert find_session(own.hub, id_of(session), own.hub.clock()) is session

    run(main())


def test_what_another_client_says_is_told_live_and_is_history() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            listener = bridge.listen()
            turn = own.prompt("good morning")
            await own.settled()
            own.agent.updates("and to you")
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await turn

            assert (await listener.until("message.part.delta"))["delta"] == "and to you"
            await listener.until("session.idle")
            user, assistant = await bridge.messages(id_of(own.session))
            assert user["parts"][0]["text"] == "good morning"
            assert assistant["parts"][1]["text"] == "and to you"

    run(main())


def test_a_prompt_from_opencode_is_answered_when_its_turn_is_over_and_told() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            id = id_of(own.session)
            listener = bridge.listen()
            prompt = bridge.prompt(id, message_id="msg_mine")
            sent = await own.process.request("session/prompt")
            own.agent.updates("yes")
            await listener.until("message.part.delta")
            assert not prompt.done()
            own.says(id=sent["id"], result={"stopReason": "end_turn"})

            await listener.until("session.idle")
            reading = asyncio.create_task(listener.until("never"))
            reply = await prompt
            reading.cancel()
            assert reply["info"]["parentID"] == "msg_mine"
            assert [part["type"] for part in reply["parts"]] == ["step-start", "text", "step-finish"]
            with pytest.raises(Refused, match="already"):
                await bridge.prompt(id, message_id="msg_mine")

    run(main())


def test_a_draft_becomes_a_session_of_the_same_id_with_its_first_prompt() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            listener = bridge.listen()
            asked = NewSession(
                title="A title", permission=[{"permission": "question", "action": "deny", "pattern": "*"}]
            )
            made = bridge.conversations.create("/", asked)
            assert (await listener.until("session.created"))["info"]["id"] == made.id
            prompts = [bridge.prompt(made.id), bridge.prompt(made.id)]
            await own.agent.answers("session/new", {"sessionId": "new", **OFFERED})
            for _ in prompts:
                await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await asyncio.gather(*prompts)

            session = own.hub.session("new")
            assert session.facts.alias == made.id == id_of(session)
            assert bridge.conversations.describe(session).title == "A title"
            assert len([one for one in own.process.sent if one.get("method") == "session/new"]) == 1
            assert len(await bridge.messages(made.id)) == 4

    run(main())


def test_facts_that_acp_has_no_place_for_outlive_the_server(tmp_path: Path) -> None:
    async def main() -> None:
        async with bridged(tmp_path / "log.db") as (own, bridge):
            id = id_of(own.session)
            change = msgspec.convert({"title": "Mine", "time": {"archived": 5}}, SessionChange)
            await bridge.conversations.change(id, change)
            turn = own.prompt("good morning")
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await turn
            before = await bridge.messages(id)
        async with bridged(tmp_path / "log.db", session="t") as (own, bridge):
            info = bridge.conversations.describe(bridge.conversations.find(id))
            assert (info.title, info.time.archived) == ("Mine", 5)
            assert await bridge.messages(id) == before

    run(main())


@pytest.mark.parametrize(
    ("reply", "options", "chosen"),
    [
        ("once", ALWAYS, "yes"),
        ("always", ALWAYS, "ever"),
        ("always", ONLY_ONCE, "yes"),
        ("reject", ALWAYS, "no"),
        ("allow", ALWAYS, "yes"),
        ("deny", ALWAYS, "no"),
        ("reject", [{"optionId": "never", "kind": "reject_always"}], "never"),
    ],
)
def test_a_reply_is_one_of_the_agents_own_options(reply: str, options: list[Json], chosen: str) -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            listener = bridge.listen()
            await ask(own, options)
            asked = await listener.until("permission.asked")
            assert (asked["permission"], asked["patterns"]) == ("bash", ["ls"])
            assert asked["metadata"]["command"] == "ls"
            assert asked["always"]
            assert [each.id for each in bridge.requests.permissions(None)] == [asked["id"]]
            await bridge.requests.reply_permission(asked["id"], reply, None)

            assert answered(own) == {"outcome": {"outcome": "selected", "optionId": chosen}}
            replied = await listener.until("permission.replied")
            assert replied["requestID"] == asked["id"]
            assert bridge.requests.permissions(None) == []
            with pytest.raises(Refused) as refused:
                await bridge.requests.reply_permission(asked["id"], reply, None)
            assert refused.value.status == 404

    run(main())


@pytest.mark.parametrize(
    ("reply", "options"),
    [("once", [{"optionId": "ever", "kind": "allow_always"}]), ("always", [{"optionId": "no", "kind": "reject_once"}])],
)
def test_a_reply_that_none_of_them_means_is_refused_and_nothing_is_allowed(reply: str, options: list[Json]) -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            await ask(own, options)
            (waiting,) = bridge.requests.permissions(None)
            for said in (reply, "yes please"):
                with pytest.raises(Refused) as refused:
                    await bridge.requests.reply_permission(waiting.id, said, None)
                assert refused.value.status == 400
            assert not is_answered(own)
            await bridge.requests.reply_permission(waiting.id, "reject", None)
            assert "ever" not in json.dumps(answered(own))

    run(main())


def test_always_is_remembered_for_exactly_that_where_the_agent_does_not() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            await ask(own, ONLY_ONCE)
            (waiting,) = bridge.requests.permissions(None)
            await bridge.requests.reply_permission(waiting.id, "always", None)
            await ask(own, ONLY_ONCE, 1)
            await ask(own, ONLY_ONCE, 2, command="ls; rm -rf /")
            await own.log.flushed()
            await own.settled()

            assert answered(own, 1) == {"outcome": {"outcome": "selected", "optionId": "yes"}}
            assert not is_answered(own, 2)
            (rule,) = Facts.of(own.session).always
            assert rule[0] == "bash"

    run(main())


def diff(path: str, new: str = "new") -> Json:
    return {"type": "diff", "path": path, "oldText": "old", "newText": new}


def execute(command: object, **more: object) -> Json:
    return {"kind": "execute", "title": "Run", "rawInput": {"command": command, **more}}


def edit(*diffs: Json, **more: object) -> Json:
    return {"kind": "edit", "title": "Edit", "rawInput": {"path": "/w/a.py"}, "content": list(diffs), **more}


def use(kind: str, **raw: object) -> Json:
    return {"kind": kind, "title": "deploy", "rawInput": raw}


LS = execute("ls")


@pytest.mark.parametrize(
    ("allowed", "other"),
    [
        (edit(diff("/w/a.py")), edit(diff("/w/a.py"), diff("/home/u/.bashrc"))),
        (edit(diff("/w/a.py")), edit(diff("/w/a.py", "worse"))),
        (edit(diff("/w/a.py")), edit(diff("/w/a.py"), locations=[{"path": "/etc/passwd"}])),
        (execute("git", args=["status"]), execute("git", args=["push", "--force"])),
        (execute(["bash", "-c", "ls"]), execute(["ssh", "-c", "ls"])),
        (LS, execute("ls", cwd="/etc")),
        (LS, LS | {"kind": "other"}),
        (use("move", path="/w/a", to="/w/b"), use("move", path="/w/a", to="/etc/cron.d/x")),
        (use("other", path="/w", target="staging"), use("other", path="/w", target="production")),
    ],
)
def test_always_holds_for_no_other_request(allowed: Json, other: Json) -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            own.asks(0, sessionId="s", toolCall=allowed | {"toolCallId": "c0"}, options=ONLY_ONCE)
            (waiting,) = bridge.requests.permissions(None)
            await bridge.requests.reply_permission(waiting.id, "always", None)
            renamed = [ONLY_ONCE[0] | {"name": "Allow, and everything else"}, ONLY_ONCE[1]]
            own.asks(1, sessionId="s", toolCall=other | {"toolCallId": "c1"}, options=ONLY_ONCE)
            own.asks(2, sessionId="s", toolCall=allowed | {"toolCallId": "c2"}, options=renamed)
            own.asks(3, sessionId="s", toolCall=allowed | {"toolCallId": "c3", "status": "pending"}, options=ONLY_ONCE)
            await own.log.flushed()
            await own.settled()

            assert not is_answered(own, 1)
            assert not is_answered(own, 2)
            assert answered(own, 3) == {"outcome": {"outcome": "selected", "optionId": "yes"}}

    run(main())


def test_always_holds_for_no_other_session_not_even_a_fork() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            await ask(own, ONLY_ONCE)
            (waiting,) = bridge.requests.permissions(None)
            await bridge.requests.reply_permission(waiting.id, "always", None)
            forked = own.add_session("f")
            forked.facts.metadata = dict(own.session.facts.metadata)
            await ask(own, ONLY_ONCE, 1, session="f")
            await own.log.flushed()
            await own.settled()

            assert Facts.of(forked).always
            assert not is_answered(own, 1)

    run(main())


def test_a_rule_that_denies_holds_for_every_file_of_a_request() -> None:
    async def main() -> None:
        async with bridged() as (own, _):
            rules = [
                {"permission": "edit", "pattern": "/etc/*", "action": "deny"},
                {"permission": "edit", "pattern": "/w/*", "action": "allow"},
            ]
            own.session.facts.metadata = {"opencode": {"permission": rules}}
            call = edit(diff("/w/a.py"), diff("/etc/passwd")) | {"toolCallId": "c"}
            own.asks(0, sessionId="s", toolCall=call, options=ONLY_ONCE)
            await own.log.flushed()
            await own.settled()

            assert answered(own)["outcome"]["optionId"] == "no"

    run(main())


@pytest.mark.parametrize(
    "call",
    [
        {"title": "Lights", "kind": "other", "rawInput": {"room": 1}},
        {"title": "Edit", "kind": "edit", "content": [diff("/w/a.py"), diff("/w/b.py")]},
        {"title": "Edit", "kind": "edit", "locations": [{"path": "/w/a.py"}]},
        {"title": "ls", "kind": "execute", "rawInput": {}},
    ],
)
def test_what_cannot_be_told_apart_is_not_remembered(call: Json) -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            own.asks(0, sessionId="s", toolCall=call | {"toolCallId": "c"}, options=ONLY_ONCE)
            (waiting,) = bridge.requests.permissions(None)
            await bridge.requests.reply_permission(waiting.id, "always", None)

            assert Facts.of(own.session).always == ()

    run(main())


def test_a_session_that_is_refused_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with bridged() as (_, bridge):
            before = len(bridge.conversations.find_all(None))
            for asked in (
                NewSession(parent_id="ses_000000000000aaaaaaaaaaaaaa"),
                NewSession(model=ModelRef(provider_id="nobody", id="x")),
            ):
                with pytest.raises(Refused):
                    bridge.conversations.create("/w", asked)

            assert len(bridge.conversations.find_all(None)) == before

    run(main())


def test_the_first_answer_wins_and_the_other_side_closes_its_dialog() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            listener = bridge.listen()
            await ask(own, ALWAYS)
            asked = await listener.until("permission.asked")
            line = {"jsonrpc": "2.0", "id": 0, "result": {"outcome": {"outcome": "selected", "optionId": "no"}}}
            await own.from_client.answer(own.client, parse(json.dumps(line).encode()))

            assert (await listener.until("permission.replied"))["reply"] == "reject"
            with pytest.raises(Refused):
                await bridge.requests.reply_permission(asked["id"], "once", None)
            assert answered(own)["outcome"]["optionId"] == "no"

    run(main())


def test_a_reader_that_comes_later_is_told_what_waits() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            await ask(own, ALWAYS)
            listener = bridge.listen()
            bridge.requests.greet(listener.reader)

            assert (await listener.until("permission.asked"))["sessionID"] == id_of(own.session)
            elsewhere = bridge.listen("/elsewhere")
            bridge.requests.greet(elsewhere.reader)
            bridge.bus.close()
            with pytest.raises(AssertionError):
                await elsewhere.until("permission.asked")

    run(main())


QUESTION = {
    "sessionId": "s",
    "questionId": "q",
    "prompt": "Which?",
    "options": [["r", "Red"]],
    "questions": [
        {"question": "Which color?", "header": "Color", "options": [{"id": "r", "label": "Red"}], "multiSelect": False},
        {
            "question": "Which ones?",
            "options": [{"id": "1", "label": "One"}, {"id": "2", "label": "Two"}],
            "multiSelect": True,
        },
    ],
}


def test_several_questions_are_answered_by_labels_and_free_text() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            listener = bridge.listen()
            own.asks(0, "_sandboxagent/session/request_question", **QUESTION)
            asked = await listener.until("question.asked")
            assert [each["header"] for each in asked["questions"]] == ["Color", "Which ones?"]
            assert [each["multiple"] for each in asked["questions"]] == [False, True]
            await bridge.requests.reply_question(asked["id"], [["mauve"], ["One", "Two"]])

            assert answered(own) == {"status": "answered", "answers": [["mauve"], ["1", "2"]]}
            assert (await listener.until("question.replied"))["answers"] == [["mauve"], ["One", "Two"]]

    run(main())


def test_a_question_is_rejected_and_a_wrong_answer_leaves_it_open() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            listener = bridge.listen()
            own.asks(0, "_sandboxagent/session/request_question", **QUESTION)
            id = (await listener.until("question.asked"))["id"]
            with pytest.raises(Refused) as refused:
                await bridge.requests.reply_question(id, [["Red", "Green"], []])
            assert refused.value.status == 400
            await bridge.requests.reject_question(id)

            assert answered(own) == {"status": "rejected"}
            assert (await listener.until("question.rejected"))["requestID"] == id

    run(main())


def test_a_form_is_a_question_for_each_of_its_fields() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            properties = {
                "color": {"type": "string", "title": "Color", "enum": ["red", "green"]},
                "gift": {"type": "boolean", "title": "Wrap it"},
                "amount": {"type": "integer", "title": "How many"},
            }
            schema = {"type": "object", "properties": properties, "required": ["color"]}
            own.asks(0, "elicitation/create", sessionId="s", mode="form", message="What?", requestedSchema=schema)
            (asked,) = bridge.requests.questions(None)
            assert [each.custom for each in asked.questions] == [False, False, True]
            assert [option.label for option in asked.questions[1].options] == ["Yes", "No"]
            await bridge.requests.reply_question(asked.id, [["green"], ["Yes"], ["3"]])

            content = {"color": "green", "gift": True, "amount": 3}
            assert answered(own) == {"action": "accept", "content": content}

    run(main())


def test_a_program_that_answers_no_questions_has_them_rejected() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            denied = [{"permission": "question", "action": "deny", "pattern": "*"}]
            own.session.facts.metadata = {"opencode": {"permission": denied}}
            own.asks(0, "_sandboxagent/session/request_question", **QUESTION)
            await own.settled()
            await own.log.flushed()
            await own.settled()

            assert answered(own) == {"status": "rejected"}
            assert bridge.requests.questions(None) == []

    run(main())


def test_to_abort_cancels_the_turn_and_what_waits() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            id = id_of(own.session)
            await bridge.conversations.abort(id)
            prompts = [bridge.prompt(id), bridge.prompt(id)]
            sent = await own.process.request("session/prompt")
            await ask(own, ALWAYS)
            await own.settled()
            await bridge.conversations.abort(id)
            own.says(id=sent["id"], result={"stopReason": "cancelled"})

            replies = await asyncio.gather(*prompts)
            assert {reply["info"]["error"]["name"] for reply in replies} == {"MessageAbortedError"}
            assert answered(own) == {"outcome": {"outcome": "cancelled"}}

    run(main())


def test_an_agent_that_crashes_is_an_error_of_the_turn() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            prompt = bridge.prompt(id_of(own.session))
            await own.process.request("session/prompt")
            own.agent.crashes()

            assert (await prompt)["info"]["error"]["name"] == "UnknownError"

    run(main())


def test_a_transcript_that_was_dropped_for_want_of_memory_is_read_again() -> None:
    async def main() -> None:
        async with bridged(memory=16_000) as (own, bridge):
            sessions = [own.session, *(own.add_session(f"s{number}") for number in range(5))]
            for session in sessions:
                turn = own.prompt("x" * 600, session=session.id)
                await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
                await turn
            first = {session.id: await bridge.messages(id_of(session)) for session in sessions}

            assert sum(bridge.transcripts.find(session) is not None for session in sessions) < len(sessions)
            for session in sessions:
                assert await bridge.messages(id_of(session)) == first[session.id]

    run(main())


def test_a_fork_begins_with_what_was_said_before_it() -> None:
    async def main() -> None:
        async with bridged(capabilities={"sessionCapabilities": {"fork": {}}}) as (own, bridge):
            id = id_of(own.session)
            turn = own.prompt("before")
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await turn
            forking = asyncio.create_task(bridge.conversations.fork(id, None))
            await own.agent.answers("session/fork", {"sessionId": "fork"})
            fork = await forking
            turn = own.prompt("after")
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await turn

            copied = await bridge.messages(fork.id)
            assert [message["parts"][0].get("text") for message in copied[::2]] == ["before"]
            assert {message["info"]["sessionID"] for message in copied} == {fork.id}
            assert len(await bridge.messages(id)) == 4

    run(main())


def test_the_session_used_last_comes_first() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            newer = own.add_session("newer")
            newer.facts.updated_at -= 10
            newer.facts.created_at += 1
            assert [info.id for info in bridge.conversations.find_all(None)] == [id_of(own.session), id_of(newer)]
            assert [info.id for info in bridge.conversations.find_all(None, limit=1)] == [id_of(own.session)]
            assert bridge.conversations.find_all("/elsewhere") == []
            assert bridge.conversations.find_all(None, search="no such title") == []

    run(main())


def test_compacting_is_the_agents_own_command_and_refused_where_it_has_none() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            id = id_of(own.session)
            with pytest.raises(Refused, match="no command to compact"):
                await bridge.conversations.compact(id)
            commands = [{"name": "compact", "description": "Shorten"}]
            update = {"sessionUpdate": "available_commands_update", "availableCommands": commands}
            own.says(method="session/update", params={"sessionId": "s", "update": update})
            compacting = asyncio.create_task(bridge.conversations.compact(id))
            sent = await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await bridge.conversations.finish(*await compacting)

            assert sent["params"]["prompt"] == [{"type": "text", "text": "/compact"}]
            assert [message["parts"][0]["type"] for message in await bridge.messages(id)] == [
                "compaction",
                "step-start",
            ]

    run(main())


def test_a_slash_command_is_a_prompt_of_the_agents() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            listener = bridge.listen()
            body = CommandBody(command="review", arguments="all of it", model="a/default")
            running = asyncio.create_task(bridge.conversations.command(id_of(own.session), body))
            sent = await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            await bridge.conversations.finish(*await running)

            assert sent["params"]["prompt"] == [{"type": "text", "text": "/review all of it"}]
            executed = await listener.until("command.executed")
            assert (executed["name"], executed["arguments"]) == ("review", "all of it")

    run(main())


def test_another_mode_is_set_at_the_agent_and_an_unknown_one_changes_nothing() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            own.session.learn_offers(OFFERED)
            prompt = bridge.prompt(id_of(own.session), agent="plan")
            sent = await own.agent.answers("session/set_mode")
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            assert sent["params"]["modeId"] == "plan"
            assert (await prompt)["info"]["agent"] == "plan"

            prompt = bridge.prompt(id_of(own.session), agent="build")
            await own.agent.answers("session/prompt", {"stopReason": "end_turn"})
            assert (await prompt)["info"]["agent"] == "plan"

    run(main())


def test_a_prompt_for_which_there_is_no_room_is_refused() -> None:
    async def main() -> None:
        async with bridged(queue=1) as (own, bridge):
            id = id_of(own.session)
            prompts = [bridge.prompt(id), bridge.prompt(id)]
            await own.process.request("session/prompt")
            await own.settled()
            with pytest.raises(Refused) as refused:
                await bridge.prompt(id)
            assert refused.value.status == 400
            assert len(await bridge.messages(id)) == 3
            for prompt in prompts:
                prompt.cancel()

    run(main())
