"""Calling a server: what is sent, and what each failure becomes, on both ways to a server."""

import asyncio
import socket
from collections.abc import AsyncGenerator

import httpx
import msgspec
import pytest

from sandboxagent import __version__
from sandboxagent.client.api import Api
from sandboxagent.client.errors import ClientError, ConnectionLost, ForeignAnswer, ServerProblem
from sandboxagent.protocol.envelope import Object
from tests.support.client import run
from tests.support.loopback import Asked, Loopback, answer, redirect
from tests.support.running import BOUND, TOKEN, Server

SECRET = "s3cret-t0ken"


class Status(msgspec.Struct):
    status: str


@pytest.fixture(params=["127.0.0.1", "0.0.0.0"])
def host(request: pytest.FixtureRequest) -> str:
    """A server of this machine as the SDK knows one, and under a name for which it takes the way to other machines."""
    return str(request.param)


# --- what is sent -----------------------------------------------------------------------------------------------------


def test_an_answer_is_read_as_the_type_that_was_asked_for(server: Server) -> None:
    async def main() -> None:
        api = Api(server.url, TOKEN)
        assert await api.json("GET", "/v1/health", type=Status) == Status("ok")
        await api.close()

    run(main())


def test_requests_say_who_calls_and_carry_the_token(host: str) -> None:
    async def main() -> None:
        async with Loopback({"/v1/x": answer(b"{}")}, host=host) as loopback:
            api = Api(loopback.url("/"), SECRET)
            await api.json("POST", "/v1/x", type=Object, body={"a": 1}, params={"yes": True, "n": 5, "no": None})
            await api.close()
        (asked,) = loopback.asked
        assert asked.path == "/v1/x?yes=true&n=5"
        assert asked.headers["authorization"] == f"Bearer {SECRET}"
        assert asked.headers["user-agent"] == f"sandbox-agent-python/{__version__}"
        assert asked.headers["content-type"] == "application/json"
        assert asked.headers["accept-encoding"] == "identity"

    run(main())


def test_a_server_may_live_below_a_path(host: str) -> None:
    async def main() -> None:
        async with Loopback({"/box/7/v1/x": answer(b"{}")}, host=host) as loopback:
            api = Api(loopback.url("/box/7/"))
            assert await api.json("GET", "/v1/x", type=Object) == {}
            await api.close()
        assert "authorization" not in loopback.asked[0].headers

    run(main())


def test_no_proxy_of_the_environment_is_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def main() -> None:
        async with Loopback({"/v1/x": answer(b"{}")}) as loopback:
            api = Api(f"http://localhost:{loopback.port}")
            assert await api.json("GET", "/v1/x", type=Object) == {}
            await api.close()

    run(main())


def test_a_proxy_of_the_environment_is_asked_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Loopback({"http://elsewhere.invalid/v1/x": answer(b"{}")}) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url(""))
            monkeypatch.delenv("no_proxy", raising=False)
            monkeypatch.delenv("NO_PROXY", raising=False)
            api = Api("http://elsewhere.invalid", SECRET)
            assert await api.json("GET", "/v1/x", type=Object) == {}
            await api.close()

    run(main())


def test_a_peer_that_vanishes_is_noticed_by_the_kernel() -> None:
    async def main() -> None:
        async with Loopback({"/v1/x": answer(b"{}")}, host="0.0.0.0") as loopback:
            api = Api(loopback.url(""))
            async with api.stream("GET", "/v1/x") as response:
                assert isinstance(response, httpx.Response)
                connection: socket.socket = response.extensions["network_stream"].get_extra_info("socket")
                assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            await api.close()

    run(main())


