"""Section 3: requests in flight, answers on the stream instead, and clients that leave."""

import asyncio
import json
import socket

import pytest

from tests.support.asking import ALLOW, PERMISSION, permission
from tests.support.client import META, Client, Event, Json, run
from tests.support.posting import envelope, post, released
from tests.support.running import BOUND, Server
from tests.support.wire import Wire


def answers(events: list[Event], id: object) -> list[Json]:
    """The responses to one id that came on a stream."""
    return [event.data for event in events if event.data.get("id") == id and not event.method]


# In flight


@pytest.mark.requirement("3.in-flight")
def test_many_requests_may_be_in_flight(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            hanging = [asyncio.create_task(client.post(envelope(str(n), "x/hang"))) for n in range(50)]
            await released(client, hanging)
            assert [task.result().json()["id"] for task in hanging] == list(range(50))

    run(main())


@pytest.mark.requirement("3.in-flight")
def test_a_later_request_is_answered_before_an_earlier_one(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            first = asyncio.create_task(client.post(envelope("1", "x/hang")))
            second = await client.post(envelope("2", "x/echo"))
            assert second.json()["id"] == 2
            assert not first.done()
            await released(client, [first])
            assert first.result().json() == {"jsonrpc": "2.0", "id": 1, "result": {"released": True}}

    run(main())


@pytest.mark.requirement("3.in-flight")
def test_pipelined_requests_are_answered_in_the_order_of_the_socket(server: Server) -> None:
    async def opened() -> str:
        async with Client(server) as client:
            return str(client.id)

    connection = f"X-ACP-Connection-Id: {run(opened())}"
    with Wire(server) as wire:
        wire.send(b"".join(wire.post(envelope(str(n), "x/echo"), connection) for n in range(20)))
        assert [wire.response().json()["id"] for _ in range(20)] == list(range(20))


# The last event


@pytest.mark.requirement("3.last-event-id")
def test_every_200_names_the_last_event_before_it(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            for turn in range(3):
                params = client.prompt_params(session, [["say", f"{turn}a"], ["say", f"{turn}b"]])
                response = await client.post(envelope("1", "session/prompt", json.dumps(params)))
                events = await stream.turn_ended()
                assert int(response.headers["X-ACP-Last-Event-Id"]) == events[-1].id
            after = await client.post(envelope("2", "x/echo"))
            assert int(after.headers["X-ACP-Last-Event-Id"]) == stream.seen[-1].id

    run(main())


@pytest.mark.requirement("3.last-event-id")
def test_a_200_names_the_last_event_also_to_a_client_without_a_stream(server: Server) -> None:
    async def main() -> None:
        client = Client(server)
        async with client.http:
            params = json.dumps({"_meta": {META: {"agent": "scripted"}}})
            opened = await client.post(envelope("1", "initialize", params))
            assert opened.headers["X-ACP-Last-Event-Id"].isdigit()
            client.id = opened.headers["X-ACP-Connection-Id"]
            session = await client.new_session()
            prompt = json.dumps(client.prompt_params(session, "hello"))
            response = await client.post(envelope("2", "session/prompt", prompt))
            async with client.stream() as stream:
                assert int(response.headers["X-ACP-Last-Event-Id"]) == (await stream.turn_ended())[-1].id

    run(main())


@pytest.mark.requirement("3.last-event-id")
def test_events_of_others_do_not_count_as_sent_to_this_connection(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, Client(server) as other:
            session = await client.new_session()
            await client.prompt(session, "mine")
            before = await client.post(envelope("1", "x/echo"))
            theirs = await other.new_session()
            await other.prompt(theirs, "not yours")
            after = await client.post(envelope("2", "x/echo"))
            assert before.headers["X-ACP-Last-Event-Id"] == after.headers["X-ACP-Last-Event-Id"]

    run(main())


@pytest.mark.requirement("3.stream-handed-over-first")
def test_the_streams_bytes_are_on_their_way_before_the_answer(server: Server) -> None:
    async def opened() -> tuple[str, str]:
        async with Client(server) as client:
            return str(client.id), await client.new_session()

    id, session = run(opened())
    connection = f"X-ACP-Connection-Id: {id}"
    with Wire(server) as downlink, Wire(server) as uplink:
        downlink.send(downlink.request("GET /v1/rpc", connection, "Accept: text/event-stream"))
        received = b""
        while b": open" not in received:
            received += downlink.socket.recv(65536)
        downlink.socket.setblocking(False)
        for n in range(30):
            params = json.dumps(Client.prompt_params(session, [["say", "a"], ["say", "b"]]))
            uplink.send(uplink.post(envelope(str(n), "session/prompt", params), connection))
            last = uplink.response().headers["x-acp-last-event-id"].encode()
            received += downlink.socket.recv(1 << 20)
            assert b"id: " + last + b"\n" in received


@pytest.mark.requirement("3.unread-stream-blocks-nothing")
def test_a_client_that_does_not_read_its_stream_gets_its_answers(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            with Wire(server) as wire:
                wire.send(wire.request("GET /v1/rpc", f"X-ACP-Connection-Id: {client.id}", "Accept: text/event-stream"))
                async with asyncio.timeout(BOUND):
                    response = await client.prompt(session, [["flood", 1000, 12_000]])
                    assert response["result"] == {"stopReason": "end_turn"}
                    assert "result" in await client.call("x/echo")

    run(main())


# Cancelling first


@pytest.mark.requirement("3.cancel-before-prompt")
def test_a_cancel_that_comes_before_its_prompt_is_tolerated(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            assert (await client.notify("session/cancel", {"sessionId": session})).status_code == 202
            response = await client.prompt(session, "after all")
            assert response["result"]["stopReason"] in ("end_turn", "cancelled")
            assert (await client.prompt(session, "and again"))["result"] == {"stopReason": "end_turn"}

    run(main())


# Asynchronously


@pytest.mark.requirement("3.respond-async")
@pytest.mark.parametrize(
    "prefer", [["respond-async"], ["Respond-Async, wait=10"], ["wait=10, respond-async"], ["wait=10", "respond-async"]]
)
def test_with_respond_async_the_response_comes_on_the_stream(server: Server, prefer: list[str]) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            headers = [("Content-Type", "application/json"), *(("Prefer", each) for each in prefer)]
            response = await post(client, headers, envelope("1.0", "x/echo", '{"a":1}'))
            assert (response.status_code, response.content) == (202, b"")
            assert response.headers["Preference-Applied"] == "respond-async"
            event = await stream.next()
            assert event.line.startswith('{"jsonrpc":"2.0","id":1.0,"result":')
            assert event.data["result"]["params"] == {"a": 1}

    run(main())


@pytest.mark.requirement("3.respond-async")
def test_respond_async_is_answered_while_the_agent_still_works(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            response = await client.post(envelope('"later"', "x/hang"), Prefer="respond-async")
            assert response.status_code == 202
            await client.result("x/release")
            event = await stream.next()
            assert event.data == {"jsonrpc": "2.0", "id": "later", "result": {"released": True}}

    run(main())


@pytest.mark.requirement("3.respond-async")
def test_an_asynchronous_turns_result_comes_after_its_updates(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            params = json.dumps(client.prompt_params(session, [["say", "one"], ["say", "two"]]))
            await client.post(envelope('"turn"', "session/prompt", params), Prefer="respond-async")
            events = await stream.until(lambda event: event.data.get("id") == "turn")
            assert [event.text for event in events if event.text] == ["one", "two"]
            assert events[-1].data["result"] == {"stopReason": "end_turn"}

    run(main())


@pytest.mark.requirement("3.respond-async")
def test_an_asynchronous_failure_comes_on_the_stream_too(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            body = envelope('"bad"', "session/prompt", '{"sessionId":"nobody"}')
            assert (await client.post(body, Prefer="respond-async")).status_code == 202
            assert (await stream.next()).data["error"]["code"] == -32002

    run(main())


@pytest.mark.requirement("3.respond-async")
def test_an_asynchronous_response_waits_for_a_client_without_a_stream(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            await client.post(envelope('"kept"', "x/echo"), Prefer="respond-async")
            async with client.stream() as stream:
                assert (await stream.next()).data["id"] == "kept"

    run(main())


@pytest.mark.requirement("3.respond-async")
@pytest.mark.parametrize("prefer", ["wait=10", "return=minimal", "respond-asynchronously", ""])
def test_other_preferences_change_nothing(server: Server, prefer: str) -> None:
    async def main() -> None:
        async with Client(server) as client:
            response = await client.post(envelope("1", "x/echo"), Prefer=prefer)
            assert response.status_code == 200
            assert "Preference-Applied" not in response.headers

    run(main())


# Leaving


@pytest.mark.requirement("3.client-leaves")
@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
def test_the_response_goes_to_the_stream_when_its_client_has_left(server: Server, how: str) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            params = json.dumps(client.prompt_params(session, [permission(), ["wait_answer"], ["say", "went on"]]))
            with Wire(server) as wire:
                body = envelope("7.0", "session/prompt", params)
                wire.send(wire.post(body, f"X-ACP-Connection-Id: {client.id}"))
                asked = await stream.method(PERMISSION)
                leave(wire, how)
                await client.answer(asked.data["id"], ALLOW)
                events = await stream.until(lambda event: not event.method)
            assert "went on" in [event.text for event in events]
            assert events[-1].line == '{"jsonrpc":"2.0","id":7.0,"result":{"stopReason":"end_turn"}}'

    run(main())


def leave(wire: Wire, how: str) -> None:
    match how:
        case "half-close":
            wire.socket.shutdown(socket.SHUT_WR)
        case "reset":
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            wire.close()
        case _:
            wire.close()


@pytest.mark.requirement("3.client-leaves")
def test_the_response_goes_to_the_stream_when_its_client_left_a_pipeline(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            params = json.dumps(client.prompt_params(session, [permission(), ["wait_answer"]]))
            with Wire(server) as wire:
                body = envelope('"first"', "session/prompt", params)
                wire.send(wire.post(body, f"X-ACP-Connection-Id: {client.id}") + wire.health())
                asked = await stream.method(PERMISSION)
            await client.answer(asked.data["id"], ALLOW)
            events = await stream.until(lambda event: not event.method)
            assert events[-1].data == {"jsonrpc": "2.0", "id": "first", "result": {"stopReason": "end_turn"}}

    run(main())


@pytest.mark.requirement("3.client-leaves")
def test_the_response_of_who_left_is_kept_for_a_later_stream(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, Client(server) as other:
            session = await client.new_session()
            await other.result("_sandboxagent/session/attach", {"sessionId": session})
            async with other.stream() as others:
                with Wire(server) as wire:
                    params = json.dumps(client.prompt_params(session, [["say", "begun"], ["wait_cancel"]]))
                    body = envelope('"lost?"', "session/prompt", params)
                    wire.send(wire.post(body, f"X-ACP-Connection-Id: {client.id}"))
                    await others.until(lambda event: event.text == "begun")
                await other.notify("session/cancel", {"sessionId": session})
                await others.turn_ended()
            async with client.stream() as stream:
                events = await stream.until(lambda event: event.data.get("id") == "lost?")
            assert len(answers(events, "lost?")) == 1
            assert events[-1].data["result"] == {"stopReason": "cancelled"}

    run(main())


@pytest.mark.requirement("3.client-leaves")
def test_the_failure_of_a_request_goes_to_the_stream_when_its_client_has_left(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "isolated") as client, client.stream() as stream:
            session = await client.new_session()
            program = [permission(), ["wait_answer"], ["exit", 3]]
            with Wire(server) as wire:
                body = envelope('"doomed"', "session/prompt", json.dumps(client.prompt_params(session, program)))
                wire.send(wire.post(body, f"X-ACP-Connection-Id: {client.id}"))
                asked = await stream.method(PERMISSION)
            await client.answer(asked.data["id"], ALLOW)
            events = await stream.until(lambda event: event.data.get("id") == "doomed")
            assert events[-1].data["error"]["code"] == -32603

    run(main())


@pytest.mark.requirement("3.client-leaves")
def test_nothing_is_lost_when_a_client_leaves_while_its_answer_waits_for_its_stream() -> None:
    async def main(server: Server) -> None:
        async with Client(server) as client, Client(server) as other:
            session = await client.new_session()
            connection = f"X-ACP-Connection-Id: {client.id}"
            with Wire(server) as unread, Wire(server) as wire:
                unread.send(unread.request("GET /v1/rpc", connection, "Accept: text/event-stream"))
                await client.prompt(session, [["flood", 1000, 12_000]])
                await other.result("_sandboxagent/session/attach", {"sessionId": session})
                async with other.stream() as others:
                    params = json.dumps(client.prompt_params(session, "leaving"))
                    wire.send(wire.post(envelope('"lost?"', "session/prompt", params), connection))
                    last = (await others.turn_ended())[-1].id
                # When the machine was slow the answer is already there, and not lost either.
                answered = has_bytes(wire)
            if not answered:
                async with client.stream(last_event_id=str(last)) as stream:
                    events = await stream.until(lambda event: event.data.get("id") == "lost?")
                assert events[-1].data["result"] == {"stopReason": "end_turn"}

    with Server("--no-persist", "--stall-timeout", "60s") as server:
        run(main(server))


def has_bytes(wire: Wire) -> bool:
    """Whether there is something to read now; a socket with a timeout would wait for it."""
    wire.socket.setblocking(False)
    try:
        return wire.socket.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return False
