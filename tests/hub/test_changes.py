"""Which sessions have changed: what a list of many sessions is kept up to date by. Contract, section 6."""

import asyncio
from typing import Any

import pytest

from sandbox_agent.hub.changes import MOST, Changes
from sandbox_agent.hub.connection import Connection
from sandbox_agent.hub.extension_methods import wait_for_change
from tests.support.running import BOUND
from tests.support.world import World, envelope, result_of, run, world

LONG = 10 * BOUND


async def ask(own: World, client: Connection, method: str, **params: Any) -> Any:
    name = f"_sandboxagent/session/{method}"
    accepted = await own.from_client.accept(client, envelope(id=1, method=name, params=params))
    return result_of(await accepted.answer)


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
    for number in range(MOST):
        changes.note(f"s-{number}")
    assert changes.after(first) is None
    known = changes.after(second)
    assert known is not None
    assert len(known.sessions) == MOST
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
