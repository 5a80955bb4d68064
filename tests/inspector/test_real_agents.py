"""One full run each with real Claude and real Codex in the Inspector: plan, edit with permission, question, result.

Claude's is left out while nothing has changed that agents depend on (`tests/agents/trying.py`): what it asks and says
is tried in every run without a page, and the page shows plans and differences of the scripted agent.
"""

from pathlib import Path

import pytest

from sandboxagent.client.sync import SandboxAgent
from tests.agents.asker import ASKERS
from tests.agents.real import RealAgent, running
from tests.agents.recipes import RECIPES
from tests.inspector.agent_browser import AgentBrowser
from tests.inspector.browsing import Tab
from tests.inspector.talking import Conversation
from tests.support.model.script import Call, Say, Think

RESULT = """## Done

| file | lines |
|---|--:|
| `notes.md` | 3 |

- the notes are **written**
- `sqlite3` is in the standard library
"""
_STEPS = ("Look around", "Write the notes", "Choose a database")
TODOS = Call(
    "TodoWrite",
    {
        "todos": [
            {"content": step, "activeForm": step, "status": "in_progress" if index == 1 else "pending"}
            for index, step in enumerate(_STEPS)
        ]
    },
)
PLAN = Call(
    "update_plan",
    {
        "plan": [
            {"step": step, "status": "in_progress" if index == 1 else "pending"} for index, step in enumerate(_STEPS)
        ]
    },
)


def _opened(real: RealAgent, tab: Tab, client: SandboxAgent) -> Conversation:
    folder = Path(real.server.work) / "project"
    folder.mkdir()
    return Conversation(tab, client, str(folder), real.recipe.agent)


@pytest.mark.parametrize(
    "agent", [pytest.param(each, marks=pytest.mark.xdist_group(each)) for each in ("claude", "codex")]
)
def test_a_full_run_is_seen_and_steered(agent_browser: AgentBrowser, agent: str) -> None:
    (recipe,) = [each for each in RECIPES if each.agent == agent]
    asker = ASKERS[agent]
    with (
        running(recipe) as real,
        Tab(agent_browser, real.server.url, real.server.token) as tab,
        SandboxAgent.connect(real.server.url, real.server.token) as client,
    ):
        talk = _opened(real, tab, client)
        notes = Path(talk.session.cwd) / "notes.md"
        text = "# Notes\n\nWritten by the agent.\n"
        plan = TODOS if agent == "claude" else PLAN
        script = real.model.script(
            [Think("Let me see."), Say("I will plan this first."), plan], recipe.write(notes, text), Say(RESULT)
        )

        talk.say(f"Please do what {script.marker} says")
        talk.shows(".request")
        talk.sees("Written by the agent." if agent == "claude" else "notes.md", ".request")
        talk.click("[data-option=allow_once]")
        talk.is_answered("is in the standard library")
        assert notes.read_text().strip() == text.strip()
        assert talk.text(".item-text td code") == "notes.md"
        # Codex keeps its plan to itself.
        if agent == "claude":
            tab.until("document.querySelectorAll('.item-plan .check').length === 3")
        talk.sees("by you")

        for option, value in asker.options:
            tab.choose_at(f"[data-choice={option}]", value)
            tab.until(f"document.querySelector('[data-choice={option}]:not(:disabled)')?.value === '{value}'")
        asking = real.model.script(asker.one, Say("I take that one."))
        talk.say(f"Please do what {asking.marker} says")
        talk.sees("Which database?", ".request")
        talk.click(".choice:nth-of-type(2)")
        tab.click("Submit")
        talk.is_answered("I take that one.")
        talk.sees("Postgres")
