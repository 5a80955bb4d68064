"""Connections at gateways, on a bus in memory: one that moves, or meets a new node elsewhere, misses nothing."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import pytest

from sandbox_agent.bus import memory, subjects
from sandbox_agent.bus.memory import Cluster, MemoryBus
from sandbox_agent.bus.ports import Append, StreamMessage, StreamRecord
from sandbox_agent.envelope import parse
from sandbox_agent.errors import LogUnavailable, UnknownConnection
from sandbox_agent.gateway import connection as connection_module
from sandbox_agent.gateway.connection import FleetConnection, Promise
from sandbox_agent.gateway.connections import FleetConnections
from sandbox_agent.gateway.feed import EVERYTHING, Feed
from sandbox_agent.gateway.own_events import OwnEvents
from sandbox_agent.gateway.roster import Roster
from sandbox_agent.http.stream import TAKEN_OVER, Stream, StreamLimits, Streams
from sandbox_agent.log import wire
from sandbox_agent.log.event import Chunk, Direction, attachment_channel, connection_channel, session_channel
from sandbox_agent.wire.fleet import AttachmentChange, Gone, Lease, Visit
from tests.support.client import run
from tests.support.running import BOUND

INITIALIZE = parse(b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}')
OWN, SESSION, LAST = b'{"own":1}', b'{"session":1}', b'{"last":1}'


class Socket:
    """Takes everything at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        raise AssertionError("the stream was cut off")


@dataclass
class Gateway:
    """What a gateway has for connections."""

    bus: MemoryBus
    feed: Feed
    roster: Roster
    connections: FleetConnections
    streams: Streams

    async def open(self, home: str | None = None) -> FleetConnection:
        return await self.connections.open(self.connections.make_id(), "a", INITIALIZE, home)

    async def take_over(self, opened: FleetConnection) -> FleetConnection:
        """The same connection, which its client now uses here."""
        moved = await self.connections.find(opened.connection_id)
        assert moved is not None
        return moved

    def read(self, connection: FleetConnection, after: int = 0) -> Stream:
        return self.streams.open(connection, after, Socket())


async def start_gateway(cluster: Cluster, name: str) -> Gateway:
    bus = MemoryBus(cluster)
    events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 30, max_age=3600)
    feed, roster = Feed(events, 1 << 20), Roster()
    await roster.start(await bus.table("nodes"), await bus.table("sess"))
    await feed.start()
    connections = FleetConnections(name, feed, roster, await bus.table("conns"), OwnEvents(events), 600)
    await connections.start()
    streams = Streams(feed, StreamLimits(), connections.announce_stream, connections.is_incomplete)
    return Gateway(bus, feed, roster, connections, streams)


async def start_two(cluster: Cluster) -> tuple[Gateway, Gateway]:
    return await start_gateway(cluster, "g1"), await start_gateway(cluster, "g2")


def say(cluster: Cluster, node: str, chunk: Chunk) -> None:
    """Append what a node says."""
    subject = wire.subject_of(chunk, node)
    assert subject is not None
    stream = cluster.streams["EV"]
    for each in wire.outgoing(chunk, subject):
        last = stream.newest(subject)
        headers = {wire.NODE: node, wire.EPOCH: "1", wire.LAST: str(stream.position + 1), wire.META: each.meta}
        expected = {subject: 0 if last is None else last.sequence}
        stream.append(Append([StreamMessage(subject, each.body, headers)], expected))


def tell_gateways(cluster: Cluster, source: str, tag: str, line: bytes) -> None:
    """Append what a node, or a gateway, says about a connection."""
    say(cluster, source, Chunk(1, [line], Direction.FROM_SERVER, None, attachment_channel(tag), 0.0, history=False))


def attach(cluster: Cluster, node: str, tag: str, session_id: str, *, attached: bool = True) -> None:
    tell_gateways(cluster, node, tag, msgspec.json.encode(AttachmentChange(session_id, attached=attached)))


def tell(cluster: Cluster, node: str, tag: str, line: bytes) -> None:
    say(cluster, node, Chunk(1, [line], Direction.FROM_SERVER, None, connection_channel(tag), 0.0, history=False))


def speak(cluster: Cluster, node: str, session_id: str, line: bytes) -> None:
    say(cluster, node, Chunk(1, [line], Direction.FROM_AGENT, session_id, session_channel(session_id), 0.0))


async def read_until(stream: Stream, line: bytes) -> list[bytes]:
    """The data of all events up to a line."""
    lines: list[bytes] = []
    async with asyncio.timeout(BOUND):
        while line not in lines:
            data = await stream.next()
            assert data is not None
            found = [each.removeprefix(b"data:").strip() for each in data.splitlines() if each.startswith(b"data:")]
            lines += found
    return lines


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
        assert list(moved.guests) == ["n", "m"]
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


