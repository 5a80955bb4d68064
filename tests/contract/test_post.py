"""Section 3: what a POST is answered with: statuses, ids byte for byte, order, and what comes on the stream instead."""

import asyncio
import json
import re
import socket

import httpx
import pytest

from tests.support.asking import ALLOW, PERMISSION, REJECT, permission
from tests.support.client import META, Client, Event, Json, run
from tests.support.problems import problem
from tests.support.running import BOUND, Server
from tests.support.wire import Wire

ONE_SERVER = pytest.mark.parametrize("server", ["no-persist"], indirect=True)
"""What is said of a body is looked at before anything is kept."""

IDS = [
    *("0", "1", "-1", "-0", "1.0", "1.50", "1e2", "1E+2", "-2.5e-3", "9007199254740993"),
    *("123456789012345678901234567890", "1e400", '""', '"1"', '"a b"', '"\\u0041"', '"\\/"', '"/"', '"é"', '"\\u00e9"'),
    *('"\\ud83d\\ude00"', '"\\n\\t"', '"\\"\\\\"', '"null"', '"{}"', '"' + "x" * 1000 + '"'),
]


def envelope(id: str, method: str, params: str = "{}") -> bytes:
    return f'{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}'.encode()


def answers(events: list[Event], id: object) -> list[Json]:
    """The responses to one id that came on a stream."""
    return [event.data for event in events if event.data.get("id") == id and not event.method]


async def post(client: Client, headers: list[tuple[str, str]], body: bytes) -> httpx.Response:
    """A POST with exactly these headers besides the connection's id."""
    own = [("X-ACP-Connection-Id", str(client.id)), *headers]
    request = client.http.build_request("POST", "/v1/rpc", content=body)
    for name in ("accept", "content-type"):
        request.headers.pop(name, None)
    request.headers = httpx.Headers([*request.headers.raw, *((a.encode(), b.encode()) for a, b in own)])
    return await client.http.send(request)


# What it must say of itself


@pytest.mark.requirement("3.content-type")
@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "text/html", "json", ""])
@ONE_SERVER
def test_a_body_that_is_not_said_to_be_json_is_refused(server: Server, content_type: str) -> None:
    async def main() -> None:
        async with Client(server) as client:
            response = await post(client, [("Content-Type", content_type)], envelope("1", "x/echo"))
            assert problem(response, 415, "unsupported-media-type")["contentType"] == content_type
            assert "result" in await client.call("x/echo")

    run(main())


@pytest.mark.requirement("3.content-type")
def test_a_body_without_a_content_type_is_refused(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            problem(await post(client, [], envelope("1", "x/echo")), 415, "unsupported-media-type")

    run(main())


@pytest.mark.requirement("3.content-type")
@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON ;x=y"]
)
@ONE_SERVER
def test_json_is_taken_however_it_is_spelled(server: Server, content_type: str) -> None:
    async def main() -> None:
        async with Client(server) as client:
            response = await post(client, [("Content-Type", content_type)], envelope("1", "x/echo"))
            assert response.status_code == 200

    run(main())


@pytest.mark.requirement("3.accept")
@pytest.mark.parametrize(
    "accept",
    [
        ["text/event-stream"],
        ["text/html"],
        ["text/*"],
        ["application/xml;q=1, text/html"],
        ["application/json;q=0"],
        ["application/json;q=0, */*"],
        ["*/*;q=0.0"],
        ["text/html", "image/*"],
    ],
)
@ONE_SERVER
def test_an_accept_that_excludes_json_is_refused(server: Server, accept: list[str]) -> None:
    async def main() -> None:
        async with Client(server) as client:
            headers = [("Content-Type", "application/json"), *(("Accept", each) for each in accept)]
            response = await post(client, headers, envelope("1", "x/echo"))
            assert problem(response, 406, "not-acceptable")["offered"] == "application/json"
            assert "result" in await client.call("x/echo")

    run(main())


@pytest.mark.requirement("3.accept")
@pytest.mark.parametrize(
    "accept",
    [
        [],
        ["*/*"],
        ["application/json"],
        ["application/*;q=0.1"],
        ["application/json, text/event-stream"],
        ["text/html, */*;q=0.1"],
        ["APPLICATION/JSON;Q=0.5"],
        ["text/html;q=0, application/json"],
        ["text/event-stream", "application/json"],
    ],
)
@ONE_SERVER
def test_an_accept_that_includes_json_is_fine(server: Server, accept: list[str]) -> None:
    async def main() -> None:
        async with Client(server) as client:
            headers = [("Content-Type", "application/json"), *(("Accept", each) for each in accept)]
            response = await post(client, headers, envelope("1", "x/echo"))
            assert response.status_code == 200, response.text

    run(main())


# Ids


@pytest.mark.requirement("3.id-byte-for-byte")
@pytest.mark.parametrize("id", IDS)
def test_a_response_has_the_id_byte_for_byte(server: Server, id: str) -> None:
    async def main() -> None:
        async with Client(server) as client:
            passed_on = await client.post(envelope(id, "x/echo"))
            own = await client.post(envelope(id, "session/list", '{"cwd":"/nowhere"}'))
            failed = await client.post(envelope(id, "session/prompt", '{"sessionId":"nobody"}'))
        for response in (passed_on, own, failed):
            assert response.status_code == 200
            assert re.match(
                b'{"jsonrpc":"2.0","id":' + re.escape(id.encode()) + b',"(result|error)":', response.content
            )

    run(main())


