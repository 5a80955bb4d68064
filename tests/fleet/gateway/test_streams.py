"""Streams at gateways, on a bus in memory: one that goes on elsewhere, or is behind, leaves out and repeats nothing."""

import asyncio

import msgspec
import pytest

from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.memory import Cluster
from sandboxagent.fleet.gateway.connection import FleetConnection
from sandboxagent.fleet.messages import ConnectionRecord
from sandboxagent.server.http.stream import REPLACED
from tests.fleet.gateway.gateways import (
    LAST,
    OWN,
    SESSION,
    attach,
    read_until,
    speak,
    start_gateway,
    start_two,
    tell,
)
from tests.support.client import run
from tests.support.running import BOUND


def test_a_stream_passes_over_nothing_of_a_node_that_another_gateway_brings_in() -> None:
    async def main() -> None:
        cluster = Cluster()
        first, second = await start_two(cluster)
        opened = await first.open("n")
        await first.connections.add_node(opened, "n")
        moved = await second.take_over(opened)
        stream = second.read(moved)
        tell(cluster, "n", opened.tag, OWN)
        assert await read_until(stream, OWN) == [OWN]
        # It is live from here on, and reads whatever comes.
        reading = asyncio.create_task(read_until(stream, LAST))
        entry = cluster.tables["conns"].entries[opened.tag]
        assert entry.value is not None
        visit = msgspec.json.decode(entry.value, type=ConnectionRecord)
        visit.nodes.append("m")
        cluster.tables["conns"].put(opened.tag, msgspec.json.encode(visit), None, None)
        while "m" not in moved.remotes:  # noqa: ASYNC110 - what is tested has no events
            await asyncio.sleep(0)
        attach(cluster, "m", opened.tag, "s")
        speak(cluster, "m", "s", SESSION)
        tell(cluster, "n", opened.tag, LAST)
        assert await reading == [SESSION, LAST]

    run(main())


def test_a_stream_that_goes_on_at_a_gateway_which_is_behind_repeats_nothing() -> None:
    async def main() -> None:
        cluster = Cluster()
        first, second = await start_two(cluster)
        opened = await first.open("n")
        await first.connections.add_node(opened, "n")
        attach(cluster, "n", opened.tag, "s")
        moved = await second.take_over(opened)
        stream = first.read(opened)
        async with asyncio.timeout(BOUND):
            while not (opened.attached("s") and moved.attached("s")):  # noqa: ASYNC110 - what is tested has no events
                await asyncio.sleep(0)
        await second.connections.ordering.settled(moved)
        second.bus.cut = True
        speak(cluster, "n", "s", SESSION)
        assert await read_until(stream, SESSION) == [SESSION]
        second.bus.cut = False
        reading = asyncio.create_task(read_until(second.read(moved, first.feed.position), LAST))
        for _ in range(20):
            await asyncio.sleep(0)
        speak(cluster, "n", "s", LAST)
        assert await reading == [LAST]

    run(main())


def test_what_a_page_had_is_not_repeated_when_the_gateway_comes_to_it() -> None:
    async def main() -> None:
        cluster = Cluster()
        first, second = await start_two(cluster)
        opened, other = await first.open("n"), await second.open("n")
        for gateway, connection in ((first, opened), (second, other)):
            await gateway.connections.add_node(connection, "n")
            attach(cluster, "n", connection.tag, "s")
            async with asyncio.timeout(BOUND):
                while not connection.attached("s"):  # noqa: ASYNC110 - what is tested has no events
                    await asyncio.sleep(0)
            await gateway.connections.ordering.settled(connection)
        cluster.held = []
        speak(cluster, "n", "s", SESSION)
        tell(cluster, "n", opened.tag, OWN)
        stream = second.read(await second.take_over(opened))
        assert await read_until(stream, OWN) == [SESSION, OWN]
        held, cluster.held = cluster.held, None
        reading = asyncio.create_task(read_until(stream, LAST))
        for _ in range(20):
            await asyncio.sleep(0)
        for deliver in held:
            deliver()
        speak(cluster, "n", "s", LAST)
        assert await reading == [LAST]

    run(main())


async def until_announced(cluster: Cluster, opened: FleetConnection, count: int) -> None:
    """Wait until so many streams were announced."""
    subject = subjects.attachments(opened.tag, subjects.GATEWAY)
    async with asyncio.timeout(BOUND):
        while sum(record.subject == subject for record in cluster.streams["EV"].records) < count:  # noqa: ASYNC110
            await asyncio.sleep(0)


