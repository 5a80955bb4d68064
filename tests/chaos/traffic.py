"""Writers, whose turns are numbered, and readers that wander between gateways while parts of a fleet fail."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise

import httpx

from tests.chaos.parts import Endpoint
from tests.support.client import Client, Json

TEXTS = 3
"""Of each turn."""
PATIENCE = 5.0
"""Seconds of silence after which a reader goes elsewhere."""
BROKEN = (httpx.HTTPError, AssertionError, EOFError, TimeoutError, OSError)
"""What a client sees of a part that fails."""


@dataclass
class Writer:
    """Takes turns in one session. A turn whose POST breaks is never repeated: it may have happened."""

    endpoint: Callable[[], Endpoint]
    session: str = ""
    acknowledged: list[int] = field(default_factory=list[int])
    """Numbers of turns whose result came."""
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _client: Client | None = None

    async def open(self) -> str:
        self._client = await self._connect()
        self.session = await self._client.new_session()
        return self.session

    async def run(self) -> None:
        while True:
            number = next(self._numbers)
            program = [["say", f"{number}.{place}"] for place in range(TEXTS)]
            try:
                if self._client is None:
                    self._client = await self._connect()
                reply = await self._client.prompt(self.session, program)
                if "result" in reply:
                    self.acknowledged.append(number)
            except BROKEN:
                await self.close()
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.http.aclose()

    async def _connect(self) -> Client:
        client = Client(self.endpoint())
        try:
            await client.initialize()
        except BaseException:
            await client.http.aclose()
            raise
        return client


@dataclass
class Reader:
    """Reads one session, for a moment at each gateway, going on behind the last event that it has."""

    session: str
    gateways: Callable[[], Sequence[Endpoint]]
    random: random.Random
    seen: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Turn and place of each text, as they came."""
    ways: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """The id of each of them, and by which way it came."""
    last: int = 0
    disordered_ids: int = 0
    arrived_at: float = field(default_factory=time.monotonic)
    _at: str = ""
    _left: str = ""
    worst: float = 0.0
    """The longest time without a text, in seconds, since it was last set back."""

    async def run(self) -> None:
        while True:
            try:
                await self._visit(self._choose())
            except BROKEN:
                self._left = self._at
                await asyncio.sleep(0.05)

    def _choose(self) -> Endpoint:
        """Any, but not the one that has just failed."""
        gateways = [each for each in self.gateways() if each.url != self._left] or self.gateways()
        chosen = self.random.choice(gateways)
        self._at, self._left = chosen.url, ""
        return chosen

    async def _visit(self, gateway: Endpoint) -> None:
        client = Client(gateway)
        try:
            async with asyncio.timeout(PATIENCE):
                await client.initialize()
                attached = await client.result("_sandboxagent/session/attach", {"sessionId": self.session})
                await self._read_pages(client, attached["position"])
            await self._listen(client)
            # The same connection, by Last-Event-ID.
            await self._listen(client, last_event_id=str(max(self.last, attached["position"])))
        finally:
            await client.http.aclose()

    async def _read_pages(self, client: Client, through: int) -> None:
        after: int | None = self.last
        while after is not None:
            asked = {"sessionId": self.session, "after": after, "before": through + 1}
            page = await client.result("_sandboxagent/session/events", asked)
            assert "gap" not in page
            for event in page["events"]:
                self._take(event["id"], event["envelope"], f"page of {client.server.url} through {through}")
            after = page["next"]

    async def _listen(self, client: Client, **headers: str) -> None:
        leaves_at = time.monotonic() + self.random.uniform(0.5, 3)
        async with client.stream(**headers) as stream:
            while time.monotonic() < leaves_at:
                event = await stream.next(PATIENCE)
                self._take(event.id, event.data, f"stream of {client.server.url} {headers}")

    def _take(self, id: int, envelope: Json, way: str) -> None:
        if id <= self.last:
            self.disordered_ids += 1
        self.last = id
        update = envelope.get("params", {}).get("update", {})
        if update.get("sessionUpdate") != "agent_message_chunk":
            return
        number, _, place = update["content"]["text"].partition(".")
        now = time.monotonic()
        self.worst = max(self.worst, now - self.arrived_at)
        self.arrived_at = now
        self.seen.append((int(number), int(place)))
        self.ways.append((id, way))

    def holes(self, turns: Sequence[int]) -> list[str]:
        """Where it left something out or went back, in words."""
        wanted = {(number, place) for number in turns for place in range(TEXTS)}
        missing = sorted(wanted - set(self.seen))
        found: list[str] = []
        for before, after in pairwise(range(len(self.seen))):
            one, two = self.seen[before], self.seen[after]
            lacks = sum(one < each < two for each in missing)
            if two <= one or lacks:
                found.append(f"{one} {self.ways[before]} -> {two} {self.ways[after]}: {lacks} missing")
        return found

    def begin_round(self) -> None:
        self.worst, self.arrived_at = 0.0, time.monotonic()


@dataclass(frozen=True)
class Count:
    """What readers got of what was acknowledged."""

    acknowledged: int
    lost: int
    doubled: int
    disordered: int

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.disordered)


def tally(pairs: Sequence[tuple[Sequence[int], Sequence[Reader]]]) -> Count:
    """Hold every reader against the turns that it should have by now."""
    acknowledged = lost = doubled = disordered = 0
    for turns, readers in pairs:
        wanted = {(number, place) for number in turns for place in range(TEXTS)}
        acknowledged += len(turns)
        for reader in readers:
            got = set(reader.seen)
            lost += len(wanted - got)
            doubled += len(reader.seen) - len(got)
            disordered += reader.disordered_ids
            disordered += sum(after < before for before, after in pairwise(reader.seen))
    return Count(acknowledged, lost, doubled, disordered)
