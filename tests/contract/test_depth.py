"""JSON that nests: one limit at every door, said by name; what is inside of it is shown everywhere. Section 12."""

import json
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from tests.support.acp import websocket
from tests.support.asking import UNPARSED
from tests.support.client import META, Client, run
from tests.support.problems import problem
from tests.support.running import BOUND, TOKEN, Server

LIMIT = 128
LEAVES = json.loads("[" * (LIMIT - 4) + "]" * (LIMIT - 4))
"""As deep as metadata can be: params, _meta and two objects are around it."""


@pytest.fixture(scope="module")
def deep() -> Generator[Server]:
    with Server("--default-agent", "scripted") as running:
        yield running


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def echo(levels: int) -> str:
    """A request of so many levels."""
    return f'{{"jsonrpc":"2.0","id":1,"method":"x/echo","params":{{"a":{nested(levels - 2)}}}}}'


def says(message: str) -> bool:
    return f"nested deeper than {LIMIT} levels" in message


@pytest.mark.requirement("12.depth", "3.deep-nesting-400")
def test_an_envelope_of_all_levels_arrives_and_one_of_more_is_refused_with_the_limit(deep: Server) -> None:
    async def main() -> None:
        async with Client(deep) as client:
            # The answer has a level more.
            response = await client.post(echo(LIMIT - 1))
            assert response.json()["result"]["params"] == json.loads(echo(LIMIT - 1))["params"]
            assert (await client.post(echo(LIMIT).replace('"id":1,', ""))).status_code == 202
            for levels in (LIMIT + 1, 300, 970, 5_000):
                assert says(problem(await client.post(echo(levels)), 400, "not-an-envelope")["detail"])
            many = '{"jsonrpc":"2.0","id":1,"method":"x/echo","params":[' + "[]," * 250_000 + "[]]}"
            assert "250000 values" in problem(await client.post(many), 400, "not-an-envelope")["detail"]
            assert "result" in await client.call("x/echo")

    run(main())


@pytest.mark.requirement("12.depth")
def test_a_body_of_every_other_route_has_the_same_limit(deep: Server) -> None:
    move = f'{{"from":"a","to":"b","overwrite":{nested(970)}}}'
    bodies = {
        "/acp": (echo(970), "not-an-envelope"),
        "/v1/fs/move": (move, "bad-request"),
        "/v1/agents/mock/install": (f'{{"version":{nested(970)}}}', "bad-request"),
    }
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "Accept": "application/json"}
    with httpx.Client(base_url=deep.url, headers=headers, timeout=BOUND, trust_env=False, verify=False) as http:
        for path, (body, slug) in bodies.items():
            assert says(problem(http.post(path, content=body), 400, slug)["detail"]), path
        refused = http.post("/opencode/session", content=f'{{"title":{nested(970)}}}')
        assert refused.status_code == 400
        assert says(refused.text)


@pytest.mark.requirement("12.depth")
def test_a_message_on_a_websocket_has_the_same_limit(deep: Server) -> None:
    async def main() -> None:
        async with websocket(deep) as socket:
            await socket.initialize()
            await socket.socket.send(echo(LIMIT + 1))
            complaint = await socket.next()
            assert complaint["error"]["code"] == -32600
            assert says(complaint["error"]["message"])

    run(main())


@pytest.mark.requirement("12.depth", "5.quarantine")
def test_a_line_of_an_agent_has_the_same_limit_and_its_neighbours_arrive(deep: Server) -> None:
    def note(levels: int) -> list[str]:
        return ["raw", f'{{"jsonrpc":"2.0","method":"x/note","params":{{"a":{nested(levels - 2)}}}}}']

    async def main() -> None:
        async with Client(deep) as client, client.stream() as stream:
            session = await client.new_session()
            await client.prompt(session, [note(LIMIT), note(LIMIT + 1), note(970), ["say", "after"]])
            seen = await stream.turn_ended()
            reasons = [event.data["params"]["reason"] for event in seen if event.method == UNPARSED]
            assert list(map(says, reasons)) == [True, True]
            assert [event.method for event in seen].count("x/note") == 1
            assert "after" in [event.text for event in seen]

    run(main())


@pytest.mark.requirement("12.depth")
def test_metadata_of_maximum_depth_is_in_every_list_and_after_a_restart(tmp_path: Path) -> None:
    async def look(client: Client, session: str) -> None:
        one = (await client.http.get(f"/v1/sessions/{session}")).json()
        [listed] = (await client.http.get("/v1/sessions")).json()["sessions"]
        [entry] = (await client.result("session/list"))["sessions"]
        assert one["metadata"]["deep"] == listed["metadata"]["deep"] == entry["_meta"][META]["deep"] == LEAVES

    async def make(server: Server) -> str:
        async with Client(server) as client:
            session = await client.new_session()
            params = {"sessionId": session, "metadata": {"deep": LEAVES}}
            await client.result("_sandboxagent/session/set_metadata", params)
            await look(client, session)
            return session

    async def again(server: Server, session: str) -> None:
        async with Client(server) as client:
            await look(client, session)

    with Server(directory=tmp_path) as server:
        session = run(make(server))
    with Server(directory=tmp_path) as server:
        run(again(server, session))
