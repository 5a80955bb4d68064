"""Section 3: bodies that are too long or end early, and HTTP that can be read in two ways."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.client import Client, run
from tests.support.nonsense import NO_ENVELOPES, ONE_SERVER
from tests.support.problems import problem
from tests.support.running import BOUND, Server, eventually
from tests.support.wire import Wire, initialize

JSON = "Content-Type: application/json"
CHUNKED = "Transfer-Encoding: chunked"


def chunks(body: bytes, size: int = 1 << 20) -> Iterator[bytes]:
    for at in range(0, len(body), size):
        piece = body[at : at + size]
        yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


async def opened(server: Server) -> str:
    async with Client(server) as client:
        return f"X-ACP-Connection-Id: {client.id}"


def works(wire: Wire) -> None:
    """The next valid request on the same socket."""
    wire.send(wire.health())
    assert wire.response().status_code == 200


# Sizes


@pytest.mark.requirement("3.max-body-413", "3.good-after-bad")
@pytest.mark.parametrize("way", ["length", "chunked"])
@ONE_SERVER
def test_a_body_of_33_mib_is_a_413_and_the_next_request_works(server: Server, way: str) -> None:
    connection = run(opened(server))
    text = b"x" * (33 << 20)
    body = b'{"jsonrpc":"2.0","id":1,"method":"x/echo","params":{"a":"' + text + b'"}}'
    with Wire(server) as wire:
        if way == "length":
            wire.send(wire.post(body, connection))
        else:
            wire.send(wire.request("POST /v1/rpc", JSON, CHUNKED, connection), *chunks(body))
        assert problem(wire.response(), 413, "body-too-large")["limit"] == 32 << 20
        assert wire.hung_up()
    with Wire(server) as wire:
        wire.send(wire.post(b'{"jsonrpc":"2.0","id":1,"method":"x/echo"}', connection))
        assert wire.response().json()["result"]["method"] == "x/echo"


@pytest.mark.requirement("3.max-body-413")
@ONE_SERVER
def test_a_length_over_the_limit_is_refused_before_the_body_comes(server: Server) -> None:
    connection = run(opened(server))
    with Wire(server) as wire:
        wire.send(wire.request("POST /v1/rpc", JSON, f"Content-Length: {33 << 20}", connection))
        problem(wire.response(), 413, "body-too-large")


@pytest.mark.requirement("3.max-body-413")
@ONE_SERVER
def test_a_client_that_waits_for_a_100_is_refused_without_sending_the_body(server: Server) -> None:
    connection = run(opened(server))
    with Wire(server) as wire:
        expect = "Expect: 100-continue"
        wire.send(wire.request("POST /v1/rpc", JSON, f"Content-Length: {33 << 20}", expect, connection))
        problem(wire.response(), 413, "body-too-large")
    with Wire(server) as wire:
        body = b'{"jsonrpc":"2.0","id":1,"method":"x/echo"}'
        wire.send(wire.request("POST /v1/rpc", JSON, f"Content-Length: {len(body)}", expect, connection))
        assert wire.response().status_code == 100
        wire.send(body)
        assert wire.response().json()["id"] == 1


@pytest.mark.requirement("3.max-body-413")
def test_the_limit_is_what_max_body_says_to_the_byte() -> None:
    async def main(server: Server) -> None:
        async with Client(server) as client:
            body = b'{"jsonrpc":"2.0","id":1,"method":"x/echo"}'.ljust(1024)
            assert (await client.post(body)).status_code == 200
            assert problem(await client.post(body + b" "), 413, "body-too-large")["limit"] == 1024

            async def pieces() -> AsyncGenerator[bytes]:
                yield body
                yield b" "

            headers = client.headers(Content_Type="application/json")
            problem(await client.http.post("/v1/rpc", content=pieces(), headers=headers), 413, "body-too-large")
            assert (await client.post(body)).status_code == 200

    with Server("--no-persist", "--max-body", "1KiB") as server:
        run(main(server))


@pytest.mark.requirement("3.max-body-413")
@ONE_SERVER
def test_a_large_body_within_the_limit_is_taken(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            body = f'{{"jsonrpc":"2.0","method":"x/large","params":"{"x" * (8 << 20)}"}}'
            assert (await client.post(body)).status_code == 202
            assert "result" in await client.call("x/echo")

    run(main())


# Bodies that end early


@pytest.mark.requirement("3.body-stops")
@pytest.mark.parametrize("way", ["length", "chunked"])
@ONE_SERVER
def test_a_body_that_stops_half_way_has_no_effect(server: Server, way: str) -> None:
    async def received(client: Client) -> str:
        return "".join((await client.result("x/received"))["lines"])

    async def main() -> None:
        async with Client(server) as client:
            connection = f"X-ACP-Connection-Id: {client.id}"
            mark = f"half-{way}-{client.id}"
            body = f'{{"jsonrpc":"2.0","method":"{mark}"}}'.encode()
            with Wire(server) as wire:
                if way == "length":
                    wire.send(
                        wire.request("POST /v1/rpc", JSON, f"Content-Length: {len(body) + 1}", connection, body=body)
                    )
                else:
                    wire.send(wire.request("POST /v1/rpc", JSON, CHUNKED, connection), next(chunks(body)))
                assert "result" in await client.call("x/echo"), "others are served while it waits"
            assert mark not in await received(client)
            assert "result" in await client.call("x/echo")

    run(main())


@pytest.mark.requirement("3.body-stops")
@ONE_SERVER
def test_a_body_that_comes_byte_by_byte_is_a_body(server: Server) -> None:
    connection = run(opened(server))
    with Wire(server) as wire:
        data = wire.post(b'{"jsonrpc":"2.0","id":1,"method":"x/echo"}', connection)
        wire.send(*(data[at : at + 1] for at in range(len(data))))
        assert wire.response().json()["id"] == 1
        works(wire)


@pytest.mark.requirement("3.body-stops")
@ONE_SERVER
def test_many_clients_that_stop_half_way_leave_nothing_open(server: Server) -> None:
    def descriptors() -> int:
        return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))

    before = descriptors()
    for _ in range(50):
        with Wire(server) as wire:
            wire.send(wire.request("POST /v1/rpc", JSON, "Content-Length: 100", body=b"{"))
    eventually(lambda: descriptors() <= before + 2, "closing the sockets")


@pytest.mark.requirement("3.body-stops")
def test_the_server_stops_cleanly_while_a_body_is_on_its_way() -> None:
    # The block asserts that it ends with code 0 and without a traceback.
    with ExitStack() as after, Server("--no-persist") as server:
        wire = after.enter_context(Wire(server))
        wire.send(wire.request("POST /v1/rpc", JSON, "Content-Length: 100", body=b"{"))
        with Wire(server) as other:
            works(other)
        assert server.stop() == 0
        assert wire.hung_up()


# HTTP that can be read in two ways

BODY = initialize()
LENGTH = f"Content-Length: {len(BODY)}"
AMBIGUOUS: dict[str, tuple[str, list[str | bytes]]] = {
    "a length and chunks": ("POST /v1/rpc", [JSON, LENGTH, CHUNKED]),
    "chunks and a length": ("POST /v1/rpc", [JSON, CHUNKED, LENGTH]),
    "two lengths": ("POST /v1/rpc", [JSON, LENGTH, "Content-Length: 5"]),
    "the same length twice": ("POST /v1/rpc", [JSON, LENGTH, LENGTH]),
    "a list of lengths": ("POST /v1/rpc", [JSON, f"Content-Length: {len(BODY)}, {len(BODY)}"]),
    "a negative length": ("POST /v1/rpc", [JSON, "Content-Length: -1"]),
    "a signed length": ("POST /v1/rpc", [JSON, f"Content-Length: +{len(BODY)}"]),
    "a hexadecimal length": ("POST /v1/rpc", [JSON, "Content-Length: 0x10"]),
    "a length with a space in it": ("POST /v1/rpc", [JSON, "Content-Length: 1 0"]),
    "a length beyond all numbers": ("POST /v1/rpc", [JSON, "Content-Length: 99999999999999999999999"]),
    "an empty length": ("POST /v1/rpc", [JSON, "Content-Length:"]),
    "chunked that is not quite": ("POST /v1/rpc", [JSON, "Transfer-Encoding: xchunked"]),
    "chunked that is not last": ("POST /v1/rpc", [JSON, "Transfer-Encoding: chunked, identity"]),
    "chunked under a tab": ("POST /v1/rpc", [JSON, LENGTH, "Transfer-Encoding:\tchunked"]),
    "a folded header": ("GET /v1/health", ["X-A: one", " two"]),
    "a folded connection id": ("POST /v1/rpc", [JSON, LENGTH, "X-ACP-Connection-Id: one", "\ttwo"]),
    "a folded transfer encoding": ("POST /v1/rpc", [JSON, LENGTH, "Transfer-Encoding:", " chunked"]),
    "a space before the colon": ("GET /v1/health", ["X-A : one"]),
    "a transfer encoding with a space": ("POST /v1/rpc", [JSON, LENGTH, "Transfer-Encoding : chunked"]),
    "a space before the first header": ("GET /v1/health", [" X-A: one"]),
    "a header without a colon": ("GET /v1/health", ["X-A"]),
    "a header without a name": ("GET /v1/health", [": one"]),
    "a CR in a value": ("GET /v1/health", [b"X-A: one\rX-B: two\r\n"]),
    "an LF in a value": ("GET /v1/health", [b"X-A: one\nX-B: two\r\n"]),
    "an LF that hides a length": ("POST /v1/rpc", [JSON, b"X-A: one\nContent-Length: 5\r\n", LENGTH]),
    "a NUL in a value": ("GET /v1/health", [b"X-A: one\0two\r\n"]),
    "a NUL in a name": ("GET /v1/health", [b"X-A\0: one\r\n"]),
    "two hosts": ("GET /v1/health", ["Host: evil.example"]),
    "the same host twice": ("GET /v1/health", ["Host: 127.0.0.1"]),
    "two connections": ("POST /v1/rpc", [JSON, LENGTH, "X-ACP-Connection-Id: a", "X-ACP-Connection-Id: b"]),
    "two tokens": ("GET /v1/health", ["Authorization: Bearer other"]),
    "two content types": ("POST /v1/rpc", [JSON, "Content-Type: text/plain", LENGTH]),
    "a space in the target": ("GET /v1/health HTTP/1.1 x", []),
    "another protocol": ("GET /v1/health HTTP/9.9\r\nX-A: GET", []),
    "no target": ("GET", []),
    "a method in lower case": ("get /v1/health", []),
    "an unknown method": ("FETCH /v1/health", []),
    "bytes in the target": ("GET /v1/\xff", []),
    "a target that is no path": ("GET v1/health", []),
    "a tunnel": ("CONNECT 127.0.0.1:80", []),
    "a tunnel to a path": ("CONNECT /", []),
    "a tunnel with another protocol": ("CONNECT /", ["Connection: Upgrade", "Upgrade: h2c"]),
    "chunks in HTTP/1.0": (f"POST /v1/rpc HTTP/1.0\r\n{CHUNKED}\r\nX-A: GET", [JSON]),
    "chunks that are packed": ("POST /v1/rpc", [JSON, "Transfer-Encoding: gzip, chunked"]),
    "HTTP/2 without an offer": ("GET /v1/health HTTP/2.0\r\nX-A: GET", []),
    "HTTP/0.9": ("GET /v1/health HTTP/0.9\r\nX-A: GET", []),
}


@pytest.mark.requirement("3.ambiguous-http-400", "3.good-after-bad")
@pytest.mark.parametrize("name", AMBIGUOUS)
@ONE_SERVER
def test_http_that_can_be_read_in_two_ways_is_a_400(server: Server, name: str) -> None:
    start, headers = AMBIGUOUS[name]
    with Wire(server) as wire:
        wire.send(wire.request(start, *headers, body=BODY if start.startswith("POST") else b""))
        response = wire.response()
        problem(response, 400)
        if response.headers.get("connection") == "close":
            assert wire.hung_up()
        else:
            works(wire)
    with Wire(server) as wire:
        works(wire)


@pytest.mark.requirement("3.ambiguous-http-400")
@pytest.mark.parametrize(
    "piece", [b"zz\r\n\r\n", b"-1\r\n\r\n", b"5\r\nabcdefgh\r\n", b"5;\0\r\nabcde\r\n", b"1 0\r\n"]
)
@ONE_SERVER
def test_chunks_that_do_not_add_up_are_a_400(server: Server, piece: bytes) -> None:
    connection = run(opened(server))
    with Wire(server) as wire:
        wire.send(wire.request("POST /v1/rpc", JSON, CHUNKED, connection), piece)
        problem(wire.response(), 400)
        assert wire.hung_up()


@pytest.mark.requirement("3.ambiguous-http-400")
@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.0\r\n",
        b"\r\n\r\n\r\nhello\r\n\r\n",
        b'{"jsonrpc":"2.0","id":1,"method":"x/echo"}\n',
        b"\0" * 100,
    ],
)
@ONE_SERVER
def test_what_is_not_http_is_a_400(server: Server, data: bytes) -> None:
    with Wire(server) as wire:
        wire.send(data)
        problem(wire.response(), 400)
        assert wire.hung_up()


@pytest.mark.requirement("3.ambiguous-http-400")
@ONE_SERVER
def test_a_request_hidden_in_a_body_is_not_a_request(server: Server) -> None:
    connection = run(opened(server))
    with Wire(server) as wire:
        hidden = wire.request("DELETE /v1/rpc", connection)
        wire.send(wire.request("POST /v1/rpc", JSON, f"Content-Length: {len(hidden)}", connection, body=hidden))
        problem(wire.response(), 400, "not-an-envelope")
        wire.send(wire.post(b'{"jsonrpc":"2.0","id":1,"method":"x/echo"}', connection))
        assert wire.response().json()["id"] == 1


@pytest.mark.requirement("3.ambiguous-http-400")
@ONE_SERVER
def test_a_bad_request_behind_a_good_one_does_not_take_its_answer(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(wire.post(BODY) + b"GARBAGE\r\n\r\n")
        first = wire.response()
        assert (first.status_code, first.json()["id"]) == (200, 1)
        problem(wire.response(), 400)
        assert wire.hung_up()


@pytest.mark.requirement("3.ambiguous-http-400")
@pytest.mark.parametrize("target", ["http://127.0.0.1/v1/health", "HTTP://127.0.0.1/v1/health"])
@ONE_SERVER
def test_an_absolute_target_of_the_same_host_is_fine(server: Server, target: str) -> None:
    with Wire(server) as wire:
        wire.send(wire.request(f"GET {target}"))
        assert wire.response().json()["status"] == "ok"
        works(wire)


@pytest.mark.requirement("3.ambiguous-http-400")
@pytest.mark.parametrize(
    "target",
    [
        "http://evil.example/v1/health",
        "http://127.0.0.1@evil.example/v1/health",
        "http://127.0.0.1.evil.example/v1/health",
        "http://127.0.0.1:1/v1/health",
        "http:///v1/health",
        "file:///v1/health",
        "//evil.example/v1/health",
    ],
)
@ONE_SERVER
def test_an_absolute_target_of_another_host_is_refused(server: Server, target: str) -> None:
    with Wire(server) as wire:
        wire.send(wire.request(f"GET {target}"))
        response = wire.response()
        assert response.status_code in (400, 404, 421)
        problem(response, response.status_code)


@pytest.mark.requirement("3.ambiguous-http-400")
@ONE_SERVER
def test_a_request_without_a_host_is_refused(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(wire.request("GET /v1/health", host=False))
        response = wire.response()
        assert response.status_code in (400, 421)
        problem(response, response.status_code)


@pytest.mark.requirement("3.ambiguous-http-400", "3.good-after-bad")
@ONE_SERVER
def test_options_of_the_whole_server_is_a_problem_and_the_next_request_works(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(wire.request("OPTIONS *"))
        problem(wire.response(), 404)
        works(wire)


@pytest.mark.requirement("3.request-200", "3.good-after-bad")
@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.0"])
@ONE_SERVER
def test_an_offer_of_another_protocol_is_not_taken_and_changes_nothing(server: Server, protocol: str) -> None:
    """`curl --http2` sends such an offer with every request."""
    connection = run(opened(server))
    upgrade = (
        "Connection: Upgrade, HTTP2-Settings",
        f"Upgrade: {protocol}",
        "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
    )
    with Wire(server) as wire:
        for id in range(3):
            body = b'{"jsonrpc":"2.0","id":%d,"method":"x/echo"}' % id
            wire.send(wire.post(body, connection, *upgrade))
            response = wire.response()
            assert (response.status_code, response.json()["id"]) == (200, id)
            wire.send(wire.request("GET /v1/health", *upgrade))
            assert wire.response().status_code == 200
        body = b'{"jsonrpc":"2.0","id":9,"method":"x/echo"}'
        wire.send(wire.request("POST /v1/rpc", JSON, CHUNKED, connection, *upgrade), *chunks(body, 7))
        assert wire.response().json()["id"] == 9
        works(wire)


@pytest.mark.requirement("3.large-headers-431")
@pytest.mark.parametrize("pieces", [1, 2, 50], ids=["at once", "in two", "in many"])
@pytest.mark.parametrize("what", ["one", "many", "target", "endless"])
@ONE_SERVER
def test_headers_over_64_kib_are_a_431(server: Server, what: str, pieces: int) -> None:
    with Wire(server) as wire:
        large: dict[str, bytes] = {
            "one": wire.request("GET /v1/health", "X-A: " + "a" * 100_000),
            "many": wire.request("GET /v1/health", *(f"X-{n}: {'a' * 50}" for n in range(2000))),
            "target": wire.request("GET /v1/health?" + "a" * 100_000),
            "endless": wire.request("GET /v1/health", "X-A: " + "a" * 300_000)[:-4],
        }
        data = large[what]
        size = len(data) // pieces + 1
        wire.send(*(data[at : at + size] for at in range(0, len(data), size)))
        assert problem(wire.response(), 431, "headers-too-large")["limit"] == 64 << 10
        assert wire.hung_up()


@pytest.mark.requirement("3.large-headers-431")
@pytest.mark.parametrize("token", [True, False], ids=["with a token", "without a token"])
@pytest.mark.parametrize("count", [201, 9000])
@ONE_SERVER
def test_more_than_200_headers_are_a_431_however_short_they_are(server: Server, count: int, token: bool) -> None:
    with Wire(server) as wire:
        # Host is one of them; one name is there twice, so that all of them have to be compared.
        own = [f"Authorization: Bearer {server.token}"] if token else ["A: b"]
        names = [f"{n:x}:" for n in range(count - 3)]
        lines = ["GET /v1/health HTTP/1.1", "Host: 127.0.0.1", *own, *names, names[0], "", ""]
        head = "\r\n".join(lines).encode()
        assert len(head) < 64 << 10
        wire.send(head)
        problem(wire.response(), 431, "headers-too-large")
        assert wire.hung_up()


@pytest.mark.requirement("3.large-headers-431")
@ONE_SERVER
def test_two_hundred_headers_are_fine_and_need_the_token_like_any(server: Server) -> None:
    with Wire(server) as wire:
        names = [f"X-{n}: a" for n in range(197)]
        wire.send(wire.request("GET /v1/health", *names, "X-0: b"))
        assert wire.response().status_code == 200
        head = wire.request("GET /v1/health", *names, "X-0: b")
        wire.send(head.replace(b"Authorization: Bearer", b"X-Other:"))
        problem(wire.response(), 401, "unauthorized")


@pytest.mark.requirement("3.large-headers-431")
@ONE_SERVER
def test_headers_up_to_60_kib_are_fine(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(wire.request("GET /v1/health", "X-A: " + "a" * 60_000))
        assert wire.response().status_code == 200
        works(wire)


@pytest.mark.requirement("3.large-headers-431")
@ONE_SERVER
def test_a_large_body_before_a_head_does_not_count_as_headers(server: Server) -> None:
    connection = run(opened(server))
    with Wire(server) as wire:
        body = b'{"jsonrpc":"2.0","id":1,"method":"x/echo"}'.ljust(150_000)
        health = wire.health()
        wire.send(wire.post(body, connection) + health[:20])
        assert wire.response().json()["id"] == 1
        wire.send(health[20:])
        assert wire.response().status_code == 200


@pytest.mark.requirement("3.good-after-bad")
@ONE_SERVER
def test_one_socket_takes_everything_bad_and_then_something_good(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
            async with httpx.AsyncClient(
                base_url=server.url, limits=limits, trust_env=False, verify=False, timeout=BOUND
            ) as http:
                headers = client.headers(
                    Content_Type="application/json", Authorization=f"Bearer {server.token}", Accept="application/json"
                )
                for body in NO_ENVELOPES:
                    response = await http.post("/v1/rpc", content=body.encode(), headers=headers)
                    problem(response, 400, "not-an-envelope")
                sent = '{"jsonrpc":"2.0","id":1,"method":"x/echo"}'
                assert (await http.post("/v1/rpc", content=sent, headers=headers)).status_code == 200

    run(main())


@pytest.mark.requirement("3.good-after-bad")
@pytest.mark.parametrize(
    ("start", "status"),
    [
        ("GET /v1/health", 200),
        ("DELETE /v1/rpc", 400),
        ("GET /v1/rpc", 400),
        ("PUT /v1/rpc", 405),
        ("POST /v1/sessions/x/messages", 410),
        ("POST /v1/fs/mkdir", 400),
        ("POST /nothing", 404),
    ],
)
@ONE_SERVER
def test_an_unread_body_is_not_taken_for_the_next_request(server: Server, start: str, status: int) -> None:
    with Wire(server) as wire:
        body = wire.request("DELETE /v1/rpc") * 3000
        wire.send(wire.request(start, JSON, f"Content-Length: {len(body)}", body=body))
        assert wire.response().status_code == status
        works(wire)
        # How long this one will be, the server cannot know: its end has not come.
        wire.send(wire.request(start, JSON, CHUNKED), next(chunks(body)))
        response = wire.response()
        assert (response.status_code, response.headers["connection"]) == (status, "close")
        assert wire.hung_up()
    with Wire(server) as wire:
        works(wire)


@pytest.mark.requirement("3.good-after-bad")
@ONE_SERVER
def test_a_hundred_bad_requests_at_once_hold_up_no_client(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            bad = [client.post(body) for body in NO_ENVELOPES * 2]
            good = [client.call("x/echo", {"n": n}) for n in range(20)]
            responses = await asyncio.gather(*bad, *good)
            assert [each["result"]["params"]["n"] for each in responses[len(bad) :]] == list(range(20))

    run(main())
