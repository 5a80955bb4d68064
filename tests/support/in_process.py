"""The HTTP side of a server without sockets: the protocol and the guard are real, transport and app pretended."""

import asyncio
import re
import time
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from sandboxagent.adapters.opencode.paths import ACCESS
from sandboxagent.server.http.acp import Acp
from sandboxagent.server.http.app import App
from sandboxagent.server.http.asgi import Receive, Scope, Send, respond
from sandboxagent.server.http.auth import Auth
from sandboxagent.server.http.http1 import Http1, HttpServer
from sandboxagent.server.http.posts import PostHead
from sandboxagent.server.http.rpc import Rpc
from sandboxagent.server.http.sockets import MAX_TICK_INTERVAL, SocketLimits, Sockets
from tests.support.running import TOKEN

READ = 256_000
"""Bytes that uvloop gives a protocol at once, at most."""


MAX_TURNS = 100_000


class PretendedTransport(asyncio.Transport):
    """A socket whose other side takes everything, and sends what a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.taken = True
        """Whether the other side reads what is written."""
        self.closed = False
        self.ended = False
        self.paused = False
        self.protocol: asyncio.Protocol | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        assert not self.ended
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0 if self.taken else sum(map(len, self.written))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.protocol is not None:
                # As a real one does, it lets go of its protocol then.
                asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)
                self.protocol = None

    abort = close

    def write_eof(self) -> None:
        self.ended = True

    def is_reading(self) -> bool:
        return not self.paused and not self.closed

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...


@dataclass
class Reached:
    """What got past the guard, and what is done with it: `handle` is an ASGI app for all of it."""

    requests: list[tuple[str, str]] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    whole: list[Scope] = field(default_factory=list)
    """Those whose bodies came whole, and these bodies:"""
    bodies: list[bytes] = field(default_factory=list)
    handle: Callable[[Scope, Receive, Send], Awaitable[None]] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests.append((scope["method"], scope["path"]))
        self.scopes.append(scope)
        if self.handle is not None:
            await self.handle(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            if not message["more_body"]:
                break
        self.whole.append(scope)
        self.bodies.append(body)
        await respond(send, 200, [(b"content-length", b"2")], b"ok")


class Site:
    """A server's HTTP side. `reached` gets what the guard lets through."""

    def __init__(self, limits: SocketLimits | None = None) -> None:
        self.reached = Reached()
        self.sockets = Sockets(limits or SocketLimits())
        self.failures: list[dict[str, Any]] = []
        self.protocols: weakref.WeakSet[Http1] = weakref.WeakSet()
        self._now = time.monotonic()
        auth = Auth(TOKEN, "127.0.0.1", (), (), public_health=False, accesses=(ACCESS,))
        health: Any = None
        rpc: Any = self.reached
        self._auth = auth
        app = App(auth, rpc, rpc, health, [(ACCESS, lambda: self.reached)], lambda: self.reached)
        self.methods: list[str] = []
        """Of requests whose head was whole and good, those included that the guard refused."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            self.methods.append(scope["method"])
            await app(scope, receive, send)

        self.server = HttpServer(counted, self.sockets)
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.failures.append(context))

    def connect(self) -> "PretendedSocket":
        return PretendedSocket(self)

    def take_envelopes(self, transport: Rpc | Acp) -> None:
        """Let POSTs of envelopes go to a transport itself, as they do at a server."""
        either: Any = transport
        app = App(self._auth, either, either, either, [(ACCESS, lambda: self.reached)], lambda: self.reached)

        def counted(scope: Scope) -> PostHead | None:
            self.methods.append(scope["method"])
            return app.read_post(scope)

        self.server.read_post = counted

    def pass_time(self, seconds: float) -> None:
        """Let the sockets' clock go on, as if this much time had passed."""
        end = self._now + seconds
        while self._now < end:
            self._now = min(self._now + MAX_TICK_INTERVAL, end)
            self.sockets.tick(self._now)

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the loop run until it holds. Bounded in turns and not in time: nothing here waits for anything else."""
        for _ in range(MAX_TURNS):
            if condition():
                return
            await asyncio.sleep(0)
        raise AssertionError("it did not come true")

    async def settle(self) -> None:
        """Let the loop run until all is answered that can be, or a few turns when something waits."""
        for _ in range(60):
            await asyncio.sleep(0)
            if not self.server.tasks and not any(each._backlog for each in self.protocols):
                break


class PretendedSocket:
    """A client's side of one socket."""

    def __init__(self, site: Site, transport: PretendedTransport | None = None) -> None:
        self.site = site
        self.transport = transport or PretendedTransport()
        self.protocol = Http1(site.server)
        self.transport.protocol = self.protocol
        site.protocols.add(self.protocol)
        self.protocol.connection_made(self.transport)

    @property
    def written(self) -> bytes:
        return b"".join(self.transport.written)

    @property
    def statuses(self) -> list[int]:
        """Of the answers so far."""
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", self.written)]

    def give(self, data: bytes) -> int:
        """Give the protocol what it would read, while it reads; gives how much it took."""
        given = 0
        while given < len(data) and self.transport.is_reading():
            self.protocol.data_received(data[given : given + READ])
            given = min(given + READ, len(data))
        return given

    async def send(self, data: bytes) -> None:
        """Send all of it, waiting while the protocol does not read."""
        while data:
            await self.site.until(lambda: self.transport.is_reading() or self.transport.closed)
            data = b"" if self.transport.closed else data[self.give(data) :]
        await self.site.settle()

    async def closes(self) -> None:
        """The client hangs up."""
        self.transport.close()
        await self.site.settle()


def head(start: str, *headers: str, token: bool = True, host: bool = True) -> bytes:
    """The bytes of a request's head."""
    lines = [f"{start} HTTP/1.1"]
    lines += ["Host: 127.0.0.1"] if host else []
    lines += [f"Authorization: Bearer {TOKEN}"] if token else []
    return "".join(f"{line}\r\n" for line in (*lines, *headers)).encode("latin-1") + b"\r\n"
