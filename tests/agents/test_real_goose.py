"""What Goose does in a way of its own."""

import json
import shutil

import pytest

from tests.agents.conftest import parameters
from tests.agents.real import RealAgent, Session, running, told
from tests.support.asking import PERMISSION
from tests.support.client import run
from tests.support.model.script import Call, Fail, Say

pytestmark = pytest.mark.parametrize("real", parameters("goose"), indirect=True)

CLEARING_UP = ["terminal/output", "terminal/release"]


async def of_the_server(session: Session) -> list[str]:
    """What the agent asked the server for, rather than a person."""
    page = await session.client.result("_sandboxagent/session/events", {"sessionId": session.id})
    methods = [event["envelope"].get("method", "") for event in page["events"]]
    return [method for method in methods if method.startswith(("fs/", "terminal/"))]


@pytest.mark.parametrize(
    ("mode", "asks", "writes"), [("auto", 0, True), ("smart_approve", 1, True), ("chat", 0, False)]
)
def test_mode_says_whether_it_asks(real: RealAgent, mode: str, asks: int, writes: bool) -> None:
    async def scenario() -> None:
        async with real.session(mode=mode) as session:
            file = session.folder / "file.txt"
            prompt = session.ask(real.model.script(real.recipe.write(file, "hello"), Say("Done.")))
            if asks:
                await session.decide(await session.asked(), "allow_once")
            turn = await prompt.ended()

        assert turn.asked == [PERMISSION] * asks
        assert file.exists() == writes

    run(scenario())


def test_command_runs_in_a_terminal_of_ours_and_file_is_written_by_us(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session(mode="auto") as session:
            file = session.folder / "said.txt"
            command = Call("shell", {"command": f"cat {file} && echo of it >&2"})
            script = real.model.script(real.recipe.write(file, "out "), command, Say("Done."))
            turn = await session.turn(script)
            asked = await of_the_server(session)

        assert file.read_text() == "out "
        assert "out of it" in told(script.requests[2])
        assert [block["type"] for call in turn.updates("tool_call_update") for block in call.get("content", [])] == [
            "diff",
            "terminal",
        ]
        assert asked == ["fs/write_text_file", "terminal/create", "terminal/wait_for_exit", *CLEARING_UP]

    run(scenario())


def test_always_allowed_tool_is_not_asked_for_again_anywhere(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session, real.session() as other:
            call = Call("tree", {"path": str(session.folder)})
            prompt = session.ask(real.model.script(call, Say("Seen.")))
            await session.decide(await session.asked(), "allow_always")
            await prompt.ended()
            elsewhere = await other.turn(real.model.script(call, Say("Seen.")))

        assert elsewhere.asked == []

    run(scenario())


def test_model_that_wants_another_key_is_an_error(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Fail(401, "invalid_request_error", "who are you"))
        async with real.session() as session:
            response = await session.ask(script).response()

        assert response["error"]["code"] == -32000

    run(scenario())


def test_id_that_is_given_out_again_is_that_of_another_session(real: RealAgent) -> None:
    with running(real.recipe) as agent:

        async def said(text: str) -> tuple[str, str]:
            async with agent.client() as client, client.stream() as stream:
                session = await agent.new_session(client, stream)
                await session.turn(agent.model.script(Say(text)))
                page = await client.result("_sandboxagent/session/events", {"sessionId": session.id})
            return session.id, json.dumps(page)

        first, _ = run(said("eggplant"))
        agent.server.stop()
        # Goose counts the sessions of a day; without its files it begins anew.
        shutil.rmtree(agent.server.directory / "home" / "data" / "goose")
        agent.server.start()
        second, log = run(said("zucchini"))

    assert second != first
    assert "zucchini" in log
    assert "eggplant" not in log
