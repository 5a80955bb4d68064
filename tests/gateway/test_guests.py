"""Calls for clients at nodes that do not answer, forget, or lie: each costs its own client alone."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from sandbox_agent.bus import subjects
from sandbox_agent.bus.memory import Cluster, MemoryBus
from sandbox_agent.bus.ports import StreamRecord, TableEntry
from sandbox_agent.envelope import Envelope, failure, notification, parse, request, success
from sandbox_agent.errors import LogUnavailable, UnknownSession
from sandbox_agent.fleet_errors import NodeUnreachable
from sandbox_agent.gateway import calls as calls_module
from sandbox_agent.gateway import guests as guests_module
from sandbox_agent.gateway import losses as losses_module
from sandbox_agent.gateway.calls import ONE_OF_MANY, FleetCalls
from sandbox_agent.gateway.connection import FleetConnection
from sandbox_agent.gateway.connections import FleetConnections
from sandbox_agent.gateway.feed import EVERYTHING, Feed
from sandbox_agent.gateway.flows import NodeAnswer, NodeRequest
from sandbox_agent.gateway.guests import GuestCalls, Refusal
from sandbox_agent.gateway.ingest import IsThere
from sandbox_agent.gateway.methods import GatewayMethods
from sandbox_agent.gateway.own_events import OwnEvents
from sandbox_agent.gateway.roster import Roster
from sandbox_agent.http.guests import PATH
from sandbox_agent.log.wire import position_of
from sandbox_agent.wire import fleet, methods
from tests.gateway.test_connections import attach, tell
from tests.support.client import run
from tests.support.running import BOUND

INITIALIZE = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}'
PENDING = b'{"jsonrpc":"2.0","id":1,"method":"_sandboxagent/session/pending","params":{}}'
PROMPT = b'{"jsonrpc":"2.0","id":"turn","method":"session/prompt","params":{"sessionId":"s"}}'
GREETING = b'{"jsonrpc":"2.0","id":0,"result":{}}'
NEW = b'{"jsonrpc":"2.0","id":2,"method":"session/new","params":{}}'
INTRODUCED = fleet.Introduced(known=True, agent="a", greeting=msgspec.Raw(b"null"))
KNOWN = NodeAnswer(200, [], msgspec.json.encode(INTRODUCED), "")
STRANGER = NodeAnswer(200, [], msgspec.json.encode(fleet.Introduced(known=False, agent="a")), "")
FORGOTTEN = NodeAnswer(404, [], b'{"type":"urn:sandbox-agent:error:unknown-connection"}', "")
ACCEPTED = NodeAnswer(202, [], b"", "")
REFUSED = NodeAnswer(409, [], b'{"type":"urn:sandbox-agent:error:turn-running","title":"Busy"}', "")

Reply = Callable[[NodeRequest, bytes], Awaitable[NodeAnswer]]


async def never(asked: NodeRequest, body: bytes) -> NodeAnswer:
    await asyncio.Event().wait()
    raise AssertionError


def replying(answer: NodeAnswer) -> Reply:
    """Knows every guest, and answers all else with this."""

    async def reply(asked: NodeRequest, body: bytes) -> NodeAnswer:
        return KNOWN if asked.target == PATH.encode() else answer

    return reply


@dataclass
class Nodes:
    """The way to nodes; each answers as a test says."""

    replies: dict[str, Reply]
    leases: dict[str, fleet.Lease]
    called: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])

    async def call(self, node: str, asked: NodeRequest, body: bytes = b"", *, most: int) -> NodeAnswer:
        self.called.append((node, asked.target))
        run = self.leases[node].nonce
        return replace(await self.replies[node](asked, body), run=run)


@dataclass
class Gateway:
    connections: FleetConnections
    guests: GuestCalls
    calls: FleetCalls
    nodes: Nodes
    roster: Roster
    feed: Feed

    async def client(self, *nodes: str, home: str | None = None) -> FleetConnection:
        connection = await self.connections.open(self.connections.make_id(), "a", parse(INITIALIZE), home)
        for node in nodes:
            await self.connections.add_node(connection, node)
        return connection


def lease_of(node: str, run: str) -> fleet.Lease:
    return fleet.Lease(node, run, "", {}, [], 0)


async def open_gateway(cluster: Cluster | None = None, answers: IsThere | None = None, **replies: Reply) -> Gateway:
    bus = MemoryBus(cluster or Cluster())
    events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 20, max_age=60)
    roster, feed = Roster(), Feed(events, 1 << 20)
    nodes = Nodes(replies, roster.leases)
    for name in replies:
        roster.leases[name] = lease_of(name, f"of {name}")
    await feed.start()
    connections = FleetConnections("g", feed, roster, await bus.table("conns"), OwnEvents(events), ttl=60)
    guests = GuestCalls(connections, nodes, roster, 1 << 20)
    own = GatewayMethods(feed, roster)

    async def answers_if_it_replies(node: str, run: str) -> bool:
        return replies[node] is not never and run == roster.leases[node].nonce

    asked = answers or answers_if_it_replies
    calls = FleetCalls("g", connections, guests, own, roster, asked, await bus.table("keys"), 60, None)
    return Gateway(connections, guests, calls, nodes, roster, feed)


async def until_done_since(before: set["asyncio.Task[Any]"]) -> None:
    """Wait for everything that was begun since."""
    async with asyncio.timeout(BOUND):
        while begun := asyncio.all_tasks() - before:
            await asyncio.wait(begun)


def said_by_gateways(cluster: Cluster, client: FleetConnection) -> list[Envelope]:
    """What gateways have said to a client."""
    own = subjects.connection_events(client.tag, subjects.GATEWAY)
    return [parse(record.body) for record in cluster.streams["EV"].records if record.subject == own]


def test_a_node_that_never_answers_an_introduction_keeps_no_connection_from_being_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guests_module, "PATIENCE", 0.05)

    async def main() -> None:
        gateway = await open_gateway(silent=never)
        stuck, other = await gateway.client("silent"), await gateway.client()
        stuck.kept_at = other.kept_at = -1000.0
        before = other.revision
        await gateway.guests.keep_all()
        assert other.revision > before
        with pytest.raises(NodeUnreachable, match="does not answer"):
            await gateway.guests.introduce(stuck, "silent")

    run(main())


def test_what_waits_in_the_fleet_is_listed_without_nodes_that_are_silent_fail_or_lie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def let_time_pass(gateway: Gateway) -> None:
        """The time limit, at once, when all others have been heard."""
        while len({node for node, target in gateway.nodes.called if target != PATH.encode()}) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + ONE_OF_MANY)

    def listing(*sessions: str) -> Reply:
        pending = [{"sessionId": session_id} for session_id in sessions]
        result = {"jsonrpc": "2.0", "id": 1, "result": {"pending": pending}}
        return replying(NodeAnswer(200, [], msgspec.json.encode(result), ""))

    async def main() -> None:
        gateway = await open_gateway(
            silent=never,
            broken=replying(NodeAnswer(200, [], b"{", "")),
            good=listing("s"),
            liar=listing("s", "its-own"),
        )
        listed = fleet.Listed("good", msgspec.Raw(b'{"sessionId":"s","createdAt":"","cwd":"/","pending":1}'))
        tables = MemoryBus(Cluster())
        await (sessions := await tables.table("sess")).put(subjects.token("s"), msgspec.json.encode(listed))
        await gateway.roster.start(await tables.table("nodes"), sessions)
        client = await gateway.client("silent", "broken", "good", "liar")
        passing = asyncio.create_task(let_time_pass(gateway))
        answer = await (await gateway.calls.accept(client, parse(PENDING))).answer
        await passing
        assert parse(answer.line).result() == {"pending": [{"sessionId": "s"}, {"sessionId": "its-own"}]}

    run(main())


async def greet(asked: NodeRequest, body: bytes) -> NodeAnswer:
    greeting = msgspec.json.encode(fleet.Introduced(known=True, agent="a", greeting=msgspec.Raw(GREETING)))
    return NodeAnswer(200, [], greeting, "")


def initialize(**wish: object) -> Envelope:
    """From a client that wants some node."""
    meta = {"_meta": {"sandboxagent.dev": {"agent": "a", **wish}}}
    return parse(request(b"0", "initialize", meta))


def test_no_client_waits_for_a_silent_node_that_it_did_not_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "KNOCK_AFTER", 0.01)

    async def main() -> None:
        cluster = Cluster()
        gateway = await open_gateway(cluster, silent=never, there=greet)
        elsewhere = await open_gateway(cluster, silent=never, there=greet)
        # By chance, it is chosen first for some of them, and does not answer when they are introduced to it.
        for place in range(20):
            client, _ = await gateway.calls.open(initialize())
            assert client.home == "there"
            known = await elsewhere.connections.find(client.connection_id)
            assert known is not None
            assert known.home == "there"
            for key in (None, f"key {place}"):
                assert await gateway.calls.node_for(client, parse(NEW), key) == "there"
        named = parse(NEW.replace(b'"params":{}', b'"params":{"_meta":{"sandboxagent.dev":{"node":"silent"}}}'))
        assert await gateway.calls.node_for(client, named) == "silent"
        # Nothing is better: it may come back.
        gateway.nodes.replies["there"] = never
        assert await gateway.calls.node_for(client, parse(NEW)) in ("silent", "there")

    run(main())


def test_a_client_waits_for_a_node_that_takes_long_to_greet_it_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "KNOCK_AFTER", 0.01)

    async def main() -> None:
        knocked = asyncio.Event()

        async def greet_late(asked: NodeRequest, body: bytes) -> NodeAnswer:
            await knocked.wait()
            return await greet(asked, body)

        async def answers(node: str, run: str) -> bool:
            knocks.append(node)
            if len(knocks) == 3:
                knocked.set()
            return True

        knocks: list[str] = []
        gateway = await open_gateway(answers=answers, slow=greet_late)
        gateway.roster.leases["other"] = lease_of("other", "of other")
        client, _ = await gateway.calls.open(initialize(node="slow"))
        assert client.home == "slow"
        assert knocks == ["slow"] * 3

    run(main())


def test_a_client_that_fits_one_node_alone_waits_until_that_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "KNOCK_AFTER", 0.01)

    async def main() -> None:
        thawed = asyncio.Event()

        async def thaw(asked: NodeRequest, body: bytes) -> NodeAnswer:
            await thawed.wait()
            return await greet(asked, body)

        async def answers(node: str, run: str) -> bool:
            asyncio.get_running_loop().call_later(0.01, thawed.set)
            return False

        gateway = await open_gateway(answers=answers, frozen=thaw, there=greet)
        client, _ = await gateway.calls.open(initialize(node="frozen"))
        assert client.home == "frozen"

    run(main())


def test_a_cancel_reaches_a_node_behind_a_silent_one() -> None:
    async def main() -> None:
        gateway = await open_gateway(a=never, b=replying(ACCEPTED))
        client = await gateway.client("a", "b")
        cancel = b'{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":7}}'
        cancelling = asyncio.create_task(gateway.calls.notify(client, parse(cancel)))
        while ("b", b"/v1/rpc") not in gateway.nodes.called:  # noqa: ASYNC110 - what is tested has no events
            await asyncio.sleep(0)
        cancelling.cancel()

    run(main())


def test_a_node_that_forgets_its_guest_again_and_again_is_asked_in_peace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests_module, "PATIENCE", 0.5)

    async def main() -> None:
        gateway = await open_gateway(n=replying(FORGOTTEN))
        client = await gateway.client("n")
        answer = await gateway.guests.post(client, "n", PENDING, [], repeatable=True)
        assert answer.body == FORGOTTEN.body
        assert len(gateway.nodes.called) < 20

    run(main())


def test_a_node_that_has_started_anew_learns_of_a_client_when_that_reads_again() -> None:
    async def main() -> None:
        gateway = await open_gateway(n=replying(KNOWN))
        client = await gateway.client("n")
        await gateway.guests.introduce(client, "n")
        gateway.nodes.called.clear()
        gateway.connections.announce_stream(client)
        # Nothing to say to a node that knows it; and no stream was open when this one was restarted.
        gateway.roster.leases["n"] = lease_of("n", "another run")
        gateway.connections.announce_stream(client)
        async with asyncio.timeout(BOUND):
            while client.guests["n"] != "another run":  # noqa: ASYNC110 - what is tested has no events
                await asyncio.sleep(0)
        assert gateway.nodes.called == [("n", PATH.encode())]

    run(main())


def test_a_response_that_a_lost_node_owes_comes_once_also_when_its_gateway_is_gone_too() -> None:
    other = b'{"jsonrpc":"2.0","id":"done","method":"session/prompt","params":{"sessionId":"s"}}'

    async def main() -> None:
        cluster = Cluster()
        takes = replying(ACCEPTED)
        one, two, three = [await open_gateway(cluster, n=takes) for _ in range(3)]
        client = await one.client("n", home="n")
        # Its id was used before, which this gateway has seen.
        tell(cluster, "n", client.tag, b'{"jsonrpc":"2.0","id":"turn","result":{}}')
        await one.feed.catch_up(subjects.connection_events(client.tag, "n"))
        for line in (PROMPT, other):
            assert await one.calls.begin(client, parse(line), None)
        tell(cluster, "n", client.tag, b'{"jsonrpc":"2.0","id":"done","result":{}}')
        async with asyncio.timeout(BOUND):
            while len(client.unanswered) != 1:  # noqa: ASYNC110 - what is tested has no events
                await asyncio.sleep(0)
        moved = [await each.connections.find(client.connection_id) for each in (two, three)]
        before = asyncio.all_tasks()
        for gateway, connection in zip((two, three), moved, strict=True):
            # The gateway that took them learns nothing: it is gone. All others learn that the node is.
            assert connection is not None
            del gateway.roster.leases["n"]
            gateway.connections.announce_stream(connection)
        await until_done_since(before)
        [answer] = said_by_gateways(cluster, client)
        assert (answer.id, answer.error()["data"]) == (b'"turn"', {"type": "node-lost", "node": "n"})

    run(main())


def test_a_gateway_that_has_not_heard_of_a_nodes_new_run_does_not_call_it_lost() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await open_gateway(cluster, n=replying(KNOWN))
        tables = MemoryBus(cluster)
        await gateway.roster.start(await tables.table("nodes"), await tables.table("sess"))
        lease = lease_of("n", "new run")
        client = await gateway.client("n")
        client.note_asked(b"1", "n", "new run")
        before = asyncio.all_tasks()
        gateway.roster.leases.pop("n", None)
        cluster.tables["nodes"].entries["n"] = TableEntry("n", msgspec.json.encode(lease), 1)
        gateway.connections.announce_stream(client)
        assert not client.unanswered
        await until_done_since(before)
        assert client.unanswered
        assert not said_by_gateways(cluster, client)

    run(main())


def test_a_prompt_that_is_repeated_at_the_next_run_of_its_node_is_owed_by_that_run() -> None:
    async def main() -> None:
        cluster = Cluster()

        async def restart(asked: NodeRequest, body: bytes) -> NodeAnswer:
            if asked.target == PATH.encode():
                return KNOWN
            if gateway.roster.leases["n"].nonce == "second":
                return ACCEPTED
            gateway.roster.leases["n"] = lease_of("n", "second")
            raise NodeUnreachable("n", "is stopping")

        gateway = await open_gateway(cluster, n=restart)
        client = await gateway.client("n", home="n")
        before = asyncio.all_tasks()
        assert await gateway.calls.begin(client, parse(PROMPT), "key")
        gateway.connections.announce_stream(client)
        await until_done_since(before)
        assert not said_by_gateways(cluster, client)
        assert [promise.run for promise in client.unanswered.values()] == ["second"]

    run(main())


def test_what_waits_for_a_run_of_a_node_that_has_ended_is_asked_of_the_next_one() -> None:
    async def main() -> None:
        cluster, asked_once = Cluster(), asyncio.Event()

        async def restart(asked: NodeRequest, body: bytes) -> NodeAnswer:
            if asked.target == PATH.encode():
                return KNOWN
            if gateway.roster.leases["n"].nonce == "second":
                return NodeAnswer(200, [], success(b'"turn"', {}), "")
            # That run hears nothing of it, and the next one leaves it alone.
            asked_once.set()
            return await never(asked, body)

        gateway = await open_gateway(cluster, n=restart)
        leases, listed = await MemoryBus(cluster).table("nodes"), await MemoryBus(cluster).table("sess")
        await gateway.roster.start(leases, listed)
        client = await gateway.client("n", home="n")
        async with asyncio.timeout(BOUND):
            accepted = await gateway.calls.accept(client, parse(PROMPT), "key")
            answering = asyncio.ensure_future(accepted.answer)
            await asked_once.wait()
            await leases.put("n", msgspec.json.encode(lease_of("n", "second")))
            assert parse((await answering).line).succeeded

    run(main())


def test_a_request_that_its_node_refused_has_no_other_response() -> None:
    async def main() -> None:
        cluster = Cluster()
        one, two = [await open_gateway(cluster, n=replying(REFUSED)) for _ in range(2)]
        client = await one.client("n", home="n")
        moved = await two.connections.find(client.connection_id)
        assert moved is not None
        before = asyncio.all_tasks()
        with pytest.raises(Refusal):
            await one.calls.begin(client, parse(PROMPT), None)
        for gateway, connection in ((one, client), (two, moved)):
            for subject in (subjects.attachments, subjects.connection_events):
                await gateway.feed.catch_up(subject(client.tag, subjects.GATEWAY))
            gateway.roster.leases["n"] = lease_of("n", "second")
            gateway.connections.announce_stream(connection)
        await until_done_since(before)
        assert not said_by_gateways(cluster, client)
        assert not client.unanswered
        assert not moved.unanswered

    run(main())


def test_an_accepted_request_is_known_to_all_gateways_before_its_client_learns_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(losses_module, "PATIENCE", 0.05)

    async def main() -> None:
        cluster = Cluster()
        gateway = await open_gateway(cluster, n=replying(ACCEPTED))
        client = await gateway.client("n", home="n")
        cluster.appends_to_refuse = 1_000_000
        with pytest.raises(LogUnavailable):
            await gateway.calls.begin(client, parse(PROMPT), None)
        cluster.appends_to_refuse = 0
        monkeypatch.setattr(losses_module, "PATIENCE", BOUND)
        assert await gateway.calls.begin(client, parse(PROMPT.replace(b"turn", b"next")), None)
        newest = cluster.streams["EV"].newest(subjects.attachments(client.tag, subjects.GATEWAY))
        assert newest is not None
        sent = msgspec.json.decode(newest.body, type=fleet.SentTo)
        assert (sent.id, sent.promised_by) == ('"next"', "of n")

    run(main())


@pytest.mark.parametrize(
    "method",
    [
        *(methods.SET_METADATA, methods.TERMINATE, methods.CLOSE, methods.DELETE, methods.LOAD, methods.RESUME),
        *(methods.ATTACH, methods.DETACH, methods.PENDING),
    ],
)
def test_what_a_node_can_answer_itself_is_answered_when_the_gateway_that_took_it_is_gone(method: str) -> None:
    async def main() -> None:
        cluster = Cluster()
        one, two = [await open_gateway(cluster, n=replying(ACCEPTED)) for _ in range(2)]
        client = await one.client("n", home="n")
        assert await one.calls.begin(client, parse(request(b'"asked"', method, {"sessionId": "s"})), None)
        moved = await two.connections.find(client.connection_id)
        assert moved is not None
        assert moved.unanswered[b'"asked"'].run == "of n"

    run(main())


def test_the_position_in_a_nodes_response_to_attach_is_one_of_the_stream_at_every_gateway() -> None:
    async def main() -> None:
        cluster = Cluster()
        one, two = [await open_gateway(cluster, n=replying(ACCEPTED)) for _ in range(2)]
        client = await one.client("n", home="n")
        moved = await two.connections.find(client.connection_id)
        assert moved is not None
        own = subjects.connection_events(client.tag, "n")

        def end_of_subject(subject: str) -> int:
            record = cluster.streams["EV"].newest(subject)
            assert record is not None
            return position_of(record.sequence)

        async def ask(id: str) -> None:
            assert await one.calls.begin(
                client, parse(request(msgspec.json.encode(id), methods.ATTACH, {"sessionId": "s"})), None
            )

        def answer(id: str, **members: object) -> int:
            result = {"session": {"sessionId": "s"}, "pending": [], "position": 7, **members}
            tell(cluster, "n", client.tag, success(msgspec.json.encode(id), result))
            return end_of_subject(own)

        await ask("first")
        attach(cluster, "n", client.tag, "s")
        begun = end_of_subject(subjects.attachments(client.tag, "n"))
        answer("first")
        await ask("again")
        again = answer("again")
        answer("of another method")
        tell(cluster, "n", client.tag, failure(b'"first"', UnknownSession("s")))
        late = await open_gateway(cluster, n=replying(ACCEPTED))
        newcomer = await late.connections.find(client.connection_id)
        assert newcomer is not None
        for gateway, connection in ((one, client), (two, moved), (late, newcomer)):
            await gateway.feed.catch_up(own)
            chunks = await gateway.feed.page([own], client.opened_at, EVERYTHING)
            lines = [parse(line) for chunk in chunks for line in connection.lines(chunk)]
            assert [line.result().get("position") for line in lines] == [begun, again, 7, None]
            assert b"".join(map(connection.frames, chunks)).count(b'"position":%d' % begun) == 1

    run(main())


def test_a_run_that_ends_as_soon_as_it_has_accepted_a_request_is_answered_for() -> None:
    async def main() -> None:
        cluster = Cluster()

        async def accept_and_end(asked: NodeRequest, body: bytes) -> NodeAnswer:
            gateway.roster.leases["n"] = lease_of("n", "second")
            return ACCEPTED

        gateway = await open_gateway(cluster, n=replying(KNOWN))
        client = await gateway.client("n", home="n")
        await gateway.guests.introduce(client, "n")
        gateway.nodes.replies["n"] = accept_and_end
        before = asyncio.all_tasks()
        assert await gateway.calls.begin(client, parse(PROMPT), None)
        await until_done_since(before)
        [answer] = said_by_gateways(cluster, client)
        assert answer.error()["data"] == {"type": "node-lost", "node": "n"}

    run(main())


def test_a_response_that_is_quicker_than_the_word_of_its_promise_leaves_none() -> None:
    async def main() -> None:
        cluster = Cluster()

        async def respond(asked: NodeRequest, body: bytes) -> NodeAnswer:
            tell(cluster, "n", client.tag, b'{"jsonrpc":"2.0","id":"turn","result":{}}')
            await gateway.feed.catch_up(subjects.connection_events(client.tag, "n"))
            return ACCEPTED

        gateway = await open_gateway(cluster, n=replying(KNOWN))
        client = await gateway.client("n", home="n")
        await gateway.guests.introduce(client, "n")
        gateway.nodes.replies["n"] = respond
        assert await gateway.calls.begin(client, parse(PROMPT), None)
        assert not client.unanswered

    run(main())


def gone_said(cluster: Cluster, client: FleetConnection) -> list[StreamRecord]:
    """What gateways have told each other of sessions that are gone."""
    own = subjects.attachments(client.tag, subjects.GATEWAY)
    return [record for record in cluster.streams["EV"].records if record.subject == own and b'"gone"' in record.body]


async def attached_clients(cluster: Cluster, gateways: list[Gateway]) -> list[FleetConnection]:
    """One client at each of the gateways: the node n has attached it to the session s."""
    listed = fleet.Listed("n", msgspec.Raw(b'{"sessionId":"s","createdAt":"","cwd":"/"}'))
    tables = MemoryBus(cluster)
    await (sessions := await tables.table("sess")).put(subjects.token("s"), msgspec.json.encode(listed))
    client = await gateways[0].client("n")
    attach(cluster, "n", client.tag, "s")
    found: list[FleetConnection] = []
    for gateway in gateways:
        leases = dict(gateway.roster.leases)
        await gateway.roster.start(await tables.table("nodes"), sessions)
        gateway.roster.leases.update(leases)
        connection = await gateway.connections.find(client.connection_id)
        assert connection is not None
        await gateway.feed.catch_up(subjects.attachments(client.tag, "n"))
        assert connection.attached("s")
        found.append(connection)
    return found


def attaching(*answers: NodeAnswer) -> Reply:
    """Knows no guest, and answers with each of these; the last one ever again."""
    left = list(answers)

    async def reply(asked: NodeRequest, body: bytes) -> NodeAnswer:
        if asked.target == PATH.encode():
            return STRANGER
        return left.pop(0) if len(left) > 1 else left[0]

    return reply


def test_a_client_hears_once_of_a_session_that_its_node_has_lost_with_its_disk() -> None:
    async def main() -> None:
        cluster = Cluster()
        reply = attaching(NodeAnswer(200, [], failure(b'"again"', UnknownSession("s")), ""))
        gateways = [await open_gateway(cluster, n=reply) for _ in range(2)]
        clients = await attached_clients(cluster, gateways)
        # Both introduce it to the new run of the node, at once; and to the one after that.
        for each in ("second", "third"):
            before = asyncio.all_tasks()
            for gateway, client in zip(gateways, clients, strict=True):
                gateway.roster.leases["n"] = lease_of("n", each)
                gateway.connections.announce_stream(client)
            await until_done_since(before)
        [gone] = gone_said(cluster, clients[0])
        told = cluster.streams["EV"].newest(subjects.connection_events(clients[0].tag, subjects.GATEWAY))
        assert told is not None
        assert told.sequence < gone.sequence, "its client is told first: this gateway may end in between"
        [ended] = said_by_gateways(cluster, clients[0])
        assert ended.method == "_sandboxagent/session/ended"
        assert (ended.params()["sessionId"], ended.params()["reason"]) == ("s", "deleted")

    run(main())


def test_the_end_of_a_session_that_one_gateway_began_to_tell_is_told_whole_by_another() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateways = [await open_gateway(cluster, n=never) for _ in range(2)]
        clients = await attached_clients(cluster, gateways)
        before = asyncio.all_tasks()
        # The first one has told the client, and ended before it had told the gateways.
        ended = notification(methods.ENDED, {"sessionId": "s", "reason": "deleted"})
        gateways[0].connections.tell(clients[0], ended, "s")
        await until_done_since(before)
        known_at = await gateways[1].connections.endings.catch_up(clients[1], "n")
        gateways[1].connections.endings.tell_gone(clients[1], "s", known_at)
        # Its client was quick to open another session of this id.
        attach(cluster, "n", clients[1].tag, "s")
        await until_done_since(before)
        assert len(said_by_gateways(cluster, clients[1])) == len(gone_said(cluster, clients[1])) == 1
        for gateway, client in zip(gateways, clients, strict=True):
            await gateway.feed.catch_up(subjects.attachments(client.tag, subjects.GATEWAY))
        newest = await open_gateway(cluster, n=never)
        moved = await newest.connections.find(clients[0].connection_id)
        assert moved is not None
        assert clients[0].windows == clients[1].windows == moved.windows
        assert moved.attached("s"), "that one is there"

    run(main())


def test_each_time_that_a_node_loses_its_disk_its_client_hears_of_it_also_when_it_was_attached_again_in_between() -> (
    None
):
    async def main() -> None:
        cluster = Cluster()
        gateways = [await open_gateway(cluster, n=never) for _ in range(2)]
        clients = await attached_clients(cluster, gateways)
        endings = gateways[0].connections.endings
        for times in (1, 2, 3):
            before = asyncio.all_tasks()
            endings.tell_gone(clients[0], "s", await endings.catch_up(clients[0], "n"))
            # Its client is told; before gateways say the rest, its node attaches it to another session of this id.
            while len(said_by_gateways(cluster, clients[0])) < times:  # noqa: ASYNC110 - appending has no events
                await asyncio.sleep(0)
            attach(cluster, "n", clients[0].tag, "s")
            await until_done_since(before)
            for gateway, client in zip(gateways, clients, strict=True):
                for source in ("n", subjects.GATEWAY):
                    await gateway.feed.catch_up(subjects.attachments(client.tag, source))
                assert client.attached("s")
        assert clients[0].windows == clients[1].windows
        assert len(gone_said(cluster, clients[0])) == 3
        # What comes late is not told to a client that has another session of this id.
        before, known_at = asyncio.all_tasks(), await endings.catch_up(clients[0], "n")
        attach(cluster, "n", clients[0].tag, "s")
        await endings.catch_up(clients[0], "n")
        endings.tell_gone(clients[0], "s", known_at)
        await until_done_since(before)
        assert clients[0].attached("s")
        assert len(said_by_gateways(cluster, clients[0])) == 3

    run(main())


def test_a_client_is_no_longer_attached_to_a_session_that_its_node_has_lost() -> None:
    """The node may use the id again; its client sees that session when it is attached anew."""

    async def main() -> None:
        cluster = Cluster()
        gateways = [
            await open_gateway(cluster, n=attaching(NodeAnswer(200, [], failure(b'"again"', UnknownSession("s")), "")))
            for _ in range(3)
        ]
        here, there = await attached_clients(cluster, gateways[:2])
        before = asyncio.all_tasks()
        gateways[0].roster.leases["n"] = lease_of("n", "second")
        gateways[0].connections.announce_stream(here)
        await until_done_since(before)
        own = subjects.attachments(here.tag, subjects.GATEWAY)
        for gateway in gateways[:2]:
            await gateway.feed.catch_up(own)
        moved = await gateways[2].connections.find(here.connection_id)
        assert moved is not None
        lost_at = [client.windows["s"][-1].end for client in (here, there, moved)]
        assert None not in lost_at
        assert len(set(lost_at)) == 1

        attach(cluster, "n", here.tag, "s")
        for gateway, client in zip(gateways, (here, there, moved), strict=True):
            await gateway.feed.catch_up(subjects.attachments(here.tag, "n"))
            assert client.attached("s")
        late = await open_gateway(cluster, n=never)
        newest = await late.connections.find(here.connection_id)
        assert newest is not None
        assert newest.windows == here.windows

    run(main())


def test_a_node_that_cannot_attach_a_client_at_the_moment_is_asked_again() -> None:
    async def main() -> None:
        cluster = Cluster()
        busy = NodeAnswer(503, [], b'{"type":"urn:sandbox-agent:error:log-unavailable"}', "")
        gateway = await open_gateway(cluster, n=attaching(busy, NodeAnswer(200, [], success(b'"again"', {}), "")))
        [client] = await attached_clients(cluster, [gateway])
        with pytest.raises(Refusal):
            await gateway.guests.introduce(client, "n")
        await gateway.guests.introduce(client, "n")
        assert [target for _, target in gateway.nodes.called].count(b"/v1/rpc") == 2
        assert client.guests["n"] == "of n"

    run(main())
