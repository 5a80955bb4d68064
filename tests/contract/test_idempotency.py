"""Section 3: the same Idempotency-Key gives the first outcome again, whatever happened in between."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from tests.support.asking import received
from tests.support.client import Client, Json, run
from tests.support.problems import problem
from tests.support.running import BOUND, Server


def body(method: str, params: Json, id: object = 1) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def prompt(session: str, text: object, id: object = 1) -> str:
    return body("session/prompt", Client.prompt_params(session, text), id)


async def prompts(client: Client, session: str) -> list[str]:
    """The prompts of a session that have reached its agent."""
    lines = [line for line in await received(client) if '"session/prompt"' in line]
    return [line for line in lines if json.loads(line)["params"]["sessionId"] == session]


@pytest.mark.requirement("3.idempotency-repeats")
def test_the_same_key_and_body_give_the_first_outcome_again(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            sent = prompt(session, [["say", "once"], ["respond", {"stopReason": "end_turn", "n": 1.0}]], "x")
            responses = [await client.post(sent, Idempotency_Key="k") for _ in range(3)]
            assert [response.status_code for response in responses] == [200, 200, 200]
            assert len({response.content for response in responses}) == 1
            assert len(await prompts(client, session)) == 1
            assert [event.text for event in await stream.turn_ended() if event.text] == ["once"]

    run(main())


@pytest.mark.requirement("3.idempotency-repeats")
def test_without_a_key_a_request_is_a_request_each_time(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            for _ in range(2):
                await client.post(prompt(session, "again"))
            assert len(await prompts(client, session)) == 2

    run(main())


@pytest.mark.requirement("3.idempotency-repeats")
def test_a_failure_is_an_outcome_too(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            sent = prompt(session, [["respond_error", -32050, "no"]])
            first, second = [await client.post(sent, Idempotency_Key="k") for _ in range(2)]
            assert first.content == second.content
            assert first.json()["error"] == {"code": -32050, "message": "no"}
            assert len(await prompts(client, session)) == 1

    run(main())


@pytest.mark.requirement("3.idempotency-repeats")
def test_another_connection_gets_the_sessions_outcome_too(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, Client(server) as other:
            session = await client.new_session()
            sent = prompt(session, "hello")
            first = await client.post(sent, Idempotency_Key="k")
            await client.close()
            assert (await other.post(sent, Idempotency_Key="k")).content == first.content
            assert len(await prompts(other, session)) == 1

    run(main())


@pytest.mark.requirement("3.idempotency-repeats")
def test_a_session_is_made_once_under_one_key(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            sent = body("session/new", {"cwd": server.work, "mcpServers": []})
            first, second = [await client.post(sent, Idempotency_Key="new") for _ in range(2)]
            assert first.json()["result"]["sessionId"] == second.json()["result"]["sessionId"]

    run(main())


@pytest.mark.requirement("3.idempotency-same-session")
def test_the_same_key_in_another_session_is_another_request(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            one, two = await client.new_session(), await client.new_session()
            for session in (one, two):
                response = await client.post(prompt(session, "hello"), Idempotency_Key="k")
                assert response.status_code == 200
                assert len(await prompts(client, session)) == 1

    run(main())


@pytest.mark.requirement("3.idempotency-same-session")
def test_the_same_key_of_another_connection_outside_sessions_is_another_request(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, Client(server) as other:
            one = await client.post(body("x/echo", {"who": 1}), Idempotency_Key="k")
            two = await other.post(body("x/echo", {"who": 2}), Idempotency_Key="k")
            assert [each.json()["result"]["params"]["who"] for each in (one, two)] == [1, 2]

    run(main())


@pytest.mark.requirement("3.idempotency-another-body")
def test_the_same_key_with_another_body_is_a_409(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            await client.post(prompt(session, "one"), Idempotency_Key="k")
            for another in (prompt(session, "two"), prompt(session, "one", id=2), prompt(session, "one", id="1")):
                response = await client.post(another, Idempotency_Key="k")
                assert problem(response, 409, "idempotency-mismatch")["idempotencyKey"] == "k"
            assert len(await prompts(client, session)) == 1
            assert (await client.post(prompt(session, "one"), Idempotency_Key="k")).status_code == 200

    run(main())


@pytest.mark.requirement("3.idempotency-another-body")
def test_another_body_is_a_409_also_while_the_first_still_runs(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            sent = prompt(session, [["say", "begun"], ["wait_cancel"]])
            first = asyncio.create_task(client.post(sent, Idempotency_Key="k"))
            await stream.until(lambda event: event.text == "begun")
            problem(await client.post(prompt(session, "two"), Idempotency_Key="k"), 409, "idempotency-mismatch")
            await client.notify("session/cancel", {"sessionId": session})
            assert (await first).json()["result"] == {"stopReason": "cancelled"}

    run(main())


@pytest.mark.requirement("3.idempotency-waits")
def test_a_repeat_waits_for_the_first_when_that_still_runs(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, Client(server) as other, client.stream() as stream:
            session = await client.new_session()
            sent = prompt(session, [["say", "begun"], ["wait_cancel"]])
            waiting = [asyncio.create_task(client.post(sent, Idempotency_Key="k"))]
            await stream.until(lambda event: event.text == "begun")
            waiting += [asyncio.create_task(each.post(sent, Idempotency_Key="k")) for each in (client, other)]
            assert "result" in await other.call("x/echo")
            assert not any(task.done() for task in waiting)
            await client.notify("session/cancel", {"sessionId": session})
            assert {response.content for response in await asyncio.gather(*waiting)} == {
                b'{"jsonrpc":"2.0","id":1,"result":{"stopReason":"cancelled"}}'
            }
            assert len(await prompts(client, session)) == 1

    run(main())


@pytest.mark.requirement("3.idempotency-waits")
def test_of_many_at_once_one_is_run(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            sent = prompt(session, "hello")
            responses = await asyncio.gather(*(client.post(sent, Idempotency_Key="k") for _ in range(20)))
            assert {(response.status_code, response.content) for response in responses} == {
                (200, b'{"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}')
            }
            assert len(await prompts(client, session)) == 1

    run(main())


@pytest.mark.requirement("3.idempotency-waits")
def test_a_repeat_finds_the_outcome_of_a_first_whose_client_left(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            sent = prompt(session, [["say", "begun"], ["wait_cancel"]])
            leaving = asyncio.create_task(client.post(sent, Idempotency_Key="k"))
            await stream.until(lambda event: event.text == "begun")
            leaving.cancel()
            repeat = asyncio.create_task(client.post(sent, Idempotency_Key="k"))
            await client.notify("session/cancel", {"sessionId": session})
            assert (await repeat).json()["result"] == {"stopReason": "cancelled"}
            assert len(await prompts(client, session)) == 1

    run(main())


@pytest.mark.requirement("3.idempotency-waits")
def test_an_asynchronous_request_is_run_once_and_its_outcome_comes_again(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            sent = prompt(session, "hello", "async")
            for _ in range(2):
                response = await client.post(sent, Idempotency_Key="k", Prefer="respond-async")
                assert response.status_code == 202
                events = await stream.until(lambda event: event.data.get("id") == "async")
                assert events[-1].data["result"] == {"stopReason": "end_turn"}
            assert len(await prompts(client, session)) == 1

    run(main())


@pytest.mark.requirement("3.idempotency-async")
def test_a_repeated_asynchronous_prompt_gets_its_202_while_the_first_still_runs(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            sent = prompt(session, [["say", "begun"], ["wait_cancel"]], "async")
            await client.post(sent, Idempotency_Key="k", Prefer="respond-async")
            await stream.until(lambda event: event.text == "begun")
            again = await client.post(sent, Idempotency_Key="k", Prefer="respond-async")
            assert (again.status_code, again.headers["Preference-Applied"]) == (202, "respond-async")
            await client.notify("session/cancel", {"sessionId": session})
            events = await stream.until(lambda event: event.data.get("id") == "async")
            assert events[-1].data["result"] == {"stopReason": "cancelled"}
            assert len(await prompts(client, session)) == 1

    run(main())


@pytest.mark.requirement("3.idempotency-another-body")
def test_another_body_is_a_409_also_when_its_answer_would_come_on_the_stream(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            await client.post(prompt(session, "one"), Idempotency_Key="k")
            response = await client.post(prompt(session, "two"), Idempotency_Key="k", Prefer="respond-async")
            problem(response, 409, "idempotency-mismatch")

    run(main())


@pytest.mark.requirement("3.idempotency-after-504")
def test_a_repeat_after_a_504_gets_the_late_answer_and_runs_nothing_twice() -> None:
    async def main(server: Server) -> None:
        async with Client(server) as client, client.stream() as stream:
            sent = body("x/hang", {}, "late")
            problem(await client.post(sent, Idempotency_Key="k"), 504, "agent-timeout")
            problem(await client.post(sent, Idempotency_Key="k"), 504, "agent-timeout")
            await client.result("x/release")
            await stream.until(lambda event: event.data.get("id") == "late")
            response = await client.post(sent, Idempotency_Key="k")
            assert response.json() == {"jsonrpc": "2.0", "id": "late", "result": {"released": True}}
            assert len([line for line in await received(client) if '"x/hang"' in line]) == 1

    with Server("--no-persist", "--request-timeout", "1s") as server:
        run(main(server))


@pytest.mark.requirement("3.idempotency-restart")
@pytest.mark.parametrize("crash", [False, True], ids=["stop", "kill"])
def test_the_outcome_is_the_same_after_a_restart(tmp_path: Path, crash: bool) -> None:
    async def before(server: Server) -> tuple[str, httpx.Response]:
        async with Client(server) as client:
            session = await client.new_session()
            return session, await client.post(prompt(session, "hello", "x"), Idempotency_Key="k")

    async def after(server: Server, session: str, first: httpx.Response) -> None:
        async with Client(server) as client:
            again = await client.post(prompt(session, "hello", "x"), Idempotency_Key="k")
            assert (again.status_code, again.content) == (200, first.content)
            problem(await client.post(prompt(session, "bye", "x"), Idempotency_Key="k"), 409, "idempotency-mismatch")
            assert await prompts(client, session) == []
            assert (await client.prompt(session, "another"))["result"] == {"stopReason": "end_turn"}

    server = Server(directory=tmp_path)
    session, first = run(before(server.start()))
    if crash:
        server.kill()
    else:
        assert server.stop() == 0
    with server:
        run(after(server, session, first))


@pytest.mark.requirement("3.idempotency-restart")
def test_what_ran_when_the_server_died_is_not_run_again(tmp_path: Path) -> None:
    async def before(server: Server) -> str:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            sent = prompt(session, [["say", "begun"], ["wait_cancel"]])
            asked = asyncio.create_task(client.post(sent, Idempotency_Key="k"))
            await stream.until(lambda event: event.text == "begun")
            server.kill()
            with pytest.raises(httpx.TransportError):
                await asked
            return session

    async def after(server: Server, session: str) -> None:
        async with Client(server) as client:
            sent = prompt(session, [["say", "begun"], ["wait_cancel"]])
            async with asyncio.timeout(BOUND):
                response = await client.post(sent, Idempotency_Key="k")
            assert response.json()["error"]["code"] == -32603
            assert await prompts(client, session) == []

    server = Server(directory=tmp_path)
    session = run(before(server.start()))
    with server:
        run(after(server, session))


@pytest.mark.requirement("3.idempotency-key-form")
@pytest.mark.parametrize("key", ["", "x" * 257])
def test_a_key_that_is_empty_or_too_long_is_refused(server: Server, key: str) -> None:
    async def main() -> None:
        async with Client(server) as client:
            problem(await client.post(body("x/echo", {}), Idempotency_Key=key), 400)
            assert (await client.post(body("x/echo", {}), Idempotency_Key="x" * 256)).status_code == 200

    run(main())


@pytest.mark.requirement("3.idempotency-key-form")
def test_two_keys_on_one_request_are_refused(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            headers = [*client.headers(Content_Type="application/json").items(), ("Idempotency-Key", "a")]
            response = await client.http.post(
                "/v1/rpc", content=body("x/echo", {}), headers=[*headers, ("Idempotency-Key", "b")]
            )
            problem(response, 400)

    run(main())


@pytest.mark.requirement("3.idempotency-repeats")
def test_deleting_a_session_again_under_one_key_gives_the_first_outcome(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            sent = body("session/delete", {"sessionId": session})
            first, second = [await client.post(sent, Idempotency_Key="k") for _ in range(2)]
            assert first.status_code == second.status_code == 200
            assert "result" in first.json(), first.text
            assert second.content == first.content
            assert (await client.post(sent, Idempotency_Key="other")).json()["error"]["code"] == -32002

    run(main())
