"""Pi."""

import json
from collections.abc import Mapping
from pathlib import Path

from tests.agents.recipe import Recipe
from tests.support.model.script import Call


def environment(home: Path, model: str) -> Mapping[str, str]:
    folder = home / ".pi" / "agent"
    folder.mkdir(parents=True)
    models = [{"id": id, "reasoning": True, "input": ["text", "image"]} for id in ("small", "large")]
    provider = {"baseUrl": model, "api": "anthropic-messages", "apiKey": "none", "models": models}
    (folder / "models.json").write_text(json.dumps({"providers": {"scripted": provider}}))
    settings = {"defaultProvider": "scripted", "defaultModel": "small", "quietStartup": True}
    (folder / "settings.json").write_text(json.dumps(settings))
    return {"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1"}


def write(path: Path, text: str) -> Call:
    return Call("write", {"path": str(path), "content": text})


RECIPE = Recipe(
    agent="pi",
    environment=environment,
    write=write,
    session_methods=frozenset({"load", "list", "delete"}),
    contents=frozenset({"image"}),
    asks=False,
    failure_code=None,
    failure_told=False,
    # It calls how much it thinks a mode.
    modes=("medium", "high"),
    models=("scripted/small", "scripted/large"),
    wire_models=("small", "large"),
    option=("thought_level", "medium", "high"),
)
