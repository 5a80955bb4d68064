"""Sessions that a node has lost with its disk: their clients hear of each once, and are not attached any more."""

import asyncio

import msgspec
import pytest

from sandboxagent.fleet import messages
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import StreamRecord
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.gateway.connection import FleetConnection
from sandboxagent.fleet.gateway.tunnels import NodeAnswer, NodeRequest
from sandboxagent.fleet.node.connections import PATH
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import failure, notification, success
from sandboxagent.protocol.errors import NodeRefused, UnknownSession
from tests.fleet.gateway.gateways import attach
from tests.fleet.gateway.scripted_nodes import (
    STRANGER,
    Gateway,
    Reply,
    lease_of,
    never,
    open_gateway,
    said_by_gateways,
    until_done_since,
)
from tests.support.client import run


def gone_said(cluster: Cluster, client: FleetConnection) -> list[StreamRecord]:
    """What gateways have told each other of sessions that are gone."""
    own = subjects.attachments(client.tag, subjects.GATEWAY)
    return [record for record in cluster.streams["EV"].records if record.subject == own and b'"gone"' in record.body]


async def attached_clients(cluster: Cluster, gateways: list[Gateway]) -> list[FleetConnection]:
    """One client at each of the gateways: the node n has attached it to the session s."""
    listed = messages.Listed("n", msgspec.Raw(b'{"sessionId":"s","createdAt":"","cwd":"/"}'))
    tables = MemoryBus(cluster)
    await (sessions := await tables.table("sess")).put(subjects.token("s"), msgspec.json.encode(listed))
    client = await gateways[0].client("n")
    attach(cluster, "n", client.tag, "s")
    found: list[FleetConnection] = []
    for gateway in gateways:
        leases = dict(gateway.registry.leases)
        await gateway.registry.start(await tables.table("nodes"), sessions)
        gateway.registry.leases.update(leases)
        connection = await gateway.connections.find(client.connection_id)
        assert connection is not None
        await gateway.feed.catch_up(subjects.attachments(client.tag, "n"))
        assert connection.attached("s")
        found.append(connection)
    return found


def attaching(*answers: NodeAnswer) -> Reply:
    """Knows no remote connection, and answers with each of these; the last one ever again."""
    left = list(answers)

    async def reply(asked: NodeRequest, body: bytes) -> NodeAnswer:
        if asked.target == PATH.encode():
            return STRANGER
        return left.pop(0) if len(left) > 1 else left[0]

    return reply


def test_a_client_hears_once_of_a_session_that_its_node_has_lost_with_its_disk() -> None:
    async def main() -> None:
        cluster = Cluster()
        reply = attaching(NodeAnswer(200, [], failure(b'"again"', UnknownSession("s")), ""))
        gateways = [await open_gateway(cluster, n=reply) for _ in range(2)]
        clients = await attached_clients(cluster, gateways)
        # Both introduce it to the new run of the node, at once; and to the one after that.
        for each in ("second", "third"):
            before = asyncio.all_tasks()
            for gateway, client in zip(gateways, clients, strict=True):
                gateway.registry.leases["n"] = lease_of("n", each)
                gateway.connections.announce_stream(client)
            await until_done_since(before)
        [gone] = gone_said(cluster, clients[0])
        told = cluster.streams["EV"].newest(subjects.connection_events(clients[0].tag, subjects.GATEWAY))
        assert told is not None
        assert told.sequence < gone.sequence, "its client is told first: this gateway may end in between"
        [ended] = said_by_gateways(cluster, clients[0])
        assert ended.method == "_sandboxagent/session/ended"
        assert (ended.params()["sessionId"], ended.params()["reason"]) == ("s", "deleted")

    run(main())


def test_session_end_half_told_by_one_gateway_is_completed_by_another() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateways = [await open_gateway(cluster, n=never) for _ in range(2)]
        clients = await attached_clients(cluster, gateways)
        before = asyncio.all_tasks()
        # The first one has told the client, and ended before it had told the gateways.
        ended = notification(methods.ENDED, {"sessionId": "s", "reason": "deleted"})
        gateways[0].connections.tell(clients[0], ended, "s")
        await until_done_since(before)
        known_at = await gateways[1].connections.endings.catch_up(clients[1], "n")
        gateways[1].connections.endings.tell_gone(clients[1], "s", known_at)
        # Its client was quick to open another session of this id.
        attach(cluster, "n", clients[1].tag, "s")
        await until_done_since(before)
        assert len(said_by_gateways(cluster, clients[1])) == len(gone_said(cluster, clients[1])) == 1
        for gateway, client in zip(gateways, clients, strict=True):
            await gateway.feed.catch_up(subjects.attachments(client.tag, subjects.GATEWAY))
        newest = await open_gateway(cluster, n=never)
        moved = await newest.connections.find(clients[0].connection_id)
        assert moved is not None
        assert clients[0].windows == clients[1].windows == moved.windows
        assert moved.attached("s"), "that one is there"

    run(main())


