"""Write Amp's settings for a turn, and refuse a workspace whose settings could undo them.

Amp also reads `.amp/settings.json` of the directory that it works in, and lets that win. It also runs what a repository
has for it: plugins, and the MCP servers of skills. A repository could switch all asking off, or name programs to run.
Where it does anything but set what is known to be harmless, nothing is started.
"""

import json
import logging
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from sandboxagent.adapters.stdio import Object

logger = logging.getLogger(__name__)


PERMISSIONS, ALLOW_ALL, SERVERS = "amp.permissions", "amp.dangerouslyAllowAll", "amp.mcpServers"
MAX_FILE_BYTES = 1 << 20
"""Bytes of a settings file that is read."""


HARMLESS = frozenset(
    {
        "$schema",
        "amp.agent.deepReasoningEffort",
        "amp.anthropic.effort",
        "amp.anthropic.interleavedThinking.enabled",
        "amp.anthropic.speed",
        "amp.anthropic.temperature",
        "amp.anthropic.thinking.enabled",
        "amp.fuzzy.alwaysIncludePaths",
        "amp.gemini.thinkingLevel",
        "amp.git.commit.ampThread.enabled",
        "amp.git.commit.coauthor.enabled",
        "amp.network.timeout",
        "amp.notifications.enabled",
        "amp.notifications.system.enabled",
        "amp.openai.speed",
        "amp.showCosts",
        "amp.skills.disableClaudeCodeSkills",
        "amp.submitOnEnter",
        "amp.terminal.animation",
        "amp.terminal.theme",
        "amp.tools.disable",
        "amp.tools.enable",
        "amp.tools.inactivityTimeout",
        "amp.tools.stopTimeout",
    }
)
"""What a workspace may set. All else may run programs (`amp.mcpServers`, `amp.hooks`, `amp.toolbox.path`), allow things
(`amp.permissions`, `amp.guardedFiles.allowlist`), or lead Amp and its key elsewhere (`amp.url`, `amp.proxy`)."""
RUNNING = (
    ".amp/plugins/*",
    *(f"{skills}/{depth}mcp.json" for skills in (".agents/skills", ".claude/skills") for depth in ("*/", "*/*/")),
)
"""Files of a workspace that Amp runs, or that name programs which it runs: plugins, and the MCP servers of skills."""
_COMMENT = r'"(?:[^"\\]|\\.)*(?:"|\Z)|//[^\n\r\u2028\u2029]*|/\*.*?(?:\*/|\Z)'
_COMMA = r'"(?:[^"\\]|\\.)*(?:"|\Z)|,(?=\s*[}\]])'
"""Strings, which stay, and what JSON lacks: comments; commas at the end of a list."""


class UntrustedWorkspace(Exception):
    """The workspace has what would take permissions out of our hands."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        super().__init__(f"{path} {what} without asking; remove it to use Amp")


def turn_settings(environ: Mapping[str, str], gate: Path, servers: Sequence[Object]) -> str:
    """The settings file of a turn. `servers` are those of the session, as ACP has them."""
    own = _user_settings(environ)
    delegate: Object = {"tool": "*", "action": "delegate", "to": str(gate)}
    mine = own.get(PERMISSIONS)
    # What the user rejects stays so. What the user allows is for rules and clients to decide, as with other agents.
    rejecting = [rule for rule in cast("list[object]", mine) if _rejects(rule)] if isinstance(mine, list) else []
    known = own.get(SERVERS)
    all_servers = {**(cast("Object", known) if isinstance(known, dict) else {}), **mcp_servers(servers)}
    quiet: Object = {"amp.updates.mode": "disabled", "amp.notifications.enabled": False}
    ours: Object = {ALLOW_ALL: False, PERMISSIONS: [*rejecting, delegate], SERVERS: all_servers}
    return json.dumps({**own, **quiet, **ours})


def mcp_servers(servers: Sequence[Object]) -> Object:
    """MCP servers of ACP, as Amp has them."""
    return {str(server.get("name")): _server(server) for server in servers}


def check_workspace(directory: str) -> None:
    """Raises UntrustedWorkspace when something in the workspace could run or allow what we have not been asked about.

    Looks where Amp does and further up: up to the root, whatever Amp takes for the root of a repository. Plugins and
    skills in the home directory are the user's own.
    """
    folder = Path(directory).resolve()
    home = Path.home().resolve()
    for parent in (folder, *folder.parents):
        for name in ("settings.json", "settings.jsonc"):
            path = parent / ".amp" / name
            if (key := _harmful_key(path)) is not None:
                raise UntrustedWorkspace(path, f"sets {key}, which Amp would obey" if key else UNCLEAR)
        for pattern in RUNNING if parent != home else ():
            if found := next(parent.glob(pattern), None):
                raise UntrustedWorkspace(found, "would be run by Amp")


UNCLEAR = "is not plain JSON with comments, and may have settings that Amp would obey"


def _harmful_key(path: Path) -> str | None:
    """A setting that is not known to be harmless; empty when the file says nothing that we understand."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            text = file.read(MAX_FILE_BYTES + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return ""
    if len(text) > MAX_FILE_BYTES:
        return ""
    try:
        bare = re.sub(_COMMENT, _keep_string, text.decode("utf-8-sig"), flags=re.DOTALL)
        parsed: object = json.loads(re.sub(_COMMA, _keep_string, bare, flags=re.DOTALL))
    except (ValueError, RecursionError):
        return ""
    if not isinstance(parsed, dict):
        return ""
    return next((key for key in sorted(cast("Object", parsed)) if key not in HARMLESS), None)


def _keep_string(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith('"') else " "


def _user_settings(environ: Mapping[str, str]) -> Object:
    config = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME') or Path.home()}/.config"
    path = Path(environ.get("AMP_SETTINGS_FILE") or f"{config}/amp/settings.json")
    try:
        with path.open("rb") as file:
            parsed: object = json.loads(file.read(MAX_FILE_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as problem:
        logger.warning("the user's settings of Amp are not used reason=%s", problem)
        return {}
    return cast("Object", parsed) if isinstance(parsed, dict) else {}


def _rejects(rule: object) -> bool:
    return isinstance(rule, dict) and cast("Object", rule).get("action") == "reject"


def _server(server: Object) -> Object:
    if "url" in server:
        transport: Object = {} if server.get("type") == "http" else {"transport": "sse"}
        return {"url": server["url"], "headers": _pairs(server.get("headers")), **transport}
    return {"command": server.get("command"), "args": server.get("args") or [], "env": _pairs(server.get("env"))}


def _pairs(listed: object) -> Object:
    entries = cast("list[Object]", listed) if isinstance(listed, list) else []
    return {str(each.get("name")): each.get("value") for each in entries}
