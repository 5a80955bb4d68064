"""Section 2: connections, from initialize to DELETE or collection."""

import asyncio
import re
from typing import Any

import pytest

from tests.support.client import META, Client, Json, run
from tests.support.problems import problem
from tests.support.running import Server

ONE_SERVER = pytest.mark.parametrize("server", ["no-persist"], indirect=True)
"""Connections are never kept."""

ECHO = {"jsonrpc": "2.0", "id": 1, "method": "x/echo"}


def initialize(**params: Any) -> Json:
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1, **params}}


@pytest.mark.requirement("2.initialize-opens", "2.answer-carries-id")
def test_initialize_without_the_header_opens_a_connection_and_gives_its_id(server: Server) -> None:
    async def main() -> None:
        client = Client(server)
        async with client.http:
            opened = await client.post(initialize(_meta={META: {"agent": "scripted"}}))
            assert opened.status_code == 200
            assert opened.json()["result"]["protocolVersion"] == 1
            client.id = opened.headers["X-ACP-Connection-Id"]
            assert (await client.call("x/echo"))["result"]["method"] == "x/echo"

    run(main())


@pytest.mark.requirement("2.unguessable-id")
def test_connection_ids_have_at_least_128_bits_and_never_repeat(server: Server) -> None:
    async def main() -> set[str]:
        clients = [Client(server) for _ in range(20)]
        for client in clients:
            async with client:
                pass
        return {str(client.id) for client in clients}

    ids = run(main())

    assert len(ids) == 20
    for id in ids:
        # A character of base64 has six bits, and a UUIDv4 would have too few.
        assert re.fullmatch(r"[A-Za-z0-9_-]{22,}", id)
        assert not re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", id)
    # Nothing in them stays the same, as a counter, a clock or a prefix would.
    assert all(len({id[at] for id in ids}) > 2 for at in range(22))


@pytest.mark.requirement("2.agent-required")
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"_meta": {}},
        {"_meta": None},
        {"_meta": "scripted"},
        {"_meta": {META: {}}},
        {"_meta": {META: []}},
        {"_meta": {META: {"agent": None}}},
        {"_meta": {META: {"agent": 5}}},
        {"_meta": {META: {"agent": ["scripted"]}}},
        {"_meta": {"agent": "scripted"}},
    ],
)
@ONE_SERVER
def test_initialize_that_names_no_agent_is_refused(server: Server, params: Json) -> None:
    async def main() -> None:
        client = Client(server)
        async with client.http:
            response = await client.post(initialize(**params))
        assert META in problem(response, 400, "missing-agent")["detail"]
        assert "X-ACP-Connection-Id" not in response.headers

    run(main())


@pytest.mark.requirement("2.agent-required")
@pytest.mark.parametrize("params", ["", ',"params":null', ',"params":[]', ',"params":"scripted"', ',"params":5'])
@ONE_SERVER
def test_initialize_without_a_params_object_is_refused(server: Server, params: str) -> None:
    async def main() -> None:
        client = Client(server)
        async with client.http:
            response = await client.post(f'{{"jsonrpc":"2.0","id":1,"method":"initialize"{params}}}')
        problem(response, 400, "missing-agent")

    run(main())


@pytest.mark.requirement("2.unknown-agent")
@pytest.mark.parametrize("agent", ["nobody", "", "../scripted", "Scripted", "x" * 10_000])
@ONE_SERVER
def test_initialize_with_an_unknown_agent_is_a_404_that_lists_the_known_ones(server: Server, agent: str) -> None:
    async def main() -> None:
        client = Client(server)
        async with client.http:
            response = await client.post(initialize(_meta={META: {"agent": agent}}))
        document = problem(response, 404, "unknown-agent")
        assert document["agent"] == agent
        assert {"scripted", "mock", "claude"} <= set(document["known"])

    run(main())


@pytest.mark.requirement("2.header-required")
@pytest.mark.parametrize(
    "body",
    [
        ECHO,
        {"jsonrpc": "2.0", "id": 1, "method": "session/new"},
        {"jsonrpc": "2.0", "method": "session/cancel"},
        {"jsonrpc": "2.0", "method": "initialize"},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
    ],
)
@ONE_SERVER
def test_a_post_without_the_header_is_refused(server: Server, body: Json) -> None:
    async def main() -> None:
        client = Client(server)
        async with client.http:
            problem(await client.post(body), 400, "missing-connection")

    run(main())


@pytest.mark.requirement("2.header-required")
def test_a_stream_without_the_header_is_refused(server: Server) -> None:
    async def main() -> None:
        client = Client(server)
        async with client.http:
            response = await client.http.get("/v1/rpc", headers={"Accept": "text/event-stream"})
        problem(response, 400, "missing-connection")

    run(main())


@pytest.mark.requirement("2.unknown-404")
@pytest.mark.parametrize("id", ["nobody", "c1", "", "x" * 4000, "../../etc", "é"])
@ONE_SERVER
def test_an_unknown_connection_is_a_404(server: Server, id: str) -> None:
    async def main() -> None:
        client = Client(server)
        async with client.http as http:
            headers = {"X-ACP-Connection-Id": id.encode(), "Content-Type": b"application/json"}
            body = '{"jsonrpc":"2.0","id":1,"method":"x/echo"}'
            problem(await http.post("/v1/rpc", headers=headers, content=body), 404, "unknown-connection")
            accept = {"X-ACP-Connection-Id": id.encode(), "Accept": b"text/event-stream"}
            problem(await http.get("/v1/rpc", headers=accept), 404, "unknown-connection")

    run(main())


