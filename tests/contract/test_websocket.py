"""WebSockets on /acp and /v1/rpc. Contract, section 14."""

import asyncio
import base64
import json
from collections.abc import Generator
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.acp import Acp, websocket
from tests.support.asking import ALLOW, PERMISSION, permission
from tests.support.client import Client, Json, run
from tests.support.running import BOUND, Server

WITH_IDS = "sandboxagent.v1"
ORIGIN = "https://app.example.org"


@pytest.fixture(scope="module")
def acp() -> Generator[Server]:
    flags = ("--default-agent", "scripted", "--max-body", "2MiB", "--cors-origin", ORIGIN)
    with Server(*flags, "--stream-buffer", "64KiB") as running:
        yield running


def bearer(token: str) -> str:
    return "sandboxagent.bearer." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def is_answer(id: object, one: Json) -> bool:
    return one.get("id") == id and "method" not in one


@pytest.mark.requirement("14.ws-open")
@pytest.mark.requirement("14.ws-frames")
def test_the_handshake_names_the_connection_and_frames_are_envelopes(acp: Server) -> None:
    async def main() -> None:
        async with websocket(acp) as socket:
            assert socket.connection_id
            assert (await socket.initialize())["result"]["protocolVersion"] == 1
            session = await socket.session(acp.work)
            assert (await socket.prompt(session, [["flood", 500, 10]]))["result"]["stopReason"] == "end_turn"
            texts = [one["params"]["update"]["content"]["text"] for one in socket.seen if "update" in str(one)[:60]]
            assert [int(text.split()[0]) for text in texts] == list(range(500))

    run(main())


@pytest.mark.requirement("14.ws-open")
@pytest.mark.parametrize(
    "first",
    [
        '{"jsonrpc": "2.0", "id": 1, "method": "session/list"}',
        '{"jsonrpc": "2.0", "method": "initialize"}',
        "nonsense",
        "[]",
    ],
)
def test_a_first_message_that_is_not_initialize_closes_with_1002(acp: Server, first: str) -> None:
    async def main() -> None:
        async with websocket(acp) as socket:
            await socket.socket.send(first)
            code, reason = await socket.closed()
            assert (code, "initialize" in reason) == (1002, True)

    run(main())


@pytest.mark.requirement("14.ws-open")
def test_an_initialize_that_fails_may_be_tried_again(acp: Server) -> None:
    async def main() -> None:
        async with websocket(acp) as socket:
            assert (await socket.initialize("nonesuch"))["error"]["data"]["type"] == "unknown-agent"
            assert "result" in await socket.initialize("scripted")
            assert (await socket.call("initialize", {}))["error"]["code"] == -32600

    run(main())


@pytest.mark.requirement("14.ws-resume")
@pytest.mark.parametrize("path", ["/acp", "/v1/rpc"])
@pytest.mark.parametrize("place", ["header", "query"])
def test_a_cut_socket_resumes_without_loss_or_repetition(acp: Server, path: str, place: str) -> None:
    async def main() -> None:
        async with websocket(acp, path, subprotocols=(WITH_IDS,)) as socket:
            await socket.initialize()
            id, session = socket.connection_id, await socket.session(acp.work)
            await socket.say("session/prompt", Client.prompt_params(session, [["flood", 300, 10]]), 5)
            for _ in range(40):
                await socket.next()
            seen, last = [one for one in socket.seen if "method" in one], socket.last
            socket.socket.transport.abort()
        name = "X-ACP-Connection-Id" if path == "/v1/rpc" else "Acp-Connection-Id"
        query = f"?after={last}" + (f"&connection={id}" if place == "query" else "")
        headers = {} if place == "query" else {name: id}
        async with websocket(acp, path + query, headers=headers, subprotocols=(WITH_IDS,)) as socket:
            rest = await socket.until(lambda one: is_answer(5, one))
            assert socket.connection_id == id
            texts = [
                one["params"]["update"]["content"]["text"] for one in seen + rest if "update" in one.get("params", {})
            ]
            assert len(texts) == len(set(texts)) == 300

    run(main())


