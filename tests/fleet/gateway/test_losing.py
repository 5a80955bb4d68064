"""Parts of a fleet that go away in the middle of a turn, and clients that go on."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sandboxagent.cli.fleet.operate import forget
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.nats import connect
from tests.fleet.gateway.conftest import until_joined
from tests.support.asking import ALLOW, PERMISSION, permission
from tests.support.client import Client, Json, Stream, run
from tests.support.nats import PROGRAM, nats_server
from tests.support.running import BOUND, Server

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not installed")


STEPS: list[Any] = [["say", "before "], permission(), ["wait_answer"], ["say", "after"]]


def prompt(session: str, steps: list[Any], id: object = 1) -> Json:
    return {"jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": Client.prompt_params(session, steps)}


def test_a_client_goes_on_at_another_gateway_and_with_a_node_that_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        with nats_server(tmp_path / "nats") as nats:
            gateways = [Server("--join", nats.url, command="gateway") for _ in range(2)]
            node = Server("--join", nats.url, "--node", "n1")
            with gateways[0], gateways[1], node:
                async with Client(gateways[1]) as two:
                    await until_joined(two, 1)
                    async with Client(gateways[0]) as one:
                        await until_joined(one, 1)
                        session, last, asked = await begin(one, node)
                        gateways[0].kill()
                    await go_on(one.id, two, session, last, asked)
                    await lose_node(two, node, session, nats.url, asked)
                gateways[0].start()

    async def begin(one: Client, node: Server) -> tuple[str, int, Any]:
        async with one.stream() as stream:
            session = (await one.result("session/new", {"cwd": node.work, "mcpServers": []}))["sessionId"]
            response = await one.post(prompt(session, STEPS, "turn"), Prefer="respond-async", Idempotency_Key="k")
            assert response.status_code == 202
            seen = await stream.until(lambda event: event.method == PERMISSION)
            return session, seen[-1].id, seen[-1].data["id"]

    async def go_on(id: str | None, two: Client, session: str, last: int, asked: object) -> None:
        """The same connection, where the stream was cut; what was asked is answered there."""
        two.id = id
        async with two.stream(last_event_id=str(last)) as stream:
            assert (await two.answer(asked, ALLOW)).status_code == 202
            seen = await stream.until(lambda event: event.data.get("id") == "turn")
            assert [event.text for event in seen if event.text] == ["after"]
            assert all(event.id > last for event in seen)
        again = await two.post(prompt(session, STEPS, "turn"), Idempotency_Key="k")
        assert again.json() == seen[-1].data

    async def lose_node(two: Client, node: Server, session: str, url: str, answered: object) -> None:
        """What waits on a node that is gone ends; its sessions can be read, and go on when it is back."""
        async with two.stream() as stream:
            await two.post(prompt(session, [["say", "begun"], ["wait_cancel"]], "lost"), Prefer="respond-async")
            await stream.until(lambda event: event.text == "begun")
            waiting = asyncio.create_task(two.post(prompt(session, [["say", "queued"]], "queued")))
            node.kill()
            [*_, failed] = await stream.until(lambda event: event.data.get("id") == "lost")
            assert failed.data["error"]["data"]["type"] == "node-lost"
            assert (await waiting).json()["error"]["data"]["type"] == "node-lost"
            refused = await two.post(prompt(session, [["say", "no"]]))
            assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (503, "node-unreachable")
            listed = await two.result("session/list")
            assert [each["sessionId"] for each in listed["sessions"]] == [session]
            page = await two.result("_sandboxagent/session/events", {"sessionId": session})
            assert "begun" in str(page["events"])
            attached = await two.result("_sandboxagent/session/attach", {"sessionId": session})
            assert attached["pending"] == []
            node.start()
            await until_joined(two, 1)
            again = await two.post(prompt(session, [["say", "again"]], "again"), Idempotency_Key="again")
            assert again.json()["result"]["stopReason"] == "end_turn"
            await stream.until(lambda event: event.text == "again")
            # Its connection is known to the new run of the node, and is asked what its agents ask.
            turn = asyncio.create_task(two.post(prompt(session, [permission(), ["wait_answer"]], "ask")))
            question = await stream.method(PERMISSION)
            assert (await two.answer(answered, ALLOW)).status_code == 404, "of the run before"
            assert (await two.answer(question.data["id"], ALLOW)).status_code == 202
            assert (await turn).json()["result"]["stopReason"] == "end_turn"
            await forget_node(two, session, url, stream)
        own = Client(node)
        async with own.http, asyncio.timeout(BOUND):
            while "n1 was removed from this fleet" not in (await own.http.get("/v1/health")).text:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def forget_node(two: Client, session: str, url: str, stream: Stream) -> None:
        """What its agents have asked is withdrawn, and what waits on it ends."""
        await two.post(prompt(session, [permission(), ["wait_answer"]], "last"), Prefer="respond-async")
        question = await stream.method(PERMISSION)
        bus = await connect([url], subjects.inbox_of_gateway("cli"), "cli")
        assert await forget(bus, "n1") == 1
        await bus.close()
        seen = await stream.until(lambda event: event.data.get("id") == "last")
        assert seen[-1].data["error"]["data"]["type"] == "node-lost"
        withdrawn = [event for event in seen if event.method == "$/cancel_request"]
        assert [event.data["params"]["requestId"] for event in withdrawn] == [question.data["id"]]
        async with asyncio.timeout(BOUND):
            while (await two.result("session/list"))["sessions"]:  # noqa: ASYNC110 - of a process
                await asyncio.sleep(0.05)

    run(main())
