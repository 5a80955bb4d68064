"""Streams over a real log in one event loop, and clients that check what they are sent."""

import asyncio
import json
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvloop

from sandboxagent.server.http.stream import Stream, StreamLimits, Streams
from sandboxagent.server.log.database import Database
from sandboxagent.server.log.event import Direction, session_channel
from sandboxagent.server.log.log import Limits, Log
from sandboxagent.server.log.session_index import IndexEntry
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.session import Session, SessionFacts
from tests.support import sse
from tests.support.logs import trim
from tests.support.running import BOUND

T = TypeVar("T")
LATER = 1e9
"""A time at which any heartbeat is due."""


class StreamWorld:
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
        card = IndexEntry(session_id, "a", session_id, None, "/", "process" if again else None, 0.0, None)
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
        await trim(self.log)

    def close(self) -> None:
        self.run(self.release())
        self.log.close()
        self.runner.close()


@dataclass
class Client:
    """One connection's client: everything it has received since it last began from the beginning."""

    world: StreamWorld
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


def open_client(world: StreamWorld, *sessions: str) -> Client:
    async def step() -> Client:
        client = Client(world, world.hub.connections.open("a"))
        for session in sessions:
            world.hub.attach(client.connection, world.session(session))
        return client

    return world.run(step())


async def say(world: StreamWorld, session: str, text: str = "", count: int = 1) -> int:
    line = json.dumps({"text": text}).encode()
    await world.append(session_channel(session), [line] * count, session)
    return world.log.position
