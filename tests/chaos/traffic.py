"""Readers that wander between gateways while parts of a fleet fail, and what they are held against."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from itertools import pairwise

from tests.chaos.caller import TIMEOUT, Choice, hear
from tests.chaos.parts import Endpoint
from tests.chaos.turns import BROKEN, TEXTS, Person, Writer
from tests.support.asking import DECISION
from tests.support.client import Client, Event, Json, OutOfOrder, Stream


@dataclass
class Reader:
    """Reads one session, for a moment at each gateway, going on behind the last event that it has."""

    session: str
    node: str
    choice: Choice
    seen: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Turn and place of each text, as they came."""
    ways: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """The id of each of them, and by which way it came."""
    decided: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    """Turn → the options that were chosen, by the log."""
    told: dict[int, str] = field(default_factory=dict[int, str])
    """Turn → the option that its agent got."""
    foreign: int = 0
    """Texts that no turn of this session has."""
    last: int = 0
    disordered_ids: int = 0
    arrived_at: float = field(default_factory=time.monotonic)
    worst: float = 0.0
    """The longest time without a text, in seconds, since it was last set back."""

    async def run(self) -> None:
        while True:
            gateway = self.choice.choose()
            try:
                await self._visit(gateway)
            except BROKEN as error:
                self.disordered_ids += isinstance(error, OutOfOrder)
                self.choice.fail(gateway)
                await asyncio.sleep(0.05)

    async def _visit(self, gateway: Endpoint) -> None:
        client = Client(gateway)
        try:
            async with asyncio.timeout(TIMEOUT):
                with self.choice.step(gateway, "initialize"):
                    await client.initialize()
                with self.choice.step(gateway, "session/attach"):
                    attached = await client.result("_sandboxagent/session/attach", {"sessionId": self.session})
                with self.choice.step(gateway, "session/events"):
                    await self._read_pages(client, attached["position"])
            await self._listen(gateway, client)
            # The same connection, by Last-Event-ID.
            await self._listen(gateway, client, last_event_id=str(max(self.last, attached["position"])))
            async with asyncio.timeout(TIMEOUT):
                with self.choice.step(gateway, "closing"):
                    await client.close()
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

    async def _listen(self, gateway: Endpoint, client: Client, **headers: str) -> None:
        leaves_at = time.monotonic() + self.choice.random.uniform(0.5, 3)
        async with AsyncExitStack() as stack:
            with self.choice.step(gateway, "opening a stream"):
                stream = await stack.enter_async_context(client.stream(timeout=TIMEOUT, **headers))
            while (event := await self._hear(gateway, stream, leaves_at)) is not None:
                self._take(event.id, event.data, f"stream of {client.server.url} {headers}")

    async def _hear(self, gateway: Endpoint, stream: Stream, leaves_at: float) -> Event | None:
        with self.choice.step(gateway, f"hearing nothing after {self.last}"):
            return await hear(stream, leaves_at)

    def _take(self, id: int, envelope: Json, way: str) -> None:
        if id <= self.last:
            self.disordered_ids += 1
        self.last = id
        params = envelope.get("params", {})
        if envelope.get("method") == DECISION and params["outcome"] == "answered":
            self.decided.setdefault(int(params["toolCallId"]), []).append(params["optionId"])
        update = params.get("update", {})
        if update.get("sessionUpdate") == "agent_message_chunk":
            self._take_text(id, update["content"]["text"], way)

    def _take_text(self, id: int, text: str, way: str) -> None:
        if text.startswith("{"):
            outcome = json.loads(text).get("result", {}).get("outcome", {})
            self.told[self.seen[-1][0]] = outcome.get("optionId", "")
            return
        number, _, place = text.partition(".")
        if not (number.isdecimal() and place.isdecimal()):
            self.foreign += 1
            return
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
    """What came of turns, of what their agents asked, and what readers got of it."""

    finished: int = 0
    node_lost: int = 0
    neither: int = 0
    once: int = 0
    """Permissions that were answered, and whose agents got that answer."""
    twice: int = 0
    """Permissions for which two answers were taken."""
    unanswered: int = 0
    """Permissions whose answer was taken, and did not reach the agent."""
    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    foreign: int = 0
    """What came to the hostile node, or of it, that is another node's."""

    @property
    def is_clean(self) -> bool:
        wrong = (self.neither, self.twice, self.unanswered, self.lost, self.doubled, self.disordered, self.foreign)
        return not any(wrong)

    def minus(self, other: "Count") -> "Count":
        return Count(**{name: value - asdict(other)[name] for name, value in asdict(self).items()})

    def plus(self, other: "Count") -> "Count":
        return Count(**{name: value + asdict(other)[name] for name, value in asdict(self).items()})


def tally(turns: Sequence[int], writer: Writer, people: Sequence[Person], readers: Sequence[Reader]) -> Count:
    """Hold a session's readers, and what its people were told, against the turns that have finished."""
    wanted = {(number, place) for number in turns for place in range(TEXTS)}
    lost = doubled = disordered = 0
    for reader in readers:
        got = set(reader.seen)
        lost += len(wanted - got)
        doubled += len(reader.seen) - len(got)
        disordered += reader.disordered_ids
        disordered += sum(after < before for before, after in pairwise(reader.seen))
    disordered += sum(person.disordered for person in people)
    once = twice = unanswered = 0
    decided, told = readers[0].decided, readers[0].told
    for number in turns:
        taken = {person.option for person in people if number in person.taken}
        chosen = decided.get(number, [])
        if len(taken) > 1 or len(chosen) > 1:
            twice += 1
        elif chosen != [told.get(number)] or not taken <= set(chosen):
            unanswered += 1
        else:
            once += 1
    neither = len(writer.neither) + sum(len(person.refused) for person in people)
    foreign = sum(reader.foreign for reader in readers)
    return Count(len(turns), len(writer.lost), neither, once, twice, unanswered, lost, doubled, disordered, foreign)
