"""session.history and session.follow: a session's past and present, typed, and its state while you follow."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandboxagent import (
    AttachedFile,
    Following,
    Gap,
    InvalidCall,
    PermissionRequest,
    PromptSent,
    RequestOpened,
    Session,
    SessionEvent,
    SessionItem,
    SessionOpened,
    SessionView,
    TurnEnded,
    reduce,
    text_of,
)
from tests.support.client import run
from tests.support.cutting import proxy
from tests.support.running import BOUND, Server, scripted
from tests.support.sdk import asking, connected, log_of, new_session, permission, play


async def past(session: Session) -> list[SessionEvent]:
    return [event async for event in session.history()]


def kinds(events: list[SessionEvent]) -> list[str]:
    return [event.item.session_update for event in events]


async def until(following: Following, kind: type[SessionItem]) -> list[SessionEvent]:
    events: list[SessionEvent] = []
    async with asyncio.timeout(BOUND):
        async for event in following:
            events.append(event)
            if isinstance(event.item, kind):
                break
    return events


def test_the_past_has_prompts_requests_and_updates_with_position_and_time(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            turn = play(session, asking("session/request_permission", permission()), attachments=[__file__])
            async with asyncio.timeout(BOUND):
                while not (pending := await session.pending()):
                    pass
            [request] = pending
            opened, prompt, _, _, *_ = events = await past(session)
            assert opened.item == SessionOpened(session.agent, session.cwd, None)
            assert isinstance(prompt.item, PromptSent)
            assert (prompt.item.turn_id, prompt.item.prompt[0].type) == (f"turn-{prompt.position}", "text")
            assert prompt.item.attachments == [AttachedFile(path=__file__)]
            [asked] = [event.item for event in events if isinstance(event.item, RequestOpened)]
            assert asked.request == request
            assert isinstance(request, PermissionRequest)
            assert request.asked_at is not None
            assert abs((datetime.now(UTC) - request.asked_at).total_seconds()) < 3600
            await client.reply_permission(asked.request.id, "yes")
            await turn
            [settled] = [event.item for event in await past(session) if isinstance(event.item, RequestOpened)]
            assert settled.request.id == ""
            assert kinds(await past(session))[-2:] == ["agent_message_chunk", "turn_ended"]

    run(scenario())


def test_following_has_the_events_of_the_past_and_the_view_of_the_whole_log(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client, connected(server) as other:
            session = await new_session(client, server)
            await play(session, [["say", "one"]])
            following = (await other.sessions.attach(session.id)).follow()
            assert not following.is_live
            events = await until(following, TurnEnded)
            assert following.is_live
            assert events == await past(session)
            assert following.view == reduce(await log_of(session))
            await play(session, [["flood", 700, 10]])
            await session.terminate()
            async with asyncio.timeout(BOUND):
                events += [event async for event in following]
            assert events == await past(session)
            assert following.view == reduce(await log_of(session))
            assert following.view.status == "ended"
            assert len(events) > 700

    run(scenario())


def test_a_stored_view_continues_after_its_position(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            await play(session, [["say", "one"]])
            following = session.follow()
            before = await until(following, TurnEnded)
            stored = following.view.to_json()
            await play(session, [["say", "two"]])
            later = session.follow(view=SessionView.from_json(stored))
            after = await until(later, TurnEnded)
            assert before + after == await past(session)
            assert later.view.to_json() == reduce(await log_of(session)).to_json()
            with pytest.raises(InvalidCall, match="either after or view"):
                session.follow(1, view=later.view)

    run(scenario())


def test_following_from_the_middle_begins_with_a_gap_in_its_view(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            await play(session, [["say", "one"]])
            middle = (await past(session))[2].position
            following = session.follow(after=middle)
            events = await until(following, TurnEnded)
            assert events == [event for event in await past(session) if event.position > middle]
            [turn] = following.view.turns
            assert [item.type for item in turn.items] == ["gap", "text"]

    run(scenario())


def test_following_goes_on_over_cuts_and_a_restart(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        async with proxy(server.url) as cutting, connected(server, cutting.url) as client:
            session = await new_session(client, server, "keeping")
            following = session.follow()
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
            assert events == await past(session)
            assert "".join(text_of(event.item) for event in events) == "onetwothree"
            assert following.view == reduce(await log_of(session))

    keeping = scripted("--state", str(tmp_path / "state"))
    with Server(directory=tmp_path, agents={"keeping": keeping}) as server:
        run(scenario(server))


def test_a_gap_of_the_past_is_an_event_and_an_item_of_the_view(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            for _ in range(8):
                await play(session, [["flood", 300, 1000]])
            async with asyncio.timeout(BOUND):
                while not isinstance((await log_of(session))[0], Gap):
                    await play(session, [["say", "more"]])
            following = session.follow()
            first = await anext(following)
            assert isinstance(first.item, Gap)
            assert (first.position, first.at) == (first.item.resumes_at - 1, None)
            [gap, *_] = following.view.turns[0].items
            assert gap.type == "gap"

    with Server("--log-max-bytes", "500KiB", "--replay-bytes", "100KiB", directory=tmp_path) as server:
        run(scenario(server))


def test_a_cancelled_reader_loses_no_event(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            following = session.follow()
            events: list[SessionEvent] = []
            turn = play(session, [["flood", 50, 10]])
            ended = asyncio.ensure_future(turn_end(turn))
            while not (ended.done() and events and isinstance(events[-1].item, TurnEnded)):
                reading = asyncio.ensure_future(anext(following))
                await asyncio.sleep(0)
                reading.cancel()
                done = (await asyncio.gather(reading, return_exceptions=True))[0]
                if not isinstance(done, SessionEvent):
                    done = await anext(following)
                events.append(done)
            assert events == await past(session)

    async def turn_end(turn: object) -> None:
        await turn  # type: ignore[misc]

    run(scenario())
