"""What members see of servers that die, and of answers that get lost."""

import asyncio
from pathlib import Path

import pytest

from sandboxagent.fleet.bus.interface import (
    Append,
    BusRefused,
    BusStream,
    Conflict,
    StreamMessage,
    StreamRecord,
    Unreachable,
)
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.bus.nats import connect
from tests.support.client import run
from tests.support.nats import PROGRAM, nats_server

needs_nats = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not installed")


async def append_surely(stream: BusStream, subject: str, last: int, body: bytes) -> int:
    """Append once, whatever happens to the answers; a predecessor that is ours tells a repeat from a conflict."""
    while True:
        try:
            return await stream.append(Append([StreamMessage(subject, body)], {subject: last}))
        except Conflict:
            newest = await stream.last(subject)
            assert newest is not None
            assert (newest.body, newest.predecessor) == (body, last)
            return newest.sequence
        except Unreachable:
            await asyncio.sleep(0.05)


def test_an_append_whose_answer_was_lost_is_found_and_not_repeated() -> None:
    async def main() -> None:
        cluster = Cluster()
        stream = await MemoryBus(cluster).stream("s", ["s.>"], max_bytes=1 << 20, max_age=60)
        last = 0
        for place in range(10):
            cluster.answers_to_lose = place % 3
            last = await append_surely(stream, "s.a", last, b"%d" % place)
        records = await stream.page("s.a", 0, last, 1 << 20)
        assert [record.body for record in records] == [b"%d" % place for place in range(10)]

    run(main())


@needs_nats
def test_a_server_killed_under_writer_and_reader_costs_nothing_but_time(tmp_path: Path) -> None:
    async def main() -> None:
        with nats_server(tmp_path / "killed") as server:
            bus = await connect([server.url], "gw.a.in", "a")
            stream = await bus.stream("EV", ["ev.>"], max_bytes=64 << 20, max_age=3600)
            got: list[StreamRecord] = []
            all_there = asyncio.Event()

            def take(record: StreamRecord) -> None:
                got.append(record)
                if len(got) == 60:
                    all_there.set()

            reader = await stream.follow(["ev.>"], 0, take)
            last = 0
            for place in range(60):
                if place in (20, 40):
                    server.kill()
                    server.restart()
                last = await append_surely(stream, "ev.s.a", last, b"%d" % place)
            await all_there.wait()
            assert [record.body for record in got] == [b"%d" % place for place in range(60)]
            await reader.close()
            await bus.close()

    run(main())


@needs_nats
def test_a_reader_that_has_heard_nothing_yet_survives_its_server(tmp_path: Path) -> None:
    async def main() -> None:
        with nats_server(tmp_path / "killed") as server:
            bus = await connect([server.url], "gw.a.in", "a")
            stream = await bus.stream("EV", ["ev.>"], max_bytes=64 << 20, max_age=3600)
            last = await append_surely(stream, "ev.s.a", 0, b"before")
            got: asyncio.Queue[StreamRecord] = asyncio.Queue()
            reader = await stream.follow([], last, got.put_nowait)
            await reader.change(["ev.s.a"])
            server.kill()
            server.restart()
            for place in range(3):
                last = await append_surely(stream, "ev.s.a", last, b"%d" % place)
            assert [(await got.get()).body for _ in range(3)] == [b"0", b"1", b"2"]
            await reader.close()
            await bus.close()

    run(main())


@needs_nats
def test_a_server_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        users = [{"user": "u", "password": "p"}]
        with (
            nats_server(tmp_path / "guarded", authorization={"users": users}) as server,
            pytest.raises(BusRefused, match="credentials"),
        ):
            await connect([server.url], "gw.a.in", "a")
        with pytest.raises(Unreachable):
            await connect([server.url], "gw.a.in", "a")
        with nats_server(tmp_path / "plain", jetstream=False) as server:
            bus = await connect([server.url], "gw.a.in", "a")
            with pytest.raises(BusRefused, match="have no JetStream for this account; turn it on"):
                await bus.stream("EV", ["ev.>"], max_bytes=1 << 20, max_age=60)
            await bus.close()
        with nats_server(tmp_path / "single") as server:
            bus = await connect([server.url], "gw.a.in", "a")
            with pytest.raises(BusRefused, match="not a cluster of 3 that have JetStream; run so many: --replicas"):
                await bus.stream("EV", ["ev.>"], max_bytes=1 << 20, max_age=60, replicas=3)
            await bus.close()

    run(main())
