"""Qwen Code."""

import json
from collections.abc import Mapping
from pathlib import Path

from tests.agents.recipe import Recipe
from tests.support.client import Json
from tests.support.model.script import Call


def environment(home: Path, model: str) -> Mapping[str, str]:
    folder = home / ".qwen"
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps(_settings(model)))
    return {"OPENAI_API_KEY": "none"}


def _settings(model: str) -> Json:
    sees = {"modalities": {"image": True}}
    own = {"envKey": "OPENAI_API_KEY", "baseUrl": f"{model}/v1", "generationConfig": sees}
    return {
        "security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": False}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False},
        "ui": {"enableFollowupSuggestions": False},
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False, "enableAutoSkill": False},
        # In its own default, `auto`, another model decides in place of a person.
        "tools": {"approvalMode": "default"},
        "model": {"name": "large"},
        "modelProviders": {
            "openai": [{"id": "large", "name": "Large", **own}, {"id": "small", "name": "Small", **own}]
        },
    }


def write(path: Path, text: str) -> Call:
    return Call("write_file", {"file_path": str(path), "content": text})


RECIPE = Recipe(
    agent="qwen",
    environment=environment,
    write=write,
    session_methods=frozenset({"load", "resume", "list"}),
    contents=frozenset({"image", "audio", "embeddedContext"}),
    asks=True,
    reject_asks_model=False,
    reads_links=True,
    decodes_links=False,
    modes=("default", "auto-edit"),
    models=("large(openai)", "small(openai)"),
    wire_models=("large", "small"),
    option=("reasoning_effort", "default", "high"),
)
