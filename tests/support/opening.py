"""Sessions opened in every way that a client can use, with an agent that speaks before it answers `session/new`."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from urllib.parse import urlsplit

from tests.support.acp import Acp, websocket
from tests.support.client import Client, Json
from tests.support.running import BOUND, Server, scripted

EAGER = scripted("--before-new", json.dumps([["say", "early"]]))
"""An agent for which `Server` has the name `eager`."""
_ID = 77


def _new(server: Server) -> Json:
    return {"cwd": server.work, "mcpServers": []}


def _what(envelopes: list[Json]) -> list[str]:
    return [one.get("method", "response") for one in envelopes]


async def by_post(server: Server) -> list[str]:
    """The response is in the body: an event counts as later when its id is."""
    async with Client(server, "eager") as client, client.stream() as stream:
        request = {"jsonrpc": "2.0", "id": _ID, "method": "session/new", "params": _new(server)}
        response = await client.post(request)
        update = await stream.method("session/update")
        assert update.data["params"]["sessionId"] == response.json()["result"]["sessionId"]
        is_later = update.id > int(response.headers["X-ACP-Last-Event-Id"])
        return ["response", update.method] if is_later else [update.method, "response"]


async def by_respond_async(server: Server) -> list[str]:
    async with Client(server, "eager") as client, client.stream() as stream:
        request = {"jsonrpc": "2.0", "id": _ID, "method": "session/new", "params": _new(server)}
        assert (await client.post(request, Prefer="respond-async")).status_code == 202
        return _what([(await stream.next()).data for _ in range(2)])


async def by_acp(server: Server) -> list[str]:
    client = Acp(server, agent="eager")
    async with client, client.get() as stream:
        assert (await client.say("session/new", _new(server), _ID)).status_code == 202
        return _what([(await stream.next()).data for _ in range(2)])


async def by_websocket(server: Server) -> list[str]:
    async with websocket(server, "/acp/eager") as socket:
        await socket.initialize()
        await socket.say("session/new", _new(server), _ID)
        return _what([await socket.next() for _ in range(2)])


class _Socket:
    """A client's socket, with what has arrived on it."""

    def __init__(self, server: Server, context: ExitStack) -> None:
        at = urlsplit(server.url)
        assert at.hostname is not None
        assert at.port is not None
        self._socket = context.enter_context(socket.create_connection((at.hostname, at.port), timeout=BOUND))
        self._head = f"host: {at.netloc}\r\nauthorization: Bearer {server.token}\r\n"
        self.came = b""

    def get(self, connection: str) -> None:
        head = f"GET /v1/rpc HTTP/1.1\r\n{self._head}accept: text/event-stream\r\nx-acp-connection-id: {connection}\r\n"
        self._socket.sendall(f"{head}\r\n".encode())
        self.await_(b": open")

    def post(self, method: str, params: Json, connection: str | None = None) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": _ID, "method": method, "params": params}).encode()
        named = f"x-acp-connection-id: {connection}\r\n" if connection else ""
        head = f"POST /v1/rpc HTTP/1.1\r\n{self._head}{named}content-type: application/json\r\n"
        self._socket.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    def await_(self, text: bytes) -> None:
        """Read until it comes."""
        self.came = b""
        while text not in self.came:
            piece = self._socket.recv(1 << 16)
            assert piece, self.came
            self.came += piece

    def read_now(self) -> bytes:
        """What has arrived by now."""
        self._socket.setblocking(False)
        try:
            return self._socket.recv(1 << 16)
        except BlockingIOError:
            return b""
        finally:
            self._socket.settimeout(BOUND)


def _watch_sockets(server: Server, *, kept: bool) -> list[str]:
    """What is there at the client's sockets when the first update is."""
    with ExitStack() as context:
        first, stream = _Socket(server, context), _Socket(server, context)
        first.post("initialize", {"protocolVersion": 1, "_meta": {"sandboxagent.dev": {"agent": "eager"}}})
        first.await_(b"agentCapabilities")
        head, _, _ = first.came.partition(b"\r\n\r\n")
        lines = (line.partition(b":") for line in head.split(b"\r\n"))
        connection = next(value for name, _, value in lines if name.lower() == b"x-acp-connection-id").strip().decode()
        stream.get(connection)
        posting = _Socket(server, context)
        if kept:
            posting.post("session/list", {}, connection)
            posting.await_(b'"sessions"')
        posting.post("session/new", _new(server), connection)
        stream.await_(b"session/update")
        return ["response", "session/update"] if b'"sessionId"' in posting.read_now() else ["session/update"]


async def on_new_sockets(server: Server) -> list[str]:
    """A request whose head no request on its socket had before."""
    return await asyncio.to_thread(_watch_sockets, server, kept=False)


async def on_kept_sockets(server: Server) -> list[str]:
    """A request whose head another one on its socket had before."""
    return await asyncio.to_thread(_watch_sockets, server, kept=True)


WAYS: dict[str, Callable[[Server], Awaitable[list[str]]]] = {
    "post": by_post,
    "post on a new socket": on_new_sockets,
    "post on a kept socket": on_kept_sockets,
    "respond-async": by_respond_async,
    "acp": by_acp,
    "websocket": by_websocket,
}
"""Each gives what its client got, in order: the response that names the session, and the session's first update."""
