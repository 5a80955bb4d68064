"""A session's log as messages, parts and events of OpenCode's. All of it in memory, without a clock."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.adapters.opencode.messages import MAX_TEXT, About
from sandboxagent.adapters.opencode.transcript import Transcript
from sandboxagent.server.log.event import Direction
from tests.support.growing import lines_run

Json = dict[str, Any]
Event = tuple[int, float, Direction, bytes]
START = 1_794_722_412.634
CLIENT, AGENT, SERVER = Direction.FROM_CLIENT, Direction.FROM_AGENT, Direction.FROM_SERVER


class Session:
    """A log that is being written, and what becomes of it."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.limit = limit
        self.transcript = self._new()
        self.log: list[Event] = []
        self.heard: list[Json] = []

    def _new(self) -> Transcript:
        return Transcript(About("ses_1", "claude", "/w"), self.limit)

    def add(self, direction: Direction, **envelope: Any) -> int:
        position = len(self.log) + 1
        line = json.dumps({"jsonrpc": "2.0", **envelope}).encode()
        self.log.append((position, START + position / 100, direction, line))
        for each in self.transcript.apply(*self.log[-1]):
            self.heard.append({"type": each.type, "properties": msgspec.to_builtins(each.properties)})
        return position

    def prompt(self, *blocks: Json, id: object = "p", **note: Any) -> str:
        """A prompt; gives the id of its turn."""
        params = {"sessionId": "s", "prompt": list(blocks) or [text("hello")]}
        meta = {"_meta": {"sandboxagent.dev": {"opencode": note}}} if note else {}
        return f"turn-{self.add(CLIENT, id=id, method='session/prompt', params=params | meta)}"

    def start(self, turn: str) -> None:
        self.add(SERVER, method="_sandboxagent/session/turn", params={"turnId": turn, "state": "started"})

    def end(self, turn: str, **facts: Any) -> None:
        facts = facts or {"stopReason": "end_turn"}
        self.add(SERVER, method="_sandboxagent/session/turn", params={"turnId": turn, "state": "ended", **facts})

    def update(self, what: str, /, **facts: Any) -> None:
        params = {"sessionId": "s", "update": {"sessionUpdate": what, **facts}}
        self.add(AGENT, method="session/update", params=params)

    def say(self, said: str, **facts: Any) -> None:
        self.update("agent_message_chunk", content=text(said), **facts)

    def turn(self, *said: str) -> None:
        """A whole turn."""
        turn = self.prompt()
        self.start(turn)
        for each in said:
            self.say(each)
        self.end(turn)

    @property
    def messages(self) -> list[Json]:
        return msgspec.to_builtins(self.transcript.messages())

    def again(self) -> list[Json]:
        """The messages as they are when the same log is read anew."""
        transcript = self._new()
        for event in self.log:
            transcript.apply(*event)
        return msgspec.to_builtins(transcript.messages())

    def types(self) -> list[str]:
        return [each["type"] for each in self.heard]

    def last(self, type: str) -> Json:
        return [each["properties"] for each in self.heard if each["type"] == type][-1]


def text(said: str) -> Json:
    return {"type": "text", "text": said}


@pytest.fixture
def session() -> Session:
    return Session()


def kinds(message: Json) -> list[str]:
    return [part["type"] for part in message["parts"]]


def test_a_turn_comes_in_the_order_that_programs_need(session: Session) -> None:
    session.turn("Good ", "morning")

    assert session.types() == [
        "message.updated",
        "message.part.updated",
        "session.updated",
        "session.status",
        "message.updated",
        "message.part.updated",
        "message.part.updated",
        "message.part.delta",
        "message.part.delta",
        "message.part.updated",
        "message.part.updated",
        "message.updated",
        "session.status",
        "session.idle",
        "session.updated",
    ]
    user, assistant = session.messages
    assert user["parts"][0]["text"] == "hello"
    assert kinds(assistant) == ["step-start", "text", "step-finish"]
    assert assistant["parts"][1]["text"] == "Good morning"
    assert assistant["parts"][1]["time"]["end"]
    assert assistant["info"]["parentID"] == user["info"]["id"]
    assert assistant["info"]["finish"] == "stop"


