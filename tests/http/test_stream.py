"""Streams over a real log: what a client receives is what its connection should have seen, exactly once and in order,
whatever else happens. Contract, section 4."""

import asyncio
import json
import threading
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
import uvloop
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sandbox_agent.http.stream import Stream, StreamLimits, Streams
from sandbox_agent.hub.connection import Connection
from sandbox_agent.hub.hub import Hub
from sandbox_agent.hub.session import Session, SessionFacts
from sandbox_agent.log.cards import Card
from sandbox_agent.log.database import Database
from sandbox_agent.log.event import NO_CLIENT, Direction, agent_channel, session_channel
from sandbox_agent.log.log import Limits, Log
from tests.support import sse
from tests.support.running import BOUND

T = TypeVar("T")
LATER = 1e9
"""A time at which any heartbeat is due."""


class World:
    """A log, a hub and streams in one event loop, with limits so small that everything happens soon."""

    def __init__(self, limits: Limits | None = None, stream_limits: StreamLimits | None = None) -> None:
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.held: asyncio.Future[object] | None = None
        self._go = threading.Event()
        self.stream_limits = stream_limits or StreamLimits()
        self.run(self._build(limits or Limits()))

    async def _build(self, limits: Limits) -> None:
        self.log = Log(Database(None), limits)
        self.hub = Hub(self.log)
        self.streams = Streams(self.log, self.stream_limits)

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(BOUND):
                return await step

        return self.runner.run(bounded())

    def session(self, session_id: str, agent: str = "a") -> Session:
        return Session(
            SessionFacts(
                session_id=session_id, agent_session_id=session_id, agent=agent, cwd="/", created_at=0, updated_at=0
            )
        )

    async def end(self, session_id: str, *, again: bool = False) -> None:
        """Its events go first from now on, unless a process holds it again."""
        card = Card(session_id, "a", session_id, None, "/", "process" if again else None, 0.0, None)
        self.log.save_session(session_id, b"{}", card)

    async def append(self, channel: str, lines: list[bytes], session_id: str | None = None, exclude: str = "") -> None:
        self.log.append(lines, Direction.FROM_AGENT, session_id, channel, exclude=exclude)

    async def hold(self) -> None:
        """Keep the disk busy: nothing is written or read until it is released."""
        if self.held is None:
            busy = threading.Event()
            self._go.clear()

            def wait(_: Database) -> None:
                busy.set()
                self._go.wait(BOUND)

            self.held = asyncio.ensure_future(self.log._read(wait))
            await asyncio.to_thread(busy.wait, BOUND)

    async def release(self) -> None:
        """Let the disk do everything it has to, trimming included."""
        if self.held is not None:
            self._go.set()
            await self.held
            self.held = None
        await self.log.committed(self.log.position)
        # A read comes after the trimming that follows a write.
        await self.log.flushed()

    async def trim(self) -> None:
        await self.log._read(self.log._trim)

    def close(self) -> None:
        self.run(self.release())
        self.log.close()
        self.runner.close()


