"""Answer on a socket whether Amp may use a tool: `delegate.py` asks there.

The socket is in a directory that only this user can enter, takes connections of this user alone, and each turn has a
secret of its own. Everything unclear is refused.
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
"""Bytes of a question: what a gate may send, escaped."""
MAX_SOCKET_PATH = 100
"""The longest path of a socket that every kernel takes, in bytes."""

PREFIX = "sandbox-agent-amp-"
STALE_TIMEOUT = 60.0
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
        self._server = await asyncio.start_unix_server(self._answer, self._path, limit=MAX_QUESTION_BYTES)
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
        gate = [sys.executable, "-I", "-S", str(Path(__file__).with_name("delegate.py")), str(self._path), secret]
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
            if len(os.fsencode(made)) + 6 <= MAX_SOCKET_PATH:
                return made
            made.rmdir()
    raise OSError("there is no place for a socket: the path of the directory for temporary files is too long")


def _sweep(parent: Path) -> None:
    """Remove what killed adapters have left: their settings may hold secrets."""
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
    """Whether a process of this user is at the other end."""
    connection = cast("socket.socket", writer.get_extra_info("socket"))
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return user == os.getuid()


def _write(path: Path, text: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
