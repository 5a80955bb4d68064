"""What Pi does in a way of its own."""

import pytest

from tests.agents.conftest import parameters
from tests.agents.real import RealAgent
from tests.support.client import run
from tests.support.model.script import Call, Say

pytestmark = pytest.mark.parametrize("real", parameters("pi"), indirect=True)


def test_no_tool_asks_anything_and_a_command_runs_unasked(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Call("bash", {"command": "echo hello > unasked.txt"}), Say("Done."))
        async with real.session() as session:
            turn = await session.turn(script)

        assert [tool["name"] for tool in script.requests[0].body["tools"]] == ["read", "bash", "edit", "write"]
        assert turn.asked == []
        assert (session.folder / "unasked.txt").read_text() == "hello\n"

    run(scenario())
