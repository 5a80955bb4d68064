"""A fleet of real processes: NATS, nodes and gateways. Watched from outside, as clients do."""

import asyncio
from pathlib import Path

import pytest

from tests.fleet.gateway.conftest import Fleet, until_listed
from tests.support.client import Client, Event, run
from tests.support.nats import PROGRAM, nats_server
from tests.support.running import BOUND, Server

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not installed")


def texts(events: list[Event]) -> str:
    return "".join(event.text for event in events)


def test_every_gateway_lists_the_sessions_of_all_nodes(fleet: Fleet) -> None:
    async def main() -> None:
        made: list[tuple[str, str]] = []
        for place, node in enumerate(fleet.nodes, 1):
            async with Client(node) as client:
                session = await client.new_session(title=f"of n{place}")
                await client.prompt(session, [["say", "hello"]])
                made.append((session, f"n{place}"))
        for server in fleet.gateways:
            async with Client(server) as gateway:
                for session, node in made:
                    listed = await until_listed(gateway, session)
                    assert listed["_meta"]["sandboxagent.dev"]["node"] == node
                    assert listed["title"] == f"of {node}"
                nodes = (await gateway.http.get("/v1/nodes")).json()["nodes"]
                assert [(each["node"], each["labels"]) for each in nodes] == [
                    ("n1", {"place": "1"}),
                    ("n2", {"place": "2"}),
                ]
                view = (await gateway.http.get(f"/v1/sessions/{made[0][0]}")).json()
                assert view["node"] == "n1"

    run(main())


def test_a_session_is_watched_live_through_any_gateway_with_the_same_ids(fleet: Fleet) -> None:
    async def main() -> None:
        async with Client(fleet.nodes[0]) as client, Client(fleet.gateways[0]) as one, Client(fleet.gateways[1]) as two:
            session = await client.new_session()
            await client.prompt(session, [["say", "before"]])
            await until_listed(one, session)
            await until_listed(two, session)
            async with one.stream() as first, two.stream() as second:
                start = await one.result("_sandboxagent/session/attach", {"sessionId": session})
                await two.result("_sandboxagent/session/attach", {"sessionId": session})
                await client.prompt(session, [["say", "during"]])
                seen, same = await first.turn_ended(), await second.turn_ended()
                assert texts(seen).endswith("during")
                assert [(event.id, event.line) for event in seen] == [(event.id, event.line) for event in same]
                assert seen[0].id > start["position"]
            page = await two.result("_sandboxagent/session/events", {"sessionId": session})
            ids = [event["id"] for event in page["events"]]
            assert ids == sorted(set(ids))
            # The prompt is there in another form.
            said = [event for event in seen if event.update.get("sessionUpdate") != "user_message_chunk"]
            assert {event.id for event in said} <= set(ids)
            # A reader that was cut goes on behind the last event that it has.
            middle = seen[len(seen) // 2]
            async with one.stream(last_event_id=str(middle.id)) as again:
                rest = await again.turn_ended()
            assert [event.id for event in rest] == [event.id for event in seen if event.id > middle.id]

    run(main())


def test_a_gateway_refuses_what_makes_no_sense(fleet: Fleet) -> None:
    async def main() -> None:
        async with Client(fleet.gateways[0]) as gateway:
            error = await gateway.error("_sandboxagent/session/attach", {"sessionId": "nowhere"})
            assert error["code"] == -32002
            # As at a server: what is not there was once, or never.
            assert (await gateway.http.put("/v1/sessions/x")).status_code == 405
            assert (await gateway.http.get("/v1/nothing")).status_code == 410
            assert (await gateway.http.get("/nothing")).status_code == 404
            unknown = await gateway.http.get("/v1/sessions/nowhere")
            assert (unknown.status_code, unknown.json()["type"].endswith("session-not-found")) == (404, True)
            assert (await gateway.http.get("/v1/sessions?cursor=x")).status_code == 400
            assert (await gateway.http.get("/v1/rpc", headers={"Accept": "text/event-stream"})).status_code == 400
            too_far = gateway.headers(Accept="text/event-stream", last_event_id=str(1 << 60))
            assert (await gateway.http.get("/v1/rpc", headers=too_far)).status_code == 400
        async with Client(fleet.gateways[0]) as stranger:
            stranger.http.headers["Authorization"] = "Bearer wrong"
            assert (await stranger.http.get("/v1/sessions")).status_code == 401

    run(main())


def test_everything_is_there_after_each_part_was_killed(tmp_path: Path) -> None:
    async def main() -> None:
        with nats_server(tmp_path / "nats") as nats:
            gateway = Server("--join", nats.url, command="gateway")
            with gateway, Server("--join", nats.url, "--node", "n1") as node:
                async with Client(node) as client:
                    session = await client.new_session()
                    await client.prompt(session, [["say", "one "]])
                    async with Client(gateway) as watching:
                        await until_listed(watching, session)
                    nats.kill()
                    await client.prompt(session, [["say", "two "]])
                    nats.restart()
                    gateway.kill()
                    await client.prompt(session, [["say", "three "]])
                node.kill()
                node.start()
                gateway.start()
                async with Client(node) as client:
                    await client.prompt(session, [["say", "four"]])
                async with Client(gateway) as watching:
                    async with asyncio.timeout(BOUND):
                        while True:
                            page = await watching.result("_sandboxagent/session/events", {"sessionId": session})
                            said = [
                                event["envelope"]["params"]["update"]["content"]["text"]
                                for event in page["events"]
                                if event["envelope"].get("params", {}).get("update", {}).get("sessionUpdate")
                                == "agent_message_chunk"
                            ]
                            if "four" in said:
                                break
                            await asyncio.sleep(0.1)
                    assert said == ["one ", "two ", "three ", "four"]

    run(main())
