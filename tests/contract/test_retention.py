"""Contract, sections 4 and 12: what is no longer kept is announced, never silently missing."""

import asyncio

import pytest

from tests.support.client import Client, Event, run
from tests.support.running import BOUND, Server

GAP = "_sandboxagent/stream/gap"
MOST = 200 << 10
SMALL_LOG = ("--log-max-bytes", "200KiB", "--replay-bytes", "20KiB")
FLOOD = [["flood", 50, 500], ["update", {"sessionUpdate": "usage_update", "used": 1, "size": 2}]] * 20
"""What comes in one piece is dropped in one piece; so it does not come in one."""


def is_end(event: Event) -> bool:
    return event.text == "the end"


async def replay_with_gap(client: Client, after: int) -> list[Event]:
    """A replay up to the end, asked for until the log was trimmed to its size: that happens soon, not at once."""
    async with asyncio.timeout(2 * BOUND):
        while True:
            async with client.stream(Last_Event_ID=str(after)) as stream:
                events = await stream.until(is_end)
            if events[0].method == GAP and sum(len(event.line) for event in events[1:]) < MOST:
                return events


@pytest.mark.requirement("4.gap")
@pytest.mark.requirement("4.no-false-gap")
@pytest.mark.requirement("4.max-bytes")
@pytest.mark.parametrize("persist", [[], ["--no-persist"]], ids=["persist", "no-persist"])
def test_what_no_longer_fits_the_log_is_announced_and_the_rest_is_complete(persist: list[str]) -> None:
    async def main(server: Server) -> None:
        async with Client(server) as client:
            session = await client.new_session()
            async with client.stream() as stream:
                await client.prompt(session, [["say", "first"]])
                seen = await stream.turn_ended()
                await client.prompt(session, [*FLOOD, ["say", "the end"]])
                everything = seen + await stream.until(is_end)
            for after in (0, seen[0].id, seen[-1].id):
                gap, *rest = await replay_with_gap(client, after)
                params = gap.data["params"]
                assert sorted(params) == ["after", "resumesAt"]
                assert after <= params["after"] < params["resumesAt"]
                assert gap.id == params["resumesAt"] - 1
                assert rest == [event for event in everything if event.id >= params["resumesAt"]]
                assert len(rest) > 20

            # Once told, it is not told again.
            async with client.stream(Last_Event_ID=str(gap.id)) as stream:
                assert await stream.until(is_end) == rest
            async with client.stream(Last_Event_ID=str(rest[0].id)) as stream:
                assert await stream.until(is_end) == rest[1:]

    with Server(*SMALL_LOG, *persist) as server:
        run(main(server))


@pytest.mark.requirement("4.gap")
def test_a_gap_at_the_very_end_of_a_log_is_announced_too() -> None:
    async def main(server: Server) -> None:
        async with Client(server) as client, Client(server) as other:
            session, flooded = await client.new_session(), await other.new_session()
            await client.prompt(session, [["say", "lost"], ["say", "the end"]])
            await other.prompt(flooded, [["flood", 1000, 500]])
            async with asyncio.timeout(2 * BOUND):
                while True:
                    async with client.stream() as stream:
                        first = await stream.next()
                        if first.method == GAP:
                            break
                # Live from there on.
                await client.prompt(session, [["say", "new"]])
            async with client.stream(Last_Event_ID=str(first.id)) as stream:
                events = await stream.turn_ended()
            assert [event.text for event in events if event.text] == ["new"]
            assert all(event.method != GAP for event in events)

    with Server(*SMALL_LOG) as server:
        run(main(server))


@pytest.mark.requirement("4.no-false-gap")
def test_loss_of_another_clients_events_is_no_gap() -> None:
    async def main(server: Server) -> None:
        async with Client(server) as loser, Client(server) as client:
            session = await loser.new_session()
            await loser.prompt(session, [*FLOOD, ["say", "the end"]])
            await replay_with_gap(loser, 0)
            mine = await client.new_session()
            await client.prompt(mine, [["say", "the end"]])
            async with client.stream() as stream:
                assert GAP not in [event.method for event in await stream.until(is_end)]

    with Server(*SMALL_LOG) as server:
        run(main(server))


@pytest.mark.requirement("4.max-age")
@pytest.mark.requirement("4.gap")
def test_what_is_too_old_is_announced() -> None:
    async def main(server: Server) -> None:
        async with Client(server) as client:
            session = await client.new_session()
            await client.prompt(session, [["say", "old"], ["sleep", 3.2], ["say", "the end"]])
            gap, *rest = await replay_with_gap(client, 0)
            assert "old" not in [event.text for event in rest]
            assert gap.data["params"]["resumesAt"] <= rest[0].id

    with Server("--log-max-age", "3s", "--replay-bytes", "1") as server:
        run(main(server))


@pytest.mark.requirement("4.gap")
def test_events_lost_with_a_deleted_session_are_announced_to_its_clients() -> None:
    async def main(server: Server) -> None:
        async with Client(server) as owner, Client(server) as guest:
            doomed, other = await owner.new_session(), await owner.new_session()
            for session in (doomed, other):
                await guest.result("_sandboxagent/session/attach", {"sessionId": session})
            await owner.prompt(doomed, [["say", "lost"]])
            await owner.result("session/delete", {"sessionId": doomed})
            await owner.prompt(other, [["flood", 100, 500], ["say", "the end"]])
            async with guest.stream() as stream:
                events = await stream.until(is_end)
            assert events[0].method == GAP or "lost" in [event.text for event in events]

    with Server("--replay-bytes", "1") as server:
        run(main(server))