@pytest.mark.requirement("14.ws-resume")
def test_an_unknown_connection_is_a_404_and_a_wrong_after_a_400(acp: Server) -> None:
    async def main() -> None:
        for query, status in (("?connection=nonesuch", 404), ("?after=x", 400), ("?after=99999999999", 400)):
            for path in ("/acp", "/v1/rpc"):
                with pytest.raises(InvalidStatus) as refused:
                    async with websocket(acp, path + query):
                        pass
                assert refused.value.response.status_code == status

    run(main())


@pytest.mark.requirement("14.ws-rpc")
def test_prompts_sent_at_once_run_in_the_order_of_sending(acp: Server) -> None:
    async def main() -> None:
        async with websocket(acp, "/v1/rpc") as socket:
            await socket.initialize()
            session = await socket.session(acp.work)
            for number in range(10):
                await socket.say("session/prompt", Client.prompt_params(session, [["say", str(number)]]), 100 + number)
            for number in range(10):
                if not any(is_answer(100 + number, one) for one in socket.seen):
                    await socket.until(lambda one, id=100 + number: is_answer(id, one))
            said = [one["params"]["update"] for one in socket.seen if one.get("method") == "session/update"]
            assert [each["content"]["text"] for each in said] == [str(number) for number in range(10)]

    run(main())


@pytest.mark.requirement("14.ws-key")
def test_a_request_under_the_same_key_runs_once(acp: Server) -> None:
    async def main() -> None:
        async with websocket(acp, "/v1/rpc", subprotocols=(WITH_IDS,)) as socket:
            await socket.initialize()
            session = await socket.session(acp.work)
            prompt = Client.prompt_params(session, [["say", "once"]])
            for _ in range(2):
                assert "result" in await socket.call("session/prompt", prompt, 50, key="key-1")
            assert len([one for one in socket.seen if "once" in json.dumps(one) and "update" in one["params"]]) == 1
            other = await socket.call("session/prompt", Client.prompt_params(session, "x"), 51, key="key-1")
            assert other["error"]["data"]["type"] == "idempotency-mismatch"
            await socket.socket.send("x" * 300 + '\n{"jsonrpc":"2.0","id":1,"method":"session/list"}')
            assert (await socket.until(lambda one: "error" in one))[-1]["error"]["code"] == -32600

    run(main())


@pytest.mark.requirement("14.ws-acknowledgement")
def test_what_has_no_answer_is_acknowledged_under_its_key_and_taken_once(acp: Server) -> None:
    async def main() -> None:
        async with websocket(acp, "/v1/rpc", subprotocols=(WITH_IDS,)) as socket:
            await socket.initialize()
            session = await socket.session(acp.work)
            steps = [permission(), ["wait_answer"]]
            await socket.say("session/prompt", Client.prompt_params(session, steps), 7)
            asked = (await socket.until(lambda one: one.get("method") == PERMISSION))[-1]
            wrong = {"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": {"outcome": "selected"}}}
            right = {"jsonrpc": "2.0", "id": asked["id"], "result": ALLOW}

            async def acknowledgement(envelope: Json, key: str) -> Json:
                await socket.send(envelope, key)
                return (await socket.until(lambda one: one.get("id") == key))[-1]

            refused = (await acknowledgement(wrong, "k1"))["error"]["data"]
            assert (refused["type"], refused["status"]) == ("wrong-answer", 422)
            assert await acknowledgement(wrong, "k1") == await acknowledgement(wrong, "k1")
            assert (await acknowledgement(right, "k2"))["result"] == {}
            assert (await acknowledgement(right, "k2"))["result"] == {}, "the first outcome, not a conflict"
            rejected = (
                await acknowledgement({**right, "result": {"outcome": {"outcome": "cancelled"}}, "id": 99}, "k3")
            )["error"]
            assert rejected["data"]["type"] == "nobody-asked"
            cancel = {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}
            assert (await acknowledgement(cancel, "k4"))["result"] == {}
            if not any(is_answer(7, one) for one in socket.seen):
                await socket.until(lambda one: is_answer(7, one))
            await socket.say("session/prompt", Client.prompt_params(session, [["say", "x"]]), 8)
            await socket.send(cancel, "k4")
            answer = (await socket.until(lambda one: is_answer(8, one)))[-1]
            assert answer["result"]["stopReason"] == "end_turn", "a cancel that comes again ends no other turn"

    run(main())


