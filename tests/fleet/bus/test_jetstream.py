"""What is asked of a server that is frozen, or no longer the leader, is asked again; readers go on where they were."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from urllib.parse import urlparse

import pytest
from nats.aio.client import Server

from sandboxagent.fleet.bus import jetstream
from sandboxagent.fleet.bus.dial import RETRY_INTERVAL, ServerOrder
from sandboxagent.fleet.bus.interface import Append, Conflict, StreamMessage, Unreachable
from sandboxagent.fleet.bus.jetstream import (
    HEARTBEAT_INTERVAL,
    MAX_PAGES_AT_ONCE,
    PLACE_INTERVAL,
    READER_TIMEOUT,
    SILENCE_TIMEOUT,
    JetStream,
    JetStreamTable,
)
from sandboxagent.fleet.bus.jetstream_api import MIN_TIMEOUT, NatsMessage, describe
from sandboxagent.fleet.bus.nats import NatsBus, connect
from tests.support.client import run
from tests.support.nats import NatsServer


@dataclass
class Forgetful:
    """A connection whose first message on each subject of JetStream's API arrives at a server that does not answer."""

    bus: NatsBus
    forgotten: set[str] = field(default_factory=set[str])

    async def ask(self, subject: str, body: bytes, headers: Mapping[str, str] | None, timeout: float) -> NatsMessage:
        if self._forgets(subject):
            raise Unreachable(subject)
        return await self.bus.ask(subject, body, headers, timeout)

    async def publish(
        self, subject: str, body: bytes, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        if not self._forgets(subject):
            await self.bus.publish(subject, body, reply, headers)

    async def receive(
        self, subject: str, take: Callable[[NatsMessage], Awaitable[None]]
    ) -> Callable[[], Awaitable[None]]:
        return await self.bus.receive(subject, take)

    def new_inbox(self) -> str:
        return self.bus.new_inbox()

    def _forgets(self, subject: str) -> bool:
        if not subject.startswith("$JS.API.") or subject in self.forgotten:
            return False
        self.forgotten.add(subject)
        return True


def test_what_a_frozen_server_does_not_answer_is_asked_again(nats_of_tests: NatsServer, unique: str) -> None:
    async def main() -> None:
        bus = await connect([nats_of_tests.url], "gw.g.in", "g")
        subject = f"{unique}.a"
        stream = await bus.stream(unique, [f"{unique}.>"], max_bytes=1 << 20, max_age=60)
        table = await bus.table(unique)
        await table.put("key", b"value")
        for place in range(3):
            await stream.append(Append([StreamMessage(subject, b"%d" % place)], {subject: place}))
        frozen = Forgetful(bus)
        read = JetStream(frozen, unique)
        assert [record.body for record in await read.page(subject, 0, 3, 1 << 20)] == [b"0", b"1", b"2"]
        last = await read.last(subject)
        assert last is not None
        assert last.body == b"2"
        assert await read.ends() == (1, 3)
        entry = await JetStreamTable(frozen, unique).get("key")
        assert entry is not None
        assert entry.value == b"value"
        assert (await describe(frozen, unique)).messages == 3
        assert len(frozen.forgotten) == 4
        await bus.close()

    run(main())


@dataclass
class Silent(Forgetful):
    """A connection that loses the first answer to each write; with `deaf`, the servers do not get that write either."""

    deaf: bool = False

    async def ask(self, subject: str, body: bytes, headers: Mapping[str, str] | None, timeout: float) -> NatsMessage:
        if subject in self.forgotten or not subject.startswith("$KV."):
            return await self.bus.ask(subject, body, headers, timeout)
        self.forgotten.add(subject)
        if not self.deaf:
            await self.bus.ask(subject, body, headers, timeout)
        raise Unreachable(subject)


@pytest.mark.parametrize("deaf", [False, True])
def test_a_write_to_a_table_whose_answer_is_lost_happens_once(
    nats_of_tests: NatsServer, unique: str, deaf: bool
) -> None:
    async def main() -> None:
        bus = await connect([nats_of_tests.url], "gw.g.in", "g")
        table = await bus.table(unique)
        first = await table.put("key", b"first")
        revision = await JetStreamTable(Silent(bus, deaf=deaf), unique).put("key", b"second", expected=first)
        assert revision == first + 1
        with pytest.raises(Conflict):
            await JetStreamTable(Silent(bus, deaf=deaf), unique).put("key", b"third", expected=first)
        assert await table.put("key", b"fourth", expected=revision) == revision + 1
        await bus.close()

    run(main())


@dataclass
class Unheard(Forgetful):
    """A connection that loses the first answer to each reader that is made or changed; the servers have done it."""

    async def ask(self, subject: str, body: bytes, headers: Mapping[str, str] | None, timeout: float) -> NatsMessage:
        answer = await self.bus.ask(subject, body, headers, timeout)
        if ".CONSUMER.CREATE." not in subject:
            return answer
        asked = str(json.loads(body)["config"]["filter_subjects"])
        if asked in self.forgotten:
            return answer
        self.forgotten.add(asked)
        raise Unreachable(subject)


def test_a_reader_whose_making_is_asked_for_twice_delivers_everything_once(
    nats_of_tests: NatsServer, unique: str
) -> None:
    async def main() -> None:
        bus = await connect([nats_of_tests.url], "gw.g.in", "g")
        one, two = f"{unique}.a", f"{unique}.b"
        stream = await bus.stream(unique, [f"{unique}.>"], max_bytes=1 << 20, max_age=60)
        last = await stream.append(Append([StreamMessage(one, b"0")], {one: 0}))
        got: asyncio.Queue[bytes] = asyncio.Queue()
        unheard = Unheard(bus)
        reader = await JetStream(unheard, unique).follow([one], 0, lambda record: got.put_nowait(record.body))
        assert await got.get() == b"0"
        await reader.change([one, two])
        assert {str([one]), str([one, two])} <= unheard.forgotten
        await stream.append(Append([StreamMessage(one, b"1")], {one: last}))
        await stream.append(Append([StreamMessage(two, b"2")], {two: 0}))
        assert [await got.get(), await got.get()] == [b"1", b"2"]
        assert got.empty()
        await reader.close()
        await bus.close()

    run(main())


@dataclass
class Leaderless:
    """Servers that make no reader of these subjects, because there is no leader; all else they do."""

    refused: list[str]
    made: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    lacking: asyncio.Event = field(default_factory=asyncio.Event)
    """A reader was wanted, and not made."""
    take: Callable[[NatsMessage], Awaitable[None]] | None = None

    async def ask(self, subject: str, body: bytes, headers: Mapping[str, str] | None, timeout: float) -> NatsMessage:
        answer: dict[str, object] = {}
        if ".STREAM.INFO." in subject:
            answer = {"state": {"first_seq": 1, "last_seq": 9}}
        elif ".CONSUMER.CREATE." in subject:
            config = json.loads(body)["config"]
            if self.made and config["filter_subjects"] == self.refused:
                self.lacking.set()
                raise Unreachable(subject)
            self.made.append(config)
        return NatsMessage(subject, "", {}, json.dumps(answer).encode())

    async def publish(
        self, subject: str, body: bytes, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        pass

    async def receive(
        self, subject: str, take: Callable[[NatsMessage], Awaitable[None]]
    ) -> Callable[[], Awaitable[None]]:
        self.take = take

        async def end() -> None:
            pass

        return end

    def new_inbox(self) -> str:
        return f"inbox.{len(self.made)}"


def test_a_lost_reader_whose_subjects_change_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream, "HEARTBEAT_INTERVAL", 0.01)
    monkeypatch.setattr(jetstream, "READER_TIMEOUT", 0.0)

    async def main() -> None:
        servers = Leaderless(refused=["a"])
        reader = await JetStream(servers, "EV").follow(["a"], 4, lambda _: None)
        assert servers.take is not None
        # The second of it comes, and the first does not: it begins anew, and there is no leader.
        await servers.take(NatsMessage("a", "$JS.ACK.EV.c.1.6.2.0.0", {}, b""))
        await servers.lacking.wait()
        await reader.change(["a", "b"])
        assert [each["opt_start_seq"] for each in servers.made] == [5, 5]
        await reader.close()

    run(main())


class OwnSleep:
    """asyncio, as one module is to have it: other threads of this process go on with their own sleep."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)


def test_a_reader_begins_anew_as_soon_as_it_was_silent_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        now, is_anew, forever = 100.0, asyncio.Event(), asyncio.Event()
        servers = Leaderless(refused=[])
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)

        async def sleep(seconds: float) -> None:
            nonlocal now
            if now == 100.0:
                # The last that it hears, between two of its looks.
                assert servers.take is not None
                now += 0.3
                await servers.take(NatsMessage("a", "", {"Status": "100"}, b""))
                now = 100.0
            now += seconds
            if len(servers.made) == 2:
                is_anew.set()
                await forever.wait()

        monkeypatch.setattr(jetstream, "asyncio", OwnSleep(sleep))
        reader = await JetStream(servers, "EV").follow(["a"], 4, lambda _: None)
        await is_anew.wait()
        assert now - HEARTBEAT_INTERVAL == pytest.approx(100.3 + SILENCE_TIMEOUT)
        await reader.close()

    run(main())


@dataclass
class Placing(Leaderless):
    """Servers of which one was just killed: readers that are put there are never answered."""

    now: float = 100.0
    dead: int = 0
    """So many are put there from now on."""
    delivers: bool = False
    """Only answers are lost: each of these delivers a message."""
    asked: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    """Under which name, and when."""
    deleted: list[str] = field(default_factory=list[str])
    inboxes: int = 0

    async def ask(self, subject: str, body: bytes, headers: Mapping[str, str] | None, timeout: float) -> NatsMessage:
        if ".CONSUMER.CREATE." in subject:
            self.asked.append((subject.rpartition(".")[2], self.now))
            if self.dead:
                self.dead -= 1
                self.now += timeout
                if self.delivers:
                    assert self.take is not None
                    await self.take(NatsMessage("a", "$JS.ACK.EV.c.1.7.1.0.1", {}, b""))
                raise Unreachable(subject)
        return await super().ask(subject, body, headers, timeout)

    async def publish(
        self, subject: str, body: bytes, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        if ".CONSUMER.DELETE." in subject:
            self.deleted.append(subject.rpartition(".")[2])

    def new_inbox(self) -> str:
        self.inboxes += 1
        return f"inbox.{self.inboxes}"


async def _only_breathe(seconds: float) -> None:
    """No look at whether it still hears anything."""
    if seconds != MIN_TIMEOUT:
        await asyncio.Event().wait()


def test_a_reader_that_was_put_on_a_dead_server_is_soon_put_on_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        servers = Placing(refused=[])
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: servers.now)
        monkeypatch.setattr(jetstream, "asyncio", OwnSleep(_only_breathe))
        reader = await JetStream(servers, "EV").follow(["a"], 4, lambda _: None)
        for dead in (0, 3):
            servers.asked.clear()
            servers.deleted.clear()
            servers.dead = dead
            await reader.change(["a", str(dead)])
            names = [name for name, _ in servers.asked]
            # The one that was there is changed, and the last one stays.
            assert names[0] == "1"
            assert servers.deleted == names[:-1]
            assert len(set(names)) == len(names) == dead + 1
        # The change has more time than what is put anywhere; each may take as long as all others before it together.
        assert [at - 100.0 for _, at in servers.asked] == [
            0.0,
            2 * PLACE_INTERVAL,
            3 * PLACE_INTERVAL,
            4 * PLACE_INTERVAL,
        ]
        await reader.close()

    run(main())


def test_a_reader_that_slow_servers_make_has_more_time_whenever_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        servers = Placing(refused=[], dead=99)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: servers.now)
        monkeypatch.setattr(jetstream, "asyncio", OwnSleep(_only_breathe))
        with pytest.raises(Unreachable):
            await JetStream(servers, "EV").follow(["a"], 4, lambda _: None)
        times = [at for _, at in servers.asked] + [servers.now]
        assert [later - at for at, later in pairwise(times)] == [
            PLACE_INTERVAL,
            PLACE_INTERVAL,
            2 * PLACE_INTERVAL,
            4 * PLACE_INTERVAL,
        ]
        assert servers.now - 100.0 == READER_TIMEOUT
        assert servers.deleted == [name for name, _ in servers.asked]

    run(main())


@pytest.mark.parametrize("is_table", [False, True])
def test_what_a_reader_delivered_before_its_answer_was_lost_is_not_delivered_again(
    is_table: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        servers = Placing(refused=[], dead=1, delivers=True)
        monkeypatch.setattr(jetstream, "asyncio", OwnSleep(_only_breathe))
        took: list[bytes] = []
        if is_table:
            reader = await JetStreamTable(servers, "t").watch(lambda entry: took.append(b""))
        else:
            reader = await JetStream(servers, "EV").follow(["a"], 4, lambda record: took.append(record.body))
        assert len(took) == 1
        assert [each["opt_start_seq"] for each in servers.made] == [8]
        await reader.close()

    run(main())


def test_a_lost_connection_goes_to_other_servers_first() -> None:
    urls = [urlparse(f"nats://nats-{number}:4222") for number in range(3)]
    server_order = ServerOrder()
    dialled = [urls[0].netloc]
    server_order.note(dialled[0])
    while len(dialled) < 5:
        # Those that were dialled since it was lost have failed.
        failures = {url.netloc: dialled[1:].count(url.netloc) for url in urls}
        chosen, pause = server_order.choose([Server(url, failures[url.netloc]) for url in urls], {})
        assert pause == (RETRY_INTERVAL if failures[chosen.uri.netloc] else 0)
        dialled.append(chosen.uri.netloc)
        server_order.note(dialled[-1])
    assert sorted(dialled[1:3]) == [url.netloc for url in urls[1:]]
    assert dialled[3:] == dialled[:2]


@dataclass
class Pending:
    """A server that has got requests for pages, and answers when it is told to."""

    take: dict[str, Callable[[NatsMessage], Awaitable[None]]] = field(
        default_factory=dict[str, Callable[[NatsMessage], Awaitable[None]]]
    )
    asked: list[str] = field(default_factory=list[str])
    """Inboxes to which no page has come yet."""
    inboxes: int = 0

    async def ask(self, subject: str, body: bytes, headers: Mapping[str, str] | None, timeout: float) -> NatsMessage:
        raise Unreachable(subject)

    async def publish(
        self, subject: str, body: bytes, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.asked.append(reply)

    async def receive(
        self, subject: str, take: Callable[[NatsMessage], Awaitable[None]]
    ) -> Callable[[], Awaitable[None]]:
        self.take[subject] = take

        async def end() -> None:
            del self.take[subject]

        return end

    def new_inbox(self) -> str:
        self.inboxes += 1
        return f"inbox.{self.inboxes}"


def test_few_pages_are_asked_for_at_once_and_the_others_wait_here() -> None:
    async def main() -> None:
        server = Pending()
        stream = JetStream(server, "EV")
        reading = [asyncio.create_task(stream.page("a", 0, 9, 1 << 20)) for _ in range(3 * MAX_PAGES_AT_ONCE)]
        for _ in range(3):
            while len(server.asked) < MAX_PAGES_AT_ONCE:  # noqa: ASYNC110 - what is tested has no events
                await asyncio.sleep(0)
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(server.asked) == MAX_PAGES_AT_ONCE
            for inbox in server.asked:
                await server.take[inbox](NatsMessage(inbox, "", {"Status": "404"}, b""))
            server.asked.clear()
        assert await asyncio.gather(*reading) == [[]] * len(reading)

    run(main())