def test_a_connection_that_is_closed_elsewhere_while_it_is_read_here_keeps_no_request_waiting() -> None:
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
        visit = msgspec.json.decode(entry.value, type=Visit)
        visit.nodes.append("m")
        cluster.tables["conns"].put(opened.tag, msgspec.json.encode(visit), None, None)
        while "m" not in moved.guests:  # noqa: ASYNC110 - what is tested has no events
            await asyncio.sleep(0)
        attach(cluster, "m", opened.tag, "s")
        speak(cluster, "m", "s", SESSION)
        tell(cluster, "n", opened.tag, LAST)
        assert await reading == [SESSION, LAST]

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
        assert await gateway.connections.is_guest("n", opened.tag)
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
        visit = msgspec.structs.replace(msgspec.json.decode(opened.record(), type=Visit), nodes=["m"])
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


def test_positions_of_a_node_that_lost_its_disk_are_waited_for_anew() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await start_gateway(cluster, "g1")
        leases = await gateway.bus.table("nodes")

        async def beat(nonce: str) -> None:
            lease = Lease("n", nonce, "1", {}, [], 0, "", 0)
            await leases.put("n", msgspec.json.encode(lease))
            await gateway.roster.until(lambda: [each.nonce for each in gateway.roster.leases.values()] == [nonce])

        await beat("first")
        opened = await gateway.open("n")
        await gateway.connections.add_node(opened, "n")
        for _ in range(5):
            tell(cluster, "n", opened.tag, OWN)
        await gateway.feed.progress.kept("n", 5)
        await leases.delete("n")
        await gateway.roster.until(lambda: "n" not in gateway.roster.leases)
        await beat("first")
        await gateway.feed.progress.kept("n", 5)
        await beat("second")
        waiting = gateway.feed.progress.kept("n", 2)
        await asyncio.sleep(0)
        assert not waiting.done()
        tell(cluster, "n", opened.tag, OWN)
        await waiting

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
        await second.connections.settling.settled(moved)
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
            await gateway.connections.settling.settled(connection)
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
        assert (old.reason, new.reason) == (TAKEN_OVER, None)

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


def test_a_response_is_taken_of_the_node_alone_that_was_asked() -> None:
    async def main() -> None:
        cluster = Cluster()
        first, second = await start_two(cluster)
        opened = await first.open("n")
        for node in ("n", "evil"):
            await first.connections.add_node(opened, node)
        moved = await second.take_over(opened)
        forged, fair = b'{"jsonrpc":"2.0","id": 7,"result":{}}', b'{"jsonrpc":"2.0","id":7,"result":{"of":"n"}}'
        await first.connections.promises.note_accepted(opened, b"7", Promise("n", "a run", 0))
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
        await gateway.connections.promises.note_accepted(opened, b'"a"', Promise("n", "a run", 0))
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
        said = wire.position_of(cluster.streams["EV"].position)
        # What a client has asked is in the session's history alone.
        asked = Chunk(1, [b'{"asked":1}'], Direction.FROM_CLIENT, "s", connection_channel(opened.tag), 0.0)
        say(cluster, "n", asked)
        await gateway.connections.settling.caught_up(opened, "n", cluster.streams["EV"].position, "s")
        assert opened.last_event == said
        assert await read_until(gateway.read(opened), SESSION) == [SESSION]

    run(main())


def test_an_answer_waits_for_its_attachment_also_when_another_client_has_shown_that_the_stream_has_it() -> None:
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
        waiting = asyncio.create_task(gateway.connections.settling.caught_up(opened, "n", attached_at, "s"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        for deliver in cluster.held:
            deliver()
        await waiting
        assert opened.windows["s"][-1].start == wire.position_of(attached_at)
        assert opened.last_event == wire.position_of(cluster.streams["EV"].position)

    run(main())


def test_an_answer_waits_for_updates_of_its_session_also_when_another_session_is_ahead() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await start_gateway(cluster, "g1")
        opened, other = await gateway.open("n"), await gateway.open("n")
        await gateway.connections.add_node(opened, "n")
        attach(cluster, "n", opened.tag, "a")
        await gateway.connections.settling.caught_up(opened, "n", cluster.streams["EV"].position, "a")
        cluster.held = []
        speak(cluster, "n", "a", SESSION)
        said_at = cluster.streams["EV"].position
        speak(cluster, "n", "b", OWN)
        gateway.feed.follow(session_channel("b"), other)
        await gateway.feed.complete([session_channel("b")])
        waiting = asyncio.create_task(gateway.connections.settling.caught_up(opened, "n", said_at, "a"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        for deliver in cluster.held:
            deliver()
        await waiting
        assert opened.last_event == wire.position_of(said_at)

    run(main())


def test_a_session_id_that_was_lost_twice_is_read_alike_at_every_gateway() -> None:
    async def main() -> None:
        cluster = Cluster()
        first, second = await start_two(cluster)
        opened = await first.open("n")
        await first.connections.add_node(opened, "n")

        def lose() -> None:
            now = wire.position_of(cluster.streams["EV"].position)
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
    monkeypatch.setattr(connection_module, "MOST_ATTACHED", 3)

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
        await gateway.connections.settling.settled(opened)
        await asyncio.sleep(0)
        feed, connections = gateway.feed, gateway.connections
        # What nodes and gateways say about a connection is taken as it comes.
        assert [chunk.lines for _, chunk in feed._tail] == [[OWN]]  # pyright: ignore[reportPrivateUsage]
        assert not connections.settling._tasks  # pyright: ignore[reportPrivateUsage]
        assert not hasattr(opened, "__dict__")

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
