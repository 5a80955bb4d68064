"""The door between Amp and the adapter: a socket on which the gate (`gate.py`) asks whether a tool may be used.

The socket is in a directory that only this user can enter, takes connections of this user alone, and each turn has a
secret of its own. Everything unclear is refused.

Amp's settings for a turn make it ask there. Amp also reads `.amp/settings.json` of the directory that it works in, and
lets that win; and it runs what a repository has for it: plugins, and the MCP servers of skills. A repository could
switch all asking off, or name programs to run. Where it does anything but set what is known to be harmless, nothing is
started.
"""

import asyncio
import json
import logging
import os
import re
import shlex
import shutil
import socket
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import cast

from sandbox_agent.agents.stdio import Object

LONGEST = 96 << 20
"""Bytes of a question: what a gate may send, escaped."""
SOCKET_PATH = 100
"""The longest path of a socket that every kernel takes, in bytes."""

PREFIX = "sandbox-agent-amp-"
YOUNG = 60.0
"""Seconds in which a directory may belong to an adapter that does not listen yet."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Use:
    """The use of a tool that Amp asks about."""

    tool: str
    id: str | None
    arguments: Object


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether it may; `reason` is for the model."""

    allow: bool
    reason: str = ""


Judge = Callable[[Use], Awaitable[Verdict]]


class Pass:
    """What one turn of Amp needs to ask: the program that its settings name as the delegate."""

    def __init__(self, program: Path, settings: Path) -> None:
        self.program = program
        self.settings = settings

    def write_settings(self, text: str) -> None:
        """Put the settings of this turn where only this user can read them: they may hold secrets."""
        _write(self.settings, text, 0o600)


class Doorway:
    """Listens for gates, as long as a block of `async with` lasts."""

    def __init__(self) -> None:
        self._judges: dict[str, Judge] = {}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "Doorway":
        self._directory = _private_directory()
        self._path = self._directory / "gate"
        # The directory keeps others out even before the mode of the socket is set.
        self._server = await asyncio.start_unix_server(self._answer, self._path, limit=LONGEST)
        self._path.chmod(0o600)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def admit(self, judge: Judge) -> tuple[str, Pass]:
        """From now on this judge decides for gates with the secret: a key to revoke it, and what to give to Amp."""
        secret = token_hex(24)
        folder = self._directory / secret[:12]
        folder.mkdir(mode=0o700)
        program = folder / "ask"
        gate = [sys.executable, "-I", "-S", str(Path(__file__).with_name("gate.py")), str(self._path), secret]
        _write(program, f"#!/bin/sh\nexec {shlex.join(gate)}\n", 0o700)
        self._judges[secret] = judge
        return secret, Pass(program, folder / "settings.json")

    def revoke(self, secret: str) -> None:
        """Nothing is allowed under this secret any more, and what was written for it is gone."""
        self._judges.pop(secret, None)
        shutil.rmtree(self._directory / secret[:12], ignore_errors=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        verdict = Verdict(False)
        try:
            if _is_ours(writer):
                verdict = await self._judge(reader)
        except Exception:
            logger.exception("a gate could not be answered")
        answer = {"allow": verdict.allow, "reason": verdict.reason}
        with suppress(OSError):
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _judge(self, reader: asyncio.StreamReader) -> Verdict:
        line = await reader.readline()
        if not line:  # Another adapter looks whether this one is alive.
            return Verdict(False)
        question = cast("Object", json.loads(line))
        judge = self._judges.get(str(question.get("secret")))
        tool, id, arguments = question.get("tool"), question.get("id"), question.get("arguments")
        if judge is None or not isinstance(tool, str) or not isinstance(arguments, dict):
            return Verdict(False)
        use = Use(tool, id if isinstance(id, str) else None, cast("Object", arguments))
        judging = asyncio.ensure_future(judge(use))
        # The gate sends no more: when its side ends, Amp has given up, and the answer is of no use.
        leaving = asyncio.ensure_future(reader.read(1))
        await asyncio.wait({judging, leaving}, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if not judging.done():
            judging.cancel()
            return Verdict(False)
        return judging.result()


def _private_directory() -> Path:
    """A new directory for this user alone, whose path is short enough for a socket in it."""
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), None, "/tmp"):  # noqa: S108
        with suppress(OSError):
            made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            _sweep(made.parent)
            if len(os.fsencode(made)) + 6 <= SOCKET_PATH:
                return made
            made.rmdir()
    raise OSError("there is no place for a socket: the path of the directory for temporary files is too long")


def _sweep(parent: Path) -> None:
    """Remove what killed adapters have left: their settings may hold secrets."""
    for left in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            about = left.lstat()
            old = time.time() - about.st_mtime > YOUNG
            if old and about.st_uid == os.getuid() and stat.S_ISDIR(about.st_mode) and not _is_served(left / "gate"):
                shutil.rmtree(left, ignore_errors=True)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


def _is_ours(writer: asyncio.StreamWriter) -> bool:
    """Whether a process of this user is at the other end."""
    connection = cast("socket.socket", writer.get_extra_info("socket"))
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return user == os.getuid()


def _write(path: Path, text: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


LARGEST = 1 << 20
"""Bytes of a settings file that is read."""
PERMISSIONS, ALLOW_ALL, SERVERS = "amp.permissions", "amp.dangerouslyAllowAll", "amp.mcpServers"
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
            text = file.read(LARGEST + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return ""
    if len(text) > LARGEST:
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
            parsed: object = json.loads(file.read(LARGEST))
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
