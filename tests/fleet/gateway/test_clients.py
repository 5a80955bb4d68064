"""Clients that know nothing of fleets, at a gateway: the SDK by both of its ways, and ACP's own transport."""

import asyncio
import base64

import pytest

from sandboxagent.protocol.envelope import LARGE_BYTES
from tests.fleet.gateway.conftest import Fleet
from tests.support.acp import Acp
from tests.support.client import META, Client, run
from tests.support.running import BOUND
from tests.support.sdk import answered, asking, connected, new_session, permission, play, texts

pytestmark = pytest.mark.usefixtures("joined")


@pytest.mark.parametrize("transport", ["http", "websocket"])
def test_the_sdk_prompts_answers_and_lists_through_gateways(fleet: Fleet, transport: str) -> None:
    async def main() -> None:
        one, two = fleet.gateways
        async with (
            connected(one, transport=transport, on_permission=lambda request: request.allow()) as mine,
            connected(two, transport=transport, on_permission=lambda request: None) as theirs,
        ):
            session = await new_session(mine, fleet.nodes[0])
            assert await texts(play(session, [["say", "one "], ["say", "two"]])) == ["one ", "two"]
            other = await theirs.sessions.attach(session.id)
            turn = play(session, asking("session/request_permission", permission()))
            assert (await answered(turn))["outcome"]["optionId"] == "yes"
            assert await texts(play(other, [["say", "three"]])) == ["three"]
            assert session.id in [each.session_id async for each in theirs.sessions.list()]
            assert "three" in str([event async for event in other.history()])
            await mine.sessions.delete(session.id)
            assert session.id not in [each.session_id async for each in mine.sessions.list()]

    run(main())


def test_the_sdk_watches_the_sessions_of_all_nodes(fleet: Fleet) -> None:
    async def main() -> None:
        one, two = fleet.gateways
        async with connected(one) as mine, connected(two) as theirs, theirs.sessions.watch(every=0) as watch:
            async with asyncio.timeout(BOUND):
                assert (await anext(watch)).all
                made = await new_session(mine, fleet.nodes[0])
                async for changes in watch:
                    assert not changes.all
                    if made.id in [each.session_id for each in changes.sessions]:
                        break
                await mine.sessions.delete(made.id)
                async for changes in watch:
                    if made.id in changes.gone:
                        break

    run(main())


def test_following_at_another_gateway_ends_when_the_session_is_deleted(fleet: Fleet) -> None:
    async def main() -> None:
        one, two = fleet.gateways
        async with connected(one) as mine, connected(two) as theirs:
            session = await new_session(mine, fleet.nodes[0])
            other = await theirs.sessions.attach(session.id)

            async def read_all() -> list[object]:
                return [event async for event in other.follow()]

            async with asyncio.timeout(BOUND):
                reading = asyncio.create_task(read_all())
                await texts(play(session, [["say", "one"]]))
                await mine.sessions.delete(session.id)
                assert "one" in str(await reading)

    run(main())


def test_a_client_of_acp_gets_its_responses_behind_the_updates(fleet: Fleet) -> None:
    async def main() -> None:
        async with Acp(fleet.gateways[0], "/acp/scripted") as client, client.get() as stream:
            taken = await client.say("session/new", {"cwd": fleet.nodes[0].work, "mcpServers": []}, id=7)
            assert taken.status_code == 202
            [*_, made] = await stream.until(lambda event: event.data.get("id") == 7)
            session = made.data["result"]["sessionId"]
            async with client.get(session) as own:
                await client.say("session/prompt", client.prompt_params(session, [["say", "hello"]]), id=8)
                seen = await own.until(lambda event: event.data.get("id") == 8)
                assert "hello" in [event.text for event in seen]
                assert seen[-1].data["result"]["stopReason"] == "end_turn"

    run(main())


def test_a_large_file_goes_through_a_gateway_in_one_envelope(fleet: Fleet) -> None:
    async def main() -> None:
        content = bytes(LARGE_BYTES)
        client = Client(fleet.gateways[0])
        await client.initialize(_meta={META: {"agent": "scripted", "node": "n1"}})
        params = {"path": str(fleet.roots[0] / "large"), "content": base64.b64encode(content).decode()}
        written = await client.result("_sandboxagent/fs/write_file", params)
        assert written["bytesWritten"] == LARGE_BYTES
        await client.http.aclose()

    run(main())


@pytest.mark.requirement("12.large-bodies-limit")
def test_a_large_prompt_goes_through_a_gateway_and_a_large_new_session_does_not(fleet: Fleet) -> None:
    async def main() -> None:
        async with Acp(fleet.gateways[0], "/acp/scripted") as client, client.get() as stream:
            new = {"cwd": fleet.nodes[0].work, "mcpServers": []}
            await client.say("session/new", new | {"_meta": {"long": "x" * LARGE_BYTES}}, id=6)
            [*_, refused] = await stream.until(lambda event: event.data.get("id") == 6)
            assert refused.data["error"]["data"] == {"type": "invalid-params", "limit": LARGE_BYTES}
            await client.say("session/new", new, id=7)
            [*_, made] = await stream.until(lambda event: event.data.get("id") == 7)
            session = made.data["result"]["sessionId"]
            async with client.get(session) as own:
                prompt = client.prompt_params(session, [["say", "hello"]]) | {"_meta": {"long": "x" * LARGE_BYTES}}
                await client.say("session/prompt", prompt, id=8)
                seen = await own.until(lambda event: event.data.get("id") == 8)
                assert "hello" in [event.text for event in seen]
                assert seen[-1].data["result"]["stopReason"] == "end_turn"

    run(main())
