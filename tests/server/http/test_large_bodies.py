"""Large bodies of clients: a thread reads them, their clients wait, and everything else goes on."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.envelope import LARGE_BYTES
from sandboxagent.server.http.acp import Acp
from sandboxagent.server.http.asgi import Receive, Scope, Send
from sandboxagent.server.http.deliver import Delivery
from sandboxagent.server.http.duplex import WebSocketTransport
from sandboxagent.server.http.ports import HubClients
from sandboxagent.server.http.rpc import Rpc
from sandboxagent.server.http.stream import StreamLimits, Streams
from tests.support.in_process import READ, PretendedSocket, Site, head
from tests.support.running import BOUND
from tests.support.websocket_peer import Peer
from tests.support.world import World, run, world

MAX_BODY = 32 << 20
"""As by default."""


MOST = 0.1
"""Seconds of its processor that a turn of the event loop may take: twice the promise, for a busy machine."""
EACH = 0.002
"""Seconds between two looks at what the turns take."""
SIZE = MAX_BODY - 4096
VALUES = {
    "a text": lambda: b'"%b"' % (b"x" * SIZE),
    "half a pair": lambda: b'"\\ud800%b"' % (b"\\n" * (SIZE // 2 - 8)),
    "members": lambda: b"{%b}" % b",".join(b'"%d":"%b"' % (number, b"x" * 120) for number in range(240_000)),
    "line breaks": lambda: b"\n" * SIZE + b"1",
    "too many values": lambda: b"[%b1]" % (b"1," * (SIZE // 2 - 8)),
}
CALL = b'{"jsonrpc":"2.0","id":7,"method":"x/y","params":{"sessionId":"s","a":VALUE}}'
PROMPT = (
    b'{"jsonrpc":"2.0","id":7,"method":"session/prompt","params":'
    b'{"sessionId":"s","prompt":[{"type":"text","text":VALUE}]}}'
)
WAYS: dict[str, tuple[str, bytes, tuple[str, ...]]] = {
    "a prompt": ("/v1/rpc", PROMPT, ()),
    "a prompt under an alias": ("/v1/rpc", PROMPT.replace(b'"s"', b'"alias"'), ()),
    "a prompt under a key": ("/v1/rpc", PROMPT, ("Idempotency-Key: k",)),
    "a prompt that is answered on the stream": ("/v1/rpc", PROMPT, ("Prefer: respond-async",)),
    "a call": ("/v1/rpc", CALL, ()),
    "a notification": ("/v1/rpc", CALL.replace(b'"id":7,', b""), ()),
    "a call of no session": ("/v1/rpc", CALL.replace(b'"s"', b'"nobody"'), ()),
    "a new session": ("/v1/rpc", CALL.replace(b"x/y", b"session/new"), ()),
    "an answer": ("/v1/rpc", b'{"jsonrpc":"2.0","id":ID,"result":{"a":VALUE}}', ()),
    "a prompt at /acp": ("/acp", PROMPT, ()),
    "a prompt in a WebSocket": ("", PROMPT, ()),
}


class Server:
    """One with a client, whose agent reads what it gets and answers it at once."""

    def __init__(self, own: World) -> None:
        self.world = own
        self.site = Site()
        clients, self.lines = HubClients(own.hub), Pool("lines", 1)
        parts = (clients, own.requests, Streams(own.log, StreamLimits()))
        delivery = Delivery(clients, own.requests, 1000)
        self._websockets = WebSocketTransport(*parts, delivery, self.lines, MAX_BODY)
        shared = (*parts, delivery, self._websockets, self.lines, MAX_BODY)
        self.rpc, self.acp = Rpc(*shared), Acp(*shared, 8)
        pipe: Any = own.process
        pipe.send = self._take
        self.taken: list[bytes] = []
        """The beginnings of the lines that the agent got."""

    def _take(self, line: bytes) -> None:
        self.taken.append(line[:200])
        name = line[:200].split(b'"id":', 1)
        if len(name) == 2:
            id = name[1].split(b",", 1)[0]
            blob = b'{"jsonrpc":"2.0","id":%b,"result":{"stopReason":"end_turn"}}\n' % id
            asyncio.get_running_loop().call_soon(self.world.hears, blob)

    async def post(self, path: str, body: bytes, *headers: str) -> bytes:
        """Send a body as a socket would bring it, and wait for the answer."""
        self.site.take_envelopes(self.rpc if path == "/v1/rpc" else self.acp)
        socket = self.site.connect()
        name = f"X-ACP-Connection-Id: {self.world.client.connection_id}"
        more = ("Content-Type: application/json", f"Content-Length: {len(body)}", name, *headers)
        await give(socket, head(f"POST {path}", *more) + body)
        await until(lambda: socket.transport.written)
        return socket.written

    def occupy_thread(self) -> threading.Event:
        """Let large bodies wait until this is set."""
        is_over = threading.Event()
        self.lines.start(is_over.wait, BOUND)
        return is_over

    async def open_websocket(self) -> Peer:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            await self._websockets(scope, self.world.client, self.world.log.position, [], "x-connection")

        return await Peer(self.site, serve=serve).open()


async def until(condition: Callable[[], object]) -> None:
    """Wait until it holds; `run` bounds it."""
    while True:
        if condition():
            return
        await asyncio.sleep(0.001)


async def give(socket: PretendedSocket, data: bytes) -> None:
    """Send it in the pieces in which it would come, each in a turn of its own."""
    for at in range(0, len(data), READ):
        await until(socket.transport.is_reading)
        socket.protocol.data_received(data[at : at + READ])
        await asyncio.sleep(0)


@asynccontextmanager
async def server() -> AsyncGenerator[Server]:
    async with world() as own:
        one = Server(own)
        yield one
        for connection in list(own.hub.connections.all()):
            own.hub.close_connection(connection, "this is the end")
        await one.site.settle()


def call(number: int, size: int = 1, **more: object) -> bytes:
    """A request of a client."""
    params = {"sessionId": "s", "number": number, "text": "x" * size}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "x/y", "params": params, **more}).encode()


async def longest_turn(work: Awaitable[object]) -> float:
    """The processor's seconds that the longest turn of the event loop takes until something is done."""
    loop, longest, since = asyncio.get_running_loop(), 0.0, time.thread_time()

    def look() -> None:
        nonlocal longest, since, timer
        now = time.thread_time()
        longest, since = max(longest, now - since), now
        timer = loop.call_later(EACH, look)

    timer = loop.call_soon(look)
    await work
    await asyncio.sleep(2 * EACH)
    timer.cancel()
    return longest


