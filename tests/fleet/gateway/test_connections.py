"""Connections at gateways, on a bus in memory: one that moves, or meets a new node elsewhere, misses nothing."""

import asyncio
from collections.abc import Iterable, Sequence

import msgspec
import pytest

from sandboxagent.fleet import records
from sandboxagent.fleet.bus import memory, subjects
from sandboxagent.fleet.bus.interface import StreamRecord
from sandboxagent.fleet.bus.memory import Cluster
from sandboxagent.fleet.gateway import connection as connection_module
from sandboxagent.fleet.gateway.feed import EVERYTHING
from sandboxagent.fleet.messages import ConnectionRecord, Gone
from sandboxagent.protocol.errors import LogUnavailable, UnknownConnection
from sandboxagent.server.log.event import Chunk
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
    tell_gateways,
)
from tests.support.client import run
from tests.support.running import BOUND


def test_the_reader_learns_of_all_that_a_connection_reads_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is a round trip to the servers and waits for those before it; a new gateway gets many clients."""
    changes: list[list[str]] = []
    change = memory._Reader.change

    async def note(following: memory._Reader, wanted: Iterable[str]) -> None:
        changes.append(list(wanted))
        await change(following, changes[-1])

    monkeypatch.setattr(memory._Reader, "change", note)

    async def main() -> None:
        first, second = await start_two(Cluster())
        opened = await first.open("n")
        assert len(changes) == 1
        revision = opened.revision
        await first.connections.add_node(opened, "n")
        # Its home is in its record from the first.
        assert (len(changes), opened.revision) == (1, revision)
        await first.connections.add_node(opened, "m")
        changes.clear()
        moved = await second.take_over(opened)
        assert list(moved.remotes) == ["n", "m"]
        assert len(changes) == 1

    run(main())


def test_requests_that_come_while_a_connection_is_read_wait_for_all_of_it() -> None:
    async def main() -> None:
        cluster = Cluster()
        first, second = await start_two(cluster)
        opened = await first.open("n")
        await first.connections.add_node(opened, "n")
        attach(cluster, "n", opened.tag, "s")
        speak(cluster, "n", "s", SESSION)
        tell(cluster, "n", opened.tag, LAST)
        loading = asyncio.create_task(second.connections.find(opened.connection_id))
        while not second.connections.all():  # noqa: ASYNC110 - what is tested has no events
            await asyncio.sleep(0)
        beside = await second.connections.find(opened.connection_id)
        assert beside is not None
        assert beside.attached("s")
        assert beside is await loading
        assert await read_until(second.read(beside), LAST) == [SESSION, LAST]

    run(main())


def test_connection_closed_elsewhere_while_read_here_keeps_no_request_waiting() -> None:
    async def main() -> None:
        first, second = await start_two(Cluster())
        opened = await first.open()
        reading, find_last = asyncio.Event(), second.feed.last

        async def wait(subject: str) -> StreamRecord | None:
            await reading.wait()
            return await find_last(subject)

        second.feed.last = wait
        loading = asyncio.create_task(second.connections.find(opened.connection_id))
        while not second.connections.all():  # noqa: ASYNC110 - what is tested has no events
            await asyncio.sleep(0)
        await first.connections.close(opened, "its client has closed it")
        with pytest.raises(LogUnavailable):
            await asyncio.wait_for(loading, BOUND)
        assert await second.connections.find(opened.connection_id) is None
        reading.set()

    run(main())


def test_a_wrong_id_does_not_hide_a_connection_from_its_client() -> None:
    async def main() -> None:
        cluster = Cluster()
        first, second = await start_two(cluster)
        opened = await first.open()
        wrong, right = await asyncio.gather(
            second.connections.find(f"{opened.tag}.wrong"), second.connections.find(opened.connection_id)
        )
        assert wrong is None
        assert right is not None

    run(main())


def test_an_introduction_that_fails_is_made_again() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await start_gateway(cluster, "g1")
        opened = await gateway.open()
        gateway.bus.cut = True
        with pytest.raises(LogUnavailable):
            await gateway.connections.add_node(opened, "n")
        gateway.bus.cut = False
        await gateway.connections.add_node(opened, "n")
        assert await gateway.connections.is_remote("n", opened.tag)
        tell(cluster, "n", opened.tag, LAST)
        assert await read_until(gateway.read(opened), LAST) == [LAST]

    run(main())


def test_two_gateways_that_introduce_a_connection_at_once_hear_both_nodes() -> None:
    async def main() -> None:
        cluster = Cluster()
        first, second = await start_two(cluster)
        opened = await first.open()
        moved = await second.take_over(opened)
        await asyncio.gather(first.connections.add_node(opened, "n"), second.connections.add_node(moved, "m"))
        tell(cluster, "n", opened.tag, OWN)
        tell(cluster, "m", opened.tag, LAST)
        for gateway, connection in ((first, opened), (second, moved)):
            assert await read_until(gateway.read(connection), LAST) == [OWN, LAST]

    run(main())


def test_a_node_that_cannot_be_heard_ends_the_connection_here() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await start_gateway(cluster, "g1")
        opened = await gateway.open()
        stream = gateway.read(opened)
        visit = msgspec.structs.replace(msgspec.json.decode(opened.record(), type=ConnectionRecord), nodes=["m"])
        attach(cluster, "m", opened.tag, "s")

        async def fail(channels: Sequence[str], after: int, through: int) -> list[Chunk]:
            raise LogUnavailable("no server answers")

        gateway.feed.page = fail
        cluster.tables["conns"].put(opened.tag, msgspec.json.encode(visit), None, None)
        async with asyncio.timeout(BOUND):
            while await stream.next() is not None:
                pass
        assert stream.reason == "it could not be read"
        assert not gateway.connections.all()

    run(main())


def test_keeping_a_connection_that_its_client_has_closed_does_not_bring_it_back() -> None:
    async def main() -> None:
        cluster = Cluster()
        first, second = await start_two(cluster)
        opened = await first.open()
        await second.take_over(opened)
        await (await second.bus.table("conns")).delete(opened.tag)
        with pytest.raises(UnknownConnection):
            await first.connections.add_node(opened, "n")
        assert cluster.tables["conns"].entries[opened.tag].value is None

    run(main())


def test_a_session_id_that_was_lost_twice_is_read_alike_at_every_gateway() -> None:
    async def main() -> None:
        cluster = Cluster()
        first, second = await start_two(cluster)
        opened = await first.open("n")
        await first.connections.add_node(opened, "n")

        def lose() -> None:
            now = records.position_of(cluster.streams["EV"].position)
            tell_gateways(cluster, subjects.GATEWAY, opened.tag, msgspec.json.encode(Gone("s", now)))

        for _ in range(2):
            attach(cluster, "n", opened.tag, "s")
            lose()
        attach(cluster, "n", opened.tag, "s")
        await first.feed.catch_up(subjects.attachments(opened.tag, "n"))
        assert [window.end is None for window in opened.windows["s"]] == [False, False, True]
        assert (await second.take_over(opened)).windows == opened.windows
        lose()
        third = await start_gateway(cluster, "g3")
        moved = await third.take_over(opened)
        await first.feed.catch_up(subjects.attachments(opened.tag, subjects.GATEWAY))
        assert not moved.attached("s")
        assert moved.windows == opened.windows

    run(main())


def test_a_node_attaches_a_client_to_so_many_sessions_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MAX_ATTACHED", 3)

    async def main() -> None:
        cluster = Cluster()
        gateway = await start_gateway(cluster, "g1")
        opened = await gateway.open("n")
        for node in ("n", "other"):
            await gateway.connections.add_node(opened, node)

        async def attached(node: str, *sessions: str) -> set[str]:
            for session_id in sessions:
                attach(cluster, node, opened.tag, session_id)
            await gateway.feed.catch_up(subjects.attachments(opened.tag, node))
            return {each for each in opened.windows if opened.attached(each)}

        assert await attached("n", "x" * 2000) == set()
        assert await attached("n", "a", "b", "c", "a", "d", "e") == {"a", "b", "c"}
        attach(cluster, "n", opened.tag, "b", attached=False)
        assert await attached("n", "d", "e") == {"a", "c", "d"}
        tell_gateways(cluster, subjects.GATEWAY, opened.tag, msgspec.json.encode(Gone("a", EVERYTHING)))
        assert await attached("n", "e", "f") == {"c", "d", "e"}
        assert await attached("other", "g") == {"c", "d", "e", "g"}

    run(main())


def test_a_connection_that_could_not_be_read_leaves_its_successors_attachments_alone() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await start_gateway(cluster, "g1")
        opened = await gateway.open("n")
        await gateway.connections.add_node(opened, "n")
        gateway.feed.fell_behind()
        again = await gateway.connections.find(opened.connection_id)
        assert again is not None
        gateway.connections._unfollow(opened, "n")  # pyright: ignore[reportPrivateUsage]
        attach(cluster, "n", opened.tag, "s")
        speak(cluster, "n", "s", b"seen")
        assert await read_until(gateway.read(again), b"seen") == [b"seen"]

    run(main())
