"""A stand-in for the server on the wire of /v1/rpc, for what no honest server does: a test says what it answers, and
when. It has no agents and no log.
"""

import asyncio
import inspect
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from sandboxagent import SandboxAgent, Session
from tests.support.loopback import answer
from tests.support.running import BOUND
from tests.support.sdk import permission

Json = dict[str, Any]
EVENTS = "_sandboxagent/session/events"
HEALTH = {"status": "ok", "version": "0.0.0", "uptimeMs": 1, "agents": []}


@dataclass(frozen=True)
class Post:
    """An envelope that came, on which connection, and under which key."""

    connection: str | None
    key: str | None
    envelope: Json


def problem(slug: str, status: int) -> bytes:
    document = {"type": f"urn:sandbox-agent:error:{slug}", "title": slug, "status": status, "detail": ""}
    return answer(json.dumps(document).encode(), f"{status} X", Content_Type="application/problem+json")


@dataclass(eq=False)
class Pretender:
    """Knows the connections in `known`; requests get what `results` has for their method, `{}` unless told."""

    url: str = ""
    known: set[str] = field(default_factory=set[str])
    opened: int = 0
    """How many connections were opened, and how many streams."""
    streams_opened: int = 0
    results: dict[str, Any] = field(default_factory=dict[str, Any])
    """A result, bytes for a whole answer, or a function of the Post that gives one of these, async or not."""
    stream: Callable[[], bytes] | None = None
    """What GET is answered in place of a stream."""
    forgetful: bool = False
    """Whether it knows no connection, not even those it has just opened."""
    outages: int = 0
    """How many of the next requests are cut off."""
    last_event: int = 0
    log: list[tuple[int, Json]] = field(default_factory=list[tuple[int, Json]])
    """What every session's log has: positions and envelopes."""
    posts: list[Post] = field(default_factory=list[Post])
    _streams: dict[str, asyncio.StreamWriter] = field(default_factory=dict[str, asyncio.StreamWriter])
    _serving: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def answers(self) -> list[Post]:
        """The answers to what it asked."""
        return [post for post in self.posts if "method" not in post.envelope]

    def requests(self, method: str) -> list[Post]:
        return [post for post in self.posts if post.envelope.get("method") == method]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something that is asked of it makes a condition true."""
        async with asyncio.timeout(BOUND), self._changed:
            await self._changed.wait_for(condition)

    async def told(self, id: int | str, envelope: Json | str, connection: str | None = None) -> None:
        """Send an event to a connection, the newest unless told."""
        name = connection or f"c{self.opened}"
        await self.until(lambda: name in self._streams)
        data = envelope if isinstance(envelope, str) else json.dumps(envelope)
        self._streams[name].write(f"event: message\nid: {id}\ndata: {data}\n\n".encode())
        await self._streams[name].drain()

    def restart(self) -> None:
        """Know no connection any more, and cut all sockets."""
        self.known.clear()
        self._streams.clear()
        for task in self._serving:
            task.cancel()

    def cut(self) -> None:
        """End all streams."""
        for writer in self._streams.values():
            writer.transport.abort()
        self._streams.clear()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        # Also when it is cancelled before it has begun.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def close(self) -> None:
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving, timeout=BOUND)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while await self._exchange(reader, writer):
                pass

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if self.outages and path != "/v1/health":
            self.outages -= 1
            async with self._changed:
                self._changed.notify_all()
            return False
        if path == "/v1/health":
            writer.write(answer(json.dumps(HEALTH).encode(), Content_Type="application/json"))
        elif path.startswith("/v1/sessions/"):
            info = {"sessionId": path.rpartition("/")[2], "agent": "any", "cwd": "/"}
            writer.write(answer(json.dumps(info).encode(), Content_Type="application/json"))
        elif "upgrade" in headers:
            writer.write(answer(status="400 No WebSocket"))
        elif method == "GET":
            return await self._stream(headers["x-acp-connection-id"], writer)
        elif method == "POST":
            post = Post(headers.get("x-acp-connection-id"), headers.get("idempotency-key"), json.loads(body))
            reply = await self._answer(post)
            if not reply:
                return False
            writer.write(reply)
        else:
            writer.write(answer(status="204 No Content"))
        await writer.drain()
        return True

    async def _answer(self, post: Post) -> bytes:
        self.posts.append(post)
        async with self._changed:
            self._changed.notify_all()
        method = post.envelope.get("method")
        if post.connection is not None and post.connection not in self.known:
            return problem("unknown-connection", 404)
        result = self.events(post) if method == EVENTS else {}
        result = self.results.get(str(method), result)
        if callable(result):
            result = result(post)
            result = await result if inspect.isawaitable(result) else result
        if isinstance(result, bytes):
            return result
        if method is None or "id" not in post.envelope:
            return answer(status="202 Accepted")
        more = {} if post.connection is not None else {"X_ACP_Connection_Id": self._open()}
        body = json.dumps({"jsonrpc": "2.0", "id": post.envelope["id"], "result": result}).encode()
        last = str(self.last_event)
        return answer(body, Content_Type="application/json", X_ACP_Last_Event_Id=last, **more)

    def _open(self) -> str:
        self.opened += 1
        if not self.forgetful:
            self.known.add(f"c{self.opened}")
        return f"c{self.opened}"

    def events(self, post: Post) -> Json:
        """A page of `log`."""
        after = post.envelope["params"]["after"]
        at = "2026-01-31T12:00:00.000Z"
        kept = [
            {"id": position, "at": at, "direction": "fromAgent", "envelope": envelope}
            for position, envelope in self.log
            if position > after
        ]
        return {"events": kept, "next": None}

    async def _stream(self, connection: str, writer: asyncio.StreamWriter) -> bool:
        self.streams_opened += 1
        if self.stream is not None or connection not in self.known:
            writer.write(problem("unknown-connection", 404) if self.stream is None else self.stream())
            await writer.drain()
            async with self._changed:
                self._changed.notify_all()
            return self.stream is None
        writer.write(answer(Content_Type="text/event-stream", Content_Length=None, Connection="close") + b": hello\n\n")
        self._streams[connection] = writer
        async with self._changed:
            self._changed.notify_all()
        await writer.drain()
        await writer.wait_closed()
        return False


@asynccontextmanager
async def pretender() -> AsyncGenerator[Pretender]:
    """A stand-in that listens."""
    pretending = Pretender()
    server = await asyncio.start_server(pretending.accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    pretending.url = f"http://{host}:{port}"
    try:
        yield pretending
    finally:
        server.close()
        await pretending.close()


# --- a session of a pretended server, and what its agent says ---------------------------------------------------------

SESSION = {"sessionId": "s-1"}


def update(text: str, session: str = "s-1") -> Json:
    chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": chunk}}


def asks(id: object, title: str) -> Json:
    params = {"sessionId": "s-1", **permission()}
    params["toolCall"] = {"toolCallId": title, "title": title}
    return {"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params}


async def looked(condition: Callable[[], object]) -> None:
    """Wait for what only this client knows."""
    async with asyncio.timeout(BOUND):
        while not condition():  # noqa: ASYNC110 - nothing says so
            await asyncio.sleep(0.005)


async def opened(client: SandboxAgent, pretending: Pretender) -> Session:
    pretending.results["session/new"] = SESSION
    pretending.results.setdefault("_sandboxagent/session/attach", {"session": SESSION, "position": 0})
    return await client.sessions.create("any", cwd="/")


def turn_started(prompt_id: str) -> Json:
    params = {"sessionId": "s-1", "turnId": "turn-9", "state": "started", "promptId": prompt_id}
    return {"jsonrpc": "2.0", "method": "_sandboxagent/session/turn", "params": params}


def left() -> list[str]:
    """What of the client still runs."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith(("sandbox-agent", "acp."))]