async def send_in(way: str, value: bytes) -> float:
    """Send a value in this way; others are attached, so that they see what there is to see."""
    path, envelope, more = WAYS[way]
    async with server() as one:
        own = one.world
        own.hub.store.reserve_alias("alias")
        own.hub.store.set_alias(own.session, "alias")
        own.session.facts.agent_session_id = "theirs"
        own.hub.attach(own.connect(), own.session)
        own.hub.attach(own.client, own.session)
        asked = json.dumps(own.asks(1, "vendor/read", sessionId="theirs")).encode()
        body = envelope.replace(b"ID", asked, 1).replace(b"VALUE", value)
        if path:
            return await longest_turn(one.post(path, body, *more))
        peer = await one.open_websocket()
        frame = Frame(Opcode.TEXT, body).serialize(mask=True)

        async def send() -> None:
            before = len(peer.socket.written)
            await give(peer.socket, frame)
            await until(lambda: len(peer.socket.written) > before)

        return await longest_turn(send())


@pytest.mark.measures
@pytest.mark.requirement("12.large-bodies")
@pytest.mark.parametrize("way", WAYS)
def test_a_body_at_the_limit_does_not_hold_the_event_loop(way: str) -> None:
    # The first request of a process imports and compiles what it needs.
    asyncio.run(send_in(way, b'"x"'))
    took = {name: asyncio.run(send_in(way, make())) for name, make in VALUES.items()}
    assert {name: seconds for name, seconds in took.items() if seconds > MOST} == {}


@pytest.mark.requirement("12.large-bodies")
@pytest.mark.parametrize("path", ["/v1/rpc", "/acp"])
def test_a_client_waits_while_its_large_body_is_read_and_no_other_one(path: str) -> None:
    async def scenario() -> None:
        async with server() as one:
            is_over = one.occupy_thread()
            large = asyncio.create_task(one.post(path, call(1, LARGE_BYTES)))
            assert b"HTTP/1.1 20" in await one.post(path, call(2))
            assert [b'"number": 2' in line for line in one.taken] == [True]
            is_over.set()
            assert b"HTTP/1.1 20" in await large
            assert b'"number": 1' in one.taken[1]

    run(scenario())


@pytest.mark.requirement("12.large-bodies")
def test_messages_of_a_websocket_stay_in_order_when_one_is_large() -> None:
    async def scenario() -> None:
        async with server() as one:
            is_over, peer = one.occupy_thread(), await one.open_websocket()
            lines = [call(1), call(2, LARGE_BYTES), call(3), b"[" * LARGE_BYTES, call(4)]
            await give(peer.socket, b"".join(Frame(Opcode.TEXT, line).serialize(mask=True) for line in lines))
            await one.world.settled()
            assert len(one.taken) == 1
            is_over.set()
            await until(lambda: len(one.taken) == 4)
            assert [b'"number": %d' % number in line for number, line in enumerate(one.taken, 1)] == [True] * 4
            await until(lambda: b"nested deeper" in peer.socket.written)

    run(scenario())


@pytest.mark.parametrize("path", ["/v1/rpc", "/acp"])
def test_a_large_body_that_is_no_envelope_is_refused_and_says_why(path: str) -> None:
    async def scenario() -> None:
        async with server() as one:
            refused = await one.post(path, b'{"a":' * LARGE_BYTES)
            assert b"HTTP/1.1 400" in refused
            assert b"nested deeper" in refused

    run(scenario())
