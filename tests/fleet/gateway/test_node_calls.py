"""Clients at nodes that do not answer, forget, or lie: each costs its own client alone."""

import asyncio

import msgspec
import pytest

from sandboxagent.fleet import messages
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.gateway import node_calls
from sandboxagent.fleet.gateway import requests as calls_module
from sandboxagent.fleet.gateway.requests import MANY_TIMEOUT
from sandboxagent.fleet.gateway.tunnels import NodeAnswer, NodeRequest
from sandboxagent.fleet.node.connections import PATH
from sandboxagent.protocol.envelope import Envelope, parse, request
from sandboxagent.protocol.errors import NodeUnreachable
from tests.fleet.gateway.scripted_nodes import (
    ACCEPTED,
    FORGOTTEN,
    GREETING,
    KNOWN,
    NEW,
    PENDING,
    Gateway,
    Reply,
    lease_of,
    never,
    open_gateway,
    replying,
)
from tests.support.client import run
from tests.support.running import BOUND


def test_connections_are_kept_while_a_node_ignores_its_introduction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_calls, "NODE_TIMEOUT", 0.05)

    async def main() -> None:
        gateway = await open_gateway(silent=never)
        stuck, other = await gateway.client("silent"), await gateway.client()
        stuck.kept_at = other.kept_at = -1000.0
        before = other.revision
        await gateway.remotes.keep_all()
        assert other.revision > before
        with pytest.raises(NodeUnreachable, match="does not answer"):
            await gateway.remotes.introduce(stuck, "silent")

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
        monkeypatch.setattr(loop, "time", lambda: now() + MANY_TIMEOUT)

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
        listed = messages.Listed("good", msgspec.Raw(b'{"sessionId":"s","createdAt":"","cwd":"/","pending":1}'))
        tables = MemoryBus(Cluster())
        await (sessions := await tables.table("sess")).put(subjects.token("s"), msgspec.json.encode(listed))
        await gateway.registry.start(await tables.table("nodes"), sessions)
        client = await gateway.client("silent", "broken", "good", "liar")
        passing = asyncio.create_task(let_time_pass(gateway))
        answer = await gateway.calls.submit(client, parse(PENDING))
        await passing
        assert parse(answer.line).result() == {"pending": [{"sessionId": "s"}, {"sessionId": "its-own"}]}

    run(main())


async def greet(asked: NodeRequest, body: bytes) -> NodeAnswer:
    greeting = msgspec.json.encode(messages.IntroductionReply(known=True, agent="a", greeting=msgspec.Raw(GREETING)))
    return NodeAnswer(200, [], greeting, "")


def initialize(**placement: object) -> Envelope:
    """From a client that wants some node."""
    meta = {"_meta": {"sandboxagent.dev": {"agent": "a", **placement}}}
    return parse(request(b"0", "initialize", meta))


def test_no_client_waits_for_a_silent_node_that_it_did_not_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "PROBE_INTERVAL", 0.01)

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
    monkeypatch.setattr(calls_module, "PROBE_INTERVAL", 0.01)

    async def main() -> None:
        probed = asyncio.Event()

        async def greet_late(asked: NodeRequest, body: bytes) -> NodeAnswer:
            await probed.wait()
            return await greet(asked, body)

        async def answers(node: str, run: str) -> bool:
            probes.append(node)
            if len(probes) == 3:
                probed.set()
            return True

        probes: list[str] = []
        gateway = await open_gateway(answers=answers, slow=greet_late)
        gateway.registry.leases["other"] = lease_of("other", "of other")
        client, _ = await gateway.calls.open(initialize(node="slow"))
        assert client.home == "slow"
        assert probes == ["slow"] * 3

    run(main())


def test_a_client_that_fits_one_node_alone_waits_until_that_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "PROBE_INTERVAL", 0.01)

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
        cancelling = asyncio.ensure_future(gateway.calls.notify(client, parse(cancel)))
        while ("b", b"/v1/rpc") not in gateway.nodes.called:  # noqa: ASYNC110 - what is tested has no events
            await asyncio.sleep(0)
        cancelling.cancel()

    run(main())


def test_a_node_that_forgets_its_guest_again_and_again_is_asked_in_peace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_calls, "NODE_TIMEOUT", 0.5)

    async def main() -> None:
        gateway = await open_gateway(n=replying(FORGOTTEN))
        client = await gateway.client("n")
        answer = await gateway.remotes.post(client, "n", PENDING, [], repeatable=True)
        assert answer.body == FORGOTTEN.body
        assert len(gateway.nodes.called) < 20

    run(main())


def test_a_node_that_has_started_anew_learns_of_a_client_when_that_reads_again() -> None:
    async def main() -> None:
        gateway = await open_gateway(n=replying(KNOWN))
        client = await gateway.client("n")
        await gateway.remotes.introduce(client, "n")
        gateway.nodes.called.clear()
        gateway.connections.announce_stream(client)
        # Nothing to say to a node that knows it; and no stream was open when this one was restarted.
        gateway.registry.leases["n"] = lease_of("n", "another run")
        gateway.connections.announce_stream(client)
        async with asyncio.timeout(BOUND):
            while client.remotes["n"] != "another run":  # noqa: ASYNC110 - what is tested has no events
                await asyncio.sleep(0)
        assert gateway.nodes.called == [("n", PATH.encode())]

    run(main())
