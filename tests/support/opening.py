"""Sessions opened in every way that a client can use, with an agent that speaks before it answers `session/new`."""

import json
from collections.abc import Awaitable, Callable

from tests.support.acp import Acp, websocket
from tests.support.client import Client, Json
from tests.support.running import Server, scripted

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


WAYS: dict[str, Callable[[Server], Awaitable[list[str]]]] = {
    "post": by_post,
    "respond-async": by_respond_async,
    "acp": by_acp,
    "websocket": by_websocket,
}
"""Each gives what its client got, in order: the response that names the session, and the session's first update."""
