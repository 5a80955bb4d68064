"""Small clients of /acp that show everything as it is: over HTTP with its streams, and over a WebSocket."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.support.client import META, Client, Json, Stream
from tests.support.running import BOUND, Server


class Acp(Client):
    """A connection over HTTP; `id` is its Acp-Connection-Id."""

    def __init__(self, server: Server, path: str = "/acp", agent: str | None = None) -> None:
        super().__init__(server)
        self.path = path
        self.named = {} if agent is None else {"_meta": {META: {"agent": agent}}}

    async def initialize(self, **params: Any) -> Json:
        response = await self.say("initialize", {"protocolVersion": 1, **self.named, **params}, id=0)
        assert response.status_code == 200, response.text
        self.id = response.headers["Acp-Connection-Id"]
        return response.json()

    def headers(self, **more: str) -> dict[str, str]:
        own = {} if self.id is None else {"Acp-Connection-Id": self.id}
        return own | {name.replace("_", "-"): value for name, value in more.items()}

    async def post(self, body: Json | str | bytes, **headers: str) -> httpx.Response:
        content = body if isinstance(body, str | bytes) else json.dumps(body)
        return await self.http.post(
            self.path, content=content, headers=self.headers(Content_Type="application/json", **headers)
        )

    async def say(self, method: str, params: Json, id: int | None = None, **headers: str) -> httpx.Response:
        """A request, or, without an id, a notification."""
        envelope = {"jsonrpc": "2.0", "method": method, "params": params}
        return await self.post(envelope if id is None else envelope | {"id": id}, **headers)

    @asynccontextmanager
    async def get(self, session: str | None = None, after: int | None = None) -> AsyncGenerator[Stream]:
        """The connection's stream, or that of a session."""
        headers = self.headers(Accept="text/event-stream")
        headers |= {} if session is None else {"Acp-Session-Id": session}
        headers |= {} if after is None else {"Last-Event-ID": str(after)}
        async with self.http.stream("GET", self.path, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            yield Stream(response)

    async def session(self, stream: Stream, id: int = 1) -> str:
        """A new session, whose id comes on the connection's stream."""
        assert (await self.say("session/new", {"cwd": self.server.work, "mcpServers": []}, id)).status_code == 202
        answer = (await stream.until(lambda event: event.data.get("id") == id))[-1]
        return answer.data["result"]["sessionId"]


class Socket:
    """A WebSocket: what is sent and what comes, with ids where the server sends them."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.last = 0
        """The id of the last event."""
        self.seen: list[Json] = []
        self._ids = count(1)

    @property
    def connection_id(self) -> str:
        assert self.socket.response is not None
        headers = self.socket.response.headers
        return headers.get("Acp-Connection-Id") or headers["X-ACP-Connection-Id"]

    async def say(self, method: str, params: Json, id: int | None = None, key: str = "") -> None:
        envelope = {"jsonrpc": "2.0", "method": method, "params": params}
        await self.send(envelope if id is None else envelope | {"id": id}, key)

    async def send(self, envelope: object, key: str = "") -> None:
        await self.socket.send((f"{key}\n" if key else "") + json.dumps(envelope))

    async def next(self) -> Json:
        """The next envelope."""
        async with asyncio.timeout(BOUND):
            # An empty one is a sign of life.
            while not (frame := await self.socket.recv()):
                pass
        assert isinstance(frame, str)
        if self.socket.subprotocol == "sandboxagent.v1":
            number, _, frame = frame.partition("\n")
            assert int(number) > self.last or not self.seen, "ids must increase strictly"
            self.last = int(number)
        self.seen.append(json.loads(frame))
        return self.seen[-1]

    async def until(self, wanted: Callable[[Json], bool]) -> list[Json]:
        found = [await self.next()]
        while not wanted(found[-1]):
            found.append(await self.next())
        return found

    async def call(self, method: str, params: Json, id: int | None = None, key: str = "") -> Json:
        """The whole response to a request, skipping what comes before it."""
        id = next(self._ids) if id is None else id
        await self.say(method, params, id, key)
        return (await self.until(lambda one: one.get("id") == id and "method" not in one))[-1]

    async def initialize(self, agent: str | None = None) -> Json:
        named = {} if agent is None else {"_meta": {META: {"agent": agent}}}
        return await self.call("initialize", {"protocolVersion": 1, **named}, 0)

    async def session(self, cwd: str) -> str:
        return (await self.call("session/new", {"cwd": cwd, "mcpServers": []}))["result"]["sessionId"]

    async def prompt(self, session: str, program: object, id: int | None = None) -> Json:
        return await self.call("session/prompt", Client.prompt_params(session, program), id)

    async def closed(self) -> tuple[int, str]:
        """Read to the end: the close code and its reason."""
        async with asyncio.timeout(BOUND):
            await self.socket.wait_closed()
        return self.socket.close_code or 0, self.socket.close_reason or ""


@asynccontextmanager
async def websocket(
    server: Server,
    path: str = "/acp",
    *,
    token: bool = True,
    headers: dict[str, str] | None = None,
    subprotocols: tuple[str, ...] = (),
    origin: str | None = None,
) -> AsyncGenerator[Socket]:
    """A WebSocket to a server."""
    authorization = {"Authorization": f"Bearer {server.token}"} if token else {}
    async with connect(
        server.url.replace("http", "ws", 1) + path,
        additional_headers=authorization | (headers or {}) | ({"Origin": origin} if origin else {}),
        subprotocols=[Subprotocol(each) for each in subprotocols] or None,
        compression=None,
        max_size=None,
        proxy=None,
        open_timeout=BOUND,
        ping_interval=None,
    ) as socket:
        yield Socket(socket)