@pytest.mark.parametrize(
    "url",
    [
        *("", "127.0.0.1:2468", "ftp://127.0.0.1", "http://", "http://h:0", "http://h:99999", "http://h:x"),
        *("http://h/a b", "http://h?x=1", "http://h/#x", "http://[::1"),
    ],
)
def test_what_is_no_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match=r"expected an address|no such host or port"):
        Api(url)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="expected an address") as refused:
        Api(f"http://user:{SECRET}@127.0.0.1:2468")

    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("token", ["", "two words", f"{SECRET}\r\nX-Evil: 1", f"{SECRET}ä"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(ValueError, match="the token is empty, or has characters") as refused:
        Api("http://127.0.0.1:2468", token)

    assert SECRET not in str(refused.value)


def test_the_token_is_not_shown() -> None:
    assert SECRET not in repr(Api("http://127.0.0.1:2468", SECRET))


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_problem_of_the_server_has_all_that_it_said(server: Server) -> None:
    async def main() -> None:
        api = Api(server.url, TOKEN)
        with pytest.raises(ServerProblem) as refused:
            await api.json("GET", "/v1/agents/nobody", type=Object)
        await api.close()
        problem = refused.value
        assert (problem.slug, problem.status, problem.title) == ("unknown-agent", 404, "Unknown Agent")
        assert "nobody" in problem.detail
        assert "mock" in str(problem.fields["known"])

    run(main())


def test_a_wrong_token_is_a_problem_that_does_not_repeat_it(server: Server) -> None:
    async def main() -> None:
        api = Api(server.url, SECRET)
        with pytest.raises(ServerProblem) as refused:
            await api.json("GET", "/v1/agents", type=Object)
        await api.close()
        assert (refused.value.slug, refused.value.status) == ("unauthorized", 401)
        assert SECRET not in f"{refused.value!s}{refused.value!r}{refused.value.fields}"

    run(main())


@pytest.mark.parametrize(
    "reply",
    [
        answer(b"<h1>Bad Gateway</h1>", "502 Bad Gateway", Content_Type="text/html"),
        answer(b"<h1>Welcome</h1>", Content_Type="text/html"),
        answer(b"", "302 Found", Location="https://login.invalid/"),
        answer(b'{"status": 7}', Content_Type="application/json"),
        answer(b"\xff", Content_Type="application/json"),
        answer(b"x" * 3_000_000, "500 Internal Server Error", Content_Type="text/plain"),
    ],
)
def test_an_answer_that_is_not_the_servers_says_so(reply: bytes, host: str) -> None:
    async def main() -> None:
        async with Loopback({"/v1/x": reply}, host=host) as loopback:
            api = Api(loopback.url(""), SECRET)
            with pytest.raises(ForeignAnswer, match="does not answer like sandbox-agent") as refused:
                await api.json("GET", "/v1/x", type=Status)
            await api.close()
            assert refused.value.status == int(reply.split()[1])
            assert loopback.url("") in str(refused.value)

    run(main())


def test_an_answer_that_leads_elsewhere_says_where_to(host: str) -> None:
    async def main() -> None:
        async with Loopback({"/v1/x": redirect("https://elsewhere.invalid/v1/x")}, host=host) as loopback:
            api = Api(loopback.url(""), SECRET)
            with pytest.raises(ForeignAnswer, match=r"status 302, .*https://elsewhere\.invalid/v1/x"):
                await api.json("GET", "/v1/x", type=Status)
            await api.close()

    run(main())


def test_a_server_that_is_not_there_is_an_error_with_its_address_and_the_reason() -> None:
    async def main() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}"
            api = Api(url, SECRET)
            with pytest.raises(ConnectionLost) as lost:
                await api.json("GET", "/v1/health", type=Object)
            await api.close()
        assert str(lost.value) == f"no server answers at {url} (Connection refused)"
        assert not lost.value.outcome_unknown

    run(main())


@pytest.mark.parametrize(
    "cut", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"SSH-2.0-x\r\n"]
)
def test_an_answer_that_breaks_off_leaves_the_outcome_unknown(cut: bytes, host: str) -> None:
    async def main() -> None:
        async with Loopback({"/v1/x": cut}, host=host) as loopback:
            api = Api(loopback.url(""), SECRET)
            with pytest.raises(ConnectionLost, match="broke during POST /v1/x") as lost:
                await api.json("POST", "/v1/x", type=Object)
            await api.close()
            assert lost.value.outcome_unknown

    run(main())


def test_a_stream_that_breaks_off_while_it_is_read_is_lost(host: str) -> None:
    async def main() -> None:
        async with Loopback({"/v1/x": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"}, host=host) as loopback:
            api = Api(loopback.url(""))
            read = bytearray()
            with pytest.raises(ConnectionLost):
                await read_into(read, api)
            assert read == b"hello"
            await api.close()

    async def read_into(read: bytearray, api: Api) -> None:
        async with api.stream("GET", "/v1/x") as response:
            async for part in response.aiter_bytes():
                read += part

    run(main())


def test_a_server_that_says_nothing_for_too_long_is_lost(host: str) -> None:
    async def main() -> None:
        over = asyncio.Event()

        async def silent(asked: Asked, writer: asyncio.StreamWriter) -> None:
            await over.wait()

        async with Loopback({"/v1/x": silent}, host=host) as loopback:
            api = Api(loopback.url(""))
            with pytest.raises(ConnectionLost, match=r"said nothing for 0\.05 s after GET /v1/x") as lost:
                await api.request("GET", "/v1/x", silence=0.05)
            over.set()
            await api.close()
            assert lost.value.outcome_unknown

    run(main())


def test_a_closed_client_says_so() -> None:
    async def main() -> None:
        api = Api("http://127.0.0.1:9")
        await api.close()
        with pytest.raises(ClientError, match="this client is closed"):
            await api.request("GET", "/v1/health")

    run(main())


def test_what_the_caller_raises_while_it_sends_stays_as_it_is(server: Server) -> None:
    async def broken() -> AsyncGenerator[bytes]:
        yield b"x"
        raise KeyError("mine")

    async def main() -> None:
        api = Api(server.url, TOKEN)
        with pytest.raises(KeyError, match="mine"):
            await api.request("PUT", "/v1/fs/file", params={"path": "never"}, content=broken())
        await api.close()

    run(main())


def test_hundreds_of_requests_wait_side_by_side(host: str) -> None:
    many = 300

    async def main() -> None:
        arrived, go = asyncio.Semaphore(0), asyncio.Event()

        async def wait(asked: Asked, writer: asyncio.StreamWriter) -> None:
            arrived.release()
            await go.wait()
            writer.write(answer(b"{}"))

        async with Loopback({"/v1/x": wait}, host=host) as loopback:
            api = Api(loopback.url(""))
            calls = [asyncio.create_task(api.json("GET", "/v1/x", type=Object)) for _ in range(many)]
            async with asyncio.timeout(BOUND):
                for _ in range(many):
                    await arrived.acquire()
            go.set()
            assert await asyncio.gather(*calls) == [{}] * many
            await api.close()

    run(main())


def test_closing_ends_what_still_waits(host: str) -> None:
    async def main() -> None:
        arrived, over = asyncio.Event(), asyncio.Event()

        async def silent(asked: Asked, writer: asyncio.StreamWriter) -> None:
            arrived.set()
            await over.wait()

        async with Loopback({"/v1/x": silent}, host=host) as loopback:
            api = Api(loopback.url(""))
            call = asyncio.create_task(api.request("GET", "/v1/x"))
            async with asyncio.timeout(BOUND):
                await arrived.wait()
                await api.close()
                with pytest.raises(ConnectionLost):
                    await call
            over.set()

    run(main())