def test_a_text_is_announced_empty_then_added_to_then_told_whole(session: Session) -> None:
    session.turn("Good ", "morning")

    told = [each["properties"] for each in session.heard if each["type"].startswith("message.part")]
    begun, *deltas, whole = [each for each in told if each.get("partID") or each["part"]["type"] == "text"][1:]
    assert begun["part"]["text"] == ""
    assert [each["delta"] for each in deltas] == ["Good ", "morning"]
    assert {each["partID"] for each in deltas} == {begun["part"]["id"]} == {whole["part"]["id"]}
    assert whole["part"]["text"] == "Good morning"


def test_ids_of_messages_and_parts_ascend_in_their_order(session: Session) -> None:
    session.turn("one")
    session.turn("two")

    messages = [message["info"]["id"] for message in session.messages]
    parts = [part["id"] for message in session.messages for part in message["parts"]]
    assert messages == sorted(messages)
    assert parts == sorted(parts)


def test_the_same_log_gives_the_same_messages(session: Session) -> None:
    session.turn("one", "two")
    turn = session.prompt(messageID="msg_1ddcab99a001ABCDEFGHIJKLMN", partIDs=["prt_1ddcab99a002ABCDEFGHIJKLMN"])
    session.start(turn)
    session.update("tool_call", toolCallId="c", title="ls", kind="execute")
    session.end(turn)

    assert session.again() == session.messages


@given(
    st.lists(
        st.sampled_from(["prompt", "start", "say", "think", "tool", "done", "plan", "end", "cancel", "echo", "stray"]),
        max_size=30,
    )
)
def test_transcript_depends_on_the_log_alone(steps: list[str]) -> None:
    session = Session(limit=2000)
    turns: list[str] = []
    for step in steps:
        match step:
            case "prompt":
                turns.append(session.prompt())
            case "start" if turns:
                session.start(turns[-1])
            case "end" if turns:
                session.end(turns[-1])
            case "cancel" if turns:
                session.end(turns.pop(), stopReason="cancelled")
            case "say":
                session.say("x" * 100)
            case "think":
                session.update("agent_thought_chunk", content=text("hm"))
            case "tool":
                session.update("tool_call", toolCallId="c", title="ls", kind="execute", rawInput={"command": "ls"})
            case "done":
                session.update("tool_call_update", toolCallId="c", status="completed")
            case "echo":
                session.update("user_message_chunk", content=text("said"))
            case _:
                session.update("plan", entries=[{"content": "x", "status": "pending", "priority": "low"}])
    assert session.again() == session.messages
    ids = [message["info"]["id"] for message in session.messages]
    assert ids == sorted(ids)
    for message in session.messages:
        parts = [part["id"] for part in message["parts"]]
        assert parts == sorted(parts)
    # A delta is only told of a part that was announced.
    announced: set[str] = set()
    for each in session.heard:
        if each["type"] == "message.part.updated":
            announced.add(each["properties"]["part"]["id"])
        elif each["type"] == "message.part.delta":
            assert each["properties"]["partID"] in announced


def test_ids_that_a_program_made_are_kept_and_the_reply_sorts_after_them(session: Session) -> None:
    ahead = "msg_1ddcffffa001ABCDEFGHIJKLMN"
    turn = session.prompt(messageID=ahead, partIDs=["prt_1ddcffffa002ABCDEFGHIJKLMN"])
    session.start(turn)

    user, assistant = session.messages
    assert user["info"]["id"] == ahead
    assert user["parts"][0]["id"] == "prt_1ddcffffa002ABCDEFGHIJKLMN"
    assert assistant["info"]["id"] > ahead
    assert assistant["info"]["time"]["created"] >= user["info"]["time"]["created"]


