"""Claude Code."""

from collections.abc import Mapping
from pathlib import Path

from tests.agents.recipe import Recipe
from tests.support.model.script import Call


def environment(home: Path, model: str) -> Mapping[str, str]:
    quiet = ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_TELEMETRY", "DISABLE_AUTOUPDATER")
    return {
        **dict.fromkeys((*quiet, "DISABLE_ERROR_REPORTING", "DISABLE_BUG_COMMAND"), "1"),
        "ANTHROPIC_BASE_URL": model,
        "ANTHROPIC_API_KEY": "sk-ant-none",
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION": "false",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        # The same modes for root as for other users.
        "IS_SANDBOX": "1",
    }


def write(path: Path, text: str) -> Call:
    return Call("Write", {"file_path": str(path), "content": text})


RECIPE = Recipe(
    agent="claude",
    environment=environment,
    write=write,
    session_methods=frozenset({"load", "resume", "list", "fork", "close", "delete"}),
    contents=frozenset({"image", "embeddedContext"}),
    asks=True,
    modes=("default", "plan"),
    models=("default", "sonnet"),
    wire_models=("opus", "sonnet"),
    option=("effort", "default", "low"),
)
