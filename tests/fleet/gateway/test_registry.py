"""Nodes and sessions as a gateway knows them, from tables in memory."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from sandboxagent.fleet import messages
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import Table, TableEntry
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.gateway import registry
from sandboxagent.fleet.gateway.ingest import Ingest
from sandboxagent.fleet.gateway.owners import Owners
from sandboxagent.fleet.gateway.registry import ORDERS, NodeRegistry, forget_key, pin_key
from sandboxagent.fleet.messages import FactsReply, FactsRequest, Lease, Listed, LogRequest
from sandboxagent.fleet.records import outgoing
from sandboxagent.server.log.event import Chunk, Direction, session_channel
from sandboxagent.server.sessions.extensions import wait_for_change
from tests.support.client import run
from tests.support.running import BOUND


async def follow(*tables: Table) -> NodeRegistry:
    registry = NodeRegistry()
    leases, listed = tables
    await registry.start(leases, listed)
    return registry


async def put(
    listed: Table, session_id: str, *, cwd: str = "/", title: str = "", created_at: str = "2026-11-16T00:00:00.000Z"
) -> None:
    view = {"sessionId": session_id, "createdAt": created_at, "cwd": cwd, "title": title}
    await listed.put(
        subjects.token(session_id), msgspec.json.encode(Listed("n1", msgspec.Raw(msgspec.json.encode(view))))
    )


def read(registry: NodeRegistry, after: Any = None, cwd: str | None = None, cursor: str | None = None) -> Any:
    return msgspec.json.decode(msgspec.json.encode(registry.list_sessions(cursor, cwd, after)))


def ids(page: Any) -> list[str]:
    return [each["sessionId"] for each in page["sessions"]]


@pytest.mark.requirement("12.depth-kept")
def test_too_deep_metadata_of_an_earlier_gateway_is_listed_as_left_out() -> None:
    async def main() -> None:
        bus = MemoryBus(Cluster())
        leases, listed = await bus.table("nodes"), await bus.table("sess")
        await put(listed, "fine")
        view = b'{"sessionId":"spoilt","createdAt":"2026","cwd":"/","title":"kept","metadata":%b}' % (
            b"[" * 900 + b"]" * 900
        )
        entry = msgspec.json.encode(Listed("n1", msgspec.Raw(view)))
        await listed.put(subjects.token("spoilt"), entry)
        registry = await follow(leases, listed)
        found = {each["sessionId"]: each for each in read(registry)["sessions"]}
        assert set(found) == {"fine", "spoilt"}
        assert (found["spoilt"]["leftOut"], found["spoilt"]["node"], found["spoilt"]["title"]) == (
            ["metadata"],
            "n1",
            "kept",
        )
        assert "metadata" not in found["spoilt"]
        await registry.close()

    run(main())


@pytest.mark.requirement("6.changes")
def test_changes_since_a_moment_are_listed_once_newest_first_with_gone_ones() -> None:
    async def main() -> None:
        bus = MemoryBus(Cluster())
        leases, listed = await bus.table("nodes"), await bus.table("sess")
        await put(listed, "old")
        registry = await follow(leases, listed)
        first = read(registry)
        assert (ids(first), "gone" in first) == (["old"], False)

        waiting = asyncio.create_task(wait_for_change(registry.changes, first["changes"], BOUND))
        await put(listed, "a", cwd="/a")
        await waiting
        for name in ("b", "a", "c"):
            await put(listed, name, cwd=f"/{name}")
        await listed.delete(subjects.token("c"))
        await registry.until(lambda: registry.find("b") is not None and registry.find("c") is None)
        page = read(registry, first["changes"])
        assert (ids(page), page["gone"]) == (["a", "b"], ["c"])
        assert ids(read(registry, first["changes"], cwd="/b")) == ["b"]
        nothing = read(registry, page["changes"])
        assert (nothing["sessions"], nothing["gone"]) == ([], [])

        await listed.delete(subjects.token("old"))
        await registry.until(lambda: registry.find("old") is None)
        assert read(registry, page["changes"])["gone"] == ["old"]
        await registry.close()

    run(main())


def test_deleted_session_is_gone_before_the_table_says_so() -> None:
    """Another session may take its id afterwards."""

    async def main() -> None:
        bus = MemoryBus(Cluster())
        leases, listed = await bus.table("nodes"), await bus.table("sess")
        await put(listed, "a")
        registry = await follow(leases, listed)
        before = read(registry)["changes"]
        registry.drop("a")
        assert registry.find("a") is None
        assert read(registry, before)["gone"] == ["a"]
        # What its node said before that comes late.
        await put(listed, "a", title="late")
        await put(listed, "b")
        await registry.until(lambda: registry.find("b") is not None)
        assert ids(read(registry)) == ["b"]
        await put(listed, "a", created_at="2026-11-16T00:00:01.000Z")
        await registry.until(lambda: registry.find("a") is not None)
        await registry.close()

    run(main())


def test_forgotten_node_stays_gone_despite_lease_renewals_until_reinvited() -> None:
    async def main() -> None:
        bus = MemoryBus(Cluster())
        leases, listed, orders = await bus.table("nodes"), await bus.table("sess"), await bus.table(ORDERS)
        registry = await follow(leases, listed)
        await registry.orders.start(orders)
        told: list[str] = []
        registry.watch(told.append)

        async def beat(*nodes: str) -> None:
            for node in nodes:
                await leases.put(node, msgspec.json.encode(Lease(node, "run", "", {}, [], 0)))

        await beat("n", "m")
        await registry.until(lambda: set(registry.leases) == {"n", "m"})
        await orders.put(forget_key("n"), b"{}")
        await registry.until(lambda: told == ["n", "m", "n"])
        await beat("n", "k")
        await registry.until(lambda: set(registry.leases) == {"m", "k"})
        await orders.delete(forget_key("n"))
        while registry.orders.forgotten:  # noqa: ASYNC110 - what an operator takes back has no events
            await asyncio.sleep(0)
        await beat("n")
        await registry.until(lambda: "n" in registry.leases)
        await registry.close()

    run(main())


def test_labels_and_agents_of_a_pinned_node_are_the_operators_word_and_not_its_own() -> None:
    async def main() -> None:
        bus = MemoryBus(Cluster())
        leases, listed, orders = await bus.table("nodes"), await bus.table("sess"), await bus.table(ORDERS)
        registry = NodeRegistry(require_pins=True)
        await registry.start(leases, listed)
        await registry.orders.start(orders)
        lying = Lease("evil", "run", "", {"zone": "eu", "trusted": "yes"}, ["claude", "codex"], 0)

        def seen(node: str) -> tuple[Mapping[str, str], Sequence[str], bool]:
            return next((each.labels, each.agents, each.pinned) for each in registry.nodes() if each.node == node)

        async def until(expected: tuple[Mapping[str, str], Sequence[str], bool]) -> None:
            async with asyncio.timeout(BOUND):
                while seen("evil") != expected:  # noqa: ASYNC110 - what an operator says has no events
                    await asyncio.sleep(0)

        await leases.put("evil", msgspec.json.encode(lying))
        await leases.put("good", msgspec.json.encode(replace(lying, node="good")))
        await registry.until(lambda: set(registry.leases) == {"evil", "good"})
        assert seen("evil") == (lying.labels, lying.agents, False)
        assert set(registry.closed()) == {"evil", "good"}
        assert "pinned" in registry.closed()["evil"]

        pin = messages.Pin({"zone": "us"}, ["codex", "amp"])
        await orders.put(pin_key("evil"), msgspec.json.encode(pin))
        await until(({"zone": "us"}, ["codex"], True))
        assert set(registry.closed()) == {"good"}
        # Also when it says something else, or starts again.
        await leases.put("evil", msgspec.json.encode(replace(lying, nonce="another", agents=["claude", "amp"])))
        await registry.until(lambda: registry.leases["evil"].nonce == "another")
        assert seen("evil") == ({"zone": "us"}, ["amp"], True)
        assert registry.leases["evil"].allowed == ["codex", "amp"]

        await orders.put(pin_key("evil"), b"nonsense")
        await until(({}, [], True))
        await orders.delete(pin_key("evil"))
        await until((lying.labels, ["claude", "amp"], False))
        await registry.close()

    run(main())


def test_remembered_gone_sessions_are_bounded_and_can_be_listed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_GONE", 3)

    async def main() -> None:
        bus = MemoryBus(Cluster())
        leases, listed = await bus.table("nodes"), await bus.table("sess")
        registry = await follow(leases, listed)
        for number in range(10):
            await put(listed, f"s{number}")
        await registry.until(lambda: registry.count == 10)
        for number in range(9):
            registry.drop(f"s{number}")
            await listed.delete(subjects.token(f"s{number}"))
        await put(listed, "s8")
        await registry.until(lambda: registry.find("s8") is not None)
        assert sorted(registry.revisions) == sorted(map(subjects.token, ("s6", "s7", "s8", "s9")))
        await put(listed, "s0")
        await registry.until(lambda: registry.find("s0") is not None)
        await registry.close()

    run(main())


@pytest.mark.requirement("6.changes-forgotten")
def test_a_moment_of_another_gateway_gives_all_sessions_without_gone() -> None:
    async def main() -> None:
        bus = MemoryBus(Cluster())
        leases, listed = await bus.table("nodes"), await bus.table("sess")
        await put(listed, "a")
        one, two = await follow(leases, listed), await follow(leases, listed)
        moment = read(one)["changes"]
        assert read(one, moment)["gone"] == []
        await wait_for_change(two.changes, moment, BOUND)
        page = read(two, moment)
        assert (ids(page), "gone" in page) == (["a"], False)
        await one.close()
        await two.close()

    run(main())


class Stuck:
    """A table that is out of reach for a while; what is written meanwhile gets there afterwards."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.asked, self.reached = asyncio.Event(), asyncio.Event()

    async def put(self, key: str, value: bytes, **options: Any) -> int:
        self.asked.set()
        await self.reached.wait()
        return await self._table.put(key, value, **options)

    async def get(self, key: str) -> TableEntry | None:
        return await self._table.get(key)

    async def revision(self, key: str) -> int:
        return await self._table.revision(key)


