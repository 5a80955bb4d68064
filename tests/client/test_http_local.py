"""The HTTP client for a server on this machine: sockets used again, bodies both ways, and servers that leave."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import uvloop

from sandboxagent import SandboxAgent
from sandboxagent.client.api import Api
from sandboxagent.client.errors import ConnectionLost, ForeignAnswer
from sandboxagent.client.http import MAX_IDLE
from sandboxagent.client.http_local import _Socket
from tests.support.client import run
from tests.support.loopback import answer
from tests.support.running import BOUND, TOKEN, Server

Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(play: Play, host: str = "127.0.0.1") -> AsyncGenerator[str]:
    """The address of a server that plays this on every socket, and then closes it."""

    serving: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await play(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(accept, host, 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.gather(*serving)


async def head_of(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\r\n\r\n")).decode()


def test_it_works_on_either_event_loop(server: Server) -> None:
    async def main() -> None:
        async with SandboxAgent.connect(server.url, TOKEN) as client:
            assert (await client.health()).status == "ok"
            assert (await client.health()).status == "ok"

    for loop in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(asyncio.wait_for(main(), BOUND))


def test_a_socket_that_is_gone_is_not_closed_again() -> None:
    class Gone(asyncio.Transport):
        def abort(self) -> None:
            raise AttributeError("asyncio's own has no event loop any more")

    async def main() -> None:
        opened = _Socket()
        opened.connection_made(Gone())
        opened.connection_lost(None)
        opened.abort()

    run(main())


def test_connecting_to_a_server_of_this_machine_imports_no_other_http_client(server: Server) -> None:
    program = f"""
import asyncio, sys
from sandboxagent import SandboxAgent
async def main():
    async with SandboxAgent.connect({server.url!r}, {TOKEN!r}): pass
asyncio.run(main())
print({{"anyio", "certifi", "email", "http.client", "httpcore", "httpx", "idna", "urllib.request"}} & {{*sys.modules}})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=BOUND, check=True)

    assert done.stdout.strip() == "set()"


def test_a_socket_is_used_again_after_a_whole_response() -> None:
    sockets: list[int] = []

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sockets.append(0)
        while await head_of(reader):
            sockets[-1] += 1
            writer.write(answer(b"{}"))

    async def main() -> None:
        async with serving(play) as url:
            api = Api(url)
            for _ in range(3):
                await api.request("GET", "/v1/x")
            async with api.stream("GET", "/v1/x"):
                pass  # Not read: what is left of it must not be taken for the next response.
            await api.request("GET", "/v1/x")
            await api.close()

    run(main())
    assert sockets == [4, 1]


def test_a_socket_that_the_server_has_closed_is_not_used_again() -> None:
    closed = asyncio.Event()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(answer(b"{}"))
        writer.close()
        await writer.wait_closed()
        closed.set()

    async def main() -> None:
        async with serving(play) as url:
            api = Api(url)
            for _ in range(2):
                await api.request("POST", "/v1/x")
                await closed.wait()
            await api.close()

    run(main())


def test_a_socket_that_brings_more_than_a_response_is_not_used_again() -> None:
    sockets = 0

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sockets
        sockets += 1
        while await head_of(reader):
            writer.write(answer(b"{}") + answer(b"forged"))

    async def main() -> None:
        async with serving(play) as url:
            api = Api(url)
            for _ in range(2):
                assert (await api.request("GET", "/v1/x")).content == b"{}"
            await api.close()

    run(main())
    assert sockets == 2


def test_of_the_sockets_that_are_no_longer_used_few_are_kept() -> None:
    many = MAX_IDLE + 5
    left, arrived, go = asyncio.Semaphore(0), asyncio.Semaphore(0), asyncio.Event()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        arrived.release()
        await go.wait()
        writer.write(answer(b"{}"))
        await reader.read()
        left.release()

    async def main() -> None:
        async with serving(play) as url:
            api = Api(url)
            calls = [asyncio.create_task(api.request("GET", "/v1/x")) for _ in range(many)]
            for _ in calls:
                await arrived.acquire()
            go.set()
            await asyncio.gather(*calls)
            for _ in range(5):
                await left.acquire()
            await api.close()
            for _ in range(MAX_IDLE):
                await left.acquire()

    run(main())


def test_a_server_that_refuses_a_body_early_is_heard() -> None:
    async def endless() -> AsyncGenerator[bytes]:
        while True:
            yield b"x" * (1 << 16)
            await asyncio.sleep(0)

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        await reader.read(1 << 16)
        writer.write(answer(b"too much", "413 Content Too Large"))
        await writer.drain()
        # The rest is taken for a moment, as a server does that wants to be heard.
        for _ in range(64):
            await reader.read(1 << 16)

    async def main() -> None:
        async with serving(play) as url:
            api = Api(url)
            with pytest.raises(ForeignAnswer) as refused:
                await api.request("PUT", "/v1/x", content=endless())
            assert refused.value.status == 413
            await api.close()

    run(main())


def test_a_body_that_is_not_read_stays_at_the_server() -> None:
    size, taken = 64 << 20, 0

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while True:
            await writer.drain()
            writer.write(b"x" * (1 << 20))
            taken += 1 << 20

    async def main() -> None:
        async with serving(play) as url:
            api = Api(url)
            async with api.stream("GET", "/v1/x") as response:
                before = -1
                while before != taken:  # until the server waits
                    before = taken
                    for _ in range(1000):
                        await asyncio.sleep(0)
                assert taken < size // 2
                read = 0
                async for part in response.aiter_bytes():
                    read += len(part)
                assert read == size
            await api.close()

    run(main())


@pytest.mark.parametrize("family", ["127.0.0.1", "::1"])
def test_localhost_is_found_in_either_family(family: str) -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert "host: localhost" in (await head_of(reader)).lower()
        writer.write(answer(b"{}"))

    async def main() -> None:
        async with serving(play, family) as url:
            api = Api(url.replace("127.0.0.1", "localhost"))
            assert (await api.request("GET", "/v1/x")).content == b"{}"
            await api.close()

    if family == "::1" and not _has_both_families():
        pytest.skip("localhost has one family here")
    run(main())


def _has_both_families() -> bool:
    return len({info[0] for info in socket.getaddrinfo("localhost", 80)}) > 1


def test_informational_response_is_skipped_and_repeated_header_joined() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await head_of(reader)
        assert head.startswith("GET /v1/%C3%A4?a%20b=1&c=d%26e HTTP/1.1\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 2\r\nx-a: 2\r\n\r\n{}")

    async def main() -> None:
        async with serving(play) as url:
            api = Api(url)
            response = await api.request("GET", "/v1/ä", params={"a b": 1, "c": "d&e"})
            assert (response.status_code, response.reason_phrase, response.http_version) == (200, "OK", "HTTP/1.1")
            assert response.headers["X-A"] == "1, 2"
            assert "content-length" in response.headers
            await api.close()

    run(main())


def test_a_response_without_a_length_ends_with_its_socket() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nall of it")

    async def main() -> None:
        async with serving(play) as url:
            api = Api(url)
            assert (await api.request("GET", "/v1/x")).content == b"all of it"
            await api.close()

    run(main())


def test_a_head_without_an_end_is_given_up() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            writer.write(b"x" * (1 << 16))
            await writer.drain()

    async def main() -> None:
        async with serving(play) as url:
            api = Api(url)
            with pytest.raises(ConnectionLost, match="broke during GET /v1/x"):
                await api.request("GET", "/v1/x")
            await api.close()

    run(main())
