"""OpenCode's own program: where it is, and what it needs to run alone. It is the one that the manifest pins."""

import json
import os
from functools import cache
from pathlib import Path

from tests.agents.real import INSTALLED, install
from tests.agents.recipe import isolated
from tests.agents.recipe_opencode import RECIPE

NOWHERE = "http://127.0.0.1:9"
"""A proxy that is not there: what is not on loopback cannot be reached."""


@cache
def program() -> str:
    """Its path; installed like every other agent when it is not there yet."""
    install(RECIPE)
    folder = INSTALLED / RECIPE.agent
    installed = json.loads((folder / "installed.json").read_text())
    return installed["command"][0].replace("{folder}", str(folder / installed["folder"]))


def environment(home: Path, model: str = NOWHERE) -> dict[str, str]:
    """Nothing of the user's, nothing of the network; its model, where it needs one, is the one at that address."""
    home.mkdir(exist_ok=True)
    return {
        "PATH": os.environ["PATH"],
        "TERM": "xterm-256color",
        "NO_COLOR": "1",
        **isolated(home, model),
        **RECIPE.environment(home, model),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    }
