"""What a gateway takes of nodes: nothing in the name of another one, and no more than others have room for."""

import asyncio
import json

import msgspec
import pytest

from sandboxagent.fleet import messages as fleet
from sandboxagent.fleet import records as wire
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import MAX_BODY_BYTES
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.gateway.ingest import Ingest
from sandboxagent.fleet.gateway.owners import Owners
from sandboxagent.fleet.gateway.tunnels import ANSWERS, NodeAnswer, NodeRequest
from sandboxagent.fleet.gateway.validate import BURST_INTERVAL, MAX_ID_BYTES, MAX_OPEN, MIN_COST_BYTES, Quotas
from sandboxagent.fleet.messages import LogReply, LogRequest, OutgoingMessage
from sandboxagent.fleet.records import outgoing
from sandboxagent.protocol.errors import NodeUnreachable
from sandboxagent.server.http.asgi import Receive, Scope, Send
from sandboxagent.server.log.event import Chunk, Direction, connection_channel, session_channel
from tests.fleet.gateway.gateways import LAST, attach, read_until, speak, start_gateway, tell
from tests.fleet.gateway.test_rights import Gateway
from tests.fleet.gateway.test_tunnels import in_memory
from tests.support.client import run

TAG = "g0123456789abcdef"
OWN = subjects.connection_events(TAG, "n2")
LONG = "x" * MAX_ID_BYTES
UPDATE: dict[str, object] = {"method": "session/update", "params": {"sessionId": "of-n1", "update": {}}}


async def open_gateways() -> tuple[list[Gateway], Cluster]:
    """Two; a client has remote connections at `n1` and `n2`, and `n1` has a session."""
    cluster = Cluster()
    leases = {name: fleet.Lease(name, f"of {name}", "", {}, [], 0) for name in ("n1", "n2")}

    async def is_remote(node: str, tag: str) -> bool:
        return tag == TAG

    gateways: list[Gateway] = []
    for _ in range(2):
        bus = MemoryBus(cluster)
        events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 30, max_age=60)
        tables = Owners(await bus.table("owners"), events), await bus.table("nodes"), await bus.table("sess")
        ingest = Ingest("g", events, *tables, leases, is_remote)
        gateways.append(Gateway(ingest, leases))
    said = Chunk(1, [b"{}"], Direction.FROM_AGENT, "of-n1", session_channel("of-n1"), 0.0)
    assert (await gateways[0].log("n1", list(wire.outgoing(said, subjects.session_events("of-n1"))))).published
    return gateways, cluster


def own(*lines: bytes, session_id: str | None = None) -> list[OutgoingMessage]:
    chunk = Chunk(1, list(lines), Direction.FROM_SERVER, session_id, connection_channel(TAG), 0.0, history=False)
    return list(wire.outgoing(chunk, OWN))


def line(**fields: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **fields}).encode()


def published(cluster: Cluster) -> list[bytes]:
    """Lines for the client, as gateways read them."""
    assembly = wire.ChunkAssembly(OWN)
    records = [record for record in cluster.streams["EV"].records if record.subject == OWN]
    chunks = [assembly.take(record) for record in records]
    return [each for chunk in chunks if chunk is not None for each in chunk.lines]