def test_session_is_listed_after_a_restore_changed_the_tables_revisions() -> None:
    async def main() -> None:
        bus = MemoryBus(Cluster())
        events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 20, max_age=60)
        leases, listed = await bus.table("nodes"), await bus.table("sess")
        holders = {"n1": Lease("n1", "run", "", {}, [], 0)}
        tables = Owners(await bus.table("owners"), events), leases, listed
        registry = NodeRegistry()
        registry.revisions[subjects.token("s")] = 77
        gateway = Ingest("a", events, *tables, holders, registry=registry)
        chunk = Chunk(1, [b"{}"], Direction.FROM_AGENT, "s", session_channel("s"), 0.0)
        subject = subjects.session_events("s")
        await ask(gateway, messages.LOG, LogRequest(list(outgoing(chunk, subject)), {subject: 0}, "run"))

        assert (await show(gateway, "first")).failed is not None
        assert (await show(gateway, "again")).failed is None
        entry = await listed.get(subjects.token("s"))
        assert entry is not None
        assert b'"again"' in (entry.value or b"")

    run(main())


@pytest.mark.requirement("12.depth")
def test_facts_of_a_node_that_are_too_deep_are_not_listed_and_the_others_are() -> None:
    async def main() -> None:
        bus = MemoryBus(Cluster())
        events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 20, max_age=60)
        leases, listed = await bus.table("nodes"), await bus.table("sess")
        owners, holders = Owners(await bus.table("owners"), events), {"n1": Lease("n1", "run", "", {}, [], 0)}
        gateway = Ingest("a", events, owners, leases, listed, holders)
        views: dict[str, bytes | None] = {}
        for name, levels in (("deep", 970), ("fine", 100)):
            chunk = Chunk(1, [b"{}"], Direction.FROM_AGENT, name, session_channel(name), 0.0)
            subject = subjects.session_events(name)
            await ask(gateway, messages.LOG, LogRequest(list(outgoing(chunk, subject)), {subject: 0}, "run"))
            views[name] = b'{"sessionId":"%b","metadata":%b}' % (name.encode(), b"[" * levels + b"]" * levels)
        answer = await ask(gateway, messages.FACTS, FactsRequest(views))
        reply = msgspec.msgpack.decode(answer, type=FactsReply)
        assert list(reply.refused) == ["deep"]
        assert "nested deeper than 128 levels" in reply.refused["deep"]
        assert await listed.get(subjects.token("fine")) is not None
        assert await listed.get(subjects.token("deep")) is None

    run(main())


