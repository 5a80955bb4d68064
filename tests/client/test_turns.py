"""Turns of the Python SDK: their updates in order, each once, and their end; whatever other clients do there."""

import asyncio
import gc
import weakref

import pytest

from sandboxagent import (
    MetadataUpdated,
    RequestError,
    SessionEnded,
    SessionItem,
    TurnEnded,
    TurnStarted,
    UnknownUpdate,
    text_of,
)
from tests.support.client import run
from tests.support.running import BOUND, Server
from tests.support.sdk import asked, connected, new_session, play, texts


def numbered(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def says(count: int) -> list[list[str]]:
    return [["say", str(number)] for number in range(count)]


def test_updates_come_in_order_and_the_end_comes_last(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            items = [item async for item in play(session, says(50))]

        assert [text_of(item) for item in items[:-1]] == numbered(50)
        assert isinstance(items[-1], TurnEnded)
        assert items[-1].stop_reason == "end_turn"
        assert items[-1].response is not None

    run(scenario())


def test_a_turn_can_be_awaited_for_its_end_alone(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            ended = await play(session, [["say", "x"], ["respond", {"stopReason": "max_tokens"}]])

        assert ended.stop_reason == "max_tokens"

    run(scenario())


@pytest.mark.parametrize(("result", "reason"), [({"stopReason": "tired"}, "tired"), ({}, None)])
def test_stop_reason_unknown_to_upstream_is_passed_on(
    server: Server, result: dict[str, str], reason: str | None
) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            turn = play(session, [["say", "x"], ["respond", result]])
            items = [item async for item in turn]
            assert [text_of(item) for item in items] == ["x", ""]
            assert (await turn).stop_reason == reason

    run(scenario())


def test_text_is_all_that_the_agent_says(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            assert await play(session, says(3)).text() == "012"

    run(scenario())


def test_a_flood_is_read_once_and_in_order(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            said = await texts(play(session, [["flood", 5000, 100]]))

        assert [int(text.split()[0]) for text in said] == list(range(5000))

    run(scenario())


def test_a_reader_with_a_small_buffer_misses_nothing_of_a_flood(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server, buffer=10_000) as client:
            session = await new_session(client, server)
            turn = play(session, [["flood", 5000, 100]])
            await turn  # Everything has come, and most of it was let go.
            said = await texts(turn)

        assert [int(text.split()[0]) for text in said] == list(range(5000))

    run(scenario())


def test_an_unread_iterator_stalls_no_other(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server, buffer=1000) as client:
            unread = await new_session(client, server)
            other = await new_session(client, server)
            turn = play(unread, [["flood", 2000, 1000]])
            async with asyncio.timeout(BOUND):
                assert await play(other, says(3)).text() == "012"
                assert (await turn).stop_reason == "end_turn"

    run(scenario())


def test_prompts_at_once_have_each_their_own_updates(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            turns = [play(session, [["say", f"{number}a"], ["say", f"{number}b"]]) for number in range(5)]
            said = await asyncio.gather(*(texts(turn) for turn in turns))

        assert said == [[f"{number}a", f"{number}b"] for number in range(5)]

    run(scenario())


def test_a_turn_of_another_client_is_not_in_ours(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client, connected(server) as other:
            session = await new_session(client, server)
            elsewhere = await other.sessions.attach(session.id)
            theirs = play(elsewhere, [["say", "theirs"], ["ask", "x/wait"], ["wait_answer"]])
            await anext(theirs)
            await asked(elsewhere)
            ours = play(session, [["say", "ours"]])
            await elsewhere.cancel()
            assert await texts(ours) in (["ours"], []), "ours waited, and was either played or cancelled with theirs"

    run(scenario())


def test_cancel_ends_the_turn(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            turn = play(session, [["say", "x"], ["wait_cancel"]])
            await anext(turn)
            await turn.cancel()
            assert (await turn).stop_reason == "cancelled"

    run(scenario())


def test_leaving_early_leaves_the_turn_running(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            turn = play(session, [["say", "one"], ["say", "two"]])
            async for _ in turn:
                break
            assert (await turn).stop_reason == "end_turn"

    run(scenario())


def test_crash_of_the_agent_fails_the_turn_after_its_updates_and_nothing_else(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            doomed = await new_session(client, server, "isolated")
            other = await new_session(client, server)
            waiting = play(other, [["say", "x"], ["wait_cancel"]])
            await anext(waiting)
            turn = play(doomed, [["say", "last words"], ["stderr", "out of luck"], ["exit", 3]])
            assert text_of(await anext(turn)) == "last words"
            with pytest.raises(RequestError) as failed:
                await texts(turn)
            assert failed.value.code == -32603
            assert failed.value.data["type"] == "agent-exited"
            assert failed.value.data["exitCode"] == 3
            await other.cancel()
            assert (await waiting).stop_reason == "cancelled"
            assert await play(doomed, says(1)).text() == "0", "a prompt brings it back"

    run(scenario())


def test_prompt_that_is_refused_fails_at_once(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            with pytest.raises(RequestError, match="nowhere") as refused:
                await session.prompt("look", attachments=["nowhere.txt"])
            assert refused.value.code == -32602

    run(scenario())


def test_update_that_upstream_does_not_know_is_not_dropped(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            items = [item async for item in play(session, [["update", {"sessionUpdate": "aura", "hue": 3}]])]

        assert items[0] == UnknownUpdate("aura", {"sessionUpdate": "aura", "hue": 3})

    run(scenario())


def test_half_a_surrogate_pair_breaks_nothing(server: Server) -> None:
    line = (
        '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"SESSION","update":'
        '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"half \\ud83d"}}}}'
    )

    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            program = [["raw", line.replace("SESSION", session.id)], ["say", "after"]]
            items = [item async for item in play(session, program)]

        assert [text_of(item) for item in items[:-1]] == ["half \ud83d", "after"]

    run(scenario())


def test_followers_see_what_others_do_until_the_session_ends(server: Server) -> None:
    async def scenario() -> list[SessionItem]:
        async with connected(server) as client, connected(server) as other:
            session = await new_session(client, server)
            updates = (await other.sessions.attach(session.id)).updates()
            await play(session, [["say", "hello"]])
            await session.set_metadata({"ticket": "A-1"})
            await session.terminate()
            return [item async for item in updates]

    seen = run(scenario())
    kinds = [item.session_update for item in seen]
    assert kinds[0] == "turn_started"
    assert {"user_message_chunk", "agent_message_chunk", "turn_ended"} <= set(kinds)
    assert isinstance(seen[0], TurnStarted)
    assert MetadataUpdated({"ticket": "A-1"}) in seen
    assert isinstance(seen[-1], SessionEnded)
    assert seen[-1].reason == "terminated"


def test_a_follower_that_fell_behind_sees_what_a_quick_one_sees(server: Server) -> None:
    async def scenario() -> tuple[list[SessionItem], list[SessionItem]]:
        async with (
            connected(server) as client,
            connected(server, buffer=2000) as slow_client,
            connected(server) as quick_client,
        ):
            session = await new_session(client, server)
            slow = (await slow_client.sessions.attach(session.id)).updates()
            quick = (await quick_client.sessions.attach(session.id)).updates()
            for number in range(3):
                await play(session, [["say", f"turn {number}"], ["flood", 100, 100]])
            # A prompt that waits is in the log long before its turn starts.
            await asyncio.gather(*(play(session, says(2)) for _ in range(3)))
            await session.terminate()
            return [item async for item in slow], [item async for item in quick]

    slow, quick = run(scenario())
    assert len(quick) > 300
    assert [repr(item) for item in slow] == [repr(item) for item in quick]


def test_a_follower_that_is_let_go_is_forgotten(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            updates = session.updates()
            await play(session, says(1))
            async for _ in updates:
                break
            gone = weakref.ref(updates._feed)
            del updates
            gc.collect()
            assert gone() is None

    run(scenario())


def test_the_end_is_not_lost_on_a_caller_that_stopped_waiting_for_it(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            turn = play(session, [["say", "x"], ["wait_cancel"]])
            await anext(turn)
            await session.detach()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(turn), 0.05)
            await session.cancel()
            assert isinstance(await anext(turn), TurnEnded)
            with pytest.raises(StopAsyncIteration):
                await anext(turn)

    run(scenario())


def test_a_turn_can_be_cancelled_as_soon_as_it_is_made(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            session = await new_session(client, server)
            for _ in range(20):
                turn = play(session, [["wait_cancel"]])
                async with asyncio.timeout(BOUND):
                    await turn.cancel()
                    assert (await turn).stop_reason == "cancelled"

    run(scenario())


def test_to_cancel_a_turn_that_waits_leaves_the_one_that_runs_alone(server: Server) -> None:
    async def scenario() -> None:
        async with connected(server) as client, connected(server) as other:
            session = await new_session(client, server)
            elsewhere = await other.sessions.attach(session.id)
            theirs = play(elsewhere, [["say", "x"], ["wait_cancel"], ["say", "y"]])
            await anext(theirs)
            ours = play(session, [["say", "ours"]])
            async with asyncio.timeout(BOUND):
                await ours.cancel()
                assert (await ours).stop_reason == "cancelled"
            assert (await session.info()).running
            await theirs.cancel()
            assert await theirs.text() == "y"

    run(scenario())
