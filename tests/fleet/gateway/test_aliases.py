"""An alias, or an id, leads to the session that had it first, whatever other nodes publish."""

import asyncio
import json
from dataclasses import dataclass

import msgspec
import pytest

from sandboxagent.fleet import messages as fleet
from sandboxagent.fleet import records
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.memory import Cluster, MemoryBus
from sandboxagent.fleet.gateway.ingest import Ingest
from sandboxagent.fleet.gateway.limits import ExcessReports
from sandboxagent.fleet.gateway.owners import TABLE, Owners
from sandboxagent.fleet.gateway.registry import ListedSession, NodeRegistry
from sandboxagent.fleet.gateway.tunnels import NodeAnswer
from sandboxagent.fleet.messages import FactsReply, FactsRequest, LogReply, LogRequest
from sandboxagent.protocol.envelope import META, parse
from tests.fleet.gateway import scripted_nodes
from tests.fleet.gateway.conftest import Fleet, until_listed
from tests.fleet.gateway.test_rights import said
from tests.fleet.gateway.test_validate import Clock, own
from tests.support.client import Client, run
from tests.support.running import BOUND


@dataclass
class Gateway:
    """One of several; `good`, `other` and `evil` are nodes."""

    ingest: Ingest
    registry: NodeRegistry
    marks: ExcessReports

    async def ask(self, node: str, verb: str, request: object) -> bytes:
        body = msgspec.msgpack.encode(request)
        answer = await self.ingest.take(subjects.request_to_gateway(node, verb, "g"), body)
        assert answer is not None
        return answer

    async def publish(self, node: str, session_id: str) -> str:
        """Publish an event of a session; returns whose it is."""
        subject = subjects.session_events(session_id)
        request = LogRequest(said(session_id), {subject: 0}, f"of {node}")
        reply = msgspec.msgpack.decode(await self.ask(node, fleet.LOG, request), type=LogReply)
        return node if reply.ends is None else reply.ends[subject].owner

    async def show(self, node: str, session_id: str, alias: object = None) -> None:
        """List a session, and wait until this gateway has it so."""
        view = {"sessionId": session_id, "createdAt": "", "cwd": "/", "title": node}
        if alias is not None:
            view["alias"] = alias
        request = FactsRequest({session_id: json.dumps(view).encode()})
        async with asyncio.timeout(BOUND):
            failed: str | None = ""
            while failed is not None:
                # It is asked again until this gateway has heard what it listed itself, as nodes do.
                reply = msgspec.msgpack.decode(await self.ask(node, fleet.FACTS, request), type=FactsReply)
                failed = reply.failed
                await asyncio.sleep(0)
            assert reply.refused == {}
            await self.registry.until(lambda: subjects.token(session_id) in self.registry.sessions)

    async def open(self, node: str, session_id: str, alias: object = None) -> None:
        assert await self.publish(node, session_id) == node
        await self.show(node, session_id, alias)

    async def delete(self, node: str, session_id: str) -> None:
        await self.ask(node, fleet.FACTS, FactsRequest({session_id: None}))
        async with asyncio.timeout(BOUND):
            await self.registry.until(lambda: subjects.token(session_id) not in self.registry.sessions)

    def leads_to(self, name: str) -> tuple[str, str] | None:
        seen = self.registry.find(name)
        return None if seen is None else (seen.node, seen.session_id)


async def open_gateway(cluster: Cluster) -> Gateway:
    bus, marks, registry = MemoryBus(cluster), ExcessReports(Clock()), NodeRegistry()
    events = await bus.stream("EV", [subjects.EVENTS], max_bytes=1 << 30, max_age=60)
    leases, listed = await bus.table("nodes"), await bus.table("sess")
    owners = Owners(await bus.table(TABLE), events)
    await registry.start(leases, listed)
    holders = {name: fleet.Lease(name, f"of {name}", "", {}, [], 0) for name in ("good", "other", "evil")}

    async def is_remote(node: str, tag: str) -> bool:
        return True

    ingest = Ingest("g", events, owners, leases, listed, holders, is_remote, registry=registry, marks=marks)
    return Gateway(ingest, registry, marks)


@pytest.mark.parametrize("place", ["the same gateway", "another gateway", "after a restart of all gateways"])
def test_node_claiming_another_nodes_session_name_gets_none_of_its_requests(place: str) -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await open_gateway(cluster)
        await gateway.open("good", "s", "mine")
        elsewhere = gateway if place == "the same gateway" else await open_gateway(cluster)
        gateways = [elsewhere] if place == "after a restart of all gateways" else [gateway, elsewhere]

        # A session whose id is that one's alias.
        assert await elsewhere.publish("evil", "mine") == "good"
        # One whose alias is that one's alias, or its id.
        await elsewhere.open("evil", "e1", "mine")
        await elsewhere.open("evil", "e2", "s")
        for each in gateways:
            async with asyncio.timeout(BOUND):
                await each.registry.until(lambda each=each: each.registry.count == 3)
            assert each.leads_to("mine") == each.leads_to("s") == ("good", "s")
            assert each.leads_to("e1") == ("evil", "e1")
            assert "alias" not in json.loads(bytes(each.registry.session("e1").view))
        assert "another session's name" in elsewhere.marks.of("evil")
        assert elsewhere.marks.of("good") == ""

        # Its first owner goes on, also when it says all of it again.
        await elsewhere.show("good", "s", "mine")
        assert elsewhere.leads_to("mine") == ("good", "s")
        assert json.loads(bytes(elsewhere.registry.session("s").view))["alias"] == "mine"

    run(main())


