"""Sections 3 and 10: what a socket may cost a server whose owner has not shown the token, or has, and is slow."""

import resource
import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.client import Client, run
from tests.support.problems import problem
from tests.support.running import Server, eventually
from tests.support.wire import Wire, initialize

SECOND = ("--head-timeout", "1s", "--body-timeout", "1s", "--idle-timeout", "1s")
FEW = 256
"""Descriptors of a server that has few."""


@pytest.fixture(scope="module")
def impatient() -> Generator[Server]:
    with Server("--no-persist", *SECOND) as running:
        yield running


@contextmanager
def few_descriptors() -> Generator[None]:
    """What is started in this block may have few of them."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def memory(server: Server) -> int:
    """Bytes of memory that a server has."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS"))


@pytest.mark.requirement("3.slow-request-408")
def test_half_a_head_is_answered_408_and_its_socket_closed(impatient: Server) -> None:
    with Wire(impatient) as wire:
        wire.send(b"GET / HTTP/1.1\r\nHos")
        assert problem(wire.response(), 408, "request-timeout")["timeout"] == 1
        assert wire.hung_up()


@pytest.mark.requirement("3.slow-request-408")
def test_half_a_body_is_answered_408_and_its_socket_closed(impatient: Server) -> None:
    with Wire(impatient) as wire:
        wire.send(wire.request("POST /v1/rpc", "Content-Type: application/json", "Content-Length: 9", body=b"{"))
        assert problem(wire.response(), 408, "request-timeout")["timeout"] == 1
        assert wire.hung_up()


@pytest.mark.requirement("3.idle-socket")
def test_a_socket_that_is_not_used_is_closed_before_and_after_a_request(impatient: Server) -> None:
    with Wire(impatient) as unused, Wire(impatient) as used:
        used.send(used.health())
        assert used.response().status_code == 200
        assert used.hung_up()
        assert unused.hung_up()


@pytest.mark.requirement("3.idle-socket")
def test_a_stream_and_a_post_that_wait_outlive_idle_sockets(impatient: Server) -> None:
    with ExitStack() as stack:

        def sends(request: bytes) -> Wire:
            wire = stack.enter_context(Wire(impatient))
            wire.send(request)
            return wire

        with Wire(impatient) as wire:
            opened = sends(wire.post(initialize())).response()
            connection = f"X-ACP-Connection-Id: {opened.headers['x-acp-connection-id']}"
            stream = sends(wire.request("GET /v1/rpc", connection))
            waiting = sends(wire.post(b'{"jsonrpc":"2.0","id":1,"method":"x/hang"}', connection))
            for _ in range(2):
                assert sends(b"").hung_up()
            released = sends(wire.post(b'{"jsonrpc":"2.0","id":2,"method":"x/release"}', connection))
            assert released.response().json()["id"] == 2
            assert waiting.response().json()["id"] == 1
            assert sends(wire.request("DELETE /v1/rpc", connection)).response().status_code == 204
        assert b": closed: the client closed the connection" in stream.response().content


@pytest.mark.requirement("3.pipelining")
def test_requests_one_behind_another_take_no_memory_while_they_wait(impatient: Server) -> None:
    """Without a token, and without reading an answer: of all that could be sent, little is read."""
    request = b"GET /v1/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    burst = request * ((2 << 20) // len(request))
    with Wire(impatient) as client:
        client.send(client.health())
        client.response()
    before = memory(impatient)
    with ExitStack() as stack:
        for _ in range(6):
            wire = stack.enter_context(Wire(impatient))
            wire.socket.setblocking(False)
            try:
                wire.socket.send(burst)
            except (BlockingIOError, ConnectionError):
                continue
        with Wire(impatient) as client:
            client.send(client.health())
            assert client.response().status_code == 200
        assert memory(impatient) - before < 60 << 20
    assert memory(impatient) - before < 60 << 20


@pytest.mark.requirement("10.anonymous-sockets")
def test_strangers_cannot_use_up_the_descriptors() -> None:
    with few_descriptors():
        server = Server("--no-persist", anew=True).start()
    with ExitStack() as stack:
        stack.callback(server.__exit__)
        client = stack.enter_context(Wire(server))
        client.send(client.health())
        assert client.response().status_code == 200
        strangers: list[socket.socket] = []
        for number in range(2 * FEW):
            wire = stack.enter_context(Wire(server))
            wire.send(b"GET / HTTP/1.1\r\nHos" if number % 2 else b"")
            strangers.append(wire.socket)
            if number % 32 == 0:
                newcomer = stack.enter_context(Wire(server))
                newcomer.send(newcomer.health())
                assert newcomer.response().status_code == 200
        # The one that was there before, one that has just come, and one that takes descriptors itself.
        client.send(client.health())
        assert client.response().status_code == 200
        run(_prompts(server))
        eventually(lambda: sum(map(_is_closed, strangers)) >= len(strangers) - FEW // 4, "closing strangers' sockets")


async def _prompts(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        assert (await client.prompt(session, [["say", "hello"]]))["result"] == {"stopReason": "end_turn"}


def _is_closed(stranger: socket.socket) -> bool:
    stranger.setblocking(False)
    try:
        return stranger.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
