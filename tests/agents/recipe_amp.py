"""Amp, by our own adapter."""

from collections.abc import Mapping
from pathlib import Path

from tests.agents.recipe import Recipe
from tests.support.model.script import Call


def environment(home: Path, model: str) -> Mapping[str, str]:
    return {"AMP_URL": model, "AMP_API_KEY": "sgamp_user_none"}


def write(path: Path, text: str) -> Call:
    return Call("create_file", {"path": str(path), "content": text})


RECIPE = Recipe(
    agent="amp",
    environment=environment,
    write=write,
    session_methods=frozenset({"load", "resume", "close"}),
    contents=frozenset({"image", "embeddedContext"}),
    asks=True,
    streams=False,
    reads_links=True,
    modes=("smart", "rush"),
    option=("mode", "smart", "rush"),
)
