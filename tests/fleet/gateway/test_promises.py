"""Responses that nodes have promised on the stream: each comes once, also when its node or a gateway is gone."""

import asyncio

import msgspec
import pytest

from sandboxagent.fleet import messages
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import TableEntry
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.gateway import node_loss as losses_module
from sandboxagent.fleet.gateway.feed import EVERYTHING
from sandboxagent.fleet.gateway.tunnels import NodeAnswer, NodeRequest
from sandboxagent.fleet.node.connections import PATH
from sandboxagent.fleet.records import position_of
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import failure, parse, request, success
from sandboxagent.protocol.errors import LogUnavailable, NodeRefused, NodeUnreachable, UnknownSession
from sandboxagent.server.http.deliver import Delivery
from tests.fleet.gateway.gateways import attach, tell
from tests.fleet.gateway.scripted_nodes import (
    ACCEPTED,
    KNOWN,
    PROMPT,
    REFUSED,
    lease_of,
    never,
    open_gateway,
    replying,
    said_by_gateways,
    until_done_since,
)
from tests.support.client import run
from tests.support.running import BOUND


def test_response_owed_by_a_lost_node_comes_once_though_its_gateway_is_gone() -> None:
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
            del gateway.registry.leases["n"]
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
        await gateway.registry.start(await tables.table("nodes"), await tables.table("sess"))
        lease = lease_of("n", "new run")
        client = await gateway.client("n")
        client.note_asked(b"1", "n", "new run")
        before = asyncio.all_tasks()
        gateway.registry.leases.pop("n", None)
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
            if gateway.registry.leases["n"].nonce == "second":
                return ACCEPTED
            gateway.registry.leases["n"] = lease_of("n", "second")
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
            if gateway.registry.leases["n"].nonce == "second":
                return NodeAnswer(200, [], success(b'"turn"', {}), "")
            # That run hears nothing of it, and the next one leaves it alone.
            asked_once.set()
            return await never(asked, body)

        gateway = await open_gateway(cluster, n=restart)
        leases, listed = await MemoryBus(cluster).table("nodes"), await MemoryBus(cluster).table("sess")
        await gateway.registry.start(leases, listed)
        client = await gateway.client("n", home="n")
        async with asyncio.timeout(BOUND):
            reply = gateway.calls.submit(client, parse(PROMPT), "key")
            await asked_once.wait()
            await leases.put("n", msgspec.json.encode(lease_of("n", "second")))
            assert parse((await reply).line).succeeded

    run(main())


def test_a_request_that_its_node_refused_has_no_other_response() -> None:
    async def main() -> None:
        cluster = Cluster()
        one, two = [await open_gateway(cluster, n=replying(REFUSED)) for _ in range(2)]
        client = await one.client("n", home="n")
        moved = await two.connections.find(client.connection_id)
        assert moved is not None
        before = asyncio.all_tasks()
        with pytest.raises(NodeRefused):
            await one.calls.begin(client, parse(PROMPT), None)
        for gateway, connection in ((one, client), (two, moved)):
            for subject in (subjects.attachments, subjects.connection_events):
                await gateway.feed.catch_up(subject(client.tag, subjects.GATEWAY))
            gateway.registry.leases["n"] = lease_of("n", "second")
            gateway.connections.announce_stream(connection)
        await until_done_since(before)
        assert not said_by_gateways(cluster, client)
        assert not client.unanswered
        assert not moved.unanswered

    run(main())


def test_an_accepted_request_is_known_to_all_gateways_before_its_client_learns_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(losses_module, "ACCEPT_TIMEOUT", 0.05)

    async def main() -> None:
        cluster = Cluster()
        gateway = await open_gateway(cluster, n=replying(ACCEPTED))
        client = await gateway.client("n", home="n")
        cluster.appends_to_refuse = 1_000_000
        with pytest.raises(LogUnavailable):
            await gateway.calls.begin(client, parse(PROMPT), None)
        cluster.appends_to_refuse = 0
        monkeypatch.setattr(losses_module, "ACCEPT_TIMEOUT", BOUND)
        assert await gateway.calls.begin(client, parse(PROMPT.replace(b"turn", b"next")), None)
        newest = cluster.streams["EV"].newest(subjects.attachments(client.tag, subjects.GATEWAY))
        assert newest is not None
        sent = msgspec.json.decode(newest.body, type=messages.SentTo)
        assert (sent.id, sent.promised_by) == ('"next"', "of n")

    run(main())


@pytest.mark.parametrize(
    "method",
    [
        *(methods.SET_METADATA, methods.TERMINATE, methods.CLOSE, methods.DELETE, methods.LOAD, methods.RESUME),
        *(methods.ATTACH, methods.DETACH, methods.PENDING),
    ],
)
def test_accepted_request_is_owed_by_its_node_when_its_gateway_is_gone(method: str) -> None:
    """This holds for every method that a node can answer by itself."""

    async def main() -> None:
        cluster = Cluster()
        one, two = [await open_gateway(cluster, n=replying(ACCEPTED)) for _ in range(2)]
        client = await one.client("n", home="n")
        assert await one.calls.begin(client, parse(request(b'"asked"', method, {"sessionId": "s"})), None)
        moved = await two.connections.find(client.connection_id)
        assert moved is not None
        assert moved.unanswered[b'"asked"'].run == "of n"

    run(main())


def test_attach_response_has_a_stream_position_at_every_gateway() -> None:
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
            gateway.registry.leases["n"] = lease_of("n", "second")
            return ACCEPTED

        gateway = await open_gateway(cluster, n=replying(KNOWN))
        client = await gateway.client("n", home="n")
        await gateway.remotes.introduce(client, "n")
        gateway.nodes.replies["n"] = accept_and_end
        before = asyncio.all_tasks()
        assert await gateway.calls.begin(client, parse(PROMPT), None)
        await until_done_since(before)
        [answer] = said_by_gateways(cluster, client)
        assert answer.error()["data"] == {"type": "node-lost", "node": "n"}

    run(main())


def test_a_request_that_its_node_answers_on_the_stream_holds_nothing_here() -> None:
    async def main() -> None:
        gateway = await open_gateway(Cluster(), n=replying(KNOWN))
        client = await gateway.client("n", home="n")
        await gateway.remotes.introduce(client, "n")
        gateway.nodes.replies["n"] = replying(ACCEPTED)
        before, ended = asyncio.all_tasks(), list[str]()
        reply = Delivery(gateway.connections, gateway.calls, 1).deliver(
            client, parse(PROMPT), after=lambda: ended.append("once")
        )
        assert (client.busy, client.delivering) == (1, 1)
        assert await reply.accepted() == 0
        await until_done_since(before)
        assert (client.busy, client.delivering, ended) == (0, 0, ["once"])
        assert [promise.node for promise in client.unanswered.values()] == ["n"]

    run(main())


def test_response_that_comes_before_its_promise_leaves_no_promise() -> None:
    async def main() -> None:
        cluster = Cluster()

        async def respond(asked: NodeRequest, body: bytes) -> NodeAnswer:
            tell(cluster, "n", client.tag, b'{"jsonrpc":"2.0","id":"turn","result":{}}')
            await gateway.feed.catch_up(subjects.connection_events(client.tag, "n"))
            return ACCEPTED

        gateway = await open_gateway(cluster, n=replying(KNOWN))
        client = await gateway.client("n", home="n")
        await gateway.remotes.introduce(client, "n")
        gateway.nodes.replies["n"] = respond
        assert await gateway.calls.begin(client, parse(PROMPT), None)
        assert not client.unanswered

    run(main())
