"""What happens in a session, as blocks: items in, blocks out."""

from typing import Any

import pytest

from sandboxagent import TurnEnded, TurnStarted
from sandboxagent.cli.call import CLIENT
from sandboxagent.cli.chat.blocks import Block, Note, StreamedText, plain
from sandboxagent.cli.chat.render import ASCII, Marks, Showing
from sandboxagent.client.updates import SessionItem, read_item
from sandboxagent.protocol.acp import PromptResponse
from sandboxagent.protocol.decode import read


def update(**members: Any) -> SessionItem:
    item = read_item("session/update", {"sessionId": "s", "update": members})
    assert item is not None
    return item


def text(kind: str, text: str, **more: Any) -> SessionItem:
    return update(sessionUpdate=kind, content={"type": "text", "text": text}, **more)


def call(**members: Any) -> SessionItem:
    kind = "tool_call" if "title" in members else "tool_call_update"
    return update(sessionUpdate=kind, toolCallId="1", **members)


def decision(by: dict[str, Any], **members: Any) -> SessionItem:
    facts = {"sessionId": "s", "kind": "permission", "outcome": "answered", "by": by, **members}
    item = read_item("_sandboxagent/session/decision", facts)
    assert item is not None
    return item


def showing(**options: Any) -> Showing:
    return Showing(Marks(), cwd="/srv/app", **options)


def lines(blocks: list[Block]) -> list[str]:
    return [plain(line) for block in blocks if isinstance(block, Note) for line in block.lines]


# --- words ------------------------------------------------------------------------------------------------------------


def test_words_come_as_they_are_and_another_message_begins_anew() -> None:
    shown = showing()

    assert shown.blocks(text("agent_message_chunk", "Hel")) == [StreamedText("agent", "Hel", new=True)]
    assert shown.blocks(text("agent_message_chunk", "lo")) == [StreamedText("agent", "lo", new=False)]
    assert shown.blocks(text("agent_message_chunk", "And", messageId="2")) == [StreamedText("agent", "And", new=True)]


def test_words_after_a_tool_call_are_another_message() -> None:
    shown = showing()
    shown.blocks(text("agent_message_chunk", "before"))
    shown.blocks(call(title="Look", status="completed"))

    assert shown.blocks(text("agent_message_chunk", "after")) == [StreamedText("agent", "after", new=True)]


def test_thoughts_are_told_from_words() -> None:
    assert showing().blocks(text("agent_thought_chunk", "hm")) == [StreamedText("thought", "hm", new=True)]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"type": "resource_link", "name": "a.py", "uri": "file:///a.py"}, "[a.py](file:///a.py)"),
        ({"type": "image", "data": "AAAA", "mimeType": "image/png"}, "[image: image/png, 3 bytes]"),
        ({"type": "resource", "resource": {"uri": "file:///x/b.txt", "text": "…"}}, "[b.txt](file:///x/b.txt)"),
    ],
)
def test_content_that_is_no_text_is_named(block: dict[str, Any], expected: str) -> None:
    [piece] = showing().blocks(update(sessionUpdate="agent_message_chunk", content=block))

    assert isinstance(piece, StreamedText)
    assert piece.text == expected


def test_a_prompt_has_a_mark_and_its_lines_stand_below_each_other() -> None:
    assert showing().blocks(text("user_message_chunk", "one\ntwo")) == [
        StreamedText("person", "❯ one\n  two", new=True)
    ]


# --- tool calls -------------------------------------------------------------------------------------------------------


def test_a_tool_call_is_one_line_that_changes_with_it() -> None:
    shown = showing()
    diff = {"type": "diff", "path": "/srv/app/src/a.py", "oldText": "one\n", "newText": "one\ntwo\nthree\n"}

    begun = shown.blocks(call(title="Edit a.py", kind="edit", status="pending"))
    ended = shown.blocks(call(status="completed", content=[diff]))

    assert lines(begun) == ["○ Edit a.py  edit"]
    assert lines(ended) == ["✔ Edit a.py  edit  +2 -0 src/a.py", "   one", "  +two", "  +three"]
    [first], [last] = begun, ended
    assert isinstance(first, Note)
    assert isinstance(last, Note)
    assert first.key == last.key is not None
    assert first.brief == []
    assert last.brief == last.lines


def test_an_update_that_changes_nothing_to_be_seen_is_not_shown() -> None:
    shown = showing()
    shown.blocks(call(title="Look", kind="read", status="in_progress"))

    assert shown.blocks(call(rawOutput={"text": "…"})) == []


