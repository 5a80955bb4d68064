"""The view of a session, from its log: the logs and views that both SDKs share, and what no log may break."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sandboxagent.client.errors import InvalidCall
from sandboxagent.client.incoming import LogEvent
from sandboxagent.client.reducer import SessionReducer, reduce
from sandboxagent.client.updates import Gap
from sandboxagent.client.view import GapItem, SessionView, TextItem, ToolCallItem, UserItem, ViewItem
from tests.support.growing import grows_faster

VIEWS = Path(__file__).parent / "views"
NAMES = sorted(path.stem for path in VIEWS.glob("*.jsonl"))
Json = dict[str, Any]
Log = list[LogEvent | Gap]
ODD = [
    None,
    True,
    0,
    -1,
    1.5,
    "",
    "a",
    "turn-3",
    "call-1",
    "\ud83d",
    "\ude00",
    [],
    [None, 1, {}],
    {},
    {"a": None},
    [["a"]],
]
"""Values that an agent may put in place of any other one."""


def lines_of(name: str) -> list[Json]:
    return [json.loads(line) for line in (VIEWS / f"{name}.jsonl").read_text().splitlines()]


def log_of(name: str) -> Log:
    return [entry_of(line) for line in lines_of(name)]


def entry_of(line: Json) -> LogEvent | Gap:
    return msgspec.convert(line, LogEvent) if "envelope" in line else Gap(line["after"], line["resumesAt"])


def json_of(view: SessionView) -> Any:
    return json.loads(view.to_json())


def items_of(view: SessionView) -> list[ViewItem]:
    return [item for turn in view.turns for item in turn.items]


@pytest.mark.parametrize("name", NAMES)
def test_a_shared_log_has_the_view_that_both_sdks_expect(name: str) -> None:
    assert json_of(reduce(log_of(name))) == json.loads((VIEWS / f"{name}.view.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_view_continues_wherever_the_log_is_cut(name: str) -> None:
    log = log_of(name)
    whole = reduce(log)
    for cut in range(len(log) + 1):
        stored = SessionView.from_json(reduce(log[:cut]).to_json())
        assert json_of(reduce(log[cut:], stored)) == json_of(whole), f"cut at {cut}"
        assert reduce(log[cut:], reduce(log[:cut])) == whole, f"cut at {cut}"


@pytest.mark.parametrize("name", NAMES)
def test_a_view_that_was_given_out_never_changes(name: str) -> None:
    reducer, given = SessionReducer(), list[tuple[SessionView, str]]()
    for event in log_of(name):
        reducer.add(event)
        assert reducer.view is reducer.view
        given.append((reducer.view, reducer.view.to_json()))
    assert [view.to_json() for view, _ in given] == [text for _, text in given]
    assert reducer.view == reduce(log_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_log_that_is_read_from_its_middle_begins_with_a_gap(name: str) -> None:
    log = log_of(name)
    for start in range(2, len(log)):
        first = log[start]
        begins = isinstance(first, LogEvent) and first.envelope.get("method") in ("session/new", "session/load")
        if not begins:
            assert isinstance(items_of(reduce(log[start:]))[0], GapItem), f"from {start}"


def test_events_that_a_view_has_already_are_skipped() -> None:
    log = log_of("everything")
    assert reduce([*log[:20], *log[10:]]) == reduce(log)
    assert reduce(log, reduce(log)) is not None
    assert reduce(log, reduce(log)) == reduce(log)


def test_a_view_shares_what_has_not_changed_with_the_view_before_it() -> None:
    log = log_of("mock-turns")
    reducer, shared = SessionReducer(), 0
    before = reducer.view
    for event in log:
        reducer.add(event)
        pairs = zip(before.turns, reducer.view.turns, strict=False)
        shared += sum(old is new for old, new in list(pairs)[:-1])
        assert all(old is new for old, new in zip(before.turns[:-2], reducer.view.turns, strict=False))
        before = reducer.view
    assert shared > 0


def test_a_pending_request_is_the_same_object_as_in_its_turn() -> None:
    log = log_of("requests")
    for view in (reduce(log), SessionView.from_json(reduce(log).to_json())):
        assert view.pending
        pending = SessionReducer(view)._pending.values()  # pyright: ignore[reportPrivateUsage]
        found = {item.key: item for item in items_of(view)}
        assert all(found[request.key] is request for request in pending)


def test_text_that_is_no_view_is_refused() -> None:
    for text in ("", "[]", '{"turns": 3}', "[" * 100_000, b"\xff"):
        with pytest.raises(InvalidCall, match="no view of a session"):
            SessionView.from_json(text)


def strange_logs() -> Iterator[Log]:
    """Logs whose events are changed, lost, repeated and mixed up."""
    every = [line for name in NAMES for line in lines_of(name)]
    for seed in range(300):
        chance = random.Random(seed)
        lines = chance.choices(every, k=40) if seed % 2 else lines_of(chance.choice(NAMES))
        log: Log = []
        for position, line in enumerate(lines, 1):
            place = {"id": position} if seed % 2 and "envelope" in line else {}
            strange = {**line, **place}
            if "envelope" in line and chance.random() < 0.5:
                strange["envelope"] = changed(line["envelope"], chance, top=True)
            log += [entry_of(strange)] * chance.choices([0, 1, 2], [1, 8, 1])[0]
        yield log


def changed(value: Any, chance: random.Random, *, top: bool = False) -> Any:
    if not top and chance.random() < 0.05:
        return chance.choice(ODD)
    if isinstance(value, dict):
        return {name: changed(each, chance) for name, each in value.items() if chance.random() > 0.01}
    return [changed(each, chance) for each in value] if isinstance(value, list) else value


def test_no_log_raises_and_every_cut_of_it_gives_the_same() -> None:
    for number, log in enumerate(strange_logs()):
        whole, steps = reduce(log), SessionReducer()
        for event in log:
            steps.add(event)
            _ = steps.view
        assert steps.view == whole, number
        cut = number % (len(log) + 1)
        stored = SessionView.from_json(reduce(log[:cut]).to_json())
        assert json_of(reduce(log[cut:], stored)) == json_of(whole), number


# What a log costs


def event(position: int, envelope: Json, direction: str = "fromAgent") -> LogEvent:
    line = {"id": position, "at": "2026-11-16T09:00:00.000Z", "direction": direction, "envelope": envelope}
    return msgspec.convert(line, LogEvent)


def told(position: int, method: str, **params: Any) -> LogEvent:
    return event(position, {"method": method, "params": params}, "fromServer")


def updated(position: int, kind: str, **members: Any) -> LogEvent:
    update = {"sessionUpdate": kind, **members}
    return event(position, {"method": "session/update", "params": {"update": update}})


def output(position: int, id: str) -> LogEvent:
    meta = {"terminal_output": {"terminal_id": id, "data": "some output"}}
    return updated(position, "tool_call_update", toolCallId=id, _meta=meta)


TEXT = {"type": "text", "text": "some"}
IMAGE = {"type": "image", "data": "", "mimeType": "image/png"}
TURN = "_sandboxagent/session/turn"
REPEATED: dict[str, Callable[[int], LogEvent]] = {
    "text": lambda at: updated(at, "agent_message_chunk", content=TEXT),
    "thoughts": lambda at: updated(at, "agent_thought_chunk", content=TEXT),
    "content": lambda at: updated(at, "agent_message_chunk", content=IMAGE),
    "a prompt's text": lambda at: updated(at, "user_message_chunk", content=TEXT),
    "a prompt's blocks": lambda at: updated(at, "user_message_chunk", content=IMAGE),
    "tool calls": lambda at: updated(at, "tool_call", toolCallId=f"call-{at}"),
    "a tool call": lambda at: updated(at, "tool_call_update", toolCallId="call"),
    "terminals": lambda at: output(at, f"t-{at}"),
    "a terminal": lambda at: output(at, "t"),
    "plans": lambda at: updated(at, "plan", entries=[]),
    "notices": lambda at: updated(at, "strange"),
    "permissions": lambda at: event(at, {"id": at, "method": "session/request_permission", "params": {}}),
    "permissions of one id": lambda at: event(at, {"id": 1, "method": "session/request_permission", "params": {}}),
    "withdrawals": lambda at: event(at, {"method": "$/cancel_request", "params": {"requestId": 1}}),
    "decisions": lambda at: told(at, "_sandboxagent/session/decision", agentRequestId=1, kind="permission"),
    "prompts": lambda at: event(at, {"id": at, "method": "session/prompt", "params": {}}, "fromClient"),
    "turns": lambda at: told(at, TURN, turnId=f"turn-{at}", state="started"),
    "ends of turns": lambda at: told(at, TURN, turnId=f"turn-{at}", state="ended"),
    "withdrawn prompts": lambda at: (
        event(at, {"id": at, "method": "session/prompt", "params": {}}, "fromClient")
        if at % 2
        else told(at, TURN, turnId=f"turn-{at - 1}", state="ended")
    ),
    "calls": lambda at: event(at, {"id": at, "method": "fs/read_text_file", "params": {}}),
    "loads": lambda at: event(at, {"id": at, "method": "session/load", "params": {}}, "fromClient"),
    "answers": lambda at: event(at, {"id": 1, "result": {}}),
    "writes": lambda at: (
        event(at, {"id": at, "method": "fs/write_text_file", "params": {"path": f"/{at}", "content": "a"}})
        if at % 2
        else event(at, {"id": at - 1, "result": {}}, "fromServer")
    ),
    "ends": lambda at: told(at, "_sandboxagent/session/ended", reason="closed", terminatedBy="agent"),
}


@pytest.mark.measures
@pytest.mark.parametrize("what", REPEATED)
def test_a_log_costs_no_more_than_in_proportion(what: str) -> None:
    # The size is that of a text, of which each character is an event.
    def work(text: str) -> object:
        return reduce(logs[len(text)])

    def make(size: int) -> str:
        begun = told(1, TURN, turnId="turn-0", state="started")
        logs[size] = [begun, *(REPEATED[what](at) for at in range(2, size + 2))]
        return "e" * size

    logs: dict[int, Log] = {}
    assert grows_faster(work, make, 1 << 14) is None


def test_pieces_become_one_item_that_knows_its_events() -> None:
    log = [told(1, TURN, turnId="turn-0", state="started")]
    log += [updated(at, "agent_message_chunk", content={"type": "text", "text": str(at)}) for at in range(2, 5)]
    [*_, text] = items_of(reduce(log))
    assert isinstance(text, TextItem)
    assert (text.text, text.events.first, text.events.last, text.events.count) == ("234", 2, 4, 3)


def test_a_tool_call_without_its_start_shows_only_what_is_known() -> None:
    [gap, call] = items_of(reduce([updated(7, "tool_call_update", toolCallId="call", status="completed")]))
    assert isinstance(gap, GapItem)
    assert isinstance(call, ToolCallItem)
    assert (gap.after, gap.resumes_at, call.title, call.kind, call.status) == (0, 7, "", "other", "completed")


def test_an_item_says_its_type_as_its_json_does() -> None:
    for name in NAMES:
        view = reduce(log_of(name))
        written = [item["type"] for turn in json_of(view)["turns"] for item in turn["items"]]
        assert [item.type for item in items_of(view)] == written
    assert UserItem.__struct_config__.tag == "user"