def test_a_message_id_that_comes_twice_is_another_one_the_second_time(session: Session) -> None:
    for _ in range(2):
        session.prompt(messageID="msg_mine")

    assert len({message["info"]["id"] for message in session.messages}) == 2


def test_thoughts_and_texts_are_parts_of_their_own(session: Session) -> None:
    turn = session.prompt()
    session.start(turn)
    session.update("agent_thought_chunk", content=text("hm"))
    session.say("yes")
    session.update("tool_call", toolCallId="c", title="ls", kind="execute")
    session.say("done")

    assert kinds(session.messages[1]) == ["step-start", "reasoning", "text", "tool", "text"]


def test_messages_of_the_agent_are_parts_of_their_own(session: Session) -> None:
    session.start(session.prompt())
    session.say("one", messageId="1")
    session.say("two", messageId="2")

    assert [part["text"] for part in session.messages[1]["parts"][1:]] == ["one", "two"]


def test_an_image_of_the_agent_is_a_file(session: Session) -> None:
    session.start(session.prompt())
    session.update("agent_message_chunk", content={"type": "image", "data": "AA==", "mimeType": "image/png"})

    assert session.messages[1]["parts"][1]["url"] == "data:image/png;base64,AA=="


def test_a_tool_call_is_one_part_from_its_begin_to_its_end(session: Session) -> None:
    turn = session.prompt()
    session.start(turn)
    session.update("tool_call", toolCallId="c", title="ls", kind="execute", rawInput={"command": "ls"})
    session.update("tool_call_update", toolCallId="c", status="in_progress")
    session.update("tool_call_update", toolCallId="c", status="completed", rawOutput="a.txt")
    session.end(turn)

    told = [each["properties"]["part"] for each in session.heard if each["type"] == "message.part.updated"]
    tools = [part for part in told if part["type"] == "tool"]
    assert [part["state"]["status"] for part in tools] == ["pending", "running", "completed"]
    assert {part["id"] for part in tools} == {tools[0]["id"]}
    assert all(part["tool"] == "bash" and part["state"]["input"]["command"] == "ls" for part in tools)


def test_a_permission_brings_its_tool_call_to_run_with_its_input(session: Session) -> None:
    session.start(session.prompt())
    session.update("tool_call", toolCallId="c", title="ls", kind="execute", status="pending")
    call = {"toolCallId": "c", "rawInput": {"command": "ls -l"}}
    session.add(AGENT, id=0, method="session/request_permission", params={"sessionId": "s", "toolCall": call})

    part = session.last("message.part.updated")["part"]
    assert part["state"]["status"] == "running"
    assert part["state"]["input"]["command"] == "ls -l"
    assert session.transcript.find_call("c") == part["messageID"]


def test_a_file_that_was_changed_is_reported_once(session: Session) -> None:
    session.start(session.prompt())
    diff = {"type": "diff", "path": "/w/a", "newText": "x"}
    session.update("tool_call", toolCallId="c", kind="edit", content=[diff])
    session.update("tool_call_update", toolCallId="c", status="completed")
    session.update("tool_call_update", toolCallId="c", title="Done")

    assert session.types().count("file.edited") == 1
    assert session.last("file.edited") == {"file": "/w/a"}


def test_what_a_terminal_shows_is_the_output_of_its_call(session: Session) -> None:
    session.start(session.prompt())
    shown = {"type": "terminal", "terminalId": "t"}
    session.update("tool_call", toolCallId="c", kind="execute", status="in_progress", content=[shown])
    session.add(AGENT, id=7, method="terminal/output", params={"sessionId": "s", "terminalId": "t"})
    session.add(SERVER, id=7, result={"output": "a.txt\n", "truncated": False})

    assert session.last("message.part.updated")["part"]["state"]["metadata"]["output"] == "a.txt\n"


