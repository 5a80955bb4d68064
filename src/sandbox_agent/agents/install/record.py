"""What is installed, and where: a folder for each installation, and a file for each agent that names the one in use.

The file is written last and at once, so an installation is there whole or not at all; a folder that no file names is
what somebody who was killed left behind, or a predecessor that may still be running.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from sandbox_agent.agents.launch import IN_USE, Launch
from sandbox_agent.agents.node import bundled_node, make_shims
from sandbox_agent.envelope import Object

NODE, FOLDER, SHIMS = "{node}", "{folder}", ".node"


class Artifact(Struct, rename="camel", kw_only=True, frozen=True):
    """One program that an agent needs."""

    kind: Literal["agent_process", "native"]
    name: str
    version: str | None
    path: str | None
    source: str
    sha256: str | UnsetType = UNSET
    integrity: str | UnsetType = UNSET
    """What npm checked the package against."""


class Record(Struct, rename="camel", kw_only=True, frozen=True, omit_defaults=True):
    """One installation."""

    agent: str
    folder: str
    title: str
    description: str
    source: Literal["registry", "fallback"]
    version: str
    command: tuple[str, ...]
    """With `{node}` and `{folder}` in it, so that all of it may be moved."""
    env: dict[str, str]
    artifacts: list[Artifact]
    installed_at: str
    verified_at: str
    platform: str
    node: str
    registry_slug: str | None = None
    package: str | None = None
    native_version: str | None = None
    note: str | None = None
    """What is to be said about where it came from: a registry that could not be reached, for one."""
    agent_info: Object = {}
    capabilities: Object = {}


class Store:
    """The installations in one directory, which several servers may share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[str, tuple[int, Record | None]] = {}

    def record(self, agent: str) -> Record | None:
        """What is installed of an agent."""
        path = self._file(agent)
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            return None
        known = self._known.get(agent)
        if known is None or known[0] != changed:
            known = self._known[agent] = (changed, _read(path))
        record = known[1]
        return record if record is not None and self.folder(record).is_dir() else None

    def agents(self) -> list[str]:
        """The ids of what is installed."""
        try:
            names = sorted(each.parent.name for each in self.directory.glob("*/installed.json"))
        except OSError:
            return []
        return [name for name in names if self.record(name) is not None]

    def folder(self, record: Record) -> Path:
        return self.directory / record.agent / record.folder

    def launch(self, record: Record, path: str | None) -> Launch:
        """How to start it; our Node comes last on its PATH, for what it starts by name."""
        folder = self.folder(record)
        values = {NODE: str(bundled_node().program), FOLDER: str(folder)}
        env = {name: _filled(value, values) for name, value in record.env.items()}
        env["PATH"] = f"{path or os.defpath}{os.pathsep}{self.directory / SHIMS}"
        return Launch(tuple(_filled(part, values) for part in record.command), env, folder)

    def shims(self) -> Path:
        """The folder with our Node and npm, as they are now."""
        return make_shims(self.directory / SHIMS)

    @contextmanager
    def locked(self, agent: str) -> Generator[bool]:
        """Try to be the only one, in any process, who installs or removes this agent; gives whether we are."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.directory / f".{agent}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
        finally:
            os.close(descriptor)

    def begin(self, agent: str) -> Path:
        """A new folder to install into, beside what is there."""
        folder = self.directory / agent / f"{int(time.time())}-{token_hex(4)}"
        folder.mkdir(parents=True, mode=0o700)
        return folder

    def commit(self, record: Record) -> None:
        """From now on, this is what is installed. Needs the lock."""
        file = self._file(record.agent)
        made = file.with_suffix(".new")
        with made.open("wb") as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(record)))
            stream.flush()
            os.fsync(stream.fileno())
        made.replace(file)

    def remove(self, agent: str) -> bool:
        """Forget what is installed, and delete what nobody runs; False when there was nothing. Needs the lock."""
        there = self.record(agent) is not None
        self._file(agent).unlink(missing_ok=True)
        self.clean(agent)
        return there

    def clean(self, agent: str) -> None:
        """Delete what is neither installed nor running. Needs the lock."""
        record = self.record(agent)
        directory = self.directory / agent
        for path in directory.glob("*/"):
            if (record is None or path.name != record.folder) and not _in_use(path):
                shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):  # Not empty.
            directory.rmdir()

    def sweep(self) -> None:
        """Delete what interrupted installs left, of all agents that nobody is installing now."""
        if not self.directory.is_dir():
            return
        for directory in self.directory.iterdir():
            if directory.is_dir() and not directory.name.startswith("."):
                with self.locked(directory.name) as ours:
                    if ours:
                        self.clean(directory.name)

    def _file(self, agent: str) -> Path:
        return self.directory / agent / "installed.json"


def now() -> str:
    """The time, as records and views write it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _read(path: Path) -> Record | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        # Of another version, or broken: as good as not installed, and the next install puts it right.
        return None


def _filled(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _in_use(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / IN_USE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
