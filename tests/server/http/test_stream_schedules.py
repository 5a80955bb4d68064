"""Streams over a real log, in any order of events: exactly once, in order, and a gap where something is gone.
Contract, section 4."""

import asyncio
import json
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sandboxagent.server.http.stream import Stream, StreamLimits
from sandboxagent.server.log.event import NO_CLIENT, agent_channel, session_channel
from sandboxagent.server.log.log import Limits
from sandboxagent.server.sessions.connection import Connection
from tests.support.streams import Client, StreamWorld

T = TypeVar("T")
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
        self.world = StreamWorld(
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