@dataclass
class Client:
    """One connection's client: everything it has received since it last began from the beginning."""

    world: World
    connection: Connection
    received: dict[int, str] = field(default_factory=dict)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    stream: Stream | None = None
    reading: asyncio.Task[bytes | None] | None = None
    cut_off: bool = False
    cursor: int = 0
    comments: list[str] = field(default_factory=list)
    unsent: int = 0

    def abort(self) -> None:
        """What a stream does to a socket that takes nothing."""
        self.cut_off = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    async def connect(self, after: int) -> None:
        self.stream = self.world.streams.open(self.connection, after, self)
        self.cut_off = False
        self.received = {id: data for id, data in self.received.items() if id <= after}
        self.gaps = [gap for gap in self.gaps if gap[1] <= after + 1]
        self.cursor = after

    async def read(self, share: float = 1.0, patient: bool = True) -> bool:
        """Take one batch, or the first part of it; False when there was none but a heartbeat."""
        assert self.stream is not None
        if self.reading is None:
            self.reading = asyncio.ensure_future(self.stream.next())
        for _ in range(3):
            await asyncio.sleep(0)
        waits = not self.reading.done()
        if waits:
            # A heartbeat wakes a stream that has nothing to say, and no other.
            self.stream.tick(time.monotonic() + LATER)
            await asyncio.sleep(0)
        if not self.reading.done() and not patient:
            return False
        while not self.reading.done():
            # It was on its way through the log, and has nothing to say after all.
            self.stream.tick(time.monotonic() + LATER)
            await asyncio.sleep(0.001)
        data, self.reading = await self.reading, None
        assert data is not None, "the stream ended by itself"
        frames, comments = sse.parse(data[: round(len(data) * share)])
        self.comments += comments
        for frame in frames:
            self.take(frame)
        return not waits or comments != [""] or bool(frames)

    def take(self, frame: sse.Frame) -> None:
        position = int(frame.id)
        message = json.loads(frame.data)
        if message.get("method") == "_sandboxagent/stream/gap":
            params = message["params"]
            assert params["after"] >= self.connection.opened_at
            assert position < params["resumesAt"]
            assert position >= self.cursor, "an id that goes back"
            assert any(self.world.log.trims.get(name, 0) > params["after"] for name in self.connection.channels())
            self.gaps.append((params["after"], params["resumesAt"]))
            # A client remembers it like any other id.
            assert position > self.cursor or not self.streamed, "an id twice on one stream"
        else:
            assert position > self.cursor, "an event twice, or an id that goes back"
            self.received[position] = frame.data
        self.cursor = position

    @property
    def streamed(self) -> bool:
        return self.cursor in self.received

    async def drain(self) -> None:
        while await self.read():
            pass

    async def drop(self, known_to_server: bool) -> None:
        """Lose the socket. The server may not know: it goes on writing into the void."""
        if self.stream is None:
            return
        if self.reading is not None:
            self.reading.cancel()
            await asyncio.wait([self.reading])
            self.reading = None
        if known_to_server:
            self.world.streams.forget(self.connection, self.stream)
        self.stream = None

    def announced(self, position: int) -> bool:
        return any(after < position < resumes_at for after, resumes_at in self.gaps)


@pytest.fixture
def world() -> Iterator[World]:
    """Hardly anything stays in memory."""
    built = World(Limits(tail_bytes=0), StreamLimits(buffer=10_000, stall_timeout=1, heartbeat=15))
    yield built
    built.close()


def open_client(world: World, *sessions: str) -> Client:
    async def step() -> Client:
        client = Client(world, world.hub.connections.open("a"))
        for session in sessions:
            world.hub.attach(client.connection, world.session(session))
        return client

    return world.run(step())


async def say(world: World, session: str, text: str = "", count: int = 1) -> int:
    line = json.dumps({"text": text}).encode()
    await world.append(session_channel(session), [line] * count, session)
    return world.log.position


def test_a_stream_begins_with_a_comment(world: World) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        await say(world, "s")
        await client.connect(0)
        assert client.stream is not None
        first = await client.stream.next()
        assert first is not None
        assert first.startswith(b":")
        assert sse.parse(first)[0] == []

    world.run(step())


@pytest.mark.requirement("4.silent")
def test_a_client_that_takes_nothing_for_too_long_is_cut_off_though_it_is_not_behind(world: World) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        await client.connect(0)
        assert client.stream is not None
        now = time.monotonic()
        client.unsent = 100
        client.stream.tick(now + 50)
        client.unsent = 90
        client.stream.tick(now + 100)
        client.stream.tick(now + 155)
        assert not client.cut_off, "it took something, slowly"
        client.stream.tick(now + 161)
        assert client.cut_off

    world.run(step())


def test_attaching_while_a_page_is_read_loses_nothing(world: World) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        expected = [await say(world, "s"), await say(world, "s")]
        await world.release()
        assert world.log.evicted == expected[-1], "all of it has left the memory"
        await client.connect(0)
        await client.read()
        await world.hold()
        assert not await client.read(patient=False), "the page waits for the disk"
        world.hub.attach(client.connection, world.session("t"))
        expected += [await say(world, "t"), await say(world, "s")]
        await world.release()
        await client.drain()

        assert list(client.received) == expected

    world.run(step())


