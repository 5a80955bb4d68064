"""Responses at gateways: each is of the node that was asked, and waits for what its client has to have seen."""

import asyncio

import msgspec

from sandboxagent.fleet import records
from sandboxagent.fleet.bus.memory import Cluster
from sandboxagent.fleet.gateway.connection import ResponsePromise
from sandboxagent.fleet.messages import Lease
from sandboxagent.server.log.event import Chunk, Direction, connection_channel, session_channel
from tests.fleet.gateway.gateways import (
    LAST,
    OWN,
    SESSION,
    attach,
    read_until,
    say,
    speak,
    start_gateway,
    start_two,
    tell,
)
from tests.support.client import run
from tests.support.running import BOUND


def test_positions_of_a_node_that_lost_its_disk_are_waited_for_anew() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await start_gateway(cluster, "g1")
        leases = await gateway.bus.table("nodes")

        async def beat(nonce: str) -> None:
            lease = Lease("n", nonce, "1", {}, [], 0, "", 0)
            await leases.put("n", msgspec.json.encode(lease))
            await gateway.registry.until(lambda: [each.nonce for each in gateway.registry.leases.values()] == [nonce])

        await beat("first")
        opened = await gateway.open("n")
        await gateway.connections.add_node(opened, "n")
        for _ in range(5):
            tell(cluster, "n", opened.tag, OWN)
        await gateway.feed.progress.kept("n", 5)
        await leases.delete("n")
        await gateway.registry.until(lambda: "n" not in gateway.registry.leases)
        await beat("first")
        await gateway.feed.progress.kept("n", 5)
        await beat("second")
        waiting = gateway.feed.progress.kept("n", 2)
        await asyncio.sleep(0)
        assert not waiting.done()
        tell(cluster, "n", opened.tag, OWN)
        await waiting

    run(main())


def test_a_response_is_taken_of_the_node_alone_that_was_asked() -> None:
    async def main() -> None:
        cluster = Cluster()
        first, second = await start_two(cluster)
        opened = await first.open("n")
        for node in ("n", "evil"):
            await first.connections.add_node(opened, node)
        moved = await second.take_over(opened)
        forged, fair = b'{"jsonrpc":"2.0","id": 7,"result":{}}', b'{"jsonrpc":"2.0","id":7,"result":{"of":"n"}}'
        await first.connections.promises.note_accepted(opened, b"7", ResponsePromise("n", "a run", 0))
        async with asyncio.timeout(BOUND):
            while b"7" not in moved.asked:  # noqa: ASYNC110 - what is tested has no events
                await asyncio.sleep(0)
        tell(cluster, "evil", opened.tag, forged)
        tell(cluster, "evil", opened.tag, b'{"jsonrpc":"2.0","id":8,"result":{}}')
        tell(cluster, "evil", opened.tag, OWN)
        tell(cluster, "n", opened.tag, fair)
        tell(cluster, "n", opened.tag, LAST)
        third = await start_gateway(cluster, "g3")
        for gateway, connection in ((first, opened), (second, moved), (third, await third.take_over(opened))):
            seen = await read_until(gateway.read(connection), LAST)
            assert forged not in seen
            assert [seen.count(each) for each in (OWN, fair, LAST)] == [1, 1, 1]
        assert not opened.unanswered

    run(main())


def test_a_forged_response_leaves_the_request_unanswered() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await start_gateway(cluster, "g1")
        opened = await gateway.open("n")
        for node in ("n", "evil"):
            await gateway.connections.add_node(opened, node)
        await gateway.connections.promises.note_accepted(opened, b'"a"', ResponsePromise("n", "a run", 0))
        tell(cluster, "evil", opened.tag, b'{"jsonrpc":"2.0","id":"\\u0061","error":{"code":-1,"message":""}}')
        tell(cluster, "n", opened.tag, LAST)
        await read_until(gateway.read(opened), LAST)
        assert [(id, promise.run) for id, promise in opened.unanswered.items()] == [(b'"a"', "a run")]

    run(main())


def test_a_response_waits_for_nothing_that_streams_do_not_bring() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await start_gateway(cluster, "g1")
        opened = await gateway.open("n")
        await gateway.connections.add_node(opened, "n")
        attach(cluster, "n", opened.tag, "s")
        speak(cluster, "n", "s", SESSION)
        said = records.position_of(cluster.streams["EV"].position)
        # What a client has asked is in the session's history alone.
        asked = Chunk(1, [b'{"asked":1}'], Direction.FROM_CLIENT, "s", connection_channel(opened.tag), 0.0)
        say(cluster, "n", asked)
        await gateway.connections.ordering.wait_sent(opened, "n", cluster.streams["EV"].position, "s")
        assert opened.last_event == said
        assert await read_until(gateway.read(opened), SESSION) == [SESSION]

    run(main())


def test_answer_waits_for_its_attachment_even_when_another_client_is_ahead() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await start_gateway(cluster, "g1")
        opened, other = await gateway.open("n"), await gateway.open("n")
        await gateway.connections.add_node(opened, "n")
        cluster.held = []
        attach(cluster, "n", opened.tag, "s")
        attached_at = cluster.streams["EV"].position
        speak(cluster, "n", "s", SESSION)
        gateway.feed.follow(session_channel("s"), other)
        await gateway.feed.complete([session_channel("s")])
        waiting = asyncio.create_task(gateway.connections.ordering.wait_sent(opened, "n", attached_at, "s"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        for deliver in cluster.held:
            deliver()
        await waiting
        assert opened.windows["s"][-1].start == records.position_of(attached_at)
        assert opened.last_event == records.position_of(cluster.streams["EV"].position)

    run(main())


def test_answer_waits_for_its_sessions_updates_when_another_is_ahead() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await start_gateway(cluster, "g1")
        opened, other = await gateway.open("n"), await gateway.open("n")
        await gateway.connections.add_node(opened, "n")
        attach(cluster, "n", opened.tag, "a")
        await gateway.connections.ordering.wait_sent(opened, "n", cluster.streams["EV"].position, "a")
        cluster.held = []
        speak(cluster, "n", "a", SESSION)
        said_at = cluster.streams["EV"].position
        speak(cluster, "n", "b", OWN)
        gateway.feed.follow(session_channel("b"), other)
        await gateway.feed.complete([session_channel("b")])
        waiting = asyncio.create_task(gateway.connections.ordering.wait_sent(opened, "n", said_at, "a"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        for deliver in cluster.held:
            deliver()
        await waiting
        assert opened.last_event == records.position_of(said_at)

    run(main())
