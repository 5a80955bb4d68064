"""All transports of a server in memory, over the whole hub: POSTs, WebSockets and the tunnel of a gateway."""

import asyncio
import json
from typing import Any

from websockets.frames import Frame, Opcode

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.headers import WITH_IDS
from sandboxagent.server.http.acp import Acp
from sandboxagent.server.http.asgi import Receive, Scope, Send
from sandboxagent.server.http.deliver import Delivery
from sandboxagent.server.http.duplex import WebSocketTransport
from sandboxagent.server.http.ports import HubClients
from sandboxagent.server.http.posts import GatewayPost, PostHead, read_head
from sandboxagent.server.http.rpc import Rpc
from sandboxagent.server.http.stream import StreamLimits, Streams
from tests.support.in_process import PretendedSocket, Site, head
from tests.support.websocket_peer import Peer
from tests.support.world import Json, World

MAX_BODY = 4 << 20


class Failing:
    """A part of the server of which one function raises ZeroDivisionError."""

    def __init__(self, whole: Any, broken: str) -> None:
        self._whole = whole
        self._broken = broken

    def __getattr__(self, name: str) -> Any:
        return self._fail if name == self._broken else getattr(self._whole, name)

    def _fail(self, *_: object, **__: object) -> Any:
        raise ZeroDivisionError("injected")


class Tunnel:
    """The flow of one POST that came through a gateway."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.bodies: list[bytes] = []
        self.is_over = False
        self.left = False

    def is_gone(self) -> bool:
        return self.left

    def reply(self, head: bytes, body: bytes, *, keep_alive: bool) -> bool:
        self.begin(head, body)
        self.end(b"")
        return not self.left

    def begin(self, head: bytes, body: bytes) -> None:
        self.statuses.append(read_head(head)[0])
        self.bodies.append(body)

    def end(self, rest: bytes) -> None:
        assert not self.is_over, "the answer ends once"
        self.is_over = True
        self.bodies.append(rest)


class Transports:
    """The transports of a world, of which one function may be broken."""

    def __init__(self, world: World, broken: str = "") -> None:
        self.world = world
        self.site = Site()
        self.lines = Pool("lines", 1)
        clients: Any = Failing(HubClients(world.hub), broken)
        intake: Any = Failing(world.requests, broken)
        parts = (clients, intake, Streams(world.log, StreamLimits()))
        delivery = Delivery(clients, intake, 10)
        self._websockets = WebSocketTransport(*parts, delivery, self.lines, MAX_BODY)
        shared = (*parts, delivery, self._websockets, self.lines, MAX_BODY)
        self._rpc, self._acp = Rpc(*shared), Acp(*shared, 8)

    def post(self, path: str, envelope: Json, *headers: str) -> PretendedSocket:
        """Send a POST on a socket of its own."""
        self.site.take_envelopes(self._rpc if path == "/v1/rpc" else self._acp)
        socket, body = self.site.connect(), json.dumps(envelope).encode()
        name = f"X-ACP-Connection-Id: {self.world.client.connection_id}"
        more = ("Content-Type: application/json", f"Content-Length: {len(body)}", name, *headers)
        assert socket.give(head(f"POST {path}", *more) + body) > len(body)
        return socket

    async def websocket(self) -> Peer:
        """Open a WebSocket whose frames may begin with a key."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            await self._websockets(scope, self.world.client, self.world.log.position, [], "x-connection")

        return await Peer(self.site, serve=serve).open(b"", f"Sec-WebSocket-Protocol: {WITH_IDS}")

    def tunnel(self, envelope: Json) -> Tunnel:
        """Send a POST through the tunnel of a gateway."""
        tunnel = Tunnel()
        name = self.world.client.connection_id.encode()
        headers = {b"content-type": b"application/json", b"x-acp-connection-id": name}
        take = self._rpc.read_post({"method": "POST", "headers_by_name": headers})
        post = GatewayPost(tunnel, PostHead(take, MAX_BODY), flow=tunnel)
        post.take_body(json.dumps(envelope).encode())
        post.end_body()
        return tunnel

    async def responses(self, id: object) -> list[Json]:
        """The responses to a request that the client's stream has."""
        heard = await self.world.heard(self.world.client)
        return [line for line in heard if line.get("id") == id and "method" not in line]


def frame_of(envelope: Json, key: str | None = None) -> bytes:
    """The frame of a client with an envelope, under a key if there is one."""
    text = json.dumps(envelope)
    return Frame(Opcode.TEXT, (text if key is None else f"{key}\n{text}").encode()).serialize(mask=True)


async def until(condition: Any) -> None:
    """Wait until it holds; `run` bounds it."""
    while True:
        if condition():
            return
        await asyncio.sleep(0.001)
