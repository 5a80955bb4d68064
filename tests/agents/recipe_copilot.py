"""GitHub Copilot CLI."""

from collections.abc import Mapping
from pathlib import Path

from tests.agents.recipe import Recipe
from tests.support.model.script import Call

_MODES = "https://agentclientprotocol.com/protocol/session-modes"


def environment(home: Path, model: str) -> Mapping[str, str]:
    return {
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
        "COPILOT_PROVIDER_TYPE": "anthropic",
        "COPILOT_PROVIDER_BASE_URL": model,
        "COPILOT_PROVIDER_API_KEY": "none",
        "COPILOT_MODEL": "claude-sonnet-4.5",
        "COPILOT_HOME": str(home / ".copilot"),
    }


def write(path: Path, text: str) -> Call:
    return Call("create", {"path": str(path), "file_text": text})


RECIPE = Recipe(
    agent="copilot",
    environment=environment,
    write=write,
    session_methods=frozenset({"load", "list", "close"}),
    contents=frozenset({"image", "embeddedContext"}),
    asks=True,
    reject_asks_model=False,
    failure_code=None,
    modes=(f"{_MODES}#agent", f"{_MODES}#plan"),
    option=("allow_all", "off", "on"),
)