@pytest.mark.requirement("3.id-byte-for-byte")
@pytest.mark.parametrize("id", ["0", "1.0", '"\\u0041"'])
def test_initialize_is_answered_under_its_own_id(server: Server, id: str) -> None:
    async def main() -> None:
        client = Client(server)
        async with client.http:
            params = json.dumps({"_meta": {META: {"agent": "scripted"}}})
            response = await client.post(envelope(id, "initialize", params))
        assert response.content.startswith(b'{"jsonrpc":"2.0","id":' + id.encode() + b',"result":')

    run(main())


@pytest.mark.requirement("3.id-byte-for-byte")
def test_the_id_is_found_in_any_order_between_any_white_space(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            params = b'"params" : {"id": 5, "x": "\\"id\\":6"} ,\n\t'
            body = b" {\r\n " + params + b'"method":"x/echo","id"\n:\r 1.0 , "jsonrpc":"2.0"}\n'
            response = await client.post(body)
        assert response.content.startswith(b'{"jsonrpc":"2.0","id":1.0,"result":')
        assert response.json()["result"]["params"] == {"id": 5, "x": '"id":6'}

    run(main())


@pytest.mark.requirement("3.id-byte-for-byte")
def test_clients_with_the_same_id_get_their_own_answers(server: Server) -> None:
    async def main() -> None:
        clients = [Client(server) for _ in range(8)]
        for client in clients:
            await client.initialize()
        bodies = [envelope("1", "x/echo", f'{{"who":{index}}}') for index in range(8)]
        responses = await asyncio.gather(*(c.post(body) for c, body in zip(clients, bodies, strict=True)))
        assert [response.json()["result"]["params"]["who"] for response in responses] == list(range(8))
        assert all(response.content.startswith(b'{"jsonrpc":"2.0","id":1,') for response in responses)
        for client in clients:
            await client.http.aclose()

    run(main())


@pytest.mark.requirement("3.id-byte-for-byte", "3.in-flight")
def test_one_client_may_use_an_id_twice_at_the_same_time(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            hanging = [asyncio.create_task(client.post(envelope('"same"', "x/hang"))) for _ in range(3)]
            await released(client, hanging)
            assert [task.result().json() for task in hanging] == [
                {"jsonrpc": "2.0", "id": "same", "result": {"released": True}}
            ] * 3

    run(main())


async def released(client: Client, hanging: list[asyncio.Task[httpx.Response]]) -> None:
    """Release what hangs at the agent until all of these are answered."""
    async with asyncio.timeout(BOUND):
        while not all(task.done() for task in hanging):
            await client.result("x/release")


@pytest.mark.requirement("3.id-byte-for-byte")
def test_a_repeated_id_cannot_take_another_clients_answer(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as victim, Client(server) as client:
            hanging = asyncio.create_task(victim.post(envelope('"mine"', "x/hang")))
            # Whatever id the victim's call has on stdio, one of these would hit it.
            for guess in range(1, 40):
                body = f'{{"jsonrpc":"2.0","id":{guess}{guess},"method":"x/error","id":{guess}}}'.encode()
                response = await client.post(body)
                assert response.status_code in (200, 400), response.text
            await released(victim, [hanging])
            assert hanging.result().json() == {"jsonrpc": "2.0", "id": "mine", "result": {"released": True}}

    run(main())


# Requests, notifications, answers


@pytest.mark.requirement("3.request-200")
def test_a_request_is_answered_200_with_its_response(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            response = await client.post(envelope("1", "x/echo", '{"a":[1.0,1e2]}'))
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        assert response.headers["cache-control"] == "no-store"
        sent = json.loads(response.json()["result"]["line"], parse_float=str)
        assert sent["params"] == {"a": ["1.0", "1e2"]}

    run(main())


@pytest.mark.requirement("3.notification-202")
@pytest.mark.parametrize("method", ["x/unheard-of", "session/cancel", "$/cancel_request", "session/update"])
@pytest.mark.parametrize("params", ["{}", '{"sessionId":"nobody"}', '{"requestId":5}', "[]", "null", "5", '"text"'])
@ONE_SERVER
def test_a_notification_is_answered_202_with_an_empty_body(server: Server, method: str, params: str) -> None:
    async def main() -> None:
        async with Client(server) as client:
            response = await client.post(f'{{"jsonrpc":"2.0","method":"{method}","params":{params}}}')
            assert (response.status_code, response.content) == (202, b"")
            assert "result" in await client.call("x/echo")

    run(main())


@pytest.mark.requirement("3.notification-202")
def test_a_notification_reaches_the_agent_as_it_was(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            line = f'{{"jsonrpc":"2.0","method":"x/note","params":{{"n":1.0,"of":"{client.id}"}},"extra":[]}}'
            await client.post(line)
            assert line in (await client.result("x/received"))["lines"]

    run(main())


@pytest.mark.requirement("3.answer-202")
@pytest.mark.parametrize(
    "answer", ['"result":{"outcome":{"outcome":"cancelled"}}', '"error":{"code":1,"message":"no"}']
)
def test_an_answer_to_an_agents_request_is_taken_with_202(server: Server, answer: str) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            turn = asyncio.create_task(client.prompt(session, [permission(), ["echo_answer"]]))
            asked = await stream.method(PERMISSION)
            response = await client.post(f'{{"jsonrpc":"2.0","id":{json.dumps(asked.data["id"])},{answer}}}')
            assert (response.status_code, response.content) == (202, b"")
            await turn
            heard = [event.text for event in await stream.turn_ended() if event.text]
            assert json.loads("{" + answer + "}").items() <= json.loads(heard[0]).items()

    run(main())


@pytest.mark.requirement("3.answer-202")
@pytest.mark.parametrize(
    ("asked_as", "answered_as"),
    [('"\\u00e9"', '"é"'), ('"a\\/b"', '"a/b"'), ('"é"', '"\\u00e9"'), ('"\\ud83d\\ude00"', '"😀"')],
)
def test_an_answer_may_write_the_same_string_in_another_way(server: Server, asked_as: str, answered_as: str) -> None:
    """A client that decodes an id and encodes it again need not escape what the agent's library escaped."""

    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            turn = asyncio.create_task(client.prompt(session, [permission(asked_as), ["wait_answer"]]))
            asked = await stream.method(PERMISSION)
            assert asked.data["id"] == json.loads(answered_as)
            response = await client.post(f'{{"jsonrpc":"2.0","id":{answered_as},"result":{json.dumps(ALLOW)}}}')
            assert response.status_code == 202, response.text
            assert (await turn)["result"] == {"stopReason": "end_turn"}

    run(main())


@pytest.mark.requirement("3.nobody-asked-404")
@pytest.mark.parametrize("id", ["0", "12345", '"nobody"', '"request-1"', '""'])
def test_an_answer_that_nobody_asked_for_is_a_404(server: Server, id: str) -> None:
    async def main() -> None:
        async with Client(server) as client:
            response = await client.post(f'{{"jsonrpc":"2.0","id":{id},"result":{{}}}}')
            assert problem(response, 404, "nobody-asked")["id"] == id
            assert "result" in await client.call("x/echo")

    run(main())


@pytest.mark.requirement("3.nobody-asked-404")
def test_an_answer_to_what_another_connection_was_asked_is_a_404(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, Client(server) as stranger, client.stream() as stream:
            session = await client.new_session()
            turn = asyncio.create_task(client.prompt(session, [permission('"secret"'), ["wait_answer"]]))
            await stream.method(PERMISSION)
            problem(await stranger.answer("secret", ALLOW), 404, "nobody-asked")
            assert not turn.done()
            assert (await client.answer("secret", ALLOW)).status_code == 202
            await turn

    run(main())


@pytest.mark.requirement("3.answered-409")
def test_an_answer_to_what_is_answered_is_a_409_with_the_outcome(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, Client(server) as other, client.stream() as stream:
            session = await client.new_session()
            await other.result("_sandboxagent/session/attach", {"sessionId": session})
            async with other.stream() as others:
                turn = asyncio.create_task(client.prompt(session, [permission(), ["wait_answer"]]))
                id = (await stream.method(PERMISSION)).data["id"]
                other_id = (await others.method(PERMISSION)).data["id"]
                assert (await client.answer(id, ALLOW)).status_code == 202
                assert (await client.answer(id, ALLOW)).status_code == 202, "a repeated answer changes nothing"
                again = problem(await client.answer(id, REJECT), 409, "already-answered")
                late = problem(await other.answer(other_id, ALLOW), 409, "already-answered")
                await turn
            assert again["outcome"] == late["outcome"] == "answered"
            assert str(client.id) not in json.dumps([again, late])

    run(main())


@pytest.mark.requirement("3.answered-409")
def test_an_answer_to_what_was_cancelled_is_a_409_with_the_outcome(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            turn = asyncio.create_task(client.prompt(session, [permission(), ["wait_cancel"]]))
            id = (await stream.method(PERMISSION)).data["id"]
            await client.notify("session/cancel", {"sessionId": session})
            await turn
            assert problem(await client.answer(id, ALLOW), 409)["outcome"] == "cancelled"

    run(main())


@pytest.mark.requirement("3.answered-409")
def test_of_many_answers_at_once_one_is_taken(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            turn = asyncio.create_task(client.prompt(session, [permission(), ["echo_answer"]]))
            id = (await stream.method(PERMISSION)).data["id"]
            results = [ALLOW | {"n": n} for n in range(10)]
            statuses = [r.status_code for r in await asyncio.gather(*(client.answer(id, each) for each in results))]
            await turn
            assert sorted(statuses) == [202] + [409] * 9
            heard = [json.loads(event.text) for event in await stream.turn_ended() if event.text]
            assert [each["result"] for each in heard] == [results[statuses.index(202)]]

    run(main())


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
