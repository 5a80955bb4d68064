"""Large envelopes of clients: a thread looks through them, and what comes of them is the same as of any other."""

import asyncio
from typing import Any

import pytest

from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import LARGE_BYTES
from sandboxagent.protocol.errors import IdempotencyMismatch, WrongAnswer
from tests.support.world import World, envelope, error_of, result_of, run, world

LONG = "x" * LARGE_BYTES
PROMPT = "session/prompt"


def texts(blocks: list[dict[str, Any]]) -> list[str]:
    return [each["text"] for each in blocks]


def ask(own: World, blocks: list[dict[str, Any]], session: str = "s", **meta: object) -> asyncio.Task[Any]:
    ours = {"_meta": {"sandboxagent.dev": meta}} if meta else {}
    return own.request(PROMPT, {"sessionId": session, "prompt": blocks, **ours}, "p")


def block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def test_large_prompt_has_the_agents_session_id_and_others_see_its_blocks() -> None:
    async def scenario() -> None:
        async with world() as own:
            own.hub.store.reserve_alias("alias")
            own.hub.store.set_alias(own.session, "alias")
            own.session.facts.agent_session_id = "theirs"
            own.session.facts.remarks = ["not so"]
            other = own.connect()
            own.hub.attach(other, own.session)
            prompt = ask(own, [block("first"), block(LONG)], "alias")
            sent = await own.process.request(PROMPT)
            assert sent["params"]["sessionId"] == "theirs"
            assert texts(sent["params"]["prompt"]) == ["not so", "first", LONG]
            own.says(id=sent["id"], result={"stopReason": "end_turn"})
            assert result_of(await prompt) == {"stopReason": "end_turn"}
            seen = [one["params"] for one in await own.heard(other) if one.get("method") == "session/update"]
            assert [one["sessionId"] for one in seen] == ["s", "s"]
            assert texts([one["update"]["content"] for one in seen]) == ["first", LONG]
            recorded = next(one for one in await own.events() if one.get("method") == PROMPT)
            assert recorded["params"]["sessionId"] == "s"
            assert texts(recorded["params"]["prompt"]) == ["first", LONG]

    run(scenario())


def test_a_large_prompt_may_be_a_text_called_content_and_have_a_name() -> None:
    async def scenario() -> None:
        async with world() as own:
            ours = {"sandboxagent.dev": {"promptId": "mine"}}
            prompt = own.request(PROMPT, {"sessionId": "s", "content": LONG, "_meta": ours})
            sent = await own.process.request(PROMPT)
            assert texts(sent["params"]["prompt"]) == [LONG]
            own.says(id=sent["id"], result={"stopReason": "end_turn"})
            await prompt
            turns = [one["params"]["promptId"] for one in await own.events() if one.get("method") == methods.TURN]
            assert turns == ["mine", "mine"]
            assert error_of(await ask(own, [block(LONG)], promptId=7))["data"]["type"] == "invalid-params"

    run(scenario())


def test_prompts_keep_their_order_when_the_first_is_large() -> None:
    async def scenario() -> None:
        async with world() as own:
            prompts = [ask(own, [block(LONG)]), ask(own, [block("second")])]
            for text in (LONG, "second"):
                sent = await own.process.request(PROMPT)
                assert texts(sent["params"]["prompt"]) == [text]
                own.says(id=sent["id"], result={"stopReason": "end_turn"})
            assert [result_of(await prompt) for prompt in prompts] == 2 * [{"stopReason": "end_turn"}]

    run(scenario())


def test_a_session_that_is_gone_when_its_large_prompt_was_read_is_unknown() -> None:
    async def scenario() -> None:
        async with world() as own:
            prompt = ask(own, [block(LONG)])
            await asyncio.sleep(0)
            own.hub.delete_session(own.session)
            assert error_of(await prompt)["data"]["type"] == "unknown-session"
            assert own.process.sent == []

    run(scenario())


@pytest.mark.requirement("12.large-bodies-limit")
@pytest.mark.parametrize("method", ["session/new", "session/load", "_sandboxagent/session/set_metadata", "x/y"])
def test_a_large_request_that_is_for_no_agents_session_is_refused_with_the_limit(method: str) -> None:
    async def scenario() -> None:
        async with world() as own:
            params = {} if method == "x/y" else {"sessionId": "s"}
            error = error_of(await own.request(method, {**params, "cwd": "/", "_meta": LONG}))
            assert (error["data"]["type"], error["data"]["limit"]) == ("invalid-params", LARGE_BYTES)
            assert own.process.sent == []

    run(scenario())


@pytest.mark.requirement("12.large-bodies-limit")
def test_a_large_answer_is_passed_on_but_not_to_what_the_server_reads_itself() -> None:
    async def scenario() -> None:
        async with world() as own:
            permission = own.asks(1)
            allowed = {"outcome": {"outcome": "selected", "optionId": "yes"}, "more": LONG}
            with pytest.raises(WrongAnswer):
                await own.requests.answer(own.client, envelope(id=permission, result=allowed))
            assert own.hub.pending.of_session(own.session)
            vendors = own.asks(2, "vendor/read", sessionId="s")
            await own.requests.answer(own.client, envelope(id=vendors, result={"content": LONG}))
            assert own.process.sent == [{"jsonrpc": "2.0", "id": 2, "result": {"content": LONG}}]

    run(scenario())


def test_a_large_request_under_a_key_is_begun_once() -> None:
    async def scenario() -> None:
        async with world() as own:
            params = {"sessionId": "s", "text": LONG}
            first = own.request("x/y", params, key="k")
            sent = await own.process.request("x/y")
            own.says(id=sent["id"], result={"count": 1})
            again = own.request("x/y", params, key="k")
            assert [result_of(await each) for each in (first, again)] == 2 * [{"count": 1}]
            with pytest.raises(IdempotencyMismatch):
                await own.request("x/y", params | {"text": LONG + "y"}, key="k")
            assert len(own.process.sent) == 1

    run(scenario())
