"""What a node can do with its credential: publish as itself, hear what is meant for it, and nothing else."""

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from sandboxagent.cli.fleet.keys import FleetDirectory
from sandboxagent.fleet import messages as fleet
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import Append, BusError, StreamMessage, Unreachable
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.bus.nats import NatsBus, connect
from sandboxagent.fleet.gateway.ingest import Ingest
from sandboxagent.fleet.gateway.owners import Owners
from sandboxagent.fleet.messages import (
    BeatReply,
    BeatRequest,
    FactsReply,
    FactsRequest,
    LogReply,
    LogRequest,
    OutgoingMessage,
)
from sandboxagent.fleet.records import outgoing
from sandboxagent.protocol.errors import SettingsError
from sandboxagent.server.log.event import Chunk, Direction, session_channel
from tests.support.client import run
from tests.support.nats import PROGRAM, NatsServer, nats_server

needs_nats = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not installed")


@dataclass
class Guarded:
    """A NATS server that knows who may do what."""

    server: NatsServer
    keys: FleetDirectory

    async def gateway(self) -> NatsBus:
        return await connect([self.server.url], subjects.inbox_of_gateway("g"), "g", self.keys.gateway_key)

    async def node(self, name: str, inbox: str | None = None) -> NatsBus:
        prefix = inbox or subjects.inbox_of_node(name)
        return await connect([self.server.url], prefix, name, self.keys.node_key(name))


@pytest.fixture
def guarded(tmp_path: Path) -> Generator[Guarded]:
    keys = FleetDirectory(tmp_path / "fleet")
    keys.init()
    keys.invite("evil")
    keys.invite("good")
    with nats_server(tmp_path / "nats", authorization=keys.authorization()) as server:
        yield Guarded(server, keys)


@needs_nats
def test_a_hostile_node_reaches_no_subject_but_its_own(guarded: Guarded) -> None:
    async def main() -> None:
        gateway = await guarded.gateway()
        stream = await gateway.stream("EV", [subjects.EVENTS], max_bytes=1 << 20, max_age=60)
        leases = await gateway.table("nodes")
        lease = await leases.put("good", b"its lease", ttl=60)
        subject = subjects.session_events("s")
        kept = await stream.append(Append([StreamMessage(subject, b"mine")], {subject: 0}))
        heard: list[str] = []

        async def subscribe(subject: str, body: bytes) -> bytes:
            heard.append(subject)
            return b"ok"

        await gateway.serve("up.>", subscribe, answers=lambda subject: subjects.inbox_of_node(subject.split(".")[1]))
        evil = await guarded.node("evil")
        assert await evil.request("up.evil.beat.g", b"", 60) == b"ok"
        tag = "g0123456789abcdef"
        forbidden = [
            subject,
            *(subjects.connection_events(tag, name) for name in ("good", "evil", subjects.GATEWAY)),
            *(subjects.attachments(tag, name) for name in ("good", "evil", subjects.GATEWAY)),
            *("up.good.log.g", "up.good.flow.g.x", "dn.good.call", "dn.good.flow.x", "dn.good.in.x", "dn.evil.flow.x"),
            *("all.gateway", "gw.g.in.x", "_INBOX.x", "$SYS.REQ.SERVER.PING", "$JS.ACK.EV.x.1.1.1.1.0", "$JS.FC.EV.x"),
            *(f"$KV.{table}.good" for table in ("nodes", "sess", "conns", "keys", "fleet", "owners", "usage")),
            *(f"$JS.API.STREAM.{call}.EV" for call in ("CREATE", "UPDATE", "DELETE", "PURGE", "INFO")),
            *(f"$JS.API.STREAM.MSG.{call}.EV" for call in ("GET", "DELETE")),
            *("$JS.API.CONSUMER.CREATE.EV", "$JS.API.DIRECT.GET.EV", "$JS.API.INFO", "$JS.API.STREAM.NAMES"),
        ]

        async def is_refused(forbidden: str) -> None:
            with pytest.raises(BusError):
                await evil.request(forbidden, b"forged", 0.5)
            # A message that would empty a table, or take the place of all others, had it got there.
            for reach in ("all", "sub"):
                emptying = {"Nats-Rollup": reach, "KV-Operation": "PURGE"}
                await evil.publish(forbidden, b"", headers=emptying, reply="dn.evil.in.x")

        await asyncio.gather(*map(is_refused, forbidden))
        # An answer may be wanted elsewhere: at a stream, or in another inbox. None goes there.
        for reply in (subject, subjects.connection_events(tag, "good"), "$KV.nodes.good", "dn.good.in.x", "gw.g.in.x"):
            await evil.publish("up.evil.log.g", b"", reply=reply)
        assert await evil.request("up.evil.beat.g", b"", 60) == b"ok"
        overheard: list[str] = []

        async def overhear(subject: str, body: bytes) -> None:
            overheard.append(subject)

        for listened in (">", "*.good.>", "dn.>", "dn.good.>", "ev.>", "gw.>", "up.>", "$KV.>", "_INBOX.>", "$JS.>"):
            await evil.serve(listened, overhear)
        await gateway.publish("dn.good.call", b"secret")
        good = await guarded.node("good")
        assert await good.request("up.good.beat.g", b"", 60) == b"ok"
        assert overheard == []
        assert set(heard) == {"up.evil.beat.g", "up.good.beat.g"}
        assert await stream.ends() == (kept, kept)
        entry = await leases.get("good")
        assert entry is not None
        assert (entry.value, entry.revision) == (b"its lease", lease)
        for bus in (evil, good, gateway):
            await bus.close()

    run(main())


