"""Flows with a node that sends what it likes: nothing of it reaches others, and it is cut."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import Bus
from sandboxagent.fleet.bus.nats import connect
from sandboxagent.fleet.bus.tunnel import MAX_PIECE_BYTES, SILENCE_TIMEOUT, WINDOW, FlowKind
from sandboxagent.fleet.gateway.tunnels import GatewayTunnels
from sandboxagent.fleet.messages import AnswerHead, Lease
from sandboxagent.protocol.errors import NodeUnreachable
from sandboxagent.server.http.asgi import Receive, Scope, Send, respond
from tests.support.client import run
from tests.support.flows import Client, Fleet, echo, in_memory, never
from tests.support.nats import PROGRAM, nats_server


@dataclass
class Evil:
    """A node that sends what it likes, into flows that a gateway has opened with it."""

    bus: Bus
    opened: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    async def start(self, fleet: Fleet, node: str) -> None:
        fleet.leases[node] = Lease(node, "", "", {}, [], 0)
        await self.bus.subscribe(subjects.flow_to_node(node, "*"), lambda subject, _: self.opened.put_nowait(subject))
        await self.bus.serve(f"settled.{node}", never)

    async def send(self, node: str, flow: str, *messages: bytes) -> None:
        for message in messages:
            await self.bus.publish(subjects.flow_to_gateway(node, "g", flow), message)


def piece(kind: int, sent: int, body: bytes = b"") -> bytes:
    return kind.to_bytes() + sent.to_bytes(8) + bytes(8) + body


def head(status: int, *headers: tuple[bytes, bytes]) -> bytes:
    return piece(FlowKind.HEAD, 1, msgspec.msgpack.encode(AnswerHead(status, list(headers))))


@pytest.mark.parametrize(
    "answer",
    [
        [b"nonsense"],
        [piece(FlowKind.BODY, 1, b"no head")],
        [piece(FlowKind.HEAD, 1, b"\xc1")],
        [head(101)],
        [head(700)],
        [head(200, (b"content-type", b"text/html\r\nset-cookie: a=b"))],
        [head(200, (b"a b", b"c"))],
        [head(200, (b"content-length", b"-1"))],
        [head(200, (b"content-length", b"9" * 4000))],
        [head(200, *[(b"x", b"y")] * 201)],
        [piece(FlowKind.HEAD, 2)],
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
        [head(200, (b"content-length", b"3")), piece(FlowKind.BODY, 2, b"four")],
        [head(200, (b"content-length", b"3")), piece(FlowKind.LAST, 2, b"ab")],
        [head(204), piece(FlowKind.LAST, 2, b"a body")],
        [head(200), piece(FlowKind.BODY, 3, b"a hole before it")],
        [head(200), piece(FlowKind.HEAD, 2)],
        [head(200), *(piece(FlowKind.BODY, number, b"x" * MAX_PIECE_BYTES) for number in range(2, 100))],
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
            assert sum(map(len, client.got)) <= WINDOW * MAX_PIECE_BYTES

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
                Client("PUT", body=[b"x" * MAX_PIECE_BYTES] * 9),
            )
            asking = [asyncio.create_task(each.ask(fleet.gateway, "evil")) for each in (flooded, stuck)]
            first = (await evil.opened.get()).rpartition(".")[2]
            await evil.send("evil", first, head(200), *(piece(FlowKind.BODY, 2, b"x") for _ in range(5000)))
            client = Client("PUT", body=[b"y" * MAX_PIECE_BYTES] * 30)
            await client.ask(fleet.gateway, "good")
            assert (client.status, sum(map(len, client.got))) == (201, 30 * MAX_PIECE_BYTES)
            await asyncio.wait(asking[:1])
            assert not flooded.whole
            assert not asking[1].done()
            await fleet.pass_time(SILENCE_TIMEOUT + 1)
            with pytest.raises(NodeUnreachable):
                await asking[1]
            # What it sends into flows that are over, or that it made up, reaches no hearer.
            await evil.send("evil", first, piece(FlowKind.BODY, 1))
            await evil.send("evil", "made-up", piece(FlowKind.OPENING, 1))

    run(main())


def test_a_node_cannot_speak_in_the_flow_of_another_one(tmp_path: Path) -> None:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not installed")
    from sandboxagent.cli.fleet.keys import FleetDirectory

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

        fleet = Fleet(GatewayTunnels("g", bus, leases, 10), bus, leases, as_good)
        forged = asyncio.Event()

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await forged.wait()
            await respond(send, 200, [], b"true")

        good_bus = await fleet.join("good", answer)
        evil = Evil(evil_bus)
        # It hears nothing of the other node's flows either; the name of one is the test's word.
        await evil_bus.subscribe(subjects.flow_to_node("good", "*"), lambda subject, _: evil.opened.put_nowait(subject))
        flows: asyncio.Queue[str] = asyncio.Queue()
        watching = await bus.subscribe(subjects.flow_to_node("good", "*"), lambda subject, _: flows.put_nowait(subject))
        client = Client()
        asking = asyncio.create_task(client.ask(fleet.gateway, "good"))
        flow = (await flows.get()).rpartition(".")[2]
        lie = [head(200), piece(FlowKind.LAST, 2, b"forged")]
        await evil.send("good", flow, *lie)
        await evil.send("evil", flow, *lie)
        for message in lie:
            await evil_bus.publish(subjects.flow_to_node("good", flow), message)
        # It was heard, and refused, when an answer to something later has come.
        heard = asyncio.Event()
        await bus.subscribe("up.evil.last", lambda _, __: heard.set())
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