def test_word_of_an_older_stream_does_not_end_one_that_was_opened_since() -> None:
    async def main() -> None:
        cluster = Cluster()
        first, second = await start_two(cluster)
        opened = await first.open()
        moved = await second.take_over(opened)
        cluster.held = []
        old = first.read(opened)
        await until_announced(cluster, opened, 1)
        new = second.read(moved)
        await until_announced(cluster, opened, 2)
        held, cluster.held = cluster.held, None
        for deliver in held:
            deliver()
        async with asyncio.timeout(BOUND):
            while old.reason is None:  # noqa: ASYNC110 - what is tested has no events
                await asyncio.sleep(0)
        assert (old.reason, new.reason) == (REPLACED, None)

    run(main())


def test_a_stream_that_its_client_has_left_is_not_announced_any_more() -> None:
    async def main() -> None:
        cluster = Cluster()
        first, second = await start_two(cluster)
        opened = await first.open()
        moved = await second.take_over(opened)
        first.bus.cut = True
        first.streams.forget(opened, first.read(opened))
        new = second.read(moved)
        await until_announced(cluster, opened, 1)
        first.bus.cut = False
        # It comes after all that this gateway has said before.
        first.connections.tell(opened, LAST)
        assert await read_until(new, LAST) == [LAST]
        assert new.reason is None

    run(main())


def test_a_page_does_not_go_past_a_session_that_the_gateway_has_still_to_hear_of() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await start_gateway(cluster, "g1")
        opened = await gateway.open("n")
        await gateway.connections.add_node(opened, "n")
        stream = gateway.read(opened)
        cluster.held = []
        attach(cluster, "n", opened.tag, "s")
        speak(cluster, "n", "s", SESSION)
        tell(cluster, "m", opened.tag, OWN)
        reading = asyncio.create_task(read_until(stream, OWN))
        # What it says begins where the leader has it, and the reader has not come there with the others.
        await gateway.connections.add_node(opened, "m")
        for _ in range(50):
            await asyncio.sleep(0)
        held, cluster.held = cluster.held, None
        for deliver in held:
            deliver()
        assert await reading == [SESSION, OWN]

    run(main())


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_reader_that_is_behind_gets_what_came_before_it_was_detached(elsewhere: bool) -> None:
    async def main() -> None:
        cluster = Cluster()
        first, second = await start_two(cluster)
        opened = await first.open("n")
        await first.connections.add_node(opened, "n")
        attach(cluster, "n", opened.tag, "s")
        stream = first.read(opened)
        speak(cluster, "n", "s", SESSION)
        attach(cluster, "n", opened.tag, "s", attached=False)
        speak(cluster, "n", "s", b'{"after":1}')
        tell(cluster, "n", opened.tag, LAST)
        async with asyncio.timeout(BOUND):
            while opened.attached("s") or not opened.windows:  # noqa: ASYNC110 - what is tested has no events
                await asyncio.sleep(0)
        first.connections.close_unused()
        if elsewhere:
            stream = second.read(await second.take_over(opened))
        assert await read_until(stream, LAST) == [SESSION, LAST]

    run(main())


def test_a_client_waits_for_no_event_that_its_stream_does_not_bring() -> None:
    async def main() -> None:
        cluster = Cluster()
        one, two = await start_two(cluster)
        speak(cluster, "n", "s", SESSION)
        client = await one.open()
        assert client.opened_at > 0
        assert [each.last_event for each in (client, await two.take_over(client))] == [0, 0]

    run(main())


def test_an_idle_stream_keeps_nothing_in_memory_that_it_does_not_need() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await start_gateway(cluster, "g1")
        opened = await gateway.open("n")
        await gateway.connections.add_node(opened, "n")
        attach(cluster, "n", opened.tag, "s")
        tell(cluster, "n", opened.tag, OWN)
        assert await read_until(gateway.read(opened), OWN) == [OWN]
        await gateway.connections.ordering.settled(opened)
        await asyncio.sleep(0)
        feed, connections = gateway.feed, gateway.connections
        # What nodes and gateways say about a connection is taken as it comes.
        assert [chunk.lines for _, chunk in feed._tail] == [[OWN]]  # pyright: ignore[reportPrivateUsage]
        assert not connections.ordering._searches  # pyright: ignore[reportPrivateUsage]
        assert not hasattr(opened, "__dict__")

    run(main())