def test_calls_that_were_forgotten_take_no_memory() -> None:
    session = Session(limit=100_000)
    session.start(session.prompt())
    tracemalloc.start()
    try:
        for number in range(1000):
            output = f"{number}" * 10_000
            session.update("tool_call", toolCallId=f"c{number}", status="in_progress", rawInput={"x": output})
            if number % 2:
                session.update("tool_call_update", toolCallId=f"c{number}", status="completed", rawOutput=output)
            session.log.clear()
            session.heard.clear()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken < 10 * session.limit
    session.update("tool_call_update", toolCallId="c0", status="completed", title="The first", rawOutput="done")
    part = session.last("message.part.updated")["part"]
    assert (part["state"]["title"], part["state"]["output"]) == ("The first", "done")


def test_what_a_terminal_shows_is_not_looked_for_in_every_call(session: Session) -> None:
    session.start(session.prompt())

    def work() -> int:
        session.add(AGENT, id=7, method="terminal/output", params={"sessionId": "s", "terminalId": "t"})
        result = {"output": "a.txt\n", "truncated": False}
        return lines_run(lambda: session.add(SERVER, id=7, result=result))

    session.update("tool_call", toolCallId="c", content=[{"type": "terminal", "terminalId": "t"}])
    few = work()
    for number in range(500):
        session.update("tool_call", toolCallId=f"c{number}", content=[{"type": "terminal", "terminalId": f"t{number}"}])

    assert work() < 2 * few


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("refusal", "content-filter"),
        ("max_turn_requests", "tool-calls"),
    ],
)
def test_how_a_turn_ended_is_shown(session: Session, reason: str, finish: str) -> None:
    turn = session.prompt()
    session.start(turn)
    session.end(turn, stopReason=reason)

    assert session.messages[1]["info"]["finish"] == finish
    assert session.messages[1]["parts"][-1]["reason"] == finish


def test_a_cancelled_turn_is_an_error_and_its_tools_have_ended(session: Session) -> None:
    turn = session.prompt()
    session.start(turn)
    session.update("tool_call", toolCallId="c", title="ls", kind="execute", status="in_progress")
    session.end(turn, stopReason="cancelled")

    assistant = session.messages[1]
    assert assistant["info"]["error"]["name"] == "MessageAbortedError"
    assert assistant["info"]["time"]["completed"]
    assert assistant["parts"][1]["state"]["status"] == "error"
    assert session.last("session.error")["error"]["name"] == "MessageAbortedError"
    assert session.types().count("session.idle") == 1


def test_a_failed_turn_says_why(session: Session) -> None:
    turn = session.prompt()
    session.start(turn)
    session.end(turn, error={"code": -32603, "message": "agent exited with code 3"})

    assert session.messages[1]["info"]["error"] == {
        "name": "UnknownError",
        "data": {"message": "agent exited with code 3"},
    }


def test_missing_credentials_are_an_error_of_the_provider(session: Session) -> None:
    turn = session.prompt()
    session.start(turn)
    session.end(turn, error={"code": -32000, "message": "log in first"})

    assert session.messages[1]["info"]["error"]["name"] == "ProviderAuthError"


def test_a_prompt_that_waits_is_shown_and_its_turn_begins_after_the_other(session: Session) -> None:
    first = session.prompt(text("one"), id="1")
    session.start(first)
    second = session.prompt(text("two"), id="2")
    session.say("to one")
    session.end(first)
    session.start(second)
    session.say("to two")
    session.end(second)

    assert [message["info"]["role"] for message in session.messages] == ["user", "assistant", "user", "assistant"]
    assert session.messages[1]["parts"][1]["text"] == "to one"
    reply = session.transcript.find_reply(second)
    assert reply is not None
    assert reply.info.id == session.messages[3]["info"]["id"]
    statuses = [each["properties"]["status"]["type"] for each in session.heard if each["type"] == "session.status"]
    assert statuses == ["busy", "idle", "busy", "idle"]


