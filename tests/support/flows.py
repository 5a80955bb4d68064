"""A gateway and nodes that are connected by flows alone, and a client's request at the gateway."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from sandboxagent.fleet.bus.interface import Bus
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.gateway.tunnels import GatewayTunnels, Seen
from sandboxagent.fleet.messages import Lease
from sandboxagent.fleet.node.tunnels import NodeTunnels
from sandboxagent.server.http.asgi import Message, Receive, Scope, Send, group_headers, respond
from sandboxagent.server.http.body import read_body
from sandboxagent.server.http.posts import PostHead
from tests.support.in_process import PretendedTransport
from tests.support.running import BOUND

Handle = Callable[[Scope, Receive, Send], Awaitable[None]]
ReadPost = Callable[[Scope], PostHead | None]


@dataclass
class Fleet:
    """A gateway `g` and nodes, each with an app that a test gives it."""

    gateway: GatewayTunnels
    gateway_bus: Bus
    leases: dict[str, Lease]
    connect: Callable[[], Awaitable[Bus]]
    nodes: dict[str, NodeTunnels] = field(default_factory=dict)
    buses: list[Bus] = field(default_factory=list)

    async def join(
        self, node: str, app: Handle, most: int = 100, nonce: str = "", read_post: ReadPost | None = None
    ) -> Bus:
        bus = await self.connect()
        flows = NodeTunnels(node, with_headers(app), most, read_post)
        await flows.start(bus, nonce or f"of {node}")
        await bus.serve(f"settled.{node}", never)
        self.leases[node] = Lease(node, f"of {node}", "", {}, [], 0)
        self.nodes[node] = flows
        self.buses.append(bus)
        return bus

    async def pass_time(self, seconds: float, *, of_node: str | None = None) -> None:
        for _ in range(round(seconds)):
            self.gateway.table.tick(1)
            await self.gateway.table.settle()
            if of_node is not None:
                self.nodes[of_node].table.tick(1)
                await self.nodes[of_node].table.settle()


async def never(subject: str, body: bytes) -> None: ...


def with_headers(app: Handle) -> Handle:
    async def grouped(scope: Scope, receive: Receive, send: Send) -> None:
        scope["headers_by_name"] = group_headers(scope["headers"])
        await app(scope, receive, send)

    return grouped


@asynccontextmanager
async def in_memory(most: int = 100, seen: Seen | None = None, further: Iterable[str] = ()) -> AsyncGenerator[Fleet]:
    cluster = Cluster()
    bus = MemoryBus(cluster)
    leases: dict[str, Lease] = {}

    async def another() -> Bus:
        return MemoryBus(cluster)

    yield Fleet(GatewayTunnels("g", bus, leases, most, seen, further), bus, leases, another)


Open = Callable[[], AbstractAsyncContextManager[Fleet]]


@dataclass
class Client:
    """One request at the gateway, as its server would hand it over."""

    method: str = "GET"
    path: str = "/v1/fs/file"
    body: list[bytes] = field(default_factory=list)
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    status: int = 0
    answered: list[tuple[bytes, bytes]] = field(default_factory=list)
    got: list[bytes] = field(default_factory=list)
    whole: bool = False
    endless: bool = False
    """More of the body is to come, and does not."""
    transport: PretendedTransport = field(default_factory=PretendedTransport)
    reading: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    sent: asyncio.Event = field(default_factory=asyncio.Event)
    """The whole body."""

    def __post_init__(self) -> None:
        self.reading.set()

    async def ask(self, flows: GatewayTunnels, node: str = "n1") -> None:
        length = sum(map(len, self.body))
        framing = (b"transfer-encoding", b"chunked") if self.endless else (b"content-length", b"%d" % length)
        headers = [*self.headers, *([framing] if length else [])]
        scope: Scope = {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"path=/x",
            "headers": headers,
            "headers_by_name": group_headers(headers),
            "extensions": {"sandboxagent.transport": self.transport},
        }
        async with asyncio.timeout(BOUND):
            await flows.proxy(node, scope, self.receive, self.send)

    async def receive(self) -> Message:
        if self.body:
            body = self.body.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(self.body) or self.endless}
        self.sent.set()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.reading.wait()
        if message["type"] == "http.response.start":
            self.status, self.answered = message["status"], list(message["headers"])
            return
        self.got.append(message["body"])
        if not message.get("more_body"):
            self.whole = True

    def header(self, name: bytes) -> bytes | None:
        return dict(self.answered).get(name)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = await read_body(scope, receive, 1 << 30)
    await respond(send, 201, [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))], body)