async def ask(gateway: Ingest, verb: str, request: object) -> bytes:
    answer = await gateway.take(subjects.request_to_gateway("n1", verb, "g"), msgspec.msgpack.encode(request))
    assert answer is not None
    return answer


async def show(gateway: Ingest, title: str) -> FactsReply:
    view = {"sessionId": "s", "createdAt": "2026-11-16T00:00:00.000Z", "cwd": "/", "title": title}
    request = FactsRequest({"s": msgspec.json.encode(view)})
    return msgspec.msgpack.decode(await ask(gateway, messages.FACTS, request), type=FactsReply)


def test_returning_gateway_does_not_replace_newer_listings_of_another() -> None:
    async def main() -> None:
        bus = MemoryBus(Cluster())
        events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 20, max_age=60)
        leases, listed = await bus.table("nodes"), await bus.table("sess")
        owners = Owners(await bus.table("owners"), events)
        stuck, key = Stuck(listed), subjects.token("s")
        holders = {"n1": Lease("n1", "run", "", {}, [], 0)}
        registry = await follow(leases, listed)
        away, there = (
            Ingest(name, events, owners, leases, cast("Table", table), holders, registry=registry)
            for name, table in (("a", stuck), ("b", listed))
        )

        chunk = Chunk(1, [b"{}"], Direction.FROM_AGENT, "s", session_channel("s"), 0.0)
        subject = subjects.session_events("s")
        await ask(there, messages.LOG, LogRequest(list(outgoing(chunk, subject)), {subject: 0}, "run"))
        late = asyncio.create_task(show(away, "old"))
        await stuck.asked.wait()
        for title in ("old", "new"):
            before = registry.revisions.get(key)
            assert (await show(there, title)).failed is None
            await registry.until(lambda known=before: registry.revisions.get(key) != known)
        stuck.reached.set()

        assert (await late).failed is not None
        entry = await listed.get(key)
        assert entry is not None
        assert b'"new"' in (entry.value or b"")

    run(main())