def test_detaching_while_a_page_is_read_loses_nothing_and_adds_nothing(world: World) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        expected = [await say(world, "s")]
        await world.release()
        await client.connect(0)
        await client.read()
        await world.hold()
        await client.read(patient=False)
        expected.append(await say(world, "s"))
        world.hub.detach(client.connection, world.session("s"))
        await say(world, "s")
        await world.release()
        await client.drain()

        assert list(client.received) == expected

    world.run(step())


def test_a_gap_covers_everything_that_is_lost_also_when_ended_sessions_went_first() -> None:
    world = World(Limits(max_bytes=60_000, tail_bytes=0))
    client = open_client(world, "kept", "ended")

    async def step() -> None:
        await world.end("ended")
        positions = [await say(world, ["kept", "ended"][index % 2], "x" * 6_000) for index in range(10)]
        await world.release()
        await world.trim()
        assert world.log.trims.keys() >= {session_channel("ended")}
        assert session_channel("kept") not in world.log.trims
        await client.connect(0)
        await client.drain()

        for position in positions:
            assert position in client.received or client.announced(position), f"{position} is missing silently"
        assert len(client.gaps) == 1

    world.run(step())
    world.close()


def test_what_is_trimmed_while_a_page_waits_for_the_disk_is_announced() -> None:
    world = World(Limits(max_bytes=40_000, tail_bytes=0))
    client = open_client(world, "s")

    async def step() -> None:
        positions = [await say(world, "s", "x" * 6_000)]
        await world.release()
        await client.connect(0)
        await client.read()
        # Both in one go: it is written, then the disk is busy, and trims what is too much when that is over.
        positions += [await say(world, "s", "x" * 6_000) for _ in range(10)]
        await world.hold()
        assert not await client.read(patient=False), "the page waits for the disk"
        await world.release()
        await client.drain()

        assert world.log.trims
        for position in positions:
            assert position in client.received or client.announced(position), f"{position} is missing silently"

    world.run(step())
    world.close()


def test_what_memory_still_holds_is_delivered_after_a_gap_while_the_disk_is_behind() -> None:
    world = World(Limits(max_bytes=10_000, tail_bytes=0))
    client = open_client(world, "s")

    async def step() -> None:
        for _ in range(5):
            await say(world, "s", "x" * 6_000)
        await world.release()
        await world.trim()
        await world.hold()
        last = await say(world, "s", "new")
        await client.connect(0)
        await client.read()
        await client.read(patient=False)
        await world.release()
        await client.drain()

        assert client.gaps
        assert last in client.received

    world.run(step())
    world.close()


def test_a_stream_that_is_behind_and_takes_nothing_is_cut_off(world: World) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        await client.connect(0)
        await client.drain()
        assert client.stream is not None
        await say(world, "s")
        assert await client.stream.next()
        client.stream.tick(time.monotonic() + 60)
        assert not client.cut_off, "one that is merely slow to take what it was handed is not behind"
        await say(world, "s", "x" * 20_000)
        client.stream.tick(time.monotonic() + 0.5)
        assert not client.cut_off, "it has a second to begin"
        client.stream.tick(time.monotonic() + 1.5)
        assert client.cut_off

    world.run(step())


@pytest.mark.parametrize("how", ["taken over", "closed"])
def test_a_stream_that_has_to_end_and_takes_nothing_is_cut_off(world: World, how: str) -> None:
    """Or a dead socket would stay for as long as TCP waits."""
    client = open_client(world, "s")

    async def step() -> None:
        await client.connect(0)
        await client.drain()
        first = client.stream
        assert first is not None
        await say(world, "s")
        assert await first.next()
        if how == "closed":
            world.hub.close_connection(client.connection, "the client closed the connection")
        else:
            await client.connect(0)
        first.tick(time.monotonic() + 60)

        assert client.cut_off

    world.run(step())


def test_an_idle_stream_gets_a_comment_after_a_while_and_no_sooner(world: World) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        await client.connect(0)
        await client.drain()
        assert client.stream is not None
        reading = asyncio.ensure_future(client.stream.next())
        await asyncio.sleep(0)
        client.stream.tick(time.monotonic() + 14)
        await asyncio.sleep(0)
        assert not reading.done()
        client.stream.tick(time.monotonic() + 16)
        assert (await reading or b"").startswith(b":")

    world.run(step())


