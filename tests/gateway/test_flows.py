"""HTTP through a flow: from a gateway into a node's app, on a bus in memory and on NATS."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from sandbox_agent.bus import subjects
from sandbox_agent.bus.flow import PATIENCE, PIECE, WINDOW, Kind
from sandbox_agent.bus.memory import Cluster, MemoryBus
from sandbox_agent.bus.nats import connect
from sandbox_agent.bus.ports import Bus
from sandbox_agent.errors import NodeUnreachable, TooMany
from sandbox_agent.gateway.flows import INLINE, Asked, NodeFlows
from sandbox_agent.http.asgi import Message, Receive, Scope, Send, group_headers, respond, transport
from sandbox_agent.http.exchange import ClientGone, read_body
from sandbox_agent.member.flows import Flows
from sandbox_agent.wire.fleet import AnswerHead, Lease
from tests.support.client import run
from tests.support.in_process import PretendedTransport
from tests.support.nats import PROGRAM, nats_server
from tests.support.running import BOUND

Handle = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass
class Fleet:
    """A gateway `g` and nodes, each with an app that a test gives it."""

    gateway: NodeFlows
    gateway_bus: Bus
    leases: dict[str, Lease]
    connect: Callable[[], Awaitable[Bus]]
    nodes: dict[str, Flows] = field(default_factory=dict)
    buses: list[Bus] = field(default_factory=list)

    async def join(self, node: str, app: Handle, most: int = 100, nonce: str = "") -> Bus:
        bus = await self.connect()
        flows = Flows(node, with_headers(app), most)
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
async def in_memory(most: int = 100) -> AsyncGenerator[Fleet]:
    cluster = Cluster()
    bus = MemoryBus(cluster)
    leases: dict[str, Lease] = {}

    async def another() -> Bus:
        return MemoryBus(cluster)

    yield Fleet(NodeFlows("g", bus, leases, most), bus, leases, another)


Open = Callable[[], AbstractAsyncContextManager[Fleet]]


@pytest.fixture(scope="module")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not installed")
    with nats_server(tmp_path_factory.mktemp("nats") / "one") as server:
        yield server.url


@pytest.fixture(params=["memory", "nats"])
def fleets(request: pytest.FixtureRequest) -> Open:
    if request.param == "memory":
        return in_memory
    url: str = request.getfixturevalue("nats_url")

    @asynccontextmanager
    async def on_nats() -> AsyncGenerator[Fleet]:
        bus = await connect([url], "gw.g.in", "g")
        leases: dict[str, Lease] = {}

        async def another() -> Bus:
            return await connect([url], "dn.n.in", "n")

        fleet = Fleet(NodeFlows("g", bus, leases, 100), bus, leases, another)
        yield fleet
        for each in (*fleet.buses, bus):
            await each.close()

    return on_nats


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

    async def ask(self, flows: NodeFlows, node: str = "n1") -> None:
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
            "extensions": {"sandbox_agent.transport": self.transport},
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


@pytest.mark.parametrize("size", [0, 5, INLINE + 1, 20 * PIECE + 7])
def test_a_request_and_its_answer_pass_whole(fleets: Open, size: int) -> None:
    async def main() -> None:
        async with fleets() as fleet:
            await fleet.join("n1", echo)
            sent = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
            client = Client("PUT", body=[sent[at : at + 60_000] for at in range(0, size, 60_000)])
            await client.ask(fleet.gateway)
            assert (client.status, b"".join(client.got) == sent, client.whole) == (201, True, True)
            answer = await fleet.gateway.call("n1", Asked("PUT", b"/"), sent, most=size)
            assert (answer.status, answer.body == sent) == (201, True)

    run(main())


def test_the_node_sees_what_it_needs_and_no_secret() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            seen: list[Scope] = []

            async def look(scope: Scope, receive: Receive, send: Send) -> None:
                seen.append(scope)
                await respond(send, 204, [])

            await fleet.join("n1", look)
            secrets = [b"authorization", b"cookie", b"x-acp-connection-id", b"origin", b"host", b"x-forwarded-user"]
            client = Client(
                "GET", "/v1/fs/a%2Fb", headers=[*((name, b"s") for name in secrets), (b"range", b"bytes=1-")]
            )
            await client.ask(fleet.gateway)
            [scope] = seen
            assert (scope["method"], scope["path"], scope["raw_path"]) == ("GET", "/v1/fs/a/b", b"/v1/fs/a%2Fb")
            assert scope["query_string"] == b"path=/x"
            assert scope["headers"] == [(b"range", b"bytes=1-")]
            assert client.status == 204

    run(main())


def test_an_answer_comes_after_hours() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            ready = asyncio.Event()

            async def think(scope: Scope, receive: Receive, send: Send) -> None:
                await ready.wait()
                await respond(send, 200, [], b"at last")

            await fleet.join("n1", think)
            asking = asyncio.create_task(fleet.gateway.call("n1", Asked("POST", b"/"), b"{}", most=100))
            await fleet.pass_time(2 * 3600, of_node="n1")
            ready.set()
            assert (await asking).body == b"at last"

    run(main())


def test_a_client_that_leaves_is_gone_for_the_app_too(fleets: Open) -> None:
    async def main() -> None:
        async with fleets() as fleet:
            begun, noticed = asyncio.Event(), asyncio.Event()

            async def stream(scope: Scope, receive: Receive, send: Send) -> None:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b": here\n\n", "more_body": True})
                assert (await receive())["type"] == "http.request"
                begun.set()
                assert (await receive())["type"] == "http.disconnect"
                assert transport(scope).is_closing()
                noticed.set()

            await fleet.join("n1", stream)
            client = Client()
            asking = asyncio.create_task(client.ask(fleet.gateway))
            async with asyncio.timeout(BOUND):
                await begun.wait()
                client.left.set()
                await noticed.wait()
                await asking
            assert not client.whole

    run(main())


def test_a_cancelled_call_is_gone_for_the_app_too() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            begun, noticed = asyncio.Event(), asyncio.Event()

            async def wait(scope: Scope, receive: Receive, send: Send) -> None:
                await receive()
                begun.set()
                assert (await receive())["type"] == "http.disconnect"
                noticed.set()

            await fleet.join("n1", wait)
            asking = asyncio.create_task(fleet.gateway.call("n1", Asked("POST", b"/"), b"{}", most=100))
            async with asyncio.timeout(BOUND):
                await begun.wait()
                asking.cancel()
                await noticed.wait()

    run(main())


def test_an_upload_that_is_cut_off_does_not_come_to_its_end_at_the_node() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            ended: asyncio.Queue[str] = asyncio.Queue()

            async def upload(scope: Scope, receive: Receive, send: Send) -> None:
                try:
                    await read_body(scope, receive, 1 << 30)
                    await ended.put("whole")
                except ClientGone:
                    await ended.put("cut")

            await fleet.join("n1", upload)
            client = Client("PUT", body=[b"x" * PIECE], endless=True)
            asking = asyncio.create_task(client.ask(fleet.gateway))
            await client.sent.wait()
            client.left.set()
            await asking
            async with asyncio.timeout(BOUND):
                assert await ended.get() == "cut"
            # And a gateway that is gone without a word.
            client = Client("PUT", body=[b"x"], endless=True)
            asking = asyncio.create_task(client.ask(fleet.gateway))
            await client.sent.wait()
            await asyncio.sleep(0)
            assert isinstance(fleet.gateway_bus, MemoryBus)
            fleet.gateway_bus.cut = True
            for _ in range(round(PATIENCE) + 2):
                fleet.nodes["n1"].table.tick(1)
            async with asyncio.timeout(BOUND):
                assert await ended.get() == "cut"
            asking.cancel()
            await asyncio.wait({asking})

    run(main())


def test_a_slow_reader_costs_a_window_and_holds_nobody_else_up() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            made = 0

            async def download(scope: Scope, receive: Receive, send: Send) -> None:
                nonlocal made
                await send({"type": "http.response.start", "status": 200, "headers": []})
                for _ in range(50):
                    await send({"type": "http.response.body", "body": b"x" * PIECE, "more_body": True})
                    made += 1
                await send({"type": "http.response.body", "body": b""})

            await fleet.join("n1", download)
            slow, quick = Client(), Client()
            slow.reading.clear()
            waiting = asyncio.create_task(slow.ask(fleet.gateway))
            await quick.ask(fleet.gateway)
            assert (quick.whole, sum(map(len, quick.got))) == (True, 50 * PIECE)
            assert made <= 50 + WINDOW + 1
            slow.reading.set()
            await waiting
            assert (slow.whole, sum(map(len, slow.got))) == (True, 50 * PIECE)

    run(main())


def test_half_an_answer_does_not_look_like_a_whole_one() -> None:
    async def main() -> None:
        async with in_memory() as fleet:

            async def break_off(scope: Scope, receive: Receive, send: Send) -> None:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"half", "more_body": True})
                if scope["path"] == "/raise":
                    raise OSError("the disk is gone")
                if scope["path"] == "/abort":
                    transport(scope).abort()

            await fleet.join("n1", break_off)
            for path in ("/raise", "/abort", "/return"):
                client = Client(path=path)
                await client.ask(fleet.gateway)
                assert (client.got, client.whole, client.transport.closed) == ([b"half"], False, True)

    run(main())


def test_a_node_that_is_not_there_is_named(fleets: Open) -> None:
    async def main() -> None:
        async with fleets() as fleet:
            with pytest.raises(NodeUnreachable, match="n1 is not there"):
                await Client().ask(fleet.gateway)
            fleet.leases["n1"] = Lease("n1", "", "", {}, [], 0)
            with pytest.raises(NodeUnreachable, match="n1 is not connected"):
                await Client().ask(fleet.gateway)

    run(main())


def test_a_node_that_falls_silent_is_given_up() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            bus = await fleet.join("n1", echo)
            assert isinstance(bus, MemoryBus)
            bus.cut = True
            asking = asyncio.create_task(Client().ask(fleet.gateway))
            await asyncio.sleep(0)
            await fleet.pass_time(PATIENCE + 1)
            with pytest.raises(NodeUnreachable, match="does not answer"):
                await asking

    run(main())


def test_a_clone_of_a_node_does_not_answer() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            asked: list[str] = []

            async def clone(scope: Scope, receive: Receive, send: Send) -> None:
                asked.append(scope["path"])

            await fleet.join("n1", clone, nonce="of its clone")
            await fleet.join("n1", echo)
            client = Client()
            await client.ask(fleet.gateway)
            assert (client.status, asked) == (201, [])

    run(main())


def test_flows_are_counted_and_one_node_cannot_take_all_places() -> None:
    async def main() -> None:
        async with in_memory(most=8) as fleet:
            release = asyncio.Event()

            async def wait(scope: Scope, receive: Receive, send: Send) -> None:
                await release.wait()
                await respond(send, 200, [])

            await fleet.join("n1", wait)
            await fleet.join("n2", echo)
            await fleet.join("n3", wait, most=1)
            asking = [asyncio.create_task(Client().ask(fleet.gateway)) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(TooMany):
                await Client().ask(fleet.gateway)
            await Client().ask(fleet.gateway, "n2")
            asking.append(asyncio.create_task(Client().ask(fleet.gateway, "n3")))
            await asyncio.sleep(0)
            with pytest.raises(NodeUnreachable, match="as many requests"):
                await Client().ask(fleet.gateway, "n3")
            release.set()
            await asyncio.gather(*asking)
            await Client().ask(fleet.gateway)

    run(main())


@dataclass
class Evil:
    """A node that sends what it likes, into flows that a gateway has opened with it."""

    bus: Bus
    opened: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    async def start(self, fleet: Fleet, node: str) -> None:
        fleet.leases[node] = Lease(node, "", "", {}, [], 0)
        await self.bus.hear(subjects.flow_to_node(node, "*"), lambda subject, _: self.opened.put_nowait(subject))
        await self.bus.serve(f"settled.{node}", never)

    async def send(self, node: str, flow: str, *messages: bytes) -> None:
        for message in messages:
            await self.bus.publish(subjects.flow_to_gateway(node, "g", flow), message)


def piece(kind: int, sent: int, body: bytes = b"") -> bytes:
    return kind.to_bytes() + sent.to_bytes(8) + bytes(8) + body


def head(status: int, *headers: tuple[bytes, bytes]) -> bytes:
    return piece(Kind.HEAD, 1, msgspec.msgpack.encode(AnswerHead(status, list(headers))))


@pytest.mark.parametrize(
    "answer",
    [
        [b"nonsense"],
        [piece(Kind.BODY, 1, b"no head")],
        [piece(Kind.HEAD, 1, b"\xc1")],
        [head(101)],
        [head(700)],
        [head(200, (b"content-type", b"text/html\r\nset-cookie: a=b"))],
        [head(200, (b"a b", b"c"))],
        [head(200, (b"content-length", b"-1"))],
        [head(200, (b"content-length", b"9" * 4000))],
        [head(200, *[(b"x", b"y")] * 201)],
        [piece(Kind.HEAD, 2)],
    ],
)
def test_a_head_that_makes_no_sense_is_not_passed_on(answer: list[bytes]) -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            evil = Evil(await fleet.connect())
            await evil.start(fleet, "evil")
            client = Client()
            asking = asyncio.create_task(client.ask(fleet.gateway, "evil"))
            flow = (await evil.opened.get()).rpartition(".")[2]
            await evil.send("evil", flow, *answer)
            with pytest.raises(NodeUnreachable):
                await asking
            assert (client.status, client.got) == (0, [])

    run(main())


@pytest.mark.parametrize(
    "answer",
    [
        [head(200, (b"content-length", b"3")), piece(Kind.BODY, 2, b"four")],
        [head(200, (b"content-length", b"3")), piece(Kind.LAST, 2, b"ab")],
        [head(204), piece(Kind.LAST, 2, b"a body")],
        [head(200), piece(Kind.BODY, 3, b"a hole before it")],
        [head(200), piece(Kind.HEAD, 2)],
        [head(200), *(piece(Kind.BODY, number, b"x" * PIECE) for number in range(2, 100))],
    ],
)
def test_a_body_that_breaks_its_word_is_cut(answer: list[bytes]) -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            evil = Evil(await fleet.connect())
            await evil.start(fleet, "evil")
            client = Client()
            client.reading.clear()
            asking = asyncio.create_task(client.ask(fleet.gateway, "evil"))
            flow = (await evil.opened.get()).rpartition(".")[2]
            await evil.send("evil", flow, *answer)
            client.reading.set()
            await asking
            assert not client.whole
            assert client.transport.closed
            assert sum(map(len, client.got)) <= WINDOW * PIECE

    run(main())


def test_nothing_of_a_node_has_rights_at_the_gateways_origin() -> None:
    async def main() -> None:
        async with in_memory() as fleet:

            async def page(scope: Scope, receive: Receive, send: Send) -> None:
                names = [b"set-cookie", b"access-control-allow-origin", b"location", b"clear-site-data", b"refresh"]
                headers = [*((name, b"x") for name in names), (b"content-type", b"text/html"), (b"etag", b'"1"')]
                await respond(send, 200, [*headers, (b"content-security-policy", b"script-src *")], b"<script>")

            await fleet.join("n1", page)
            client = Client()
            await client.ask(fleet.gateway)
            assert client.answered == [
                (b"content-type", b"text/html"),
                (b"etag", b'"1"'),
                (b"content-security-policy", b"sandbox"),
                (b"x-content-type-options", b"nosniff"),
            ]

    run(main())


def test_a_node_that_floods_or_never_ends_costs_others_nothing() -> None:
    async def main() -> None:
        async with in_memory() as fleet:
            evil = Evil(await fleet.connect())
            await evil.start(fleet, "evil")
            await fleet.join("good", echo)
            flooded, stuck = (
                Client(),
                Client("PUT", body=[b"x" * PIECE] * 9),
            )
            asking = [asyncio.create_task(each.ask(fleet.gateway, "evil")) for each in (flooded, stuck)]
            first = (await evil.opened.get()).rpartition(".")[2]
            await evil.send("evil", first, head(200), *(piece(Kind.BODY, 2, b"x") for _ in range(5000)))
            client = Client("PUT", body=[b"y" * PIECE] * 30)
            await client.ask(fleet.gateway, "good")
            assert (client.status, sum(map(len, client.got))) == (201, 30 * PIECE)
            await asyncio.wait(asking[:1])
            assert not flooded.whole
            assert not asking[1].done()
            await fleet.pass_time(PATIENCE + 1)
            with pytest.raises(NodeUnreachable):
                await asking[1]
            # What it sends into flows that are over, or that it made up, reaches no hearer.
            await evil.send("evil", first, piece(Kind.BODY, 1))
            await evil.send("evil", "made-up", piece(Kind.OPENING, 1))

    run(main())


def test_a_node_cannot_speak_in_the_flow_of_another_one(tmp_path: Path) -> None:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not installed")
    from sandbox_agent.cli.fleet.directory import FleetDirectory

    keys = FleetDirectory(tmp_path / "fleet")
    keys.init()
    for name in ("good", "evil"):
        keys.invite(name)

    async def main(url: str) -> None:
        bus = await connect([url], subjects.inbox_of_gateway("g"), "g", keys.gateway_key)
        evil_bus = await connect([url], subjects.inbox_of_node("evil"), "evil", keys.node_key("evil"))
        leases: dict[str, Lease] = {}

        async def as_good() -> Bus:
            return await connect([url], subjects.inbox_of_node("good"), "good", keys.node_key("good"))

        fleet = Fleet(NodeFlows("g", bus, leases, 10), bus, leases, as_good)
        forged = asyncio.Event()

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await forged.wait()
            await respond(send, 200, [], b"true")

        good_bus = await fleet.join("good", answer)
        evil = Evil(evil_bus)
        # It hears nothing of the other node's flows either; the name of one is the test's word.
        await evil_bus.hear(subjects.flow_to_node("good", "*"), lambda subject, _: evil.opened.put_nowait(subject))
        flows: asyncio.Queue[str] = asyncio.Queue()
        watching = await bus.hear(subjects.flow_to_node("good", "*"), lambda subject, _: flows.put_nowait(subject))
        client = Client()
        asking = asyncio.create_task(client.ask(fleet.gateway, "good"))
        flow = (await flows.get()).rpartition(".")[2]
        lie = [head(200), piece(Kind.LAST, 2, b"forged")]
        await evil.send("good", flow, *lie)
        await evil.send("evil", flow, *lie)
        for message in lie:
            await evil_bus.publish(subjects.flow_to_node("good", flow), message)
        # It was heard, and refused, when an answer to something later has come.
        heard = asyncio.Event()
        await bus.hear("up.evil.last", lambda _, __: heard.set())
        await bus.serve("settled.g", never)
        await evil_bus.publish("up.evil.last", b"")
        await heard.wait()
        forged.set()
        await asking
        assert (client.got, evil.opened.empty()) == ([b"true", b""], True)
        await watching()
        for each in (good_bus, evil_bus, bus):
            await each.close()

    with nats_server(tmp_path / "nats", authorization=keys.authorization()) as server:
        run(main(server.url))
