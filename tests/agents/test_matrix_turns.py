"""Every real agent: the handshake, turns, and what a prompt may hold."""

import asyncio
import base64
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest

from tests.agents.real import RealAgent, begun, told, told_now
from tests.support.asking import TURN, texts
from tests.support.client import Event, Json, run
from tests.support.model.script import Fail, Say
from tests.support.pictures import png

PICTURE = base64.b64encode(png()).decode()


@pytest.mark.every_run
def test_handshake_tells_version_and_capabilities(real: RealAgent) -> None:
    async def scenario() -> None:
        client = real.client()
        async with client.http:
            result = (await client.initialize())["result"]

        capabilities = result["agentCapabilities"]
        assert result["protocolVersion"] == 1
        assert result["agentInfo"]["version"] == real.recipe.version
        assert session_methods(capabilities) == real.recipe.session_methods
        assert {name for name, offered in capabilities["promptCapabilities"].items() if offered} == real.recipe.contents

    run(scenario())


@pytest.mark.every_run
def test_turn_streams_in_chunks_and_ends(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Say("one two three four five"))
        async with real.any_session() as session:
            turn = await session.turn(script)

        assert turn.stop_reason == "end_turn"
        assert turn.text == "one two three four five"
        assert (len(turn.chunks) > 1) == real.recipe.streams

    run(scenario())


@pytest.mark.every_run
def test_cancel_ends_the_turn_and_the_session_goes_on(real: RealAgent) -> None:
    async def scenario() -> None:
        gate = real.model.gate()
        endless, short = real.model.script(Say("first ", "words ", gate, "never")), real.model.script(Say("still here"))
        async with real.any_session() as session:
            prompt = session.ask(endless)
            await begun(real, session, "first", gate)
            await session.client.notify("session/cancel", {"sessionId": session.id})
            cancelled = await prompt.ended()
            await real.model.until(lambda: endless.requests[0].state == "abandoned")
            after = await session.turn(short)

        assert cancelled.stop_reason == "cancelled"
        assert "never" not in cancelled.text
        assert after.stop_reason == "end_turn"
        assert after.text.endswith("still here")

    run(scenario())


@pytest.mark.every_run
def test_failure_of_the_model_ends_the_turn_and_the_session_goes_on(real: RealAgent) -> None:
    async def scenario() -> None:
        failing = real.model.script(Fail(400, "invalid_request_error", "the model is out of order"))
        async with real.any_session() as session:
            failed = await session.turn(failing)
            after = await session.turn(real.model.script(Say("better now")))

        assert failed.response.get("error", {}).get("code") == real.recipe.failure_code
        heard = failed.text + json.dumps(failed.response)
        assert ("the model is out of order" in heard) == real.recipe.failure_told
        assert after.stop_reason == "end_turn"
        assert after.text.endswith("better now")

    run(scenario())


def test_second_prompt_waits_for_the_first(real: RealAgent) -> None:
    async def scenario() -> None:
        gate = real.model.gate()
        first, second = real.model.script(Say("first begins ", gate, "and ends")), real.model.script(Say("second"))
        async with real.any_session() as session:
            prompt = session.ask(first)
            await begun(real, session, "first begins", gate)
            envelope = {"jsonrpc": "2.0", "id": "second", "method": "session/prompt", "params": session.prompt(second)}
            kept = await session.client.post(envelope, Prefer="respond-async")
            gate.open()
            responses = [await prompt.response(), (await session.next(is_answer_to("second"))).data]
            events = session.stream.seen

        assert kept.status_code == 202
        assert [response["result"]["stopReason"] for response in responses] == ["end_turn", "end_turn"]
        assert "".join(texts(events)).endswith("first begins and endssecond")
        turns = [event.data["params"]["state"] for event in events if event.method == TURN]
        assert turns == ["started", "ended", "started", "ended"]
        assert "and ends" in told(second.requests[0])

    run(scenario())


@pytest.mark.every_run
def test_a_turn_goes_on_while_another_session_begins(real: RealAgent) -> None:
    async def scenario() -> None:
        gate = real.model.gate()
        endless, other = real.model.script(Say("first ", gate, "last")), real.model.script(Say("another"))
        async with real.any_session() as session:
            prompt = session.ask(endless)
            await begun(real, session, "first", gate)
            async with real.session() as newer:
                between = await newer.turn(other)
                gate.open()
                turn = await prompt.ended()

        assert between.text == "another"
        assert turn.text == "first last"
        assert turn.stop_reason == "end_turn"

    run(scenario())


def test_two_sessions_run_at_once_and_each_sees_its_own(real: RealAgent) -> None:
    async def scenario() -> None:
        gates = real.model.gate(), real.model.gate()
        scripts = [
            real.model.script(Say(f"{name} begins ", gate, f"{name} ends"))
            for name, gate in zip(("left", "right"), gates, strict=True)
        ]
        async with real.any_session() as left, real.any_session() as right:
            prompts = left.ask(scripts[0]), right.ask(scripts[1])
            await asyncio.gather(*(gate.reached() for gate in gates))
            gates[1].open()
            second = await prompts[1].ended()
            gates[0].open()
            first = await prompts[0].ended()

        assert (first.text, second.text) == ("left begins left ends", "right begins right ends")
        assert sessions(first.events) == {left.id}
        assert sessions(second.events) == {right.id}

    run(scenario())


def test_image_of_a_prompt_reaches_the_model(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Say("a small picture"))
        image = {"type": "image", "mimeType": "image/png", "data": PICTURE}
        async with real.session() as session:
            turn = await session.turn(script, image)

        assert turn.stop_reason == "end_turn"
        assert PICTURE in json.dumps(script.requests[0].body)

    run(scenario())


@pytest.mark.parametrize("name", ["linked.txt", "déjà lu.txt"])
def test_link_of_a_prompt_reaches_the_model(real: RealAgent, name: str) -> None:
    async def scenario() -> None:
        script = real.model.script(Say("I know that file"))
        async with real.any_session() as session:
            file = session.folder / name
            file.write_text("what the file says")
            turn = await session.turn(script, {"type": "resource_link", "uri": file.as_uri(), "name": name})

        text = told_now(script.requests[0])
        understood = real.recipe.decodes_links or quote(name) == name
        assert turn.stop_reason == "end_turn"
        assert ("what the file says" in text) == (real.recipe.reads_links and understood)
        if understood:
            assert name in text or quote(name) in text

    run(scenario())


def is_answer_to(id: str) -> Callable[[Event], bool]:
    return lambda event: event.data.get("id") == id and not event.method


def session_methods(capabilities: Json) -> set[str]:
    known = {"resume", "list", "fork", "close", "delete"}
    offered = {name for name in known if name in capabilities.get("sessionCapabilities", {})}
    return offered | ({"load"} if capabilities.get("loadSession") else set())


def sessions(events: list[Event]) -> set[str]:
    """The sessions that these events are about."""
    return {event.data["params"]["sessionId"] for event in events if "sessionId" in event.data.get("params", {})}
