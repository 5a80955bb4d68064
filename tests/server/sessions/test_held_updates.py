"""Updates of new sessions that wait for the response that names the session."""

from sandboxagent.server.sessions.budgets import KEPT_COST_BYTES
from sandboxagent.server.sessions.held_updates import HOLD_TIMEOUT, MAX_HELD_BYTES
from tests.support.world import World, envelope, run, world

NEW = {"cwd": "/", "mcpServers": []}


async def opened(own: World, id: str = "fresh") -> None:
    """A session whose response has not gone out."""
    reply = own.requests.submit(own.client, envelope(id="new", method="session/new", params=NEW))
    await own.agent.answers("session/new", {"sessionId": id})
    assert (await reply).session_opened is not None


async def texts(own: World, session: str = "fresh") -> list[str]:
    """What its client has heard of the agent."""
    heard = await own.heard(own.client, session)
    return [one["params"]["update"]["content"]["text"] for one in heard if one.get("method") == "session/update"]


def test_updates_wait_until_the_writer_of_the_response_says_that_it_is_out() -> None:
    async def main() -> None:
        async with world() as own:
            reply = own.requests.submit(own.client, envelope(id="new", method="session/new", params=NEW))
            await own.agent.answers("session/new", {"sessionId": "fresh"})
            own.agent.updates("one", "fresh")
            own.agent.updates("two", "fresh")
            assert await texts(own) == []
            answer = await reply
            assert answer.session_opened is not None
            answer.session_opened()
            own.agent.updates("three", "fresh")
            # A repeat under the same idempotency key has the same answer.
            answer.session_opened()
            assert await texts(own) == ["one", "two", "three"]
            assert own.hub.budgets.used("a-1") == 0

    run(main())


def test_updates_wait_for_ten_seconds_at_most() -> None:
    async def main() -> None:
        async with world() as own:
            await opened(own)
            own.agent.updates("one", "fresh")
            own.now += HOLD_TIMEOUT - 1
            own.timeout_loop.tick()
            assert await texts(own) == []
            own.now += 2
            own.timeout_loop.tick()
            assert await texts(own) == ["one"]

    run(main())


def test_as_many_updates_wait_as_have_room_and_then_all_are_released() -> None:
    async def main() -> None:
        async with world() as own:
            await opened(own)
            text, count = "x" * (64 << 10), MAX_HELD_BYTES // (64 << 10)
            for _ in range(count // 2):
                own.agent.updates(text, "fresh")
            assert await texts(own) == []
            assert own.hub.budgets.used("a-1") > count // 2 * (len(text) + KEPT_COST_BYTES)
            for _ in range(count // 2):
                own.agent.updates(text, "fresh")
            assert not own.hub.held_updates.sessions
            assert (await texts(own))[:2] == [text, text]
            assert own.hub.budgets.used("a-1") == 0

    run(main())


def test_updates_come_before_what_the_agent_asks_then() -> None:
    async def main() -> None:
        async with world() as own:
            await opened(own)
            own.agent.updates("one", "fresh")
            own.asks(1, sessionId="fresh")
            heard = [one["method"] for one in await own.heard(own.client, "fresh") if "method" in one]
            assert heard == ["session/update", "session/request_permission"]

    run(main())


def test_what_waits_for_a_session_that_is_deleted_costs_its_agent_nothing_more() -> None:
    async def main() -> None:
        async with world() as own:
            await opened(own)
            own.agent.updates("one", "fresh")
            assert own.hub.budgets.used("a-1") > 0
            own.hub.delete_session(own.hub.session("fresh"))
            assert own.hub.budgets.used("a-1") == 0
            assert not own.hub.held_updates.sessions

    run(main())
