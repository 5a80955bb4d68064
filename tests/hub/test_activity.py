"""What a session is doing, in a line."""

import msgspec
import pytest

from sandbox_agent.envelope import Object, parse
from sandbox_agent.hub.activity import LONGEST_LINE, LONGEST_SAID, MOST_LINES, Activity, Recent, read_result


def line(update: Object) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "method": "session/update", "params": {"update": update}})


def said(text: str, kind: str = "agent_message_chunk") -> bytes:
    return line({"sessionUpdate": kind, "content": {"type": "text", "text": text}})


def tool(title: str) -> bytes:
    return line({"sessionUpdate": "tool_call", "toolCallId": "c", "title": title})


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        ([], None),
        ([said("Hel"), said("lo.")], ("message", "Hello.")),
        ([said("one\ntwo "), said("three")], ("message", "two three")),
        ([said("one"), said("\n\ntwo\n")], ("message", "two")),
        ([said("text"), said("hm", "agent_thought_chunk")], ("thought", "hm")),
        ([said("text"), tool("Edit a.txt")], ("tool", "Edit a.txt")),
        ([tool("Edit a.txt"), said("Done.")], ("message", "Done.")),
        ([said("text"), line({"sessionUpdate": "plan", "entries": []})], ("message", "text")),
        ([tool("Run"), line({"sessionUpdate": "tool_call_update", "toolCallId": "c"})], ("tool", "Run")),
        ([b"no json", b'"\xff"', b"[]", line({"sessionUpdate": 3})], None),
        ([said("one "), line({"sessionUpdate": "usage_update"}), said("two")], ("message", "one two")),
        ([said("before"), tool("Run"), said("after")], ("message", "after")),
        ([said("   ")], None),
    ],
)
def test_the_last_line_is_that_of_what_came_last(lines: list[bytes], last: tuple[str, str] | None) -> None:
    recent = Recent()
    recent.add(lines)

    assert recent.last_line() == last


def test_however_much_is_said_little_is_kept() -> None:
    recent = Recent()
    recent.add([said("x" * LONGEST_LINE), *(said(f"{n} ") for n in range(1000))])
    kind, text = recent.last_line() or ("", "")

    assert kind == "message"
    assert text.split() == [str(n) for n in range(1000 - MOST_LINES, 1000)]


def test_a_long_line_is_cut() -> None:
    recent = Recent()
    recent.add([said("x" * 1000)])

    assert recent.last_line() == ("message", "x" * (LONGEST_SAID - 1) + "…")


@pytest.mark.parametrize(
    ("result", "read"),
    [
        (b'{"stopReason":"end_turn"}', ("end_turn", None)),
        (b'{"stopReason":"end_turn","usage":{"totalTokens":7,"more":[1]}}', ("end_turn", 7)),
        (b'{"stopReason":1,"usage":{"totalTokens":"many"}}', (None, None)),
        (b'{"usage":[1]}', (None, None)),
        (b"[]", (None, None)),
        (b"null", (None, None)),
        (b'{"stopReason":"\\ud800"}', ("\ufffd", None)),
    ],
)
def test_the_result_of_a_turn_says_why_it_ended_and_what_it_took(
    result: bytes, read: tuple[str | None, int | None]
) -> None:
    assert read_result(parse(b'{"jsonrpc":"2.0","id":1,"result":%b}' % result)) == read


def test_tokens_are_added_up_and_the_newest_cost_counts() -> None:
    activity = Activity()
    for total in (10, 5, None):
        activity.note_tokens(total)
    for amount in (0.5, 0.75):
        activity.note_usage({"used": 1, "size": 2, "cost": {"amount": amount, "currency": "USD"}})
    activity.note_usage({"used": None, "cost": {"amount": "much"}})

    assert activity.tokens == 15
    assert (activity.context_used, activity.context_size) == (1, 2)
    assert (activity.cost_amount, activity.cost_currency) == (0.75, "USD")


def test_a_cost_that_no_float_can_hold_is_left_out_and_the_rest_counts() -> None:
    activity = Activity()
    activity.note_usage({"used": 1, "size": 2, "cost": {"amount": 0.5, "currency": "USD"}})
    activity.note_usage({"used": 3, "size": 4, "cost": {"amount": 10**400, "currency": "USD"}})

    assert (activity.context_used, activity.context_size) == (3, 4)
    assert activity.cost_amount == 0.5