def test_client_hears_of_each_disk_loss_of_its_node_despite_reattaching() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateways = [await open_gateway(cluster, n=never) for _ in range(2)]
        clients = await attached_clients(cluster, gateways)
        endings = gateways[0].connections.endings
        for times in (1, 2, 3):
            before = asyncio.all_tasks()
            endings.tell_gone(clients[0], "s", await endings.catch_up(clients[0], "n"))
            # Its client is told; before gateways say the rest, its node attaches it to another session of this id.
            while len(said_by_gateways(cluster, clients[0])) < times:  # noqa: ASYNC110 - appending has no events
                await asyncio.sleep(0)
            attach(cluster, "n", clients[0].tag, "s")
            await until_done_since(before)
            for gateway, client in zip(gateways, clients, strict=True):
                for source in ("n", subjects.GATEWAY):
                    await gateway.feed.catch_up(subjects.attachments(client.tag, source))
                assert client.attached("s")
        assert clients[0].windows == clients[1].windows
        assert len(gone_said(cluster, clients[0])) == 3
        # What comes late is not told to a client that has another session of this id.
        before, known_at = asyncio.all_tasks(), await endings.catch_up(clients[0], "n")
        attach(cluster, "n", clients[0].tag, "s")
        await endings.catch_up(clients[0], "n")
        endings.tell_gone(clients[0], "s", known_at)
        await until_done_since(before)
        assert clients[0].attached("s")
        assert len(said_by_gateways(cluster, clients[0])) == 3

    run(main())


def test_a_client_is_no_longer_attached_to_a_session_that_its_node_has_lost() -> None:
    """The node may use the id again; its client sees that session when it is attached anew."""

    async def main() -> None:
        cluster = Cluster()
        gateways = [
            await open_gateway(cluster, n=attaching(NodeAnswer(200, [], failure(b'"again"', UnknownSession("s")), "")))
            for _ in range(3)
        ]
        here, there = await attached_clients(cluster, gateways[:2])
        before = asyncio.all_tasks()
        gateways[0].registry.leases["n"] = lease_of("n", "second")
        gateways[0].connections.announce_stream(here)
        await until_done_since(before)
        own = subjects.attachments(here.tag, subjects.GATEWAY)
        for gateway in gateways[:2]:
            await gateway.feed.catch_up(own)
        moved = await gateways[2].connections.find(here.connection_id)
        assert moved is not None
        lost_at = [client.windows["s"][-1].end for client in (here, there, moved)]
        assert None not in lost_at
        assert len(set(lost_at)) == 1

        attach(cluster, "n", here.tag, "s")
        for gateway, client in zip(gateways, (here, there, moved), strict=True):
            await gateway.feed.catch_up(subjects.attachments(here.tag, "n"))
            assert client.attached("s")
        late = await open_gateway(cluster, n=never)
        newest = await late.connections.find(here.connection_id)
        assert newest is not None
        assert newest.windows == here.windows

    run(main())


def test_a_node_that_cannot_attach_a_client_at_the_moment_is_asked_again() -> None:
    async def main() -> None:
        cluster = Cluster()
        busy = NodeAnswer(503, [], b'{"type":"urn:sandbox-agent:error:log-unavailable"}', "")
        gateway = await open_gateway(cluster, n=attaching(busy, NodeAnswer(200, [], success(b'"again"', {}), "")))
        [client] = await attached_clients(cluster, [gateway])
        with pytest.raises(NodeRefused):
            await gateway.remotes.introduce(client, "n")
        await gateway.remotes.introduce(client, "n")
        assert [target for _, target in gateway.nodes.called].count(b"/v1/rpc") == 2
        assert client.remotes["n"] == "of n"

    run(main())
