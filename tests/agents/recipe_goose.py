"""Goose."""

from collections.abc import Mapping
from pathlib import Path

from tests.agents.recipe import Recipe
from tests.support.model.script import Call


def environment(home: Path, model: str) -> Mapping[str, str]:
    return {
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": "gpt-4o",
        "OPENAI_HOST": model,
        "OPENAI_API_KEY": "none",
        "GOOSE_MODE": "approve",
        "GOOSE_DISABLE_KEYRING": "1",
        "GOOSE_TELEMETRY_OFF": "1",
        "GOOSE_PROVIDER_SKIP_BACKOFF": "true",
    }


def write(path: Path, text: str) -> Call:
    return Call("write", {"path": str(path), "content": text})


RECIPE = Recipe(
    agent="goose",
    environment=environment,
    write=write,
    session_methods=frozenset({"load", "list", "close", "delete"}),
    contents=frozenset({"image", "embeddedContext"}),
    asks=True,
    reads_links=True,
    failure_code=None,
    modes=("approve", "auto"),
    models=("gpt-4o", "gpt-4.1"),
    option=("mode", "approve", "auto"),
)
