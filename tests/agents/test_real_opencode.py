"""What OpenCode does in a way of its own."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
import psutil
import pytest

from sandboxagent.server.agents.dialects.opencode import listening_ports
from tests.agents.asker import ASKERS
from tests.agents.conftest import parameters
from tests.agents.real import RealAgent, told_now
from tests.support.asking import CANCEL, PERMISSION, QUESTION
from tests.support.client import NO_CERTIFICATES, Json, run
from tests.support.model.script import Call, Say
from tests.support.running import BOUND

pytestmark = pytest.mark.parametrize("real", parameters("opencode"), indirect=True)

ASKER = ASKERS["opencode"]


def test_client_is_asked_for_permission_and_not_to_write_the_file(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.any_session() as session:
            script = real.model.script(real.recipe.write(session.folder / "a.txt", "hello"), Say("Written."))
            prompt = session.ask(script)
            await session.decide(await session.asked(), "allow_once")
            turn = await prompt.ended()

        assert turn.asked == [PERMISSION]

    run(scenario())


def test_command_is_asked_for_and_its_output_is_shown(real: RealAgent) -> None:
    async def scenario() -> None:
        call = Call("bash", {"command": "echo out of it", "description": "Says something"})
        async with real.any_session() as session:
            prompt = session.ask(real.model.script(call, Say("Done.")))
            request = await session.asked()
            await session.decide(request, "allow_once")
            turn = await prompt.ended()

        assert request.data["params"]["toolCall"]["kind"] == "execute"
        assert "out of it" in str(turn.updates("tool_call_update")[-1]["content"])

    run(scenario())


def test_edit_has_a_patch_with_line_numbers_beside_the_part_that_it_shows(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.any_session() as session:
            file = session.folder / "long.txt"
            file.write_text("".join(f"line {number}\n" for number in range(1, 41)))
            change = {"filePath": str(file), "oldString": "line 20\n", "newString": "twenty\n"}
            prompt = session.ask(
                real.model.script(Call("read", {"filePath": str(file)}), Call("edit", change), Say("Edited."))
            )
            request = await session.asked()
            await session.decide(request, "allow_once")
            turn = await prompt.ended()

        asked, done = request.data["params"]["toolCall"], turn.updates("tool_call_update")[-1]
        assert "@@ -16,9 +16,9 @@\n" in asked["rawInput"]["diff"]
        assert asked["content"][0]["oldText"].startswith("line 1\n")
        assert "@@ -16,9 +16,9 @@\n" in done["rawOutput"]["metadata"]["diff"]
        assert [each["oldText"] for each in done["content"] if each["type"] == "diff"] == ["line 20\n"]

    run(scenario())


@asynccontextmanager
async def its_port(real: RealAgent, folder: Path) -> AsyncGenerator[httpx.AsyncClient]:
    """The port on which it asks its questions; they are those of a folder."""
    (port,) = listening_ports(real.pid)
    password = psutil.Process(real.pid).environ()["OPENCODE_SERVER_PASSWORD"]
    own = {"X-OpenCode-Directory": quote(str(folder))}
    facts = {"auth": ("opencode", password), "headers": own, "trust_env": False}
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", **facts, timeout=BOUND, verify=NO_CERTIFICATES
    ) as client:
        yield client


async def questions(port: httpx.AsyncClient) -> list[Json]:
    return (await port.get("/question")).raise_for_status().json()


def test_question_that_is_answered_at_its_own_port_is_withdrawn(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(ASKER.one, Say("I see."))
        async with ASKER.session(real) as session, its_port(real, session.folder) as port:
            prompt = session.ask(script)
            request = await session.asked(QUESTION)
            (open_there,) = await questions(port)
            answer = await port.post(f"/question/{open_there['id']}/reply", json={"answers": [["Redis"]]})
            withdrawn = await session.next(lambda event: event.method == CANCEL)
            turn = await prompt.ended()

        assert answer.status_code == 200
        assert request.data["params"]["questionId"] == open_there["id"]
        assert request.data["id"] == withdrawn.data["params"]["requestId"]
        assert ASKER.heard.format("Redis") in told_now(script.requests[1])
        assert turn.stop_reason == "end_turn"

    run(scenario())


def test_question_of_a_cancelled_turn_is_cleared_away(real: RealAgent) -> None:
    async def scenario() -> None:
        async with ASKER.session(real) as session, its_port(real, session.folder) as port:
            prompt = session.ask(real.model.script(ASKER.one, Say("Never said.")))
            await session.asked(QUESTION)
            await session.client.notify("session/cancel", {"sessionId": session.id})
            turn = await prompt.ended()
            async with asyncio.timeout(BOUND):
                while await questions(port):
                    pass

        assert turn.stop_reason == "cancelled"

    run(scenario())


def test_question_of_a_folder_with_a_strange_name_is_answered(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(ASKER.one, Say("I see."))
        async with ASKER.session(real) as elsewhere:
            folder = elsewhere.folder / "a b+c&d=é%"
            folder.mkdir()
            new = await elsewhere.client.result("session/new", {"cwd": str(folder), "mcpServers": []})
            session = elsewhere.named(new["sessionId"])
            prompt = session.ask(script)
            request = await session.asked(QUESTION)
            await session.client.answer(request.data["id"], {"status": "answered", "answers": [["Redis"]]})
            await prompt.ended()

        assert ASKER.heard.format("Redis") in told_now(script.requests[1])

    run(scenario())
