"""What agents have asked before their node was lost, on a bus in memory: withdrawn at every client, once."""

import asyncio

import msgspec
import pytest

from sandbox_agent.bus import subjects
from sandbox_agent.bus.memory import Cluster, MemoryBus
from sandbox_agent.envelope import notification, parse, request, success
from sandbox_agent.gateway.connection import FleetConnection
from sandbox_agent.gateway.flows import NodeAnswer, NodeRequest
from sandbox_agent.http.stream import StreamLimits, Streams
from sandbox_agent.wire import methods
from tests.gateway.test_connections import Socket, tell
from tests.gateway.test_guests import (
    ACCEPTED,
    STRANGER,
    Gateway,
    lease_of,
    open_gateway,
    replying,
    said_by_gateways,
    until_done_since,
)
from tests.support.client import run

PERMISSION = "session/request_permission"


def id_of(number: int, run: str = "first", node: str = "n") -> bytes:
    return b'"%s.%s.0123.%d"' % (node.encode(), run.encode(), number)


def ask(cluster: Cluster, client: FleetConnection, id: bytes, node: str = "n") -> None:
    """An agent of a node asks a client."""
    tell(cluster, node, client.tag, request(id, PERMISSION, {"sessionId": "s"}))


def withdrawn(cluster: Cluster, client: FleetConnection) -> list[bytes]:
    """The ids that gateways have withdrawn at a client, in order."""
    said = said_by_gateways(cluster, client)
    assert all(one.method == methods.CANCEL_REQUEST for one in said)
    return [msgspec.json.encode(one.params()["requestId"]) for one in said]


async def heard(gateway: Gateway, client: FleetConnection, node: str = "n") -> None:
    await gateway.feed.catch_up(subjects.connection_events(client.tag, node))


async def opened(cluster: Cluster, *names: str) -> Gateway:
    """A gateway with nodes in their first runs."""
    gateway = await open_gateway(cluster, **dict.fromkeys(names, replying(ACCEPTED)))
    for name in names:
        gateway.roster.leases[name] = lease_of(name, "first")
    return gateway


async def lose(gateway: Gateway, client: FleetConnection, run: str | None = None) -> None:
    """A node goes away, or is there in another run; the client reads on."""
    before = asyncio.all_tasks()
    if run is None:
        gateway.roster.leases.pop("n", None)
    else:
        gateway.roster.leases["n"] = lease_of("n", run)
    gateway.connections.announce_stream(client)
    await until_done_since(before)


@pytest.mark.parametrize("comes_back_as", [None, "second"])
def test_what_a_lost_run_has_asked_is_withdrawn_at_its_clients(comes_back_as: str | None) -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await opened(cluster, "n", "m")
        client = await gateway.client("n", "m", home="n")
        ask(cluster, client, id_of(1))
        ask(cluster, client, id_of(2, node="m"), "m")
        await heard(gateway, client)
        await heard(gateway, client, "m")
        await lose(gateway, client, comes_back_as)
        assert withdrawn(cluster, client) == [id_of(1)]
        [line] = said_by_gateways(cluster, client)
        assert line.params()["_meta"] == {"sandboxagent.dev": {"outcome": "cancelled", "answeredBy": None}}

    run(main())


def test_two_gateways_withdraw_a_request_once_also_one_that_neither_has_heard() -> None:
    async def main() -> None:
        cluster = Cluster()
        client = await (await opened(cluster, "n")).client("n", home="n")
        ask(cluster, client, id_of(1))
        gateways = [await opened(cluster, "n") for _ in range(2)]
        moved = [await gateway.connections.find(client.connection_id) for gateway in gateways]
        for gateway, connection in zip(gateways, moved, strict=True):
            assert connection is not None
            await asyncio.gather(lose(gateway, connection, "second"), lose(gateway, connection, "third"))
        assert withdrawn(cluster, client) == [id_of(1)]

    run(main())


def test_what_is_settled_or_asked_by_the_run_that_is_there_is_not_withdrawn() -> None:
    async def main() -> None:
        cluster = Cluster()
        first, second = await opened(cluster, "n"), await opened(cluster, "n")
        client = await first.client("n", home="n")
        moved = await second.connections.find(client.connection_id)
        assert moved is not None
        for number in (1, 2):
            ask(cluster, client, id_of(number))
        ask(cluster, client, id_of(3, "second"))
        tell(cluster, "n", client.tag, notification(methods.CANCEL_REQUEST, {"requestId": id_of(2)[1:-1].decode()}))
        await heard(first, client)
        await first.calls.answer(client, parse(success(id_of(1), {})))
        await second.feed.catch_up(subjects.attachments(client.tag, subjects.GATEWAY))
        for gateway, connection in ((first, client), (second, moved)):
            await heard(gateway, connection)
            await lose(gateway, connection, "second")
        third = await opened(cluster, "n")
        newest = await third.connections.find(client.connection_id)
        assert newest is not None
        await lose(third, newest, "second")
        assert withdrawn(cluster, client) == []

    run(main())


def test_a_run_that_was_away_asks_again_what_was_withdrawn() -> None:
    async def main() -> None:
        cluster, deleted = Cluster(), asyncio.Event()

        async def reply(asked: NodeRequest, body: bytes) -> NodeAnswer:
            if asked.method == "DELETE":
                deleted.set()
                return ACCEPTED
            return STRANGER

        gateway = await opened(cluster, "n")
        gateway.nodes.replies["n"] = reply
        tables = MemoryBus(cluster)
        leases = await tables.table("nodes")
        there = msgspec.json.encode(lease_of("n", "first"))
        await leases.put("n", there)
        await gateway.roster.start(leases, await tables.table("sess"))
        client = await gateway.client("n", home="n")
        Streams(gateway.feed, StreamLimits()).open(client, 0, Socket())
        await gateway.guests.introduce(client, "n")
        ask(cluster, client, id_of(1))
        await heard(gateway, client)
        before = asyncio.all_tasks()
        await leases.delete("n")
        await gateway.roster.until(lambda: "n" not in gateway.roster.leases)
        await until_done_since(before)
        assert withdrawn(cluster, client) == [id_of(1)]
        await leases.put("n", there)
        await gateway.roster.until(lambda: "n" in gateway.roster.leases)
        await until_done_since(before)
        assert deleted.is_set()
        assert client.guests["n"] == "first"

    run(main())
