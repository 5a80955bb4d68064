"""A node whose sandbox was taken over: it has its key, knows all names and ids, and tries everything for ever."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path

import msgspec

from sandboxagent.fleet import messages, records
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import BusError
from sandboxagent.fleet.bus.nats import NatsBus, connect
from sandboxagent.fleet.messages import BeatRequest, FactsReply, FactsRequest, LogReply, LogRequest
from sandboxagent.server.log.event import Chunk, Direction, session_channel

NAME = "evil"
MARK = "written by a hostile node"
"""In all that it says: nobody may read it in another node's session."""
LARGE = 250_000
"""Bytes of an event by which it wants to drop those of others."""
PAUSE = 0.1
"""Seconds between its attacks, so that it does not take this machine's processors instead."""
TIMEOUT = 1.0
FLOODS = 20
"""It floods each time that it has tried everything else so often."""


@dataclass
class Hostile:
    """It attacks one gateway after another."""

    sessions: Callable[[], Sequence[str]]
    """Those of other nodes."""
    random: random.Random
    sent: Counter[str] = field(default_factory=Counter[str])
    """What it has tried, by kind."""
    foreign: int = 0
    """What it got that is another node's: a grant, a place in the list, a request."""
    _bus: NatsBus | None = None
    _gateways: set[str] = field(default_factory=set[str])
    _ends: dict[str, int] = field(default_factory=dict[str, int])
    _nonce: str = "its only run"
    _number: int = 0

    async def start(self, servers: Sequence[str], key: Path) -> None:
        self._bus = await connect(servers, subjects.inbox_of_node(NAME), NAME, key)
        await self._bus.subscribe(subjects.GATEWAY_ANNOUNCEMENTS, self._take_announcement)
        await self._bus.subscribe(subjects.flow_to_node(NAME, "*"), self._take_flow)

    async def close(self) -> None:
        if self._bus is not None:
            await self._bus.close()

    async def run(self) -> None:
        """Until cancelled. While it is set aside, it goes on."""
        quiet = (self._take_over, self._list_others, self._evict, self._evict, self._spread)
        loud = cycle((self._flood, self._babble))
        for turn in count(1):
            await self._ask(messages.BEAT, BeatRequest(self._nonce, 0, "0", {}, [], 0))
            # A flood has it set aside: what it tries else would not be heard.
            for attack in (*quiet, *([] if turn % FLOODS else [next(loud)])):
                with suppress(BusError):
                    await attack()
                await asyncio.sleep(PAUSE)

    # What it gets

    def _take_announcement(self, subject: str, body: bytes) -> None:
        self._gateways.add(msgspec.msgpack.decode(body, type=messages.GatewayAnnouncement).gateway)

    def _take_flow(self, subject: str, body: bytes) -> None:
        self.foreign += sum(each.encode() in body for each in self.sessions())

    # What it does

    async def _take_over(self) -> None:
        """Write into the session of another node, wherever that may end."""
        session = self.random.choice(self.sessions())
        subject = subjects.session_events(session)
        for expected in (0, self._ends.get(subject, 0)):
            reply = await self._say(session, MARK, expected)
            if reply is not None and reply.published:
                self.foreign += 1
            for end in ((reply.ends if reply else None) or {}).values():
                self._ends[subject] = end.sequence

    async def _list_others(self) -> None:
        """List the session of another node as its own, one of its own under the other's alias, and one that is huge."""
        other = self.random.choice(self.sessions())
        views: dict[str, object] = {
            other: {"sessionId": other, "createdAt": "2026-01-01T00:00:00.000Z", "cwd": "/"},
            "evil alias": {
                "sessionId": "evil alias",
                "createdAt": "2026-01-01T00:00:00.000Z",
                "cwd": "/",
                "alias": other,
            },
            "evil huge": {"sessionId": "evil huge", "createdAt": "", "cwd": "x" * LARGE, "title": MARK},
        }
        for name, view in views.items():
            if name != other:
                await self._publish(name, MARK)
            answer = await self._ask(messages.FACTS, FactsRequest({name: json.dumps(view).encode()}))
            if name == other and answer is not None:
                reply = msgspec.msgpack.decode(answer, type=FactsReply)
                self.foreign += not reply.refused and reply.failed is None

    async def _evict(self) -> None:
        """Publish as much as it may, so that older events have to go."""
        for place in range(4):
            await self._publish(f"evil {place}", MARK * (LARGE // len(MARK)))

    async def _spread(self) -> None:
        """The same, in many small sessions."""
        for _ in range(10):
            self._number += 1
            await self._publish(f"evil small {self._number}", MARK)

    async def _flood(self) -> None:
        """Verbs that no gateway knows, and pieces of flows that are not there."""
        for verb in ("nonsense", "flow", messages.BEAT):
            for place in range(1000):
                await self._send(verb, b"x" * 100)
                if place % 100 == 0:
                    await asyncio.sleep(0)

    async def _babble(self) -> None:
        """Requests that nobody can read."""
        for verb in (messages.LOG, messages.FACTS, messages.BEAT):
            for _ in range(100):
                await self._send(verb, self.random.randbytes(200))

    # How

    async def _publish(self, session: str, text: str) -> None:
        subject = subjects.session_events(session)
        reply = await self._say(session, text, self._ends.get(subject, 0))
        if reply is None:
            return
        if reply.published:
            self._ends |= reply.published
        for name, end in (reply.ends or {}).items():
            self._ends[name] = end.sequence

    async def _say(self, session: str, text: str, expected: int) -> LogReply | None:
        self._number += 1
        line = json.dumps(
            {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "text": text}}
        )
        chunk = Chunk(self._number, [line.encode()], Direction.FROM_AGENT, session, session_channel(session), 0.0)
        subject = subjects.session_events(session)
        answer = await self._ask(
            messages.LOG, LogRequest(list(records.outgoing(chunk, subject)), {subject: expected}, self._nonce)
        )
        return None if answer is None else msgspec.msgpack.decode(answer, type=LogReply)

    async def _ask(self, verb: str, request: object) -> bytes | None:
        self.sent[verb] += 1
        if self._bus is None or not self._gateways:
            return None
        subject = subjects.request_to_gateway(NAME, verb, self.random.choice(sorted(self._gateways)))
        try:
            return await self._bus.request(subject, msgspec.msgpack.encode(request), TIMEOUT)
        except BusError:
            return None

    async def _send(self, verb: str, body: bytes) -> None:
        self.sent[f"{verb}, without sense"] += 1
        if self._bus is not None and self._gateways:
            gateway = self.random.choice(sorted(self._gateways))
            await self._bus.publish(subjects.request_to_gateway(NAME, verb, gateway), body)
