"""Codex."""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote

from tests.agents.recipe import Recipe
from tests.support.model.script import Call

# Of the models that codex knows, this one alone is given plain tools; others write programs that call them.
_CONFIGURATION = """
model = "gpt-5.5"
model_provider = "scripted"
check_for_update_on_startup = false
web_search = "disabled"

[model_providers.scripted]
name = "Scripted"
base_url = "{model}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[features]
plugins = false
apps = false
"""


def environment(home: Path, model: str) -> Mapping[str, str]:
    folder = home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(_CONFIGURATION.format(model=model))
    return {"CODEX_HOME": str(folder), "INITIAL_AGENT_MODE": "workspace-write"}


def write(path: Path, text: str) -> Call:
    # Outside of its sandbox: within, a command is not asked for, and not every machine allows the sandbox.
    command = f"printf %s {quote(text)} > {quote(str(path))}"
    wish = {"sandbox_permissions": "require_escalated", "justification": "May I write?"}
    return Call("exec_command", {"cmd": command, **wish})


RECIPE = Recipe(
    agent="codex",
    environment=environment,
    write=write,
    session_methods=frozenset({"load", "resume", "list", "fork", "close", "delete"}),
    contents=frozenset({"image", "embeddedContext"}),
    asks=True,
    reject_ends="cancelled",
    reject_asks_model=False,
    failure_code=None,
    modes=("workspace-write", "read-only"),
    models=("gpt-5.5", "gpt-5.6-sol"),
    option=("reasoning_effort", "medium", "high"),
)
