"""What nodes say to one client alone: nothing in the name of another node gets into the stream."""

import json

import pytest

from sandbox_agent.bus import subjects
from sandbox_agent.bus.memory import Cluster, MemoryBus
from sandbox_agent.bus.ports import MOST_BYTES
from sandbox_agent.gateway.claims import LONGEST_ID
from sandbox_agent.gateway.ingest import Ingest
from sandbox_agent.log import wire
from sandbox_agent.log.event import Chunk, Direction, connection_channel, session_channel
from sandbox_agent.wire import fleet
from sandbox_agent.wire.fleet import LogReply, OutgoingMessage
from tests.gateway.test_rights import Gateway
from tests.support.client import run

TAG = "g0123456789abcdef"
OWN = subjects.connection_events(TAG, "n2")
LONG = "x" * LONGEST_ID
UPDATE: dict[str, object] = {"method": "session/update", "params": {"sessionId": "of-n1", "update": {}}}


async def open_gateways() -> tuple[list[Gateway], Cluster]:
    """Two; a client is a guest of `n1` and `n2`, and `n1` has a session."""
    cluster = Cluster()
    leases = {name: fleet.Lease(name, f"of {name}", "", {}, [], 0) for name in ("n1", "n2")}

    async def is_guest(node: str, tag: str) -> bool:
        return tag == TAG

    gateways: list[Gateway] = []
    for _ in range(2):
        bus = MemoryBus(cluster)
        events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 30, max_age=60)
        ingest = Ingest("g", events, await bus.table("nodes"), await bus.table("sess"), leases, is_guest)
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
        line(id="n1.0a1b.7", method="session/request_permission", params={}),
        line(id=7, method="session/request_permission", params={}),
        line(method="$/cancel_request", params={"requestId": "n1.0a1b.7"}),
        line(id=f"n2.{LONG}", method="session/request_permission", params={}),
        line(method="$/cancel_request", params={"requestId": f"n2.{LONG}"}),
        line(method="session/update", params={"sessionId": LONG * 5, "update": {}}),
        b"not an envelope",
    ],
)
def test_a_node_speaks_to_a_client_in_its_own_name_alone(forged: bytes) -> None:
    async def main() -> None:
        gateways, cluster = await open_gateways()
        fair = line(id="n2.0a1b.7", method="session/request_permission", params={"sessionId": "of-n2"})
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

        long = "x" * (2 * MOST_BYTES)
        fair = line(method="session/update", params={"text": long, "sessionId": "of-n2"})
        await send(own(fair))
        await send(own(line(method="session/update", params={"text": long, "sessionId": "of-n1"})))
        assert published(cluster) == [fair]
        # Nor is one put together of parts that were checked as something else.
        first, second, third = own(line(**UPDATE, more=long))
        await send([first, third, second, third])
        assert published(cluster) == [fair]

    run(main())
