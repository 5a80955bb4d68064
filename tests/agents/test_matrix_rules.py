"""Every real agent that asks: rules answer it, by what it tells of paths and commands, and no person is asked."""

import pytest

from tests.agents.conftest import parameters
from tests.agents.real import RealAgent
from tests.agents.recipes import RECIPES
from tests.support.asking import DECISION, PERMISSION
from tests.support.client import Json, run
from tests.support.model.script import Call, Say

ASKING = [recipe.agent for recipe in RECIPES if recipe.asks]
# Codex writes by commands.
WRITING = [agent for agent in ASKING if agent != "codex"]

SHELLS = {
    "claude": lambda text: Call("Bash", {"command": text, "description": "Runs it"}),
    "codex": lambda text: Call(
        "exec_command", {"cmd": text, "sandbox_permissions": "require_escalated", "justification": "May I?"}
    ),
    "opencode": lambda text: Call("bash", {"command": text, "description": "Runs it"}),
    "gemini": lambda text: Call("run_shell_command", {"command": text, "description": "Runs it"}),
    "qwen": lambda text: Call("run_shell_command", {"command": text, "description": "Runs it", "is_background": False}),
    "copilot": lambda text: Call("bash", {"command": text, "description": "Runs it", "sessionId": "a", "async": False}),
    "amp": lambda text: Call("Bash", {"cmd": text}),
    "goose": lambda text: Call("shell", {"command": text}),
}


@pytest.mark.parametrize("real", parameters(*ASKING), indirect=True)
@pytest.mark.parametrize(
    ("rules", "runs"),
    [
        ([{"command": ["touch *", "cd *"], "action": "allow"}], True),
        ([{"command": "touch", "action": "reject", "reason": "No."}], False),
    ],
    ids=["allow", "reject"],
)
def test_a_rule_about_commands_decides_what_is_run(real: RealAgent, rules: list[Json], runs: bool) -> None:
    async def scenario() -> None:
        async with real.session(permissions=rules) as session:
            command = SHELLS[real.recipe.agent](f"touch {session.folder}/one && touch {session.folder}/two")
            script = real.model.script([Say("I run."), command], Say("As you like."))
            turn = await session.turn(script)

        assert PERMISSION not in turn.asked
        assert [(session.folder / name).exists() for name in ("one", "two")] == [runs, runs]
        decisions = [event.data["params"] for event in turn.events if event.method == DECISION]
        assert {decision["by"]["source"] for decision in decisions} == {"session"}
        assert {decision["outcome"] for decision in decisions} == {"answered" if runs else "rejected"}

    run(scenario())


@pytest.mark.parametrize("real", parameters(*WRITING), indirect=True)
def test_a_rule_about_paths_decides_what_is_written(real: RealAgent) -> None:
    async def scenario() -> None:
        rules = [{"path": "secrets/**", "action": "reject"}, {"path": "*.txt", "action": "allow"}]
        async with real.session(permissions=rules) as session:
            allowed, rejected = session.folder / "a.txt", session.folder / "secrets" / "b.txt"
            rejected.parent.mkdir()
            script = real.model.script([Say("I write."), real.recipe.write(allowed, "a")], Say("Written."))
            first = await session.turn(script)
            script = real.model.script([Say("I write."), real.recipe.write(rejected, "b")], Say("As you like."))
            second = await session.turn(script)

        assert PERMISSION not in first.asked + second.asked
        assert allowed.read_text().strip() == "a"
        assert not rejected.exists()

    run(scenario())
