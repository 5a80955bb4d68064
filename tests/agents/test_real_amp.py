"""What Amp does in a way of its own, by our adapter."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.agents.conftest import parameters
from tests.agents.real import RealAgent, Session, told
from tests.support import asking_tool
from tests.support.asking import PERMISSION
from tests.support.client import Json, run
from tests.support.model.script import Call, Say, Think
from tests.support.running import alive, eventually

pytestmark = pytest.mark.parametrize("real", parameters("amp"), indirect=True)


def test_thoughts_diffs_and_usage_are_told(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session:
            file = session.folder / "a.txt"
            file.write_text("one\ntwo\n")
            edit = Call("edit_file", {"path": str(file), "old_str": "two", "new_str": "three"})
            prompt = session.ask(real.model.script([Think("hm"), Say("I edit."), edit], Say("Edited.")))
            await session.decide(await session.asked(), "allow_once")
            turn = await prompt.ended()

        assert [each["content"]["text"] for each in turn.updates("agent_thought_chunk")] == ["hm"]
        (call,) = turn.updates("tool_call")
        assert call["content"] == [{"type": "diff", "path": str(file), "oldText": "two", "newText": "three"}]
        assert [each["status"] for each in turn.updates("tool_call_update")] == ["in_progress", "completed"]
        assert turn.updates("usage_update")[-1]["used"] == 110
        assert turn.response["result"]["usage"]["totalTokens"] == 220
        assert file.read_text() == "one\nthree\n"

    run(scenario())


def test_reading_is_not_asked_and_the_work_of_a_helper_is(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session:
            file = session.folder / "a.txt"
            file.write_text("what the file says")
            helper = real.model.script(Call("Bash", {"cmd": f"touch {session.folder}/made"}), Say("It is done."))
            task = Call("Task", {"prompt": f"Do what {helper.marker} says", "description": "A helper"})
            script = real.model.script(Call("Read", {"path": str(file)}), task, Say("Done."))
            prompt = session.ask(script)
            request = await session.asked()
            await session.decide(request, "reject_once")
            turn = await prompt.ended()

        assert "what the file says" in told(script.requests[1])
        assert request.data["params"]["toolCall"]["rawInput"] == {"cmd": f"touch {session.folder}/made"}
        assert turn.asked == [PERMISSION]
        assert not (session.folder / "made").exists()

    run(scenario())


def test_tool_of_a_sessions_mcp_server_is_asked_about_and_used(real: RealAgent) -> None:
    async def scenario() -> None:
        server = {"name": "asker", "command": sys.executable, "args": ["-I", asking_tool.__file__], "env": []}
        folder = Path(real.server.work) / "with-server"
        folder.mkdir()
        params: Json = {"cwd": str(folder), "mcpServers": [server]}
        async with real.client() as client, client.stream() as stream:
            settings = await client.result("session/new", params)
            session = Session(settings["sessionId"], client, stream, folder, settings)
            script = real.model.script(Call("mcp__asker__ask"), Say("Asked."))
            prompt = session.ask(script)
            await session.decide(await session.asked(), "allow_once")
            turn = await prompt.ended()
            await client.call("_sandboxagent/session/terminate", {"sessionId": session.id})

        assert turn.stop_reason == "end_turn"
        assert "The user said" in told(script.requests[1])

    run(scenario())


def test_amp_does_not_work_where_the_workspace_allows_everything(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session:
            (session.folder / ".amp").mkdir()
            (session.folder / ".amp/settings.json").write_text('{"amp.dangerouslyAllowAll": true}')
            script = real.model.script(real.recipe.write(session.folder / "a.txt", "hello"), Say("Written."))
            turn = await session.turn(script)

        assert str(session.folder / ".amp/settings.json") in turn.response["error"]["message"]
        assert script.requests == []

    run(scenario())


def test_turn_ends_when_an_edit_would_let_amp_do_everything(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session(permissionMode="acceptEdits") as session:
            weaken = real.recipe.write(session.folder / ".amp/settings.json", '{"amp.dangerouslyAllowAll": true}')
            run_it = Call("Bash", {"cmd": f"touch {session.folder}/made"})
            turn = await session.turn(real.model.script(weaken, run_it, Say("Done.")))

        assert ".amp/settings.json" in turn.response["error"]["message"]
        assert not (session.folder / "made").exists()

    run(scenario())


def test_cancel_ends_what_a_tool_has_started_in_a_session_of_its_own(real: RealAgent) -> None:
    async def scenario() -> None:
        async with real.session() as session:
            pid = session.folder / "pid"
            command = f"setsid sh -c 'echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600' & sleep 600"
            prompt = session.ask(real.model.script(Call("Bash", {"cmd": command}), Say("Never said.")))
            await session.decide(await session.asked(), "allow_once")
            await asyncio.to_thread(eventually, pid.exists, "a command that runs")
            await session.client.notify("session/cancel", {"sessionId": session.id})
            turn = await prompt.ended()

        assert turn.stop_reason == "cancelled"
        eventually(lambda: not alive(int(pid.read_text())), "the end of what the command had started")

    run(scenario())