@pytest.mark.parametrize(
    "forged",
    [
        line(**UPDATE),
        line(id="rq_n1.run.7", method="session/request_permission", params={}),
        line(id=7, method="session/request_permission", params={}),
        line(id="rq_run.7", method="session/request_permission", params={}),
        line(id="rq_n1.n2.run.7", method="session/request_permission", params={}),
        b'{"jsonrpc":"2.0","id":"rq_n2.run.7","id":"rq_n1.run.7","method":"session/request_permission","params":{}}',
        line(method="$/cancel_request", params={"requestId": "rq_n1.run.7"}),
        line(id=f"rq_n2.{LONG}.7", method="session/request_permission", params={}),
        line(method="$/cancel_request", params={"requestId": f"rq_n2.{LONG}.7"}),
        line(method="session/update", params={"sessionId": LONG * 5, "update": {}}),
        b"not an envelope",
    ],
)
def test_a_node_speaks_to_a_client_in_its_own_name_alone(forged: bytes) -> None:
    async def main() -> None:
        gateways, cluster = await open_gateways()
        fair = line(id="rq_n2.run.7", method="session/request_permission", params={"sessionId": "of-n2"})
        reply = await gateways[0].log("n2", [*own(forged), *own(fair)])
        assert reply.published is not None
        # What is dropped alone counts as published, so that an honest node goes on.
        assert (await gateways[0].log("n2", own(forged), expected=reply.published[OWN])).published == reply.published
        assert published(cluster) == [fair]

    run(main())


def test_a_message_is_not_filed_under_the_session_of_another_node() -> None:
    async def main() -> None:
        gateways, cluster = await open_gateways()
        assert (await gateways[0].log("n2", own(line(id=1, result={}), session_id="of-n1"))).published
        assert published(cluster) == []
        assert (await gateways[0].log("n2", own(line(id=1, result={}), session_id="of-n2"))).published
        assert published(cluster) == [line(id=1, result={})]

    run(main())


def test_a_long_line_is_checked_as_a_whole_though_its_parts_come_by_several_gateways() -> None:
    async def main() -> None:
        gateways, cluster = await open_gateways()
        end = 0

        async def send(messages: list[OutgoingMessage]) -> None:
            nonlocal end
            for place, message in enumerate(messages):
                reply: LogReply = await gateways[place % 2].log("n2", [message], expected=end)
                while reply.ends is not None:
                    # The other gateway has moved on.
                    end = reply.ends[OWN].sequence
                    reply = await gateways[place % 2].log("n2", [message], expected=end)
                assert reply.published is not None
                end = reply.published[OWN]

        long = "x" * (2 * MAX_BODY_BYTES)
        fair = line(method="session/update", params={"text": long, "sessionId": "of-n2"})
        await send(own(fair))
        await send(own(line(method="session/update", params={"text": long, "sessionId": "of-n1"})))
        assert published(cluster) == [fair]
        # Nor is one put together of parts that were checked as something else.
        first, second, third = own(line(**UPDATE, more=long))
        await send([first, third, second, third])
        assert published(cluster) == [fair]

    run(main())


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_node_gets_its_rate_and_no_more() -> None:
    clock = Clock()
    quotas = Quotas(10 * MIN_COST_BYTES, clock)
    taken = 0
    while quotas.begin("evil", MIN_COST_BYTES) is None:
        quotas.end("evil")
        taken += 1
    assert taken == 10 * BURST_INTERVAL
    assert "evil publishes more than 10240 bytes a second" in (quotas.begin("evil", 1) or "")
    assert quotas.begin("good", MIN_COST_BYTES) is None
    clock.now = 0.5
    assert quotas.begin("evil", 1) is None


def test_requests_of_one_node_are_not_piled_up() -> None:
    quotas = Quotas(1 << 30, Clock())
    for _ in range(MAX_OPEN):
        assert quotas.begin("evil", 1) is None
    assert "under way" in (quotas.begin("evil", 1) or "")
    assert quotas.begin("good", 1) is None
    quotas.end("evil")
    assert quotas.begin("evil", 1) is None