def test_an_answer_waits_until_its_client_was_handed_the_events_before_it(world: World) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        await client.connect(0)
        await client.drain()
        assert client.stream is not None
        position = await say(world, "s")
        waiting = asyncio.ensure_future(client.stream.caught_up(position))
        await asyncio.sleep(0)
        assert not waiting.done()
        await client.read()
        await client.read()
        await asyncio.sleep(0)
        assert waiting.done()

    world.run(step())


def test_an_answer_does_not_wait_long_for_a_client_that_does_not_read(world: World) -> None:
    client = open_client(world, "s")

    async def step() -> None:
        await client.connect(0)
        assert client.stream is not None
        position = await say(world, "s")
        async with asyncio.timeout(20):
            await client.stream.caught_up(position)
        assert position not in client.received

    world.run(step())


CLIENTS = st.integers(0, 2)
SESSIONS = st.sampled_from(["s", "t", "u"])
AGENTS = st.sampled_from(["a", "b"])
COUNTS = st.integers(1, 5)
SIZES = st.sampled_from([10, 10, 10, 700])


class ExactlyOnce(RuleBasedStateMachine):
    """Any schedule of appending, attaching, reading, losing the socket, reconnecting, evicting and trimming."""

    def __init__(self) -> None:
        super().__init__()
        # A chunk is a few hundred bytes: memory holds a handful, a stream's buffer fewer, the disk some dozens.
        self.world = World(
            Limits(max_bytes=6_000, tail_bytes=1_500), StreamLimits(buffer=1_000, stall_timeout=1, heartbeat=15)
        )
        self.log, self.hub = self.world.log, self.world.hub
        self.clients: list[Client] = []
        self.sessions = {name: self.world.session(name, agent) for name, agent in (("s", "a"), ("t", "a"), ("u", "b"))}
        self.expected: dict[str, dict[int, str]] = {}
        """Tag → what its connection should have seen."""
        self.count = 0
        self.ended: set[str] = set()

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        return self.world.run(step)

    # Who is there

    @initialize()
    def open_connections(self) -> None:
        for agent in ("a", "a", "b"):
            self.open(agent)

    def open(self, agent: str) -> None:
        async def step() -> Connection:
            return self.hub.connections.open(agent)

        client = Client(self.world, self.run(step()))
        client.cursor = client.connection.opened_at
        self.clients.append(client)
        self.expected[client.connection.tag] = {}

    @rule(client=CLIENTS, session=SESSIONS)
    def attach(self, client: int, session: str) -> None:
        async def step() -> None:
            self.hub.attach(self.clients[client].connection, self.sessions[session])

        self.run(step())

    @rule(client=CLIENTS, session=SESSIONS)
    def detach(self, client: int, session: str) -> None:
        async def step() -> None:
            self.hub.detach(self.clients[client].connection, self.sessions[session])

        self.run(step())

    # What is said

    def say(self, channel: str, audience: list[Client], count: int, size: int, **more: Any) -> None:
        lines = [json.dumps({"n": self.count + index, "x": "x" * size}) for index in range(count)]
        self.count += count
        first = self.log.position + 1

        async def step() -> None:
            await self.world.append(channel, [line.encode() for line in lines], **more)
            if self.world.held is None:
                await self.world.release()

        self.run(step())
        for client in audience:
            self.expected[client.connection.tag] |= dict(enumerate(lines, first))

    @rule(session=SESSIONS, count=COUNTS, size=SIZES)
    def say_in_a_session(self, session: str, count: int, size: int) -> None:
        audience = [client for client in self.clients if client.connection.attached(session)]
        self.say(session_channel(session), audience, count, size, session_id=session)

    @rule(session=SESSIONS, sender=CLIENTS)
    def say_to_the_others_in_a_session(self, session: str, sender: int) -> None:
        audience = [client for client in self.clients if client.connection.attached(session)]
        tag = self.clients[sender].connection.tag
        audience = [client for client in audience if client.connection.tag != tag]
        self.say(session_channel(session), audience, 1, 10, session_id=session, exclude=tag)

    @rule(client=CLIENTS, session=st.none() | SESSIONS)
    def say_to_one(self, client: int, session: str | None) -> None:
        chosen = self.clients[client]
        self.say(chosen.connection.channel, [chosen], 1, 10, session_id=session)

    @rule(agent=AGENTS)
    def say_to_all_of_an_agent(self, agent: str) -> None:
        audience = [client for client in self.clients if agent in client.connection.agents]
        self.say(agent_channel(agent), audience, 1, 10)

    @rule(session=SESSIONS, size=SIZES)
    def record_for_nobody(self, session: str, size: int) -> None:
        self.say(NO_CLIENT, [], 1, size, session_id=session)

    # Sockets

    @rule(client=CLIENTS, data=st.data())
    def connect(self, client: int, data: st.DataObject) -> None:
        """With the last id it has, or with an older one."""
        chosen = self.clients[client]
        ids = [chosen.cursor, *sorted(chosen.received)[-5:], 0]
        after = ids[data.draw(st.integers(0, len(ids) - 1))]

        async def step() -> None:
            before, reading = chosen.stream, chosen.reading
            if before is None and chosen.connection.stream is not None:
                before = chosen.connection.stream  # type: ignore[assignment]
            await chosen.connect(after)
            chosen.reading = None
            if before is not None:
                await self.ends_with_a_comment(chosen, before, reading)

        self.run(step())

    async def ends_with_a_comment(
        self, client: Client, stream: Stream, reading: asyncio.Task[bytes | None] | None
    ) -> None:
        await self.world.release()
        rest = [await reading] if reading is not None else []
        while rest[-1:] != [None]:
            rest.append(await stream.next())
        assert b"another stream took over" in b"".join(part for part in rest if part)
        self.world.streams.forget(client.connection, stream)

    @rule(client=CLIENTS, known=st.booleans())
    def drop(self, client: int, known: bool) -> None:
        self.run(self.clients[client].drop(known))

    @rule(client=CLIENTS, times=st.integers(1, 4), share=st.sampled_from([1.0, 1.0, 0.4]))
    def read(self, client: int, times: int, share: float) -> None:
        chosen = self.clients[client]
        if chosen.stream is None:
            return
        for _ in range(times):
            self.run(chosen.read(share, patient=self.world.held is None))
            if chosen.reading is not None:
                return
            if share < 1:
                # What was not taken is lost with the socket.
                self.run(chosen.drop(known_to_server=False))
                return

    @rule(client=CLIENTS)
    def stall(self, client: int) -> None:
        """It has been handed something and takes it no more."""
        chosen = self.clients[client]
        if chosen.stream is not None and chosen.reading is None:
            chosen.stream.tick(time.monotonic() + 2)
            if chosen.cut_off:
                self.run(chosen.drop(known_to_server=True))

    # The disk

    @rule()
    def hold_the_disk(self) -> None:
        self.run(self.world.hold())

    @rule()
    def release_the_disk(self) -> None:
        self.run(self.world.release())

    @rule()
    def trim(self) -> None:
        async def step() -> None:
            await self.world.release()
            await self.world.trim()

        self.run(step())

    @rule(session=SESSIONS)
    def end_a_session(self, session: str) -> None:
        self.run(self.world.end(session, again=session in self.ended))
        self.ended ^= {session}

    # What must hold

    @invariant()
    def what_was_received_is_what_should_have_been(self) -> None:
        for client in self.clients:
            expected = self.expected[client.connection.tag]
            for position, line in client.received.items():
                assert expected.get(position) == line, f"{position} was not for {client.connection.tag}"
            for position in expected:
                if position <= client.cursor and position not in client.received:
                    assert client.announced(position), f"{position} is missing, and no gap says so"

    def teardown(self) -> None:
        try:
            self.run(self.world.release())
            for client in self.clients:
                if client.stream is None:
                    self.run(client.connect(client.cursor))
                self.run(client.drain())
                self.what_was_received_is_what_should_have_been()
                last = max(self.expected[client.connection.tag], default=0)
                assert client.cursor >= last or client.announced(last), "the end did not come"
        finally:
            self.world.close()


TestExactlyOnce = ExactlyOnce.TestCase
TestExactlyOnce.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
