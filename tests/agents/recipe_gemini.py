"""Gemini CLI."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.agents.recipe import Recipe
from tests.support.model.script import Call

_MINUTE = "%Y-%m-%dT%H-%M"
_FILE = re.compile(r"(session-)(\d+-\d+-\d+T\d+-\d+)(-.*)")
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


def age(home: Path) -> None:
    """Make its sessions a minute older: their files are named by the minute in which they began."""
    for file in home.glob(".gemini/tmp/*/chats/session-*.jsonl"):
        before, minute, own = _FILE.fullmatch(file.name).groups()  # type: ignore[union-attr]
        older = datetime.strptime(minute, _MINUTE).replace(tzinfo=UTC) - timedelta(minutes=1)
        file.rename(file.with_name(f"{before}{older.strftime(_MINUTE)}{own}"))


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
    decodes_links=False,
    age=age,
    failure_code=400,
    modes=("default", "autoEdit"),
    models=("gemini-2.5-pro", "gemini-3-flash-preview"),
    option=("mode", "default", "autoEdit"),
)
