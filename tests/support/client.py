"""A small client over HTTP that shows everything as it is: statuses, headers, raw bytes, events."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import httpx
import uvloop

from tests.support.plain_http import PlainHttp
from tests.support.running import BOUND, Server

NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For plain HTTP: a client that makes its own takes longer to do so than for a request."""
T = TypeVar("T")
Json = dict[str, Any]
META = "sandboxagent.dev"
OUTCOME_UNKNOWN = ("outcome-unknown", "node-lost")
"""What a request gets that its server took with it; `node-lost` comes from a gateway, on the stream."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine, with a bound."""

    async def bounded() -> T:
        async with asyncio.timeout(10 * BOUND):
            return await main

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())


@dataclass(frozen=True)
class Event:
    """One server-sent event: `data` is the envelope, `line` its bytes."""

    id: int
    data: Json
    line: str

    @property
    def method(self) -> str:
        return self.data.get("method", "")

    @property
    def update(self) -> Json:
        return self.data.get("params", {}).get("update", {})

    @property
    def text(self) -> str:
        """The text of a message chunk."""
        return self.update.get("content", {}).get("text", "")


CAPABLE: Json = {"elicitation": {"form": {}, "url": {}}, "_meta": {META: {"questions": True}}}
"""A client that can be asked in every form, and so is asked as the agent asks."""


class OutOfOrder(AssertionError):
    """An event came that belongs before another one."""


class Stream:
    """An open GET /v1/rpc."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.comments: list[str] = []
        self.seen: list[Event] = []
        self._lines = response.aiter_lines()

    async def next(self, bound: float = BOUND) -> Event:
        """The next event; TimeoutError when none comes, EOFError when the stream ends."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(bound):
            async for line in self._lines:
                if line.startswith(":"):
                    self.comments.append(line[1:].strip())
                elif line:
                    name, _, value = line.partition(": ")
                    assert name not in fields, f"{name} twice in one frame"
                    fields[name] = value
                elif fields:
                    assert list(fields) == ["event", "id", "data"], fields
                    assert fields["event"] == "message"
                    event = Event(int(fields["id"]), json.loads(fields["data"]), fields["data"])
                    if self.seen and event.id <= self.seen[-1].id:
                        raise OutOfOrder("ids must increase strictly")
                    self.seen.append(event)
                    return event
        raise EOFError

    async def until(self, wanted: Callable[[Event], bool], bound: float = BOUND) -> list[Event]:
        """Events up to and including the first that is wanted."""
        events: list[Event] = []
        async with asyncio.timeout(bound):
            while True:
                events.append(await self.next(bound))
                if wanted(events[-1]):
                    return events

    async def method(self, method: str) -> Event:
        """The next event of a method, skipping others."""
        return (await self.until(lambda event: event.method == method))[-1]

    async def turn_ended(self) -> list[Event]:
        """Events up to the end of a turn."""
        return await self.until(
            lambda event: event.method == "_sandboxagent/session/turn" and event.data["params"]["state"] == "ended"
        )

    async def ended(self) -> None:
        """Read until the server ends the stream."""
        try:
            while True:
                await self.next()
        except EOFError:
            return


class Client:
    """One connection to a server. `http` is there for requests of any other kind."""

    def __init__(self, server: Server, agent: str = "scripted") -> None:
        self.server = server
        self.agent = agent
        self.id: str | None = None
        self._ids = count(1)
        authorization = {} if server.token is None else {"Authorization": f"Bearer {server.token}"}
        limits = httpx.Limits(max_connections=None)
        rare = httpx.AsyncHTTPTransport(verify=NO_CERTIFICATES, limits=limits, trust_env=False)
        self.http = httpx.AsyncClient(
            base_url=server.url,
            headers=authorization,
            timeout=httpx.Timeout(2 * BOUND),
            trust_env=False,
            transport=PlainHttp(rare),
        )

    async def __aenter__(self) -> "Client":
        await self.initialize()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def initialize(self, **params: Any) -> Json:
        """Open the connection; gives the whole response envelope."""
        meta = {META: {"agent": self.agent}}
        body = {"protocolVersion": 1, "clientCapabilities": CAPABLE, "_meta": meta, **params}
        response = await self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": body})
        assert response.status_code == 200, response.text
        self.id = response.headers["X-ACP-Connection-Id"]
        return response.json()

    def headers(self, **more: str) -> dict[str, str]:
        """X-ACP-Connection-Id and others; `last_event_id="3"` becomes Last-Event-ID."""
        own = {} if self.id is None else {"X-ACP-Connection-Id": self.id}
        return own | {name.replace("_", "-"): value for name, value in more.items()}

    async def post(self, body: Json | str | bytes, **headers: str) -> httpx.Response:
        """POST an envelope (or any bytes) as it is."""
        content = body if isinstance(body, str | bytes) else json.dumps(body)
        return await self.http.post(
            "/v1/rpc", content=content, headers=self.headers(Content_Type="application/json", **headers)
        )

    async def call(self, method: str, params: Json | None = None, **headers: str) -> Json:
        """A request; gives the whole response envelope, which must be inside HTTP 200."""
        id = next(self._ids)
        response = await self.post({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}, **headers)
        assert response.status_code == 200, f"{response.status_code} {response.text}"
        assert response.json()["id"] == id
        return response.json()

    async def result(self, method: str, params: Json | None = None) -> Json:
        """The result of a request that must succeed."""
        response = await self.call(method, params)
        assert "result" in response, response
        return response["result"]

    async def error(self, method: str, params: Json | None = None) -> Json:
        """The error of a request that must fail."""
        response = await self.call(method, params)
        assert "error" in response, response
        return response["error"]

    async def notify(self, method: str, params: Json | None = None) -> httpx.Response:
        return await self.post({"jsonrpc": "2.0", "method": method, "params": params or {}})

    async def answer(self, id: object, result: Json) -> httpx.Response:
        """Answer an agent's request."""
        return await self.post({"jsonrpc": "2.0", "id": id, "result": result})

    async def new_session(self, **meta: Any) -> str:
        """The id of a new session; keyword arguments go into our `_meta`."""
        params: Json = {"cwd": self.server.work, "mcpServers": []}
        if meta:
            params["_meta"] = {META: meta}
        return (await self.result("session/new", params))["sessionId"]

    async def prompt(self, session: str, text: object) -> Json:
        """The whole response to a prompt. What is not a string is a program for the scripted agent."""
        return await self.call("session/prompt", self.prompt_params(session, text))

    @staticmethod
    def prompt_params(session: str, text: object) -> Json:
        text = text if isinstance(text, str) else json.dumps(text)
        return {"sessionId": session, "prompt": [{"type": "text", "text": text}]}

    @asynccontextmanager
    async def stream(self, *, timeout: float = BOUND, **headers: str) -> AsyncGenerator[Stream]:
        """An open stream; it is live when the block begins. `timeout` is for a server that sends nothing at all."""
        request = self.headers(Accept="text/event-stream", **headers)
        async with self.http.stream("GET", "/v1/rpc", headers=request, timeout=httpx.Timeout(timeout)) as response:
            assert response.status_code == 200, (await response.aread()).decode()
            yield Stream(response)

    async def close(self) -> httpx.Response:
        return await self.http.delete("/v1/rpc", headers=self.headers())