def test_a_prompt_that_was_cancelled_while_it_waited_has_an_answer(session: Session) -> None:
    turn = session.prompt()
    session.end(turn, stopReason="cancelled")

    reply = session.transcript.find_reply(turn)
    assert reply is not None
    assert session.messages[1]["info"]["error"]["name"] == "MessageAbortedError"
    assert session.types()[-1] == "session.idle"


def test_replayed_past_becomes_messages(session: Session) -> None:
    session.update("user_message_chunk", content=text("hello"))
    session.update("user_message_chunk", content=text(" again"))
    session.say("yes?")
    session.update("user_message_chunk", content=text("bye"))

    assert [message["info"]["role"] for message in session.messages] == ["user", "assistant", "user"]
    assert [part["text"] for part in session.messages[0]["parts"]] == ["hello", " again"]
    assert session.messages[1]["info"]["time"]["completed"]
    assert session.messages[1]["info"]["parentID"] == session.messages[0]["info"]["id"]


def test_a_prompt_that_the_agent_echoes_is_shown_once(session: Session) -> None:
    turn = session.prompt(text("hello"))
    session.start(turn)
    session.update("user_message_chunk", content=text("hello"))

    assert [message["info"]["role"] for message in session.messages] == ["user", "assistant"]


def test_what_an_agent_says_after_its_turn_is_a_message_that_is_complete(session: Session) -> None:
    session.turn("yes")
    session.say("one more thing")

    last = session.messages[-1]
    assert last["info"]["time"]["completed"]
    assert last["parts"][0]["text"] == "one more thing"


def test_a_plan_is_todos(session: Session) -> None:
    session.update("plan", entries=[{"content": "look", "status": "in_progress", "priority": "high"}, {}])

    assert session.last("todo.updated")["todos"][0] == {"content": "look", "status": "in_progress", "priority": "high"}
    assert len(session.transcript.todos) == 2


def test_usage_and_cost_come_with_the_turn(session: Session) -> None:
    session.update("usage_update", used=10, size=100, cost={"amount": 0.5, "currency": "USD"})
    turn = session.prompt(id="p-2")
    session.start(turn)
    session.update("usage_update", used=50, size=100, cost={"amount": 0.75, "currency": "USD"})
    usage = {"inputTokens": 3, "outputTokens": 4, "thoughtTokens": 1, "cachedReadTokens": 2, "totalTokens": 10}
    session.add(AGENT, id="p-2", result={"stopReason": "end_turn", "usage": usage})
    session.end(turn)

    info = session.messages[1]["info"]
    assert info["cost"] == 0.25
    assert info["tokens"] == {
        "input": 3,
        "output": 4,
        "reasoning": 1,
        "cache": {"read": 2, "write": 0},
        "total": 10,
    }
    assert (session.transcript.cost, session.transcript.used) == (0.75, 50)


def test_a_tool_call_that_goes_on_after_it_was_forgotten_has_its_place_again() -> None:
    session = Session(limit=2000)
    session.update("tool_call", toolCallId="c", title="ls", kind="execute")
    session.say("x" * 100)
    session.update("agent_thought_chunk", content=text("hm"))
    session.update("tool_call_update", toolCallId="c", status="completed")

    ids = [part["id"] for message in session.messages for part in message["parts"]]
    assert ids == sorted(ids)
    assert session.again() == session.messages


def test_a_cost_that_no_float_can_hold_is_left_out_and_the_rest_counts(session: Session) -> None:
    session.update("usage_update", used=10, size=100, cost={"amount": 0.5, "currency": "USD"})
    session.update("usage_update", used=50, size=100, cost={"amount": 10**400, "currency": "USD"})

    assert (session.transcript.cost, session.transcript.used) == (0.5, 50)


