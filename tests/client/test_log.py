"""session.log: the log as it is written, with ids, over cuts and restarts; a gap is explicit."""

import asyncio
from pathlib import Path

from sandboxagent import Gap, LogEvent, SandboxAgent, TurnEnded, TurnStarted, text_of
from tests.support.client import run
from tests.support.cutting import proxy
from tests.support.pretending import EVENTS, pretender
from tests.support.running import BOUND, Server, scripted
from tests.support.sdk import asking, connected, log_of, new_session, permission, play


def ids(events: list[LogEvent | Gap]) -> list[int]:
    return [event.id for event in events if isinstance(event, LogEvent)]


def test_it_has_the_past_and_then_what_comes(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client, connected(server) as other:
            session = await new_session(client, server)
            await play(session, [["say", "one"]])
            following = (await other.sessions.attach(session.id)).log()
            first = await anext(following)
            await play(session, [["flood", 700, 10]])
            await session.terminate()
            events = [first, *[event async for event in following]]
            assert events == await log_of(session)
            assert len(events) > 700

    run(scenario())


def test_it_goes_on_from_an_id(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            await play(session, [["say", "one"]])
            past = ids(await log_of(session))
            following = session.log(after=past[2])
            await session.terminate()
            events = [event async for event in following]
            assert ids(events) == [id for id in ids(await log_of(session)) if id > past[2]]

    run(scenario())


def test_what_an_agent_asks_wakes_it(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            following = session.log()
            turn = play(session, asking("session/request_permission", permission()))
            async with asyncio.timeout(BOUND):
                async for event in following:
                    assert isinstance(event, LogEvent)
                    if event.envelope.get("method") == "session/request_permission":
                        break
            await session.cancel()
            await turn

    run(scenario())


def test_it_goes_on_over_cuts_and_a_restart(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        async with proxy(server.url) as cutting, connected(server, cutting.url) as client:
            session = await new_session(client, server, "keeping")
            following = session.log()
            events = [await anext(following)]
            await play(session, [["say", "one"]])
            cutting.cut()
            await play(session, [["say", "two"]])
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            cutting.target = server.url
            await play(session, [["say", "three"]])
            await session.terminate()
            events += [event async for event in following]
            assert events == await log_of(session)

    keeping = scripted("--state", str(tmp_path / "state"))
    with Server(directory=tmp_path, agents={"keeping": keeping}) as server:
        run(scenario(server))


def test_it_ends_when_we_detach(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            following = session.log()
            await play(session, [["say", "one"]])
            await session.detach()
            async with asyncio.timeout(BOUND):
                assert len([event async for event in following]) > 2

    run(scenario())


def test_it_ends_when_the_session_is_deleted_or_the_client_closed(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            deleted, kept = await new_session(client, server), await new_session(client, server)
            waiting, unread = deleted.log(), deleted.log()
            assert isinstance(await anext(waiting), LogEvent)
            closing, behind = kept.log(), kept.log()
            assert isinstance(await anext(closing), LogEvent)
            await deleted.terminate()
            await client.sessions.delete(deleted.id)
            async with asyncio.timeout(BOUND):
                assert ids([event async for event in waiting])
                assert [event async for event in unread] == []
            waits = asyncio.ensure_future(anext(closing, None))
        async with asyncio.timeout(BOUND):
            while await waits is not None:
                waits = asyncio.ensure_future(anext(closing, None))
            assert [event async for event in behind] == []

    run(scenario())


def test_closed_it_ends_after_the_events_that_the_log_has(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            following = session.log()
            events = [await anext(following)]
            await play(session, [["flood", 700, 10]])
            following.close()
            past = ids(await log_of(session))
            await play(session, [["say", "later"]])
            async with asyncio.timeout(BOUND):
                events += [event async for event in following]
            assert ids(events)[: len(past)] == past
            assert len(past) > 700

    run(scenario())


def test_closed_it_ends_although_the_session_goes_on() -> None:
    async def scenario() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            session_id = {"sessionId": "s-1"}
            event = {"jsonrpc": "2.0", "method": "x/event", "params": session_id}
            pretending.log = [(5, event)]
            pretending.results = {"session/new": session_id, EVENTS: pretending.events}
            following = (await client.sessions.create("any", cwd="/")).log()
            async with asyncio.timeout(BOUND):
                assert ids([await anext(following)]) == [5]
                following.close()
                assert await anext(following, None) is None
                await pretending.told(6, event)
                assert await anext(following, None) is None

    run(scenario())


def test_updates_from_an_id_are_the_past_and_then_what_comes(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client, connected(server) as other:
            session = await new_session(client, server)
            await play(session, [["say", "zero"]])
            end = ids(await log_of(session))[-1]
            await play(session, [["say", "one"]])
            updates = (await other.sessions.attach(session.id)).updates(end)
            items = [await anext(updates)]
            await play(session, [["say", "two"]])
            await session.terminate()
            async with asyncio.timeout(BOUND):
                items += [item async for item in updates]
            assert "".join(map(text_of, items)) == "onetwo"
            turns = [item.session_update for item in items if isinstance(item, TurnStarted | TurnEnded)]
            assert turns == ["turn_started", "turn_ended"] * 2

    run(scenario())


def test_trimmed_events_are_an_explicit_gap(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            for _ in range(8):
                await play(session, [["flood", 300, 1000]])
            async with asyncio.timeout(BOUND):
                while not isinstance((await log_of(session))[0], Gap):
                    await play(session, [["say", "more"]])
            first = await anext(session.log())
            assert isinstance(first, Gap)
            assert first.after == 0
            assert first.resumes_at > 0

    with Server("--log-max-bytes", "500KiB", "--replay-bytes", "100KiB", directory=tmp_path) as server:
        run(scenario(server))


def test_a_gap_comes_once_also_when_nothing_comes_after_it() -> None:
    async def scenario() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            session_id = {"sessionId": "s-1"}
            gone = {"events": [], "next": None, "gap": {"after": 0, "resumesAt": 50}}
            event = {"jsonrpc": "2.0", "method": "x/event", "params": session_id}
            pretending.log = [(50, event)]
            pretending.results = {
                "session/new": session_id,
                EVENTS: lambda post: gone if post.envelope["params"]["after"] < 49 else pretending.events(post),
            }
            following = (await client.sessions.create("any", cwd="/")).log()
            async with asyncio.timeout(BOUND):
                assert await anext(following) == Gap(0, 50)
                await pretending.told(50, event)
                assert ids([await anext(following)]) == [50]

    run(scenario())
