"""Amp's settings for one turn: the user's own, and that Amp asks us before it uses a tool.

Amp also reads `.amp/settings.json` of the directory that it works in, and lets that win. A repository could so switch
all asking off, or name programs to run: with such a file nothing is started.
"""

import json
import logging
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from sandbox_agent.agents.stdio import Object

LARGEST = 1 << 20
"""Bytes of a settings file that is read."""
PERMISSIONS, ALLOW_ALL, SERVERS = "amp.permissions", "amp.dangerouslyAllowAll", "amp.mcpServers"
WEAKENING = ("permissions", "dangerouslyAllowAll", "toolbox", "mcpPermissions")
"""Parts of the keys by which a workspace could allow itself things."""

logger = logging.getLogger(__name__)


class UntrustedWorkspace(Exception):
    """The workspace has settings that would take permissions out of our hands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = f"{path} has settings about permissions, which Amp would obey without asking; remove them to use Amp"
        super().__init__(text)


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
    """Raises UntrustedWorkspace when settings of the workspace could allow what we have not been asked about.

    Looks where Amp does and further up: up to the root, whatever Amp takes for the root of a repository.
    """
    folder = Path(directory).resolve()
    for parent in (folder, *folder.parents):
        for name in ("settings.json", "settings.jsonc"):
            path = parent / ".amp" / name
            if _weakens(path):
                raise UntrustedWorkspace(path)


def _weakens(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            text = file.read(LARGEST + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    # Not parsed: Amp takes comments and more. Without escapes, a key is in the text as it is.
    return not text or len(text) > LARGEST or b"\\u" in text or any(word.encode() in text for word in WEAKENING)


def _user_settings(environ: Mapping[str, str]) -> Object:
    config = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME') or Path.home()}/.config"
    path = Path(environ.get("AMP_SETTINGS_FILE") or f"{config}/amp/settings.json")
    try:
        with path.open("rb") as file:
            parsed: object = json.loads(file.read(LARGEST))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
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