def test_a_gateway_answers_slow_to_a_node_that_floods_and_takes_all_of_it_in_time() -> None:
    async def main() -> None:
        bus, clock = MemoryBus(Cluster()), Clock()
        events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 20, max_age=60)
        holders = {name: fleet.Lease(name, "", "", {}, [], 0) for name in ("evil", "good")}
        tables = Owners(await bus.table("owners"), events), await bus.table("nodes"), await bus.table("sess")
        ingest = Ingest("g", events, *tables, holders, quotas=Quotas(MIN_COST_BYTES, clock))

        async def say(node: str, session: str) -> LogReply:
            chunk = Chunk(1, [b"{}"], Direction.FROM_AGENT, session, session_channel(session), 0.0)
            messages = list(outgoing(chunk, subjects.session_events(session)))
            body = msgspec.msgpack.encode(LogRequest(messages, {each.subject: 0 for each in messages}))
            answer = await ingest.take(subjects.request_to_gateway(node, fleet.LOG, "g"), body)
            assert answer is not None
            return msgspec.msgpack.decode(answer, type=LogReply)

        replies = await asyncio.gather(*(say("evil", f"s{place}") for place in range(5)))
        assert [bool(each.published) for each in replies] == [True, True, False, False, False]
        assert all("evil publishes more than" in (each.slow or "") for each in replies[2:])
        assert (await say("good", "other")).published
        # Its gateway is not silent: it says why the lease is not renewed.
        for verb, reply in ((fleet.BEAT, fleet.BeatReply), (fleet.FACTS, fleet.FactsReply)):
            answer = await ingest.take(subjects.request_to_gateway("evil", verb, "g"), b"")
            assert answer is not None
            assert "evil publishes more than" in (msgspec.msgpack.decode(answer, type=reply).failed or "")
        clock.now = 5.0
        assert (await say("evil", "s2")).published

    run(main())


def test_answers_that_are_large_together_end_for_their_node_alone() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x" * 90, "more_body": True})
            await release.wait()
            await send({"type": "http.response.body", "body": b"x" * 10})

        async with in_memory() as fleet:
            await fleet.join("evil", answer)
            await fleet.join("other", answer)

            def call(node: str) -> "asyncio.Task[NodeAnswer]":
                return asyncio.create_task(fleet.gateway.call(node, NodeRequest("POST", b"/"), b"{}", most=100))

            asking = {call("evil") for _ in range(ANSWERS + 1)}
            ended, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            with pytest.raises(NodeUnreachable, match="too much"):
                await ended.pop()
            asking.add(call("other"))
            release.set()
            assert [len(each.body) for each in await asyncio.gather(*asking)] == [100] * (ANSWERS + 1)
            assert len((await call("evil")).body) == 100

    run(main())


@pytest.mark.parametrize(
    "forged",
    [
        line(id="rq_n1.run.7", method="session/request_permission", params={"sessionId": "s"}),
        b'{"jsonrpc":"2.0","\\u0069d":"rq_n1.run.7","method":"session/request_permission","params":{"sessionId":"s"}}',
        line(method="$/cancel_request", params={"requestId": "rq_n1.run.7"}),
        b'{"jsonrpc":"2.0","method":"$\\/cancel_request","params":{"requestId":"rq_n1.run.7"}}',
        b'{"jsonrpc":"2.0","method":"\\u0024/cancel\\u005frequest","params":{"requestId":"rq_n1.run.7"}}',
        line(id=1, result={"stopReason": "end_turn"}),
        b"not an envelope of any \\u006bind",
    ],
)
def test_a_node_asks_and_withdraws_nothing_on_the_channel_of_a_session(forged: bytes) -> None:
    """There it would come to clients as it is, and an answer would go to the node that its id names."""

    async def main() -> None:
        cluster = Cluster()
        gateway = await start_gateway(cluster, "g1")
        opened = await gateway.open("n2")
        await gateway.connections.add_node(opened, "n2")
        attach(cluster, "n2", opened.tag, "s")
        stream = gateway.read(opened)
        fair = line(method="session/update", params={"sessionId": "s", "update": {"id": "\u00e9", "title": "id"}})
        for each in (forged, fair):
            speak(cluster, "n2", "s", each)
        tell(cluster, "n2", opened.tag, LAST)
        assert await read_until(stream, LAST) == [fair, LAST]

    run(main())
