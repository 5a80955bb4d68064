"""What sessions are doing, for lists of many of them, and which have changed."""

import asyncio
from typing import Any

import msgspec
import pytest

from sandboxagent.protocol.envelope import Object, parse
from sandboxagent.server.sessions.activity import (
    MAX_CHANGES,
    MAX_LINE_BYTES,
    MAX_LINES,
    MAX_SAID,
    Activity,
    Changes,
    Recent,
    read_result,
)
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.extensions import wait_for_change
from tests.support.running import BOUND
from tests.support.world import World, envelope, result_of, run, world


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
    recent.add([said("x" * MAX_LINE_BYTES), *(said(f"{n} ") for n in range(1000))])
    kind, text = recent.last_line() or ("", "")

    assert kind == "message"
    assert text.split() == [str(n) for n in range(1000 - MAX_LINES, 1000)]


def test_a_long_line_is_cut() -> None:
    recent = Recent()
    recent.add([said("x" * 1000)])

    assert recent.last_line() == ("message", "x" * (MAX_SAID - 1) + "…")


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


LONG = 10 * BOUND


async def ask(own: World, client: Connection, method: str, **params: Any) -> Any:
    name = f"_sandboxagent/session/{method}"
    return result_of(await own.requests.submit(client, envelope(id=1, method=name, params=params)))


def test_the_newest_change_of_each_session_comes_once_and_newest_first() -> None:
    changes = Changes()
    before = changes.cursor
    for name in ("a", "b", "a"):
        changes.note(name)
    changes.note("c")
    changes.note("c", gone=True)
    changed = changes.after(before)
    assert changed is not None
    assert (changed.sessions, changed.gone) == (["a", "b"], ["c"])
    now = changes.after(changes.cursor)
    assert now is not None
    assert (now.sessions, now.gone) == ([], [])


@pytest.mark.requirement("6.changes-forgotten")
def test_a_moment_of_too_long_ago_or_of_another_server_is_not_known() -> None:
    changes = Changes()
    first = changes.cursor
    changes.note("first")
    second = changes.cursor
    for number in range(MAX_CHANGES):
        changes.note(f"s-{number}")
    assert changes.after(first) is None
    known = changes.after(second)
    assert known is not None
    assert len(known.sessions) == MAX_CHANGES
    for strange in (Changes().cursor, "", "x", f"{first}x", f"{first.partition('.')[0]}.-1"):
        assert changes.after(strange) is None


def test_a_wait_ends_with_the_next_change_and_at_once_after_one() -> None:
    async def main() -> None:
        changes = Changes()
        before = changes.cursor
        waiting = [asyncio.create_task(wait_for_change(changes, before, LONG)) for _ in range(2)]
        await asyncio.sleep(0)
        changes.note("a")
        await asyncio.gather(*waiting)
        await wait_for_change(changes, before, LONG)
        await wait_for_change(changes, "of another server", LONG)

    run(main())


def test_a_wait_ends_when_its_time_is_over_and_when_the_server_stops() -> None:
    async def main() -> None:
        changes = Changes()
        await wait_for_change(changes, changes.cursor, 0)
        waiting = asyncio.create_task(wait_for_change(changes, changes.cursor, LONG))
        await asyncio.sleep(0)
        changes.close()
        await waiting
        await wait_for_change(changes, changes.cursor, LONG)

    run(main())


@pytest.mark.requirement("6.changes")
def test_a_client_learns_of_changes_in_sessions_that_it_is_not_attached_to() -> None:
    async def main() -> None:
        async with world() as own:
            watcher = own.connect()
            first = await ask(own, watcher, "list")
            waiting = asyncio.create_task(ask(own, watcher, "changes", after=first["changes"], wait=LONG))
            await own.settled()
            assert not waiting.done()
            own.agent.updates("hello")
            assert (await waiting)["changes"] != first["changes"]

            page = await ask(own, watcher, "list", changedAfter=first["changes"])
            assert [each["sessionId"] for each in page["sessions"]] == ["s"]
            assert page["gone"] == []
            nothing = await ask(own, watcher, "list", changedAfter=page["changes"])
            assert (nothing["sessions"], nothing["gone"]) == ([], [])

            own.hub.delete_session(own.session)
            later = await ask(own, watcher, "list", changedAfter=page["changes"])
            assert (later["sessions"], later["gone"]) == ([], ["s"])

    run(main())


@pytest.mark.requirement("6.changes")
def test_a_request_for_a_person_its_answer_and_a_turn_are_changes() -> None:
    async def main() -> None:
        async with world() as own:
            seen: list[tuple[bool, int]] = []

            async def look(after: str) -> str:
                page = await ask(own, own.client, "list", changedAfter=after)
                seen.append(*[(each["running"], each["pending"]) for each in page["sessions"]])
                return page["changes"]

            after = (await ask(own, own.client, "list"))["changes"]
            turn = own.prompt()
            await own.settled()
            after = await look(after)
            own.asks(1)
            await own.settled()
            after = await look(after)
            await own.notify("session/cancel", sessionId="s")
            await own.agent.answers("session/prompt", {"stopReason": "cancelled"})
            await turn
            await look(after)
            assert seen == [(True, 0), (True, 1), (False, 0)]

    run(main())


@pytest.mark.requirement("6.changes-forgotten")
def test_a_list_since_an_unknown_moment_is_the_list_of_all() -> None:
    async def main() -> None:
        async with world() as own:
            page = await ask(own, own.client, "list", changedAfter="of another server")
            assert [each["sessionId"] for each in page["sessions"]] == ["s"]
            assert "gone" not in page

    run(main())