def test_many_files_of_one_call_are_counted() -> None:
    diffs = [{"type": "diff", "path": f"/elsewhere/{name}", "newText": "x"} for name in "abcde"]

    [line] = lines(showing(work="hidden").blocks(call(title="Edit", status="completed", content=diffs)))

    assert line == "✔ Edit  +1 -0 /elsewhere/a  +1 -0 /elsewhere/b  +1 -0 /elsewhere/c  and 2 more files"


def test_where_nothing_can_be_written_anew_only_the_end_of_a_call_is_shown() -> None:
    shown = showing(static=True)

    assert shown.blocks(call(title="Run", kind="execute", status="pending")) == []
    assert shown.blocks(call(status="in_progress")) == []
    assert lines(shown.blocks(call(status="failed"))) == ["✘ Run  execute"]


def test_a_call_that_never_ends_is_shown_with_its_turn() -> None:
    shown = showing(static=True)
    shown.blocks(call(title="Run", status="in_progress"))

    assert lines(shown.blocks(TurnEnded("cancelled"))) == ["● Run", "cancelled"]
    assert lines(shown.blocks(TurnEnded("cancelled"))) == ["cancelled"]


def test_a_title_with_lines_stays_on_one() -> None:
    assert lines(showing().blocks(call(title="a\nb\x1b[0m", status="completed"))) == ["✔ a b?[0m"]


def test_stream_without_unicode_gets_ascii_signs() -> None:
    assert lines(Showing(ASCII).blocks(call(title="Look", status="completed"))) == ["+ Look"]


def test_folded_work_is_kept_under_a_number_to_be_shown_whole() -> None:
    shown = showing()
    shown.unfolds = True
    output = "\n".join(f"line {number}" for number in range(40))

    told = lines(shown.blocks(call(title="Run", status="completed", rawOutput=output)))
    again = lines(
        shown.blocks(update(sessionUpdate="tool_call", toolCallId="2", title="x", status="failed", rawOutput=output))
    )

    assert "  … 32 more lines · /show 1 shows all" in told
    assert "  … 32 more lines · /show 2 shows all" in again
    assert [plain(line) for line in shown.folded(1)] == [f"  {line}" for line in output.splitlines()]
    assert shown.folded(None) == shown.folded(2) != ()
    assert shown.folded(3) == ()


def test_folded_work_is_kept_up_to_a_bound() -> None:
    shown = showing()
    for id in range(6):
        shown.blocks(
            update(
                sessionUpdate="tool_call", toolCallId=str(id), title="x", status="completed", rawOutput="x" * (1 << 20)
            )
        )

    assert shown.folded(1) == ()
    assert shown.folded(6) != ()


def test_one_prompt_says_by_which_flag_the_rest_is_shown() -> None:
    told = lines(showing().blocks(call(title="Run", status="completed", rawOutput="x\n" * 40)))

    assert "  … 32 more lines · --verbose shows all" in told


def test_all_work_is_shown_on_demand_and_none_in_a_log() -> None:
    done = call(title="Run", status="completed", rawOutput="x\n" * 40)

    assert len(lines(showing(work="whole").blocks(done))) == 41
    assert len(lines(showing(work="hidden").blocks(done))) == 1


# --- plans ------------------------------------------------------------------------------------------------------------


def plan(*states: str) -> SessionItem:
    entries = [{"content": f"step {n}", "priority": "medium", "status": state} for n, state in enumerate(states, 1)]
    return update(sessionUpdate="plan", entries=entries)


def test_a_plan_is_a_list_of_which_later_only_the_changes_are_shown() -> None:
    shown = showing()

    first = shown.blocks(plan("in_progress", "pending"))
    [second] = shown.blocks(plan("completed", "in_progress"))

    assert lines(first) == ["  ● step 1", "  ○ step 2"]
    assert isinstance(second, Note)
    assert [plain(line) for line in second.lines] == ["  ✔ step 1", "  ● step 2"]
    assert second.brief == second.lines
    [third] = shown.blocks(plan("completed", "completed"))
    assert isinstance(third, Note)
    assert [plain(line) for line in third.brief or []] == ["  ✔ step 2"]
    assert shown.blocks(plan("completed", "completed")) == []


def test_another_plan_is_shown_whole() -> None:
    shown = showing(static=True)
    shown.blocks(plan("pending"))

    assert lines(shown.blocks(plan("completed", "pending"))) == ["  ✔ step 1", "  ○ step 2"]


