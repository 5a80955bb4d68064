"""Gemini CLI."""

import json
from collections.abc import Mapping
from pathlib import Path

from tests.agents.recipe import Recipe
from tests.support.model.script import Call

_SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False, "maxAttempts": 2},
}


def environment(home: Path, model: str) -> Mapping[str, str]:
    folder = home / ".gemini"
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps(_SETTINGS))
    # With a model named, it asks no other model which one to take.
    return {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": model, "GEMINI_MODEL": "gemini-2.5-pro"}


def write(path: Path, text: str) -> Call:
    return Call("write_file", {"file_path": str(path), "content": text})


RECIPE = Recipe(
    agent="gemini",
    environment=environment,
    write=write,
    session_methods=frozenset({"load"}),
    contents=frozenset({"image", "audio", "embeddedContext"}),
    asks=True,
    reads_links=True,
    failure_code=400,
    modes=("default", "autoEdit"),
    models=("gemini-2.5-pro", "gemini-3-flash-preview"),
    option=("mode", "default", "autoEdit"),
)