@pytest.mark.requirement("14.ws-refusal")
def test_a_client_that_cannot_see_a_status_learns_of_a_refusal_by_a_close_code(acp: Server) -> None:
    async def main() -> None:
        for query, code in (("?connection=nonesuch", 4404), ("?after=x", 4400)):
            for path in ("/acp", "/v1/rpc"):
                async with websocket(acp, path + query, subprotocols=(WITH_IDS,)) as socket:
                    assert (await socket.closed())[0] == code
        async with websocket(acp, subprotocols=(WITH_IDS,)) as socket:
            await socket.initialize()
            id = socket.connection_id
            socket.socket.transport.abort()
        async with websocket(acp, f"/acp?connection={id}", subprotocols=(WITH_IDS,)) as socket:
            assert await socket.socket.recv() == ""

    run(main())


@pytest.mark.requirement("14.ws-bad-frames")
@pytest.mark.requirement("14.batch")
def test_bad_frames_are_answered_and_the_socket_goes_on(acp: Server) -> None:
    async def main() -> None:
        async with websocket(acp) as socket:
            await socket.initialize()
            for bad, code in (
                ("nonsense", -32700),
                ("", -32700),
                ("[]", -32600),
                ('[{"jsonrpc": "2.0", "id": 1, "method": "session/list"}]', -32600),
                ("{}", -32600),
                ("7", -32600),
                ('{"jsonrpc": "2.0", "id": null, "method": "x"}', -32600),
                ("[" * 100_000, -32700),
            ):
                await socket.socket.send(bad)
                complaint = await socket.next()
                assert (complaint["id"], complaint["error"]["code"]) == (None, code), bad[:100]
            await socket.socket.send(b'{"jsonrpc": "2.0", "id": 99, "method": "session/list", "params": {}}')
            await socket.socket.send(['{"jsonrpc": "2.0", "id": 9, ', '"method": "session/', 'list"}'])
            assert (await socket.next())["id"] == 9, "binary frames are ignored, and fragments put together"

    run(main())


@pytest.mark.requirement("14.ws-bad-frames")
def test_a_huge_frame_closes_with_1009_and_the_connection_stays(acp: Server) -> None:
    async def main() -> None:
        async with websocket(acp, subprotocols=(WITH_IDS,)) as socket:
            await socket.initialize()
            await socket.socket.send("x" * (3 << 20))
            assert (await socket.closed())[0] == 1009
            id, last = socket.connection_id, socket.last
        async with websocket(acp, f"/acp?after={last}&connection={id}") as socket:
            assert "result" in await socket.call("session/list", {})

    run(main())


@pytest.mark.requirement("14.ws-token")
def test_the_token_is_a_header_or_a_subprotocol_and_never_in_the_query(acp: Server) -> None:
    async def main() -> None:
        assert acp.token is not None
        async with websocket(acp, token=False, subprotocols=(WITH_IDS, bearer(acp.token))) as socket:
            assert socket.socket.subprotocol == WITH_IDS
            assert "bearer" not in str(socket.socket.response)
            assert "result" in await socket.initialize()
        async with websocket(acp, token=False, subprotocols=(bearer(acp.token), "acp")) as socket:
            assert socket.socket.subprotocol == "acp"
        wrong: list[tuple[str, tuple[str, ...]]] = [
            ("/acp", ()),
            (f"/acp?token={acp.token}", ()),
            (f"/acp?access_token={acp.token}", (WITH_IDS,)),
            ("/acp", (WITH_IDS, bearer("another"))),
            ("/acp", (WITH_IDS, bearer(acp.token), bearer(acp.token + "x"))),
            ("/acp", (WITH_IDS, "sandboxagent.bearer.")),
            ("/acp", (WITH_IDS, "sandboxagent.bearer.*")),
            ("/v1/rpc", (WITH_IDS, acp.token)),
        ]
        for path, subprotocols in wrong:
            with pytest.raises(InvalidStatus) as refused:
                async with websocket(acp, path, token=False, subprotocols=subprotocols):
                    pass
            assert refused.value.response.status_code == 401

    run(main())