def test_names_that_would_match_other_nodes_are_not_invited(tmp_path: Path) -> None:
    keys = FleetDirectory(tmp_path / "fleet")
    keys.init()
    for name in ("*", ">", "a.b", "", "../gateway"):
        with pytest.raises(SettingsError, match="no name"):
            keys.invite(name)
    assert keys.invite("good").stat().st_mode & 0o77 == 0
    with pytest.raises(SettingsError, match="already"):
        keys.invite("good")
    keys.forget("good")
    assert [user.get("permissions") for user in keys.authorization()["users"]] == [None]  # type: ignore[union-attr]


@dataclass
class Gateway:
    """One in memory; nodes `n1` and `n2` have leases."""

    ingest: Ingest
    leases: dict[str, fleet.Lease]

    async def ask(self, node: str, verb: str, request: object) -> bytes:
        subject = subjects.request_to_gateway(node, verb, "g")
        answer = await self.ingest.take(subject, msgspec.msgpack.encode(request))
        if answer is None:
            raise Unreachable("dropped")
        return answer

    async def log(self, node: str, messages: list[OutgoingMessage], nonce: str = "", expected: int = 0) -> LogReply:
        request = LogRequest(messages, {each.subject: expected for each in messages}, nonce or f"of {node}")
        return msgspec.msgpack.decode(await self.ask(node, fleet.LOG, request), type=LogReply)


async def open_gateway() -> Gateway:
    bus = MemoryBus(Cluster())
    leases = {name: fleet.Lease(name, f"of {name}", "", {}, [], 0) for name in ("n1", "n2")}
    events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 20, max_age=60)
    tables = Owners(await bus.table("owners"), events), await bus.table("nodes"), await bus.table("sess")
    return Gateway(Ingest("g", events, *tables, leases, is_there=_is_there), leases)


async def _is_there(node: str, nonce: str) -> bool:
    return True


def said(session_id: str, subject: str | None = None) -> list[OutgoingMessage]:
    chunk = Chunk(1, [b"{}"], Direction.FROM_AGENT, session_id, session_channel(session_id), 0.0)
    return list(outgoing(chunk, subject or subjects.session_events(session_id)))


def test_a_node_cannot_write_into_the_session_of_another_one() -> None:
    async def main() -> None:
        gateway = await open_gateway()
        published = (await gateway.log("n1", said("s"))).published
        assert published is not None
        [end] = published.values()
        reply = await gateway.log("n2", said("s"), expected=end)
        assert reply.published is None
        assert reply.ends is not None
        assert [each.owner for each in reply.ends.values()] == ["n1"]
        # Nor under the name of a session that is its own, nor as another node's agent.
        assert (await gateway.log("n2", said("other", subjects.session_events("s")), expected=end)).refused
        agent = Chunk(1, [b"{}"], Direction.FROM_AGENT, None, "agent:mock", 0.0)
        assert (await gateway.log("n2", list(outgoing(agent, "ev.a.n1.bW9jaw")))).refused
        # Nor to a client as another node, or as a gateway, nor about its attachments.
        for source in ("n1", subjects.GATEWAY, "*"):
            for kind in (subjects.connection_events, subjects.attachments):
                forged = list(outgoing(agent, kind("g0123456789abcdef", source)))
                assert (await gateway.log("n2", forged)).refused
        facts = await gateway.ask("n2", fleet.FACTS, FactsRequest({"s": None}))
        assert msgspec.msgpack.decode(facts, type=FactsReply).refused == {"s": "the session belongs to n1"}
        # Nor does its own row show another session.
        other = FactsRequest({"s": b'{"sessionId": "of another"}'})
        refused = msgspec.msgpack.decode(await gateway.ask("n1", fleet.FACTS, other), type=FactsReply).refused
        assert refused == {"s": "its facts are about another session"}

    run(main())


def test_a_node_without_a_lease_publishes_nothing() -> None:
    async def main() -> None:
        gateway = await open_gateway()
        assert (await gateway.log("n1", said("s"), nonce="of a clone")).slow == "n1 has no lease"
        del gateway.leases["n1"]
        assert (await gateway.log("n1", said("s"))).slow == "n1 has no lease"

    run(main())


def test_of_two_nodes_with_one_name_the_later_one_gets_no_lease() -> None:
    async def main() -> None:
        gateway = await open_gateway()

        async def beat(nonce: str, revision: int) -> BeatReply:
            request = BeatRequest(nonce, revision, "", {}, [], 0)
            return msgspec.msgpack.decode(await gateway.ask("n3", fleet.BEAT, request), type=BeatReply)

        first = await beat("one", 0)
        assert first.clash is None
        assert "another node is called n3" in ((await beat("two", 0)).clash or "")
        second = await beat("one", first.revision)
        # Its answer was lost: the repeat is no clash.
        assert (await beat("one", first.revision)).clash is None
        # A copy of its disk knows an old revision.
        assert (await beat("copy", second.revision)).clash is not None

    run(main())


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x81\xa1x\x01", msgspec.msgpack.encode({"messages": "x"})])
def test_nonsense_is_dropped(body: bytes) -> None:
    async def main() -> None:
        gateway = await open_gateway()
        for verb in (fleet.LOG, fleet.BEAT, fleet.FACTS, "unknown"):
            assert await gateway.ingest.take(subjects.request_to_gateway("n1", verb, "g"), body) is None
        assert (await gateway.log("n1", said("s"))).published

    run(main())