# --- decisions and ends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "members", "expected"),
    [
        (
            {"kind": "client", "name": "c2", "user": "ada", "client": "web"},
            {"optionKind": "allow_once"},
            "✔ Write it: allowed by ada, web",
        ),
        ({"kind": "client", "name": "c2"}, {"optionKind": "reject_once"}, "✘ Write it: rejected by c2"),
        (
            {"kind": "client", "name": "c2"},
            {"optionKind": "reject_once", "reason": "Not on a Friday."},
            "✘ Write it: rejected by c2: Not on a Friday.",
        ),
        (
            {"kind": "rule", "rule": 2, "source": "server", "name": "no pushing"},
            {"optionKind": "reject_once", "reason": "People push."},
            "✘ Write it: rejected by rule 2 of the server (no pushing): People push.",
        ),
        ({"kind": "timeout"}, {"outcome": "rejected"}, "✘ Write it: rejected because no answer came in time"),
    ],
)
def test_a_decision_says_who_and_about_what(by: dict[str, Any], members: dict[str, Any], expected: str) -> None:
    shown = showing()
    shown.blocks(call(title="Write it", status="pending"))

    assert lines(shown.blocks(decision(by, toolCallId="1", **members))) == [expected]


def test_a_question_is_answered_and_not_allowed() -> None:
    item = decision({"kind": "client", "user": "ada"}, kind="question")

    assert lines(showing().blocks(item)) == ["✔ answered by ada"]


def test_own_decision_and_cancel_are_not_shown() -> None:
    shown = showing()
    shown.answered_here = 1

    assert shown.blocks(decision({"kind": "cancel"}, outcome="cancelled")) == []
    assert shown.blocks(decision({"kind": "client", "client": CLIENT}, optionKind="allow_once")) == []
    assert shown.blocks(decision({"kind": "client", "client": CLIENT}, optionKind="allow_once")) != []


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (TurnEnded("end_turn"), []),
        (TurnEnded("refusal"), ["the agent refuses to continue"]),
        (TurnEnded("brand_new"), ["stopped: brand_new"]),
        (TurnEnded(None, error={"message": "agent x exited\nwith code 3"}), ["✘ agent x exited with code 3"]),
        (read_item("_sandboxagent/session/ended", {"reason": "closed"}), ["the session was closed"]),
        (
            read_item("_sandboxagent/session/ended", {"reason": "error", "message": "agent x died"}),
            ["the agent has stopped: agent x died"],
        ),
        (
            read_item("_sandboxagent/stream/gap", {"after": 1, "resumesAt": 5}),
            ["earlier events were deleted from the log"],
        ),
        (update(sessionUpdate="current_mode_update", currentModeId="plan"), ["mode: plan"]),
        (update(sessionUpdate="nobody_knows_this", x=1), []),
    ],
)
def test_ends_and_changes_are_lines(item: SessionItem, expected: list[str]) -> None:
    assert lines(showing().blocks(item)) == expected


def usage(amount: float) -> SessionItem:
    return update(sessionUpdate="usage_update", used=50_000, size=200_000, cost={"amount": amount, "currency": "USD"})


def test_tokens_and_cost_of_a_turn_stand_together_and_so_does_what_the_session_used() -> None:
    shown = showing()
    shown.spending.begin_session()
    used = {"totalTokens": 1234, "inputTokens": 1000, "outputTokens": 234}
    response = read({"stopReason": "end_turn", "usage": used}, PromptResponse)
    assert shown.spending.describe(None) == ""

    shown.blocks(usage(0.2))
    first = shown.spending.describe(response)
    shown.blocks(TurnStarted("turn-2"))
    shown.blocks(usage(0.25))
    second = shown.spending.describe(response)

    tokens, context = "this turn: 1,234 tokens (1,000 in, 234 out)", "context 25% of 200,000"
    assert first == f"{tokens}, 0.2000 USD · session: 0.2000 USD, {context}"
    assert second == f"{tokens}, 0.0500 USD · session: 0.2500 USD, {context}"


def test_what_a_turn_cost_is_not_guessed_when_the_cost_before_it_is_not_known() -> None:
    shown = showing()
    shown.blocks(TurnStarted("turn-9"))
    shown.blocks(usage(0.25))

    assert shown.spending.describe(None) == "session: 0.2500 USD, context 25% of 200,000"
