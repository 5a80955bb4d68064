"""OpenCode."""

import json
from collections.abc import Mapping
from pathlib import Path

from tests.agents.recipe import Recipe
from tests.support.client import Json
from tests.support.model.script import Call


def environment(home: Path, model: str) -> Mapping[str, str]:
    # The catalogue that it brings has thousands of models; to read them takes it half as long as to start.
    models = home / "models.json"
    models.write_text("{}")
    return {
        "OPENCODE_CONFIG_CONTENT": json.dumps(_configuration(model)),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_MODELS_PATH": str(models),
        # No test runs long enough to win back what its engine's last optimizations cost.
        "BUN_JSC_useFTLJIT": "0",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_PURE": "1",
        "npm_config_offline": "true",
    }


def _configuration(model: str) -> Json:
    large = {
        "name": "Large",
        "tool_call": True,
        "reasoning": True,
        "attachment": True,
        "limit": {"context": 200_000, "output": 8_192},
        "modalities": {"input": ["text", "image"], "output": ["text"]},
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Scripted",
        "options": {"baseURL": f"{model}/v1", "apiKey": "none"},
        "models": {"large": large, "small": {"name": "Small"}},
    }
    return {
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": ["scripted"],
        "provider": {"scripted": provider},
        "model": "scripted/large",
        "small_model": "scripted/small",
        "permission": {"edit": "ask", "bash": "ask", "webfetch": "ask"},
    }


def write(path: Path, text: str) -> Call:
    return Call("write", {"filePath": str(path), "content": text})


RECIPE = Recipe(
    agent="opencode",
    environment=environment,
    write=write,
    session_methods=frozenset({"load", "resume", "list", "fork", "close"}),
    contents=frozenset({"image", "embeddedContext"}),
    asks=True,
    reject_asks_model=False,
    reads_links=True,
    modes=("build", "plan"),
    models=("scripted/large", "scripted/small"),
    wire_models=("large", "small"),
    option=("effort", "low", "high"),
)
