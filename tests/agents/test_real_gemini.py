"""What Gemini CLI does in a way of its own."""

import base64
import json
import os
import signal
import time

import pytest

from tests.agents.conftest import parameters
from tests.agents.real import RealAgent, told
from tests.support.asking import ENDED, PERMISSION, texts
from tests.support.client import run
from tests.support.model.script import Call, Say
from tests.support.pictures import png

pytestmark = pytest.mark.parametrize("real", parameters("gemini"), indirect=True)

PICTURE = base64.b64encode(png()).decode()


def test_permission_is_the_first_that_is_heard_of_a_tool_call(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session:
            script = real.model.script(real.recipe.write(session.folder / "a.txt", "hello"), Say("Written."))
            prompt = session.ask(script)
            request = await session.asked()
            await session.decide(request, "allow_once")
            turn = await prompt.ended()

        assert turn.updates("tool_call") == []
        (update,) = turn.updates("tool_call_update")
        assert update["toolCallId"] == request.data["params"]["toolCall"]["toolCallId"]
        assert update["status"] == "completed"

    run(scenario())


def test_edit_shows_the_whole_file_and_says_so(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session:
            file = session.folder / "long.txt"
            file.write_text("".join(f"line {number}\n" for number in range(1, 41)))
            change = {"file_path": str(file), "old_string": "line 20\n", "new_string": "twenty\n", "instruction": "x"}
            prompt = session.ask(
                real.model.script(Call("read_file", {"file_path": str(file)}), Call("replace", change), Say("Edited."))
            )
            request = await session.asked()
            await session.decide(request, "allow_once")
            await prompt.ended()

        (shown,) = request.data["params"]["toolCall"]["content"]
        assert shown["oldText"].count("\n") == 40
        assert shown["_meta"] == {"kind": "modify"}

    run(scenario())


def test_nothing_is_heard_of_a_tool_call_that_was_rejected(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session:
            script = real.model.script(real.recipe.write(session.folder / "a.txt", "hello"), Say("As you like."))
            prompt = session.ask(script)
            await session.decide(await session.asked(), "reject_once")
            turn = await prompt.ended()

        assert turn.updates("tool_call_update") == []

    run(scenario())


def test_model_is_given_no_tool_to_ask_questions(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Say("I have none."))
        async with real.session() as session:
            await session.turn(script)

        tools = [tool for group in script.requests[0].body["tools"] for tool in group["functionDeclarations"]]
        assert "write_file" in {tool["name"] for tool in tools}
        assert "ask_user" not in {tool["name"] for tool in tools}

    run(scenario())


def test_edits_are_made_unasked_in_auto_edit(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session(mode="autoEdit") as session:
            file = session.folder / "unasked.txt"
            turn = await session.turn(real.model.script(real.recipe.write(file, "hello"), Say("Written.")))

        assert PERMISSION not in turn.asked
        assert file.read_text() == "hello"

    run(scenario())


def test_image_is_lost_when_the_same_prompt_has_a_link(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Say("I see no picture."))
        async with real.session() as session:
            file = session.folder / "notes.txt"
            file.write_text("what the file says")
            link = {"type": "resource_link", "uri": file.as_uri(), "name": file.name}
            await session.turn(script, {"type": "image", "mimeType": "image/png", "data": PICTURE}, link)

        assert "what the file says" in told(script.requests[0])
        assert PICTURE not in json.dumps(script.requests[0].body)

    run(scenario())


def test_changed_mode_is_told_in_words(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session:
            await session.client.result("session/set_mode", {"sessionId": session.id, "modeId": "plan"})
            await session.said("[MODE_UPDATE] plan")

    run(scenario())


def test_session_resumed_within_its_first_minute_is_lost(real: RealAgent) -> None:
    """Gemini cannot resume a session within the minute it began in, nor later if that was tried."""

    async def scenario() -> None:
        began = minute()
        after = real.model.script(Say("never"))
        async with real.session() as session:
            await session.turn(real.model.script(Say("remember blue")))
            os.kill(real.pid, signal.SIGKILL)
            await session.next(lambda event: event.method == ENDED)
            at_once = await session.ask(after).response()
            real.age()
            later = await session.ask(after).response()
        if minute() == began:
            assert at_once["error"]["code"] == later["error"]["code"] == -32600
            assert after.requests == []
        else:
            await scenario()

    run(scenario())


def test_session_that_is_taken_up_again_is_not_told_twice(real: RealAgent) -> None:
    async def scenario() -> None:
        after = real.model.script(Say("here again"))
        async with real.session() as session:
            for number in range(8):
                await session.turn(real.model.script(Say(f"remember {number}")))
            os.kill(real.pid, signal.SIGKILL)
            await session.next(lambda event: event.method == ENDED)
            real.age()
            turn = await session.turn(after)

        assert turn.text == "here again"
        assert texts(turn.events, "user_message_chunk") == []

    run(scenario())


def minute() -> int:
    """The minute that it is now."""
    return int(time.time() // 60)
