"""Answer on a socket whether Amp may use a tool.

Amp runs `delegate.py`, which asks on this socket. The socket is in a directory that only this user can enter, and
accepts only connections of this user. Each turn has its own secret. Everything unclear is rejected.
"""

import asyncio
import json
import logging
import os
import shlex
import shutil
import socket
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import cast

from sandboxagent.adapters.stdio import Object

MAX_QUESTION_BYTES = 96 << 20
"""Maximum bytes of a question. It has room for the arguments that `delegate.py` accepts, escaped as JSON."""
MAX_SOCKET_PATH_BYTES = 100
"""Maximum bytes of a socket's path that every kernel accepts."""

PREFIX = "sandbox-agent-amp-"
STALE_TIMEOUT = 60.0
"""Seconds for which a directory without a listener stays: its adapter may not listen yet."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a tool, about which Amp asks."""

    tool: str
    id: str | None
    arguments: Object


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether Amp may use the tool; `reason` is for the model."""

    allow: bool
    reason: str = ""


Judge = Callable[[Use], Awaitable[Verdict]]


class TurnFiles:
    """The two files of one turn: the delegate program, which asks, and Amp's settings, which name that program."""

    def __init__(self, program: Path, settings: Path) -> None:
        self.program = program
        self.settings = settings

    def write_settings(self, text: str) -> None:
        """Write the settings of this turn so that only this user can read them: they may contain secrets."""
        _write(self.settings, text, 0o600)


class PermissionSocket:
    """A server for the delegate programs. It listens within a block of `async with`."""

    def __init__(self) -> None:
        self._judges: dict[str, Judge] = {}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "PermissionSocket":
        self._directory = _private_directory()
        self._path = self._directory / "gate"
        # The directory keeps other users out even before the mode of the socket is set.
        self._server = await asyncio.start_unix_server(self._answer, self._path, limit=MAX_QUESTION_BYTES)
        self._path.chmod(0o600)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def open_turn(self, judge: Judge) -> tuple[str, TurnFiles]:
        """Let a judge decide for one turn; return the turn's secret, which `revoke` needs, and the files for Amp."""
        secret = token_hex(24)
        folder = self._directory / secret[:12]
        folder.mkdir(mode=0o700)
        program = folder / "ask"
        gate = [sys.executable, "-I", "-S", str(Path(__file__).with_name("delegate.py")), str(self._path), secret]
        _write(program, f"#!/bin/sh\nexec {shlex.join(gate)}\n", 0o700)
        self._judges[secret] = judge
        return secret, TurnFiles(program, folder / "settings.json")

    def revoke(self, secret: str) -> None:
        """Allow nothing more under a secret, and delete the files that were written for it."""
        self._judges.pop(secret, None)
        shutil.rmtree(self._directory / secret[:12], ignore_errors=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        verdict = Verdict(False)
        try:
            if _is_ours(writer):
                verdict = await self._judge(reader)
        except Exception:
            logger.exception("a request about a tool could not be answered")
        answer = {"allow": verdict.allow, "reason": verdict.reason}
        with suppress(OSError):
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _judge(self, reader: asyncio.StreamReader) -> Verdict:
        line = await reader.readline()
        if not line:  # Another adapter connects only to see whether this one is alive.
            return Verdict(False)
        question = cast("Object", json.loads(line))
        judge = self._judges.get(str(question.get("secret")))
        tool, id, arguments = question.get("tool"), question.get("id"), question.get("arguments")
        if judge is None or not isinstance(tool, str) or not isinstance(arguments, dict):
            return Verdict(False)
        use = Use(tool, id if isinstance(id, str) else None, cast("Object", arguments))
        judging = asyncio.ensure_future(judge(use))
        # The delegate sends nothing more. If its side closes, Amp has given up, and the answer is of no use.
        leaving = asyncio.ensure_future(reader.read(1))
        await asyncio.wait({judging, leaving}, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if not judging.done():
            judging.cancel()
            return Verdict(False)
        return judging.result()


def _private_directory() -> Path:
    """Make and return a directory for this user alone, with a path that is short enough for a socket in it."""
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), None, "/tmp"):  # noqa: S108
        with suppress(OSError):
            made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            _sweep(made.parent)
            if len(os.fsencode(made)) + 6 <= MAX_SOCKET_PATH_BYTES:
                return made
            made.rmdir()
    raise OSError("there is no place for a socket: the path of the directory for temporary files is too long")


def _sweep(parent: Path) -> None:
    """Remove the directories of killed adapters: the settings in them may contain secrets."""
    for left in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            about = left.lstat()
            old = time.time() - about.st_mtime > STALE_TIMEOUT
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
    """Return whether a process of this user is at the other end."""
    connection = cast("socket.socket", writer.get_extra_info("socket"))
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return user == os.getuid()


def _write(path: Path, text: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