def test_mode_and_model_are_those_of_their_time(session: Session) -> None:
    modes = {"currentModeId": "plan", "availableModes": [{"id": "plan"}, {"id": "code"}]}
    models = {"currentModelId": "m1", "availableModels": [{"modelId": "m1"}]}
    session.add(AGENT, id="new", result={"sessionId": "s", "modes": modes, "models": models})
    session.turn("one")
    session.update("current_mode_update", currentModeId="code")
    session.turn("two")

    assert [message["info"]["agent"] for message in session.messages] == ["plan", "plan", "code", "code"]
    assert session.messages[0]["info"]["model"] == {"providerID": "claude", "modelID": "m1"}


def test_a_command_of_the_agents_is_listed(session: Session) -> None:
    session.prompt(text("/review all"), command="review all", messageID="msg_1")

    executed = {"name": "review", "arguments": "all", "sessionID": "ses_1", "messageID": "msg_1"}
    assert session.last("command.executed") == executed


def test_compacting_is_a_part_and_an_event(session: Session) -> None:
    turn = session.prompt(text("/compact"), compacts=True)
    session.start(turn)
    session.end(turn)

    assert kinds(session.messages[0]) == ["compaction"]
    assert session.messages[1]["info"]["summary"] is True
    assert "session.compacted" in session.types()


def test_a_persons_command_is_a_tool_call_of_its_own(session: Session) -> None:
    note = {"sessionId": "s", "shellId": "1", "command": "ls"}
    session.add(SERVER, method="_sandboxagent/session/shell", params=note)
    running = session.last("message.part.updated")["part"]["state"]["status"]
    session.add(SERVER, method="_sandboxagent/session/shell", params=note | {"output": "a.txt\n", "exitCode": 0})

    assert running == "running"
    _, ran = session.messages
    assert ran["parts"][0]["tool"] == "bash"
    assert ran["parts"][0]["state"]["output"] == "a.txt\n"
    assert ran["info"]["time"]["completed"]
    reply = session.transcript.find_reply("shell-1")
    assert reply is not None
    assert reply.info.id == ran["info"]["id"]


def test_a_long_text_goes_on_in_another_part(session: Session) -> None:
    session.start(session.prompt())
    for _ in range(3):
        session.say("x" * MAX_TEXT)

    assert sum(len(part.get("text", "")) for part in session.messages[1]["parts"]) == 3 * MAX_TEXT
    assert kinds(session.messages[1]).count("text") > 1


def test_memory_is_bounded_and_the_newest_stays() -> None:
    session = Session(limit=10_000)
    for number in range(50):
        session.turn(f"{number} " + "x" * 1000)

    assert session.transcript.size < 20_000
    assert session.messages[-1]["parts"][1]["text"].startswith("49 ")
    assert len(session.messages) < 40


def test_one_message_alone_is_bounded_too() -> None:
    session = Session(limit=10_000)
    session.start(session.prompt())
    for number in range(100):
        session.update("tool_call", toolCallId=f"c{number}", title="x", content=[{"x": "y" * 1000}])

    assert session.transcript.size < 20_000
    assert session.messages[-1]["parts"][-1]["callID"] == "c99"


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b'{"jsonrpc":"2.0"}', b"\xff", b'{"jsonrpc":"2.0","method":1}'])
def test_lines_that_are_no_envelopes_do_no_harm(session: Session, line: bytes) -> None:
    assert session.transcript.apply(1, START, AGENT, line) == []


@pytest.mark.parametrize("update", [{}, {"sessionUpdate": 1}, {"sessionUpdate": "plan", "entries": 1}, {"content": []}])
def test_updates_that_make_no_sense_do_no_harm(session: Session, update: Json) -> None:
    session.start(session.prompt())
    for kind in ("agent_message_chunk", "tool_call", "usage_update", "config_option_update", "current_mode_update"):
        session.update(kind, **{name: value for name, value in update.items() if name != "sessionUpdate"})

    assert session.messages
