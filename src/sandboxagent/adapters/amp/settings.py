"""Write Amp's settings for a turn, and refuse a workspace whose settings could undo them.

Amp also reads `.amp/settings.json` of its working directory, which has precedence. It also runs plugins of a
repository, and the MCP servers of skills. A repository could turn off all requests for permission, or name programs to
run. If it has anything but settings that are known to be harmless, Amp is not started.
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
"""Maximum bytes of a settings file that is read."""


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
"""Settings that a workspace may have. Others may run programs (`amp.mcpServers`, `amp.hooks`, `amp.toolbox.path`),
allow tools (`amp.permissions`, `amp.guardedFiles.allowlist`), or send Amp's key elsewhere (`amp.url`, `amp.proxy`)."""
RUNNING = (
    ".amp/plugins/*",
    *(f"{skills}/{depth}mcp.json" for skills in (".agents/skills", ".claude/skills") for depth in ("*/", "*/*/")),
)
"""Files of a workspace that Amp runs, or that name programs to run: plugins, and the MCP servers of skills."""
_COMMENT = r'"(?:[^"\\]|\\.)*(?:"|\Z)|//[^\n\r\u2028\u2029]*|/\*.*?(?:\*/|\Z)'
"""Strings, which stay, and comments, which JSON does not have."""
_COMMA = r'"(?:[^"\\]|\\.)*(?:"|\Z)|,(?=\s*[}\]])'
"""Strings, which stay, and commas at the end of a list or object, which JSON does not have."""


class UntrustedWorkspace(Exception):
    """The workspace has a file with which Amp could act without asking for permission."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        super().__init__(f"{path} {what} without asking; remove it to use Amp")


def turn_settings(environ: Mapping[str, str], gate: Path, servers: Sequence[Object]) -> str:
    """Return the settings file of a turn. `servers` are the session's MCP servers in ACP's form."""
    own = _user_settings(environ)
    delegate: Object = {"tool": "*", "action": "delegate", "to": str(gate)}
    mine = own.get(PERMISSIONS)
    # Keep the user's rules that reject. Rules that allow are dropped: the server's rules and clients decide.
    rejecting = [rule for rule in cast("list[object]", mine) if _rejects(rule)] if isinstance(mine, list) else []
    known = own.get(SERVERS)
    all_servers = {**(cast("Object", known) if isinstance(known, dict) else {}), **mcp_servers(servers)}
    quiet: Object = {"amp.updates.mode": "disabled", "amp.notifications.enabled": False}
    ours: Object = {ALLOW_ALL: False, PERMISSIONS: [*rejecting, delegate], SERVERS: all_servers}
    return json.dumps({**own, **quiet, **ours})


def mcp_servers(servers: Sequence[Object]) -> Object:
    """Convert MCP servers from ACP's form to Amp's."""
    return {str(server.get("name")): _server(server) for server in servers}


def check_workspace(directory: str) -> None:
    """Raise UntrustedWorkspace if a file in the workspace could run programs or allow tools without a request.

    It checks all parent directories up to the root, because Amp's own root of a repository may be any of them. Plugins
    and skills in the home directory are the user's own.
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
    """Return a setting that is not known to be harmless; empty if the file cannot be understood, None if all are."""
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
