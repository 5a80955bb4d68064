"""Contract, section 4: server-sent events."""

import asyncio
import json
import random
import re
import time

import pytest

from tests.support.client import Client, Event, run
from tests.support.raw_stream import raw_stream
from tests.support.running import Server

TURN = "_sandboxagent/session/turn"


def texts(events: list[Event]) -> list[str]:
    return [event.text for event in events if event.method == "session/update"]


async def said(client: Client, session: str, *words: str) -> None:
    """One turn that says these words."""
    await client.prompt(session, [["say", word] for word in words])


# Opening


@pytest.mark.requirement("4.headers")
def test_a_stream_says_that_it_must_not_be_stored_or_buffered(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            headers = stream.response.headers
            assert headers["content-type"].partition(";")[0] == "text/event-stream"
            assert headers["cache-control"] == "no-store"
            assert headers["x-accel-buffering"] == "no"

    run(main())


@pytest.mark.requirement("4.accept")
@pytest.mark.parametrize("accept", ["text/event-stream", "*/*", "text/*", "application/json, text/event-stream;q=0.1"])
def test_an_accept_that_includes_event_streams_gets_one(server: Server, accept: str) -> None:
    async def main() -> None:
        async with Client(server) as client, raw_stream(client, Accept=accept) as stream:
            await stream.until(b":")
            assert "text/event-stream" in stream.head

    run(main())


@pytest.mark.requirement("4.accept")
@pytest.mark.parametrize(
    "accept", ["application/json", "text/html", "text/event-stream;q=0", "*/*, text/event-stream;q=0"]
)
def test_an_accept_that_excludes_event_streams_is_406(server: Server, accept: str) -> None:
    async def main() -> None:
        async with Client(server) as client:
            response = await client.http.get("/v1/rpc", headers=client.headers(Accept=accept))
            assert response.status_code == 406
            assert response.headers["content-type"] == "application/problem+json"

    run(main())


@pytest.mark.requirement("4.opening-comment")
def test_a_comment_comes_at_once_when_a_stream_opens(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, raw_stream(client) as stream:
            assert await stream.more(bound=10)
            assert stream.body.startswith(b":")
            assert stream.frames() == []

    run(main())


@pytest.mark.requirement("4.heartbeat")
def test_an_idle_stream_gets_a_comment_every_heartbeat() -> None:
    async def main(server: Server) -> None:
        async with Client(server) as client, raw_stream(client) as stream:
            await stream.until(b"\n\n")
            began = time.monotonic()
            while len(stream.comments()) < 4:
                assert await stream.more(bound=60)
            assert time.monotonic() - began > 3 * 0.3 - 0.05, "no sooner than every heartbeat"
            assert stream.frames() == []

    with Server("--heartbeat", "0.3s", "--no-persist") as server:
        run(main(server))


# Frames


@pytest.mark.requirement("4.frame")
def test_a_frame_is_event_id_and_data_on_one_line_each_and_a_blank_line(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, raw_stream(client) as stream:
            session = await client.new_session()
            await said(client, session, "one", "two", "three")
            await stream.until(b'"ended"')
            body = stream.body.decode()
            without_comments = re.sub(r"(?m)^:.*\n\n", "", body)
            frames = re.findall(r"event: message\nid: \d+\ndata: (\{[^\n\r]*\})\n\n", without_comments)
            assert without_comments == "".join(
                f"event: message\nid: {frame.id}\ndata: {frame.data}\n\n" for frame in stream.frames()
            )
            assert len(frames) == len(stream.frames()) >= 5
            assert all(json.loads(data)["jsonrpc"] == "2.0" for data in frames)

    run(main())


def update(session: str, text: str) -> str:
    """An update as an agent writes it, the text unescaped."""
    content = '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"' + text + '"}}'
    return (
        '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"' + session + '","update":' + content + "}}"
    )


@pytest.mark.requirement("4.one-line")
@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\u0085", "\ufeff", "\u200b", "😀", "\x7f"])
def test_a_character_that_looks_like_a_line_break_is_part_of_the_data(server: Server, character: str) -> None:
    async def main() -> None:
        async with Client(server) as client, raw_stream(client) as stream:
            session = await client.new_session()
            line = update(session, f"a{character}b")
            await client.prompt(session, [["raw", line], ["say", "after"]])
            await stream.until(b'"ended"')
            assert line in [frame.data for frame in stream.frames()], "byte for byte"

    run(main())


@pytest.mark.requirement("4.one-line")
@pytest.mark.parametrize("spaced", ["{}\r", "\r{}", " \t{} \r", "CR inside"])
def test_carriage_returns_around_and_between_an_agents_json_do_not_break_a_frame(server: Server, spaced: str) -> None:
    async def main() -> None:
        async with Client(server) as client, raw_stream(client) as stream:
            session = await client.new_session()
            line = update(session, "here \\r\\n it is")
            sent = line.replace(",", ",\r ") if spaced == "CR inside" else spaced.replace("{}", line)
            await client.prompt(session, [["say", "before"], ["raw", sent], ["say", "after"]])
            await stream.until(b'"ended"')
            assert b"\r" not in stream.body
            messages = [json.loads(frame.data) for frame in stream.frames()]
            updates = [message["params"]["update"] for message in messages if message.get("method") == "session/update"]
            assert [one["content"]["text"] for one in updates] == ["before", "here \r\n it is", "after"]

    run(main())


@pytest.mark.requirement("4.one-line")
def test_a_raw_carriage_return_in_a_string_breaks_neither_the_frame_nor_what_follows(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, raw_stream(client) as stream:
            session = await client.new_session()
            bad = update(session, "a\rb\rid: 1\rdata: {}\r\r")
            await client.prompt(session, [["say", "before"], ["raw", bad], ["say", "after"]])
            await stream.until(b'"ended"')
            assert b"\r" not in stream.body
            methods = [json.loads(frame.data).get("method") for frame in stream.frames()]
            expected = [TURN, "session/update", "_sandboxagent/agent/unparsed", "session/update", TURN]
            assert [method for method in methods if method in expected] == expected

    run(main())


# Ids


@pytest.mark.requirement("4.ids-increase")
@pytest.mark.requirement("4.same-id-everywhere")
def test_two_connections_see_the_same_events_under_the_same_increasing_ids(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as one, Client(server) as two:
            shared, own = await one.new_session(), await two.new_session()
            await two.result("_sandboxagent/session/attach", {"sessionId": shared})
            async with one.stream() as first, two.stream() as second:
                for round in range(3):
                    await asyncio.gather(
                        one.prompt(shared, [["flood", 200, 30]]), two.prompt(own, [["say", f"aside {round}"]])
                    )
                await said(one, shared, "done")
                events = [await stream.until(lambda event: event.text == "done") for stream in (first, second)]
            mine, theirs = (
                {event.id: event.line for event in seen if event.data["params"].get("sessionId") == shared}
                for seen in events
            )
            assert mine == {id: line for id, line in theirs.items() if "user_message_chunk" not in line}
            assert len(mine) > 600
            for seen in events:
                ids = [event.id for event in seen]
                assert ids == sorted(set(ids))

    run(main())


@pytest.mark.requirement("4.same-id-everywhere")
def test_an_event_has_the_same_id_when_it_is_replayed(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            async with client.stream() as stream:
                await said(client, session, "one", "two")
                live = await stream.turn_ended()
            async with client.stream() as stream:
                replayed = await stream.turn_ended()
            assert replayed == live

    run(main())


# Replay


@pytest.mark.requirement("4.replay")
@pytest.mark.requirement("4.no-id-is-zero")
def test_every_last_event_id_replays_exactly_what_came_after_it(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            await said(client, session, "one", "two", "three")
            async with client.stream() as stream:
                everything = await stream.turn_ended()
            assert texts(everything) == ["one", "two", "three"]
            for index, seen in enumerate([None, *everything[:-1]]):
                after = "0" if seen is None else str(seen.id)
                async with client.stream(Last_Event_ID=after) as stream:
                    assert await stream.turn_ended() == everything[index:]

    run(main())


@pytest.mark.requirement("4.replay")
@pytest.mark.requirement("4.live-after-replay")
def test_the_last_id_replays_nothing_and_goes_live(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            await said(client, session, "old")
            async with client.stream() as stream:
                last = (await stream.turn_ended())[-1]
            async with client.stream(Last_Event_ID=str(last.id)) as stream:
                await said(client, session, "new")
                assert texts(await stream.turn_ended()) == ["new"]

    run(main())


@pytest.mark.requirement("4.replay")
def test_replay_has_only_events_from_while_the_connection_was_attached(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as owner, Client(server) as guest:
            session = await owner.new_session()
            await said(owner, session, "before")
            await guest.result("_sandboxagent/session/attach", {"sessionId": session})
            await said(owner, session, "during")
            await guest.result("_sandboxagent/session/detach", {"sessionId": session})
            await said(owner, session, "between")
            await guest.result("_sandboxagent/session/attach", {"sessionId": session})
            await said(owner, session, "again")
            async with owner.stream() as stream:
                first = (await stream.turn_ended())[0]
            for headers in ({}, {"Last_Event_ID": "0"}, {"Last_Event_ID": str(first.id)}):
                async with guest.stream(**headers) as stream:
                    seen = await stream.until(lambda event: event.text == "again")
                words = [one.text for one in seen if one.update.get("sessionUpdate") == "agent_message_chunk"]
                assert words == ["during", "again"]

    run(main())


@pytest.mark.requirement("4.replay")
def test_a_replay_has_nothing_that_was_for_others(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, Client(server) as other:
            mine, theirs = await client.new_session(), await other.new_session()
            await said(other, theirs, "secret")
            await said(client, mine, "mine")
            await said(other, theirs, "secret")
            async with client.stream() as stream:
                events = await stream.turn_ended()
            assert {event.data["params"]["sessionId"] for event in events} == {mine}

    run(main())


@pytest.mark.requirement("4.replay")
def test_replay_omits_sessionless_messages_from_before_meeting_the_agent(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "other") as native, Client(server) as stranger:
            session = await native.new_session()
            await native.prompt(session, [["notify", "_x/early", {"session": session}]])
            await stranger.result("_sandboxagent/session/attach", {"sessionId": session})
            await native.prompt(session, [["notify", "_x/late", {"session": session}]])
            async with stranger.stream() as stream:
                seen = await stream.turn_ended()
            own = [event.method for event in seen if event.data["params"].get("session") == session]
            assert own == ["_x/late"]

    run(main())


BAD_IDS = ["abc", "-1", "1.5", "0x10", "", "1 2", "\xb2", "٣".encode().decode("latin-1"), "99999999999999", "9" * 5000]


@pytest.mark.requirement("4.bad-id-400")
@pytest.mark.parametrize("id", BAD_IDS, ids=lambda id: id[:12].encode("unicode_escape").decode() or "empty")
def test_a_last_event_id_that_is_no_event_is_400_and_leaves_the_live_stream_alone(server: Server, id: str) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            async with client.stream() as stream:
                headers = client.headers(Accept="text/event-stream")
                response = await client.http.get(
                    "/v1/rpc", headers=[*headers.items(), ("Last-Event-ID", id.encode("latin-1"))]
                )
                assert response.status_code == 400
                assert response.headers["content-type"] == "application/problem+json"
                await said(client, session, "still here")
                assert texts(await stream.turn_ended()) == ["still here"]

    run(main())


# Live


@pytest.mark.requirement("4.live-after-replay")
def test_constant_reconnects_during_a_flood_deliver_each_event_once_in_order(server: Server) -> None:
    async def main() -> None:
        count, choose = 8_000, random.Random(4)
        async with Client(server) as client:
            session = await client.new_session()
            turn = asyncio.create_task(client.prompt(session, [["flood", count, 60]]))
            seen: list[tuple[int, int]] = []
            last, streams = 0, 0
            while len(seen) < count:
                streams += 1
                async with raw_stream(client, Last_Event_ID=str(last)) as stream:
                    wanted = choose.randrange(1, 80_000)
                    while len(stream.body) < wanted and len(seen) + len(stream.numbered()) < count:
                        assert await stream.more()
                    # Whatever of the last frame is missing is lost with the socket.
                    del stream.body[wanted:]
                    seen += stream.numbered()
                    last = max([last, *(int(frame.id) for frame in stream.frames())])
            await turn
            assert [number for _, number in seen] == list(range(count))
            ids = [id for id, _ in seen]
            assert ids == sorted(set(ids))
            assert streams > 20

    run(main())


@pytest.mark.requirement("4.takeover")
def test_a_second_stream_takes_over_and_the_first_ends_with_a_comment(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            async with raw_stream(client) as first:
                await said(client, session, "one")
                await first.until(b'"ended"')
                last = int(first.frames()[-1].id) if first.frames() else 0
                async with client.stream(Last_Event_ID=str(last)) as second:
                    await first.to_the_end()
                    assert not first.cut_off, "it ends as a whole response"
                    assert "took over" in first.comments()[-1]
                    await said(client, session, "two")
                    assert texts(await second.turn_ended()) == ["two"]
                    assert b"two" not in first.body

    run(main())


@pytest.mark.requirement("4.takeover")
@pytest.mark.requirement("4.live-after-replay")
def test_streams_that_take_over_during_a_flood_miss_nothing_and_repeat_nothing(server: Server) -> None:
    async def main() -> None:
        count = 10_000
        async with Client(server) as client:
            session = await client.new_session()
            turn = asyncio.create_task(client.prompt(session, [["flood", count, 60]]))
            last = 0
            seen: list[tuple[int, int]] = []
            while len(seen) < count:
                async with raw_stream(client, Last_Event_ID=str(last)) as first:
                    await first.until(b"\n\n")
                    async with raw_stream(client, Last_Event_ID=str(last)) as second:
                        await first.to_the_end()
                        assert not first.cut_off
                        while not second.numbered():
                            assert await second.more()
                        both = dict(second.numbered())
                        assert all(both.get(id, number) == number for id, number in first.numbered())
                        seen += second.numbered()
                        last = seen[-1][0]
            await turn
            assert [number for _, number in seen] == list(range(count))

    run(main())


@pytest.mark.requirement("4.takeover")
def test_events_that_come_while_no_stream_is_open_wait_for_the_next(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            async with client.stream() as stream:
                await said(client, session, "one")
                last = (await stream.turn_ended())[-1].id
            await said(client, session, "two")
            async with client.stream(Last_Event_ID=str(last)) as stream:
                assert texts(await stream.turn_ended()) == ["two"]

    run(main())


# Results


@pytest.mark.requirement("4.result-after-updates")
def test_a_result_on_the_stream_comes_after_all_updates_of_its_turn(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            for turn in range(3):
                body = {"jsonrpc": "2.0", "id": f"turn {turn}", "method": "session/prompt"}
                program = [["flood", 300, 40], ["say", f"last of {turn}"]]
                response = await client.post(
                    body | {"params": client.prompt_params(session, program)}, Prefer="respond-async"
                )
                assert response.status_code == 202
                events = await stream.until(lambda event, turn=turn: event.data.get("id") == f"turn {turn}")
                assert len(texts(events)) == 301
                assert texts(events)[-1] == f"last of {turn}"

    run(main())


@pytest.mark.requirement("4.result-after-updates")
def test_the_end_of_a_turn_comes_after_its_updates_for_all_attached_clients(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, Client(server) as guest, guest.stream() as stream:
            session = await client.new_session()
            await guest.result("_sandboxagent/session/attach", {"sessionId": session})
            await client.prompt(session, [["flood", 2000, 40]])
            events = await stream.turn_ended()
            agent = [event for event in events if event.update.get("sessionUpdate") == "agent_message_chunk"]
            assert len(agent) == 2000

    run(main())


@pytest.mark.requirement("4.result-after-updates")
def test_an_answer_by_post_names_the_last_of_the_updates_before_it(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            params = client.prompt_params(session, [["flood", 500, 40]])
            response = await client.post({"jsonrpc": "2.0", "id": 5, "method": "session/prompt", "params": params})
            events = await stream.turn_ended()
            assert len(texts(events)) == 500
            updates = [event.id for event in events if event.method == "session/update"]
            assert int(response.headers["X-ACP-Last-Event-Id"]) >= updates[-1]

    run(main())
