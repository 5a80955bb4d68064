"""What a client calls its prompts, and how it knows its own turn by that. Contract, section 6."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.asking import ALLOW, PERMISSION, TURN, everything, permission, received
from tests.support.client import META, Client, Event, Json, run
from tests.support.running import Server


def named(session: str, text: object, prompt_id: object) -> Json:
    return Client.prompt_params(session, text) | {"_meta": {META: {"promptId": prompt_id}, "theirs": 1.0}}


def turns(events: list[Event], session: str) -> list[tuple[Any, Any]]:
    """State and promptId of each notification about a turn of this session."""
    told = [event.data["params"] for event in events if event.method == TURN]
    return [(one["state"], one.get("promptId")) for one in told if one["sessionId"] == session]


@pytest.mark.requirement("6.prompt-id")
def test_all_attached_clients_get_the_turn_with_its_prompt_id(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as owner, Client(server) as guest, guest.stream() as seen:
            session = await owner.new_session()
            await guest.result("_sandboxagent/session/attach", {"sessionId": session})
            await owner.call("session/prompt", named(session, "hello", "p-1 ü"))
            await owner.call("session/prompt", named(session, [["respond_error", -32050, "no"]], "p" * 128))
            await owner.prompt(session, "without")
            expected = [(state, name) for name in ("p-1 ü", "p" * 128, None) for state in ("started", "ended")]
            assert turns(await everything(guest, seen), session) == expected
            unnamed = [event for event in seen.seen if event.method == TURN][-2:]
            assert all("promptId" not in event.data["params"] for event in unnamed)

    run(main())


@pytest.mark.requirement("6.prompt-id")
def test_prompts_that_wait_and_are_taken_back_keep_their_ids(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as events:
            session = await a.new_session()
            first = asyncio.create_task(
                a.call("session/prompt", named(session, [permission(), ["wait_answer"]], "first"))
            )
            gate = (await events.method(PERMISSION)).data["id"]
            later = {"jsonrpc": "2.0", "id": "w", "method": "session/prompt", "params": named(session, "x", "waits")}
            assert (await b.post(later, Prefer="respond-async")).status_code == 202
            await b.notify("$/cancel_request", {"requestId": "w"})
            assert (await a.answer(gate, ALLOW)).status_code == 202
            await first
            await b.call("session/prompt", named(session, "y", "last"))
            told = turns(await everything(a, events), session)
            assert told == [
                ("started", "first"),
                ("ended", "waits"),
                ("ended", "first"),
                ("started", "last"),
                ("ended", "last"),
            ]

    run(main())


@pytest.mark.requirement("6.prompt-id")
def test_a_turn_that_dies_with_its_agent_has_its_prompt_id(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "isolated") as client, client.stream() as events:
            session = await client.new_session()
            assert "error" in await client.call("session/prompt", named(session, [["exit", 3]], "fatal"))
            assert turns(await everything(client, events), session) == [("started", "fatal"), ("ended", "fatal")]

    run(main())


@pytest.mark.requirement("6.prompt-id")
def test_the_agent_gets_the_meta_as_it_was(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            await client.call("session/prompt", named(session, f"text of {session}", "p-1"))
            [line] = [line for line in await received(client) if f"text of {session}" in line]
            assert json.dumps({META: {"promptId": "p-1"}, "theirs": 1.0}) in line

    run(main())


@pytest.mark.requirement("6.prompt-id-wrong")
@pytest.mark.parametrize("wrong", ["", "p" * 129, "a\nb", "a\u0000", "\u200b", 1, True, None, ["p"], {"p": 1}])
def test_a_prompt_id_that_is_none_is_refused_by_name(server: Server, wrong: object) -> None:
    async def main() -> None:
        async with Client(server) as maker, Client(server) as client, client.stream() as events:
            session = await maker.new_session()
            error = await client.error("session/prompt", named(session, "never", wrong))
            assert (error["code"], error["data"]["type"]) == (-32602, "invalid-params")
            assert "promptId" in error["message"]
            await maker.prompt(session, "hello")
            # It is not even attached.
            assert turns(await everything(client, events), session) == []
            kept = (await client.result("_sandboxagent/session/events", {"sessionId": session}))["events"]
            assert "never" not in json.dumps(kept)

    run(main())


@pytest.mark.requirement("6.prompt-id")
@pytest.mark.parametrize("meta", [None, 1, {META: 1}, {META: None}, {META: {}}, {"promptId": "elsewhere"}])
def test_meta_that_has_no_prompt_id_is_the_agents_business(server: Server, meta: object) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as events:
            session = await client.new_session()
            params = client.prompt_params(session, "hello") | {"_meta": meta}
            assert (await client.call("session/prompt", params))["result"] == {"stopReason": "end_turn"}
            assert turns(await everything(client, events), session) == [("started", None), ("ended", None)]

    run(main())