@pytest.mark.requirement("2.unknown-404")
def test_initialize_under_an_unknown_connection_does_not_open_one(server: Server) -> None:
    async def main() -> None:
        client = Client(server)
        client.id = "made-up"
        async with client.http:
            response = await client.post(initialize(_meta={META: {"agent": "scripted"}}))
        problem(response, 404, "unknown-connection")

    run(main())


@pytest.mark.requirement("2.unknown-404")
def test_a_connection_of_another_server_is_unknown(server: Server) -> None:
    async def main(other: Server) -> None:
        async with Client(other) as foreign, Client(server) as client:
            own, client.id = client.id, foreign.id
            problem(await client.post(ECHO), 404, "unknown-connection")
            client.id = own
            assert "result" in await client.call("x/echo")

    with Server("--no-persist") as other:
        run(main(other))


@pytest.mark.requirement("2.not-bound")
def test_a_client_with_the_token_and_the_id_speaks_for_the_connection(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            second = Client(server)
            second.id = client.id
            async with second.http:
                session = await second.new_session()
                async with client.stream() as stream:
                    await second.prompt(session, "hello")
                    assert [event.text for event in await stream.turn_ended() if event.text] == ["hello"]

    run(main())


@pytest.mark.requirement("2.closed-404")
def test_a_closed_connection_is_a_404_for_post_and_stream(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            assert (await client.close()).status_code == 204
            problem(await client.post(ECHO), 404, "unknown-connection")
            response = await client.http.get("/v1/rpc", headers=client.headers(Accept="text/event-stream"))
            problem(response, 404, "unknown-connection")

    run(main())


@pytest.mark.requirement("2.delete-204")
def test_delete_is_204_again_and_again(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            for _ in range(3):
                response = await client.close()
                assert (response.status_code, response.content) == (204, b"")

    run(main())


@pytest.mark.requirement("2.delete-204")
@pytest.mark.parametrize("id", ["never-was", "", "x" * 4000])
@ONE_SERVER
def test_delete_of_a_connection_that_never_was_is_204(server: Server, id: str) -> None:
    async def main() -> None:
        client = Client(server)
        client.id = id
        async with client.http:
            assert (await client.close()).status_code == 204

    run(main())


@pytest.mark.requirement("2.delete-needs-header")
def test_delete_without_the_header_is_refused(server: Server) -> None:
    async def main() -> None:
        client = Client(server)
        async with client.http:
            problem(await client.close(), 400, "missing-connection")

    run(main())


@pytest.mark.requirement("2.delete-ends-stream")
def test_delete_ends_the_connections_stream(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            await client.close()
            await stream.ended()

    run(main())


@pytest.mark.requirement("2.delete-keeps-sessions")
def test_delete_closes_neither_the_session_nor_the_agent(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as first, Client(server) as second:
            session = await first.new_session()
            before = await pid(first, session)
            await first.close()

            shown = (await second.http.get(f"/v1/sessions/{session}")).json()
            assert shown["ended"] is False
            assert await pid(second, session) == before

    run(main())


async def pid(client: Client, session: str) -> str:
    """The process that holds a session, in its own words."""
    async with client.stream() as stream:
        await client.prompt(session, [["pid"]])
        return next(event.text for event in await stream.turn_ended() if event.text)


@pytest.mark.requirement("2.delete-keeps-sessions")
def test_a_turn_goes_on_when_its_connection_is_closed(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as first, Client(server) as second:
            session = await first.new_session()
            await second.result("_sandboxagent/session/attach", {"sessionId": session})
            async with second.stream() as stream:
                waiting = asyncio.create_task(first.prompt(session, [["say", "begun"], ["wait_cancel"]]))
                await stream.until(lambda event: event.text == "begun")
                await first.close()
                await second.notify("session/cancel", {"sessionId": session})
                ended = (await stream.turn_ended())[-1]
            assert ended.data["params"]["stopReason"] == "cancelled"
            assert (await waiting)["result"] == {"stopReason": "cancelled"}

    run(main())


@pytest.mark.requirement("2.ttl")
def test_an_unused_connection_is_collected_and_its_sessions_stay() -> None:
    async def main(server: Server) -> None:
        async with Client(server) as idle, Client(server) as busy, Client(server) as streaming:
            session = await idle.new_session()
            clock = await busy.new_session()
            async with streaming.stream():
                # The turn is the clock: more than twice as long as a connection may be idle.
                await busy.prompt(clock, [["sleep", 5]])
                problem(await idle.post(ECHO), 404, "unknown-connection")
                assert (await busy.post(ECHO)).status_code == 200, "it was waiting for an answer"
                assert (await streaming.post(ECHO)).status_code == 200, "it had a stream"
                assert (await busy.http.get(f"/v1/sessions/{session}")).json()["ended"] is False
                assert (await busy.prompt(session, "go on"))["result"] == {"stopReason": "end_turn"}

    with Server("--no-persist", "--connection-ttl", "2s") as server:
        run(main(server))


@pytest.mark.requirement("2.ttl")
def test_an_asynchronous_request_keeps_its_connection_until_it_is_answered() -> None:
    async def main(server: Server) -> None:
        async with Client(server) as idle, Client(server) as busy:
            session, clock = await idle.new_session(), await busy.new_session()
            body = {"jsonrpc": "2.0", "id": "later", "method": "session/prompt"}
            params = idle.prompt_params(session, [["wait_cancel"]])
            response = await idle.post({**body, "params": params}, Prefer="respond-async")
            assert response.status_code == 202
            await busy.prompt(clock, [["sleep", 3]])
            async with idle.stream() as stream:
                await idle.notify("session/cancel", {"sessionId": session})
                await stream.until(lambda event: event.data.get("id") == "later")

    with Server("--no-persist", "--connection-ttl", "2s") as server:
        run(main(server))
