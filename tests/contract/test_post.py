"""Section 3: what a POST is answered with: statuses, ids byte for byte, and order."""

import asyncio
import json
import re
from collections.abc import Callable

import pytest

from tests.support.asking import ALLOW, PERMISSION, REJECT, permission
from tests.support.client import META, Client, run
from tests.support.posting import envelope, post, released
from tests.support.problems import problem
from tests.support.running import Server

ONE_SERVER = pytest.mark.parametrize("server", ["no-persist"], indirect=True)
"""What is said of a body is looked at before anything is kept."""


IDS = [
    *("0", "1", "-1", "-0", "1.0", "1.50", "1e2", "1E+2", "-2.5e-3", "9007199254740993"),
    *("123456789012345678901234567890", "1e400", '""', '"1"', '"a b"', '"\\u0041"', '"\\/"', '"/"', '"é"', '"\\u00e9"'),
    *('"\\ud83d\\ude00"', '"\\n\\t"', '"\\"\\\\"', '"null"', '"{}"', '"' + "x" * 1000 + '"'),
]


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
    "written", [lambda id: id.replace("r", "\\u0072", 1), lambda id: id.replace("_", "\\u005F"), lambda id: id]
)
def test_an_answer_may_write_the_same_string_in_another_way(server: Server, written: Callable[[str], str]) -> None:
    """Some programs escape what others do not."""

    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            turn = asyncio.create_task(client.prompt(session, [permission(), ["wait_answer"]]))
            id = written((await stream.method(PERMISSION)).data["id"])
            response = await client.post(f'{{"jsonrpc":"2.0","id":"{id}","result":{json.dumps(ALLOW)}}}')
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
            turn = asyncio.create_task(client.prompt(session, [permission(), ["wait_answer"]]))
            id = (await stream.method(PERMISSION)).data["id"]
            problem(await stranger.answer(id, ALLOW), 404, "nobody-asked")
            assert not turn.done()
            assert (await client.answer(id, ALLOW)).status_code == 202
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
