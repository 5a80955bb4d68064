"""What agents have asked before their node was started anew, on a bus in memory: withdrawn at every client, once."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import TableEntry
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.gateway import connection as connection_module
from sandboxagent.fleet.gateway.connection import MAX_PENDING, FleetConnection
from sandboxagent.fleet.gateway.registry import ORDERS, forget_key
from sandboxagent.fleet.gateway.tunnels import NodeAnswer, NodeRequest
from sandboxagent.fleet.node.connections import PATH
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import notification, parse, request, success
from sandboxagent.protocol.errors import NodeUnreachable
from sandboxagent.server.http.deliver import Delivery
from sandboxagent.server.http.stream import StreamLimits, Streams
from sandboxagent.server.log.event import Chunk
from tests.fleet.gateway.gateways import Socket, tell
from tests.fleet.gateway.scripted_nodes import (
    ACCEPTED,
    KNOWN,
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
    return b'"rq_%s.%s.%d"' % (node.encode(), run.encode(), number)


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
        gateway.registry.leases[name] = lease_of(name, "first")
    return gateway


async def lose(gateway: Gateway, client: FleetConnection, run: str | None = None) -> None:
    """A node goes away, or is there in another run; the client reads on."""
    before = asyncio.all_tasks()
    if run is None:
        gateway.registry.leases.pop("n", None)
    else:
        gateway.registry.leases["n"] = lease_of("n", run)
    gateway.connections.announce_stream(client)
    await until_done_since(before)


def test_requests_of_a_run_are_withdrawn_when_another_replaces_it() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await opened(cluster, "n", "m")
        client = await gateway.client("n", "m", home="n")
        ask(cluster, client, id_of(1))
        ask(cluster, client, id_of(2, node="m"), "m")
        await heard(gateway, client)
        await heard(gateway, client, "m")
        await lose(gateway, client, "second")
        assert withdrawn(cluster, client) == [id_of(1)]
        [line] = said_by_gateways(cluster, client)
        assert line.params()["_meta"] == {"sandboxagent.dev": {"outcome": "cancelled", "answeredBy": None}}

    run(main())


def test_requests_of_a_forgotten_node_that_was_away_are_withdrawn_once() -> None:
    async def main() -> None:
        cluster = Cluster()
        orders = await MemoryBus(cluster).table(ORDERS)
        gateways = [await opened(cluster, "n", "m") for _ in range(2)]
        client = await gateways[0].client("n", "m", home="n")
        moved = await gateways[1].connections.find(client.connection_id)
        assert moved is not None
        for gateway in gateways:
            await gateway.registry.orders.start(orders)
        ask(cluster, client, id_of(1))
        ask(cluster, client, id_of(2, node="m"), "m")
        for gateway, connection in zip(gateways, (client, moved), strict=True):
            await heard(gateway, connection)
            await lose(gateway, connection)
        assert withdrawn(cluster, client) == []
        before = asyncio.all_tasks()
        await orders.put(forget_key("n"), b"{}")
        for gateway in gateways:
            forgotten = gateway.registry.orders.forgotten
            await gateway.registry.until(lambda forgotten=forgotten: "n" in forgotten)
        await until_done_since(before)
        assert withdrawn(cluster, client) == [id_of(1)]
        # By way of a gateway that has not heard yet that it was forgotten.
        ask(cluster, client, id_of(3))
        await heard(gateways[0], client)
        client.kept_at = -1000.0
        await gateways[0].remotes.keep_all()
        await until_done_since(before)
        assert withdrawn(cluster, client) == [id_of(1), id_of(3)]

    run(main())


def test_requests_of_a_reinvited_node_survive_a_late_order_to_forget_it() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await opened(cluster, "n")
        client = await gateway.client("n", home="n")
        await gateway.registry.orders.start(await MemoryBus(cluster).table(ORDERS))
        ask(cluster, client, id_of(1))
        await heard(gateway, client)
        before = asyncio.all_tasks()
        gateway.registry.orders.take(TableEntry(forget_key("n"), b"{}", 1))
        await until_done_since(before)
        assert withdrawn(cluster, client) == []

    run(main())


def test_a_gateway_reads_what_clients_were_asked_one_client_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may be many pages, and clients that have come from a gateway that is gone want theirs meanwhile."""
    reading: list[Sequence[str]] = []
    most = 0

    async def main() -> None:
        nonlocal most
        cluster = Cluster()
        first = await opened(cluster, "n")
        clients = [await first.client("n", home="n") for _ in range(5)]
        for number, client in enumerate(clients):
            ask(cluster, client, id_of(number))
        second = await opened(cluster, "n")
        moved = [await second.connections.find(client.connection_id) for client in clients]
        page = second.feed.page

        async def note(channels: Sequence[str], after: int, through: int) -> list[Chunk]:
            nonlocal most
            reading.append(channels)
            most = max(most, len(reading))
            for _ in range(10):
                await asyncio.sleep(0)
            try:
                return await page(channels, after, through)
            finally:
                reading.remove(channels)

        monkeypatch.setattr(second.feed, "page", note)
        await asyncio.gather(*(lose(second, each, "second") for each in moved if each is not None))
        assert most == 1
        assert [withdrawn(cluster, client) for client in clients] == [[id_of(number)] for number in range(5)]

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