@pytest.mark.requirement("14.ws-token")
def test_a_subprotocol_is_no_token_for_other_requests(acp: Server) -> None:
    async def main() -> None:
        assert acp.token is not None
        client = Acp(acp)
        async with client.http:
            del client.http.headers["Authorization"]
            got = await client.http.get("/v1/sessions", headers={"Sec-WebSocket-Protocol": bearer(acp.token)})
            assert got.status_code == 401

    run(main())


@pytest.mark.requirement("14.ws-origin")
def test_a_page_of_another_origin_gets_no_websocket(acp: Server) -> None:
    async def main() -> None:
        for path in ("/acp", "/v1/rpc"):
            with pytest.raises(InvalidStatus) as refused:
                async with websocket(acp, path, origin="https://evil.example"):
                    pass
            assert refused.value.response.status_code == 403
            async with websocket(acp, path, origin=ORIGIN) as socket:
                assert "result" in await socket.initialize()

    run(main())


@pytest.mark.requirement("14.ws-open")
def test_a_handshake_that_makes_no_sense_is_a_400_and_other_routes_ignore_the_offer(acp: Server) -> None:
    async def main() -> None:
        client = Acp(acp)
        async with client.http:
            offer = {"Connection": "Upgrade", "Upgrade": "websocket"}
            key = {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
            for headers in (offer, offer | key, offer | key | {"Sec-WebSocket-Version": "7"}):
                assert (await client.http.get("/acp", headers=headers)).status_code == 400
            whole = offer | key | {"Sec-WebSocket-Version": "13"}
            assert (await client.http.get("/v1/health", headers=whole)).status_code == 200

    run(main())


@pytest.mark.requirement("14.ws-closing")
def test_a_normal_close_ends_the_connection_and_a_cut_does_not(acp: Server) -> None:
    async def main() -> None:
        async with websocket(acp) as first:
            await first.initialize()
            closed = first.connection_id
        async with websocket(acp) as second:
            await second.initialize()
            cut = second.connection_id
            second.socket.transport.abort()
        client = Acp(acp)
        async with client.http:
            client.id = cut
            assert (await client.say("session/list", {}, id=1)).status_code == 202
            client.id = closed

            async def is_gone() -> bool:
                return (await client.say("session/list", {}, id=1)).status_code == 404

            # The server may still be reading the close frame.
            while not await is_gone():
                pass

    run(main())


@pytest.mark.requirement("14.ws-closing")
def test_the_newest_socket_of_a_connection_wins_and_delete_closes_it(acp: Server) -> None:
    async def main() -> None:
        async with websocket(acp) as first:
            await first.initialize()
            async with websocket(acp, f"/acp?connection={first.connection_id}") as second:
                assert (await first.closed())[0] == 4001
                assert "result" in await second.call("session/list", {})
                client = Acp(acp)
                async with client.http:
                    client.id = first.connection_id
                    assert (await client.http.delete("/acp", headers=client.headers())).status_code == 202
                assert (await second.closed())[0] == 1000

    run(main())


@pytest.mark.requirement("14.ws-slow")
def test_a_socket_that_is_not_read_is_cut_off_and_resumes(acp: Server) -> None:
    async def main() -> None:
        async with websocket(acp, subprotocols=(WITH_IDS,)) as slow, websocket(acp) as quick:
            await slow.initialize()
            await quick.initialize()
            id, session = slow.connection_id, await slow.session(acp.work)
            last = slow.last
            slow.socket.transport.pause_reading()
            await quick.call("_sandboxagent/session/attach", {"sessionId": session})
            answer = await quick.prompt(session, [["flood", 300, 100_000]], 7)
            assert answer["result"]["stopReason"] == "end_turn"
            slow.socket.transport.abort()
        async with websocket(acp, f"/acp?after={last}&connection={id}", subprotocols=(WITH_IDS,)) as slow:
            rest = await slow.until(lambda one: one.get("params", {}).get("state") == "ended")
            assert len([one for one in rest if "update" in one.get("params", {})]) >= 300

    run(main())


@pytest.mark.requirement("14.ws-rpc")
def test_a_permission_is_asked_and_answered_on_one_socket(acp: Server) -> None:
    async def main() -> None:
        async with websocket(acp, "/v1/rpc") as socket:
            await socket.initialize()
            session = await socket.session(acp.work)
            await socket.say("session/prompt", Client.prompt_params(session, [permission(), ["echo_answer"]]), 5)
            [*_, asked] = await socket.until(lambda one: one.get("method") == PERMISSION)
            await socket.send({"jsonrpc": "2.0", "id": asked["id"], "result": ALLOW})
            await socket.until(lambda one: is_answer(5, one))
            assert any("selected" in json.dumps(one) for one in socket.seen)
            await socket.send({"jsonrpc": "2.0", "id": "nobody", "result": {}})
            complaint = await socket.next()
            while "error" not in complaint:
                complaint = await socket.next()
            assert (
                complaint["error"]["data"] | {"requestId": "nobody", "type": "nobody-asked"}
                == complaint["error"]["data"]
            )

    run(main())


@pytest.mark.requirement("14.ws-silent")
def test_sockets_without_initialize_are_closed() -> None:
    """Hundreds of such sockets disturb no other client."""

    async def main(server: Server) -> None:
        place = urlsplit(server.url)
        head = (
            f"GET /acp HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {server.token}\r\n"
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        sockets: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        try:
            for _ in range(300):
                sockets.append(await asyncio.open_connection(place.hostname, place.port))
                sockets[-1][1].write(head.encode())
            async with websocket(server) as socket:
                await socket.initialize()
                session = await socket.session(server.work)
                assert (await socket.prompt(session, [["flood", 300, 10]]))["result"]["stopReason"] == "end_turn"
                async with asyncio.timeout(BOUND):
                    rests = [await reader.read() for reader, _ in sockets]
                assert all(rest.startswith(b"HTTP/1.1 101 ") and b"initialize did not come" in rest for rest in rests)
                assert (await socket.prompt(session, [["say", "still here"]]))["result"]["stopReason"] == "end_turn"
        finally:
            for _, writer in sockets:
                writer.transport.abort()

    with Server("--default-agent", "scripted", "--head-timeout", "5s") as server:
        run(main(server))


@pytest.mark.requirement("14.ws-flood")
@pytest.mark.parametrize("path", ["/acp", "/v1/rpc"])
def test_a_flood_of_empty_messages_closes_its_socket_and_others_go_on(acp: Server, path: str) -> None:
    async def main() -> None:
        async with websocket(acp) as other, websocket(acp, path) as flooder:
            await other.initialize()
            session = await other.session(acp.work)
            await flooder.initialize()
            flood = b"\x81\x80\0\0\0\0" * 100_000
            flooder.socket.transport.write(flood)
            assert (await other.prompt(session, [["say", "hello"]]))["result"]["stopReason"] == "end_turn"
            with pytest.raises(ConnectionClosed):
                await flooder.until(lambda _: False)
            code, reason = await flooder.closed()
            assert (code, "no envelopes" in reason) == (1008, True)

    run(main())


@pytest.mark.requirement("3.stream-requests")
def test_requests_beyond_the_limit_are_refused_on_every_way_to_the_stream() -> None:
    flags = ("--default-agent", "scripted", "--stream-requests", "2")
    with Server(*flags) as server:

        async def main() -> None:
            async with websocket(server, subprotocols=(WITH_IDS,)) as socket:
                await socket.initialize()
                sessions = [await socket.session(server.work) for _ in range(2)]
                for id, session in enumerate(sessions):
                    await socket.say("x/hang", {"sessionId": session}, 100 + id)
                refused = await socket.call("session/list", {}, 9)
                assert refused["error"]["data"]["type"] == "too-many"
                async with Acp(server) as client:
                    client.id = socket.connection_id
                    assert (await client.say("session/list", {}, 10)).status_code == 429
                    ours = {"X-ACP-Connection-Id": socket.connection_id, "Prefer": "respond-async"}
                    asked = {"jsonrpc": "2.0", "id": 11, "method": "session/list", "params": {}}
                    response = await client.http.post("/v1/rpc", json=asked, headers=ours)
                    assert (response.status_code, response.json()["limit"]) == (429, 2)
                await socket.say("x/release", {"sessionId": sessions[0]}, 12, key="")
                answer = await socket.until(lambda one: one.get("id") == 12)
                assert answer[-1]["error"]["data"]["type"] == "too-many"

        run(main())