def test_id_that_comes_before_an_alias_stays_an_id() -> None:
    """This holds even if nothing was listed for the id. An alias may be its own session's id."""

    async def main() -> None:
        gateway = await open_gateway(Cluster())
        # An alias that is an id which nothing was listed of.
        assert await gateway.publish("good", "early") == "good"
        await gateway.open("evil", "e", "early")
        assert gateway.leads_to("early") is None
        await gateway.show("good", "early")
        assert gateway.leads_to("early") == ("good", "early")
        # An alias that is its own session's id.
        await gateway.open("good", "own", "own")
        assert gateway.leads_to("own") == ("good", "own")

    run(main())


def test_an_alias_is_free_again_when_its_session_was_deleted_and_not_before() -> None:
    async def main() -> None:
        cluster = Cluster()
        one, two = await open_gateway(cluster), await open_gateway(cluster)
        await one.open("good", "s", "mine")
        await two.open("other", "o", "mine")
        await two.delete("good", "s")
        # The other session has asked for it before.
        await one.show("other", "o", "mine")
        async with asyncio.timeout(BOUND):
            await two.registry.until(lambda: two.leads_to("mine") == ("other", "o"))
        assert await one.publish("evil", "mine") == "other"
        await one.delete("other", "o")
        assert await one.publish("good", "mine") == "good"

    run(main())


def test_a_node_takes_no_more_aliases_than_it_has_sessions() -> None:
    async def main() -> None:
        gateway = await open_gateway(Cluster())
        await gateway.open("evil", "e", "first")
        for number in range(20):
            await gateway.show("evil", "e", f"name {number}")
        for nonsense in (7, ["x"], "x" * 1000, {"a": 1}):
            await gateway.show("evil", "e", nonsense)
        await gateway.open("good", "s", "name 7")
        assert gateway.leads_to("name 7") == ("good", "s")

    run(main())


def test_of_two_nodes_that_name_an_alias_at_once_one_gets_it_at_all_gateways() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateways = [await open_gateway(cluster) for _ in range(2)]
        await asyncio.gather(gateways[0].publish("good", "s"), gateways[1].publish("other", "o"))
        await asyncio.gather(gateways[0].show("good", "s", "mine"), gateways[1].show("other", "o", "mine"))
        for each in gateways:
            async with asyncio.timeout(BOUND):
                await each.registry.until(lambda each=each: each.registry.count == 2)
        found = {each.leads_to("mine") for each in gateways}
        assert len(found) == 1
        assert found < {("good", "s"), ("other", "o")}

    run(main())


def test_a_node_says_nothing_to_a_client_about_a_session_by_another_nodes_alias() -> None:
    async def main() -> None:
        cluster = Cluster()
        gateway = await open_gateway(cluster)
        await gateway.open("good", "s", "mine")
        update = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "mine", "update": {}}}
        messages = own(json.dumps(update).encode())
        request = LogRequest(messages, {messages[0].subject: 0}, "of n2")
        gateway.ingest._holders = {"n2": fleet.Lease("n2", "of n2", "", {}, [], 0)}  # pyright: ignore[reportPrivateUsage]
        await gateway.ask("n2", fleet.LOG, request)
        assert not [
            record for record in cluster.streams["EV"].records if records.ownership(record.headers).node == "n2"
        ]

    run(main())


@pytest.mark.parametrize("listed", [None, "mine"])
def test_a_client_whose_session_lost_its_alias_to_a_quicker_one_is_told(listed: str | None) -> None:
    async def main() -> None:
        made = NodeAnswer(200, [], b'{"jsonrpc":"2.0","id":2,"result":{"sessionId":"made"}}', "")
        gateway = await scripted_nodes.open_gateway(n=scripted_nodes.replying(made))
        client = await gateway.client("n", home="n")
        gateway.registry.sessions[subjects.token("made")] = ListedSession(
            "made", "n", "/", ("", ""), msgspec.Raw(b"{}"), listed
        )
        wishes = {"_meta": {META: {"requestedSessionId": "mine"}}}
        asked = {"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": wishes}
        answer = await gateway.calls.submit(client, parse(json.dumps(asked).encode()))
        result = parse(answer.line).result()
        assert result["sessionId"] == "made"
        said = json.dumps(result.get("_meta", {}))
        assert ("'mine' is taken in this fleet" in said) is (listed is None)

    run(main())


@pytest.mark.usefixtures("joined")
def test_an_alias_that_a_session_of_another_node_has_is_refused_as_at_a_server(fleet: Fleet) -> None:
    async def main() -> None:
        async with Client(fleet.gateways[0]) as client, Client(fleet.gateways[1]) as other:

            def asking(node: str, alias: str) -> dict[str, object]:
                cwd = fleet.nodes[int(node[1]) - 1].work
                wishes = {"node": node, "requestedSessionId": alias}
                return {"cwd": cwd, "mcpServers": [], "_meta": {META: wishes}}

            session = (await client.result("session/new", asking("n1", "of the fleet")))["sessionId"]
            for taken in ("of the fleet", session):
                refused = await other.error("session/new", asking("n2", taken))
                assert refused["code"] == -32602
                assert "taken" in refused["message"]
            assert (await other.http.get("/v1/sessions/of the fleet")).json()["sessionId"] == session
            # A node's own client cannot know: its session is listed without it.
            async with Client(fleet.nodes[1]) as near:
                hidden = await near.new_session(requestedSessionId="of the fleet")
                await until_listed(other, hidden)
            assert (await client.http.get("/v1/sessions/of the fleet")).json()["sessionId"] == session

    run(main())