def test_request_of_an_earlier_run_published_late_is_withdrawn_in_time() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await opened(cluster, "n")
        client = await gateway.client("n", home="n")
        await lose(gateway, client, "second")
        ask(cluster, client, id_of(1))
        await heard(gateway, client)
        before = asyncio.all_tasks()
        client.kept_at = -1000.0
        await gateway.remotes.keep_all()
        await until_done_since(before)
        assert withdrawn(cluster, client) == [id_of(1)]

    run(main())


def test_settled_requests_and_those_of_the_present_run_are_not_withdrawn() -> None:
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


def test_what_a_lost_node_has_asked_waits_until_the_same_run_takes_the_answer() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await opened(cluster, "n")
        methods_called: list[str] = []

        async def reply(asked: NodeRequest, body: bytes) -> NodeAnswer:
            methods_called.append(asked.method)
            return KNOWN if asked.target == PATH.encode() else ACCEPTED

        gateway.nodes.replies["n"] = reply
        tables = MemoryBus(cluster)
        leases = await tables.table("nodes")
        there = msgspec.json.encode(lease_of("n", "first"))
        await leases.put("n", there)
        await gateway.registry.start(leases, await tables.table("sess"))
        client = await gateway.client("n", home="n")
        Streams(gateway.feed, StreamLimits()).open(client, 0, Socket())
        await gateway.remotes.introduce(client, "n")
        ask(cluster, client, id_of(1))
        await heard(gateway, client)
        before = asyncio.all_tasks()
        await leases.delete("n")
        await gateway.registry.until(lambda: "n" not in gateway.registry.leases)
        await until_done_since(before)
        answer = parse(success(id_of(1), {}))
        with pytest.raises(NodeUnreachable):
            await gateway.calls.answer(client, answer)
        await leases.put("n", there)
        await gateway.registry.until(lambda: "n" in gateway.registry.leases)
        await until_done_since(before)
        await gateway.calls.answer(client, answer)
        await lose(gateway, client, "second")
        assert withdrawn(cluster, client) == []
        assert "DELETE" not in methods_called

    run(main())


def test_an_answer_may_come_again_under_its_key_when_its_node_is_back() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await opened(cluster, "n")
        client = await gateway.client("n", home="n")
        ask(cluster, client, id_of(1))
        delivery = Delivery(gateway.connections, gateway.calls, 10)
        answer = parse(success(id_of(1), {}))
        before = asyncio.all_tasks()
        lease = gateway.registry.leases.pop("n")
        await delivery.acknowledge(client, answer, "key")
        gateway.registry.leases["n"] = lease
        await delivery.acknowledge(client, answer, "key")
        await until_done_since(before)
        assert [receipt.succeeded for receipt in said_by_gateways(cluster, client)] == [False, True]

    run(main())


def test_what_a_run_asks_that_begins_while_a_gateway_looks_is_not_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        cluster = Cluster()
        client = await (await opened(cluster, "n")).client("n", home="n")
        ask(cluster, client, id_of(1))
        gateway = await opened(cluster, "n")
        moved = await gateway.connections.find(client.connection_id)
        assert moved is not None
        catch_up = gateway.feed.catch_up

        async def begin_and_catch_up(channel: str) -> None:
            if gateway.registry.leases["n"].nonce == "first":
                gateway.registry.leases["n"] = lease_of("n", "second")
                ask(cluster, client, id_of(2, "second"))
            await catch_up(channel)

        monkeypatch.setattr(gateway.feed, "catch_up", begin_and_catch_up)
        await lose(gateway, moved, "first")
        assert withdrawn(cluster, client) == [id_of(1)]

    run(main())


def test_a_connection_with_a_long_past_moves_and_nothing_settled_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MAX_PENDING", 3)

    async def main() -> None:
        cluster = Cluster()
        gateway = await opened(cluster, "n")
        client = await gateway.client("n", home="n")
        for number in range(0, 20, 2):
            ask(cluster, client, id_of(number))
            await gateway.calls.answer(client, parse(success(id_of(number), {})))
            ask(cluster, client, id_of(number + 1))
            over = {"requestId": id_of(number + 1)[1:-1].decode()}
            tell(cluster, "n", client.tag, notification(methods.CANCEL_REQUEST, over))
            await gateway.feed.catch_up(subjects.attachments(client.tag, subjects.GATEWAY))
        ask(cluster, client, id_of(20))
        second = await opened(cluster, "n")
        moved = await second.connections.find(client.connection_id)
        assert moved is not None
        await lose(second, moved, "second")
        assert withdrawn(cluster, client) == [id_of(20)]

    run(main())


def test_remembered_requests_are_bounded_for_each_node_by_itself() -> None:
    client = FleetConnection("g.id", "g", "a", 0.0)
    client.note_requests({id_of(0, node="m"): None, id_of(1, node="m"): None})
    client.note_settled([id_of(1, node="m")])
    ids = [id_of(number) for number in range(2 * MAX_PENDING)]
    client.note_requests(dict.fromkeys(ids))
    assert list(client.requests["n"]) == ids[MAX_PENDING:]
    client.note_settled(ids)
    assert list(client.settled["n"]) == ids[MAX_PENDING:]
    assert (list(client.requests["m"]), list(client.settled["m"])) == ([id_of(0, node="m")], [id_of(1, node="m")])
