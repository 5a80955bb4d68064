"""Keep a folder for each installation, and a file for each agent that names the one in use.

The file is written last and atomically, so an installation exists as a whole or not at all. A folder that no file names
is left over from an interrupted install, or is an earlier installation that may still be running.
"""

import fcntl
import logging
import os
import re
import sys
import time
from collections.abc import Container, Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Literal

import msgspec
from msgspec import Struct, structs

from sandboxagent.core.archives.remove import discard
from sandboxagent.protocol.envelope import Object
from sandboxagent.protocol.json_bounds import read
from sandboxagent.protocol.views import Artifact
from sandboxagent.server.agents.install.tools import bundled_node, make_shims
from sandboxagent.server.agents.launch import REMOVED, Launch, remove_unused
from sandboxagent.server.agents.manifest import Agent

logger = logging.getLogger(__name__)

NODE, FOLDER, PYTHON, SHIMS = "{node}", "{folder}", "{python}", ".node"
# Only folders with such a name are ever deleted: the user may have chosen a directory with other files in it.
_FOLDER = r"\d+-[0-9a-f]{8}"


class Record(Struct, rename="camel", kw_only=True, frozen=True, omit_defaults=True):
    """One installation."""

    agent: str
    folder: str
    title: str
    description: str
    source: Literal["registry", "fallback"]
    version: str
    command: tuple[str, ...]
    """Command with the placeholders `{node}`, `{folder}` and `{python}`, so that the installation may be moved."""
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
    """Note about the source, for example that the registry could not be reached."""
    agent_info: Object = {}
    capabilities: Object = {}

    def is_of(self, agent: Agent) -> bool:
        """Whether the record matches the agent's slugs or pins: agents.toml may have changed since the install."""
        return bool(agent.packages) if self.registry_slug is None else self.registry_slug in agent.registry


class Store:
    """The installations in one directory, which several servers may share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[str, tuple[tuple[int, ...], Record | None]] = {}

    def record(self, agent: str) -> Record | None:
        """Return an agent's installation, if there is one."""
        path = self._file(agent)
        try:
            about = path.stat()
        except OSError:
            return None
        state = (about.st_mtime_ns, about.st_ino, about.st_size)
        known = self._known.get(agent)
        if known is None or known[0] != state:
            known = self._known[agent] = (state, self._read(agent, path))
        record = known[1]
        return record if record is not None and _is_folder(self.folder(record)) else None

    def records(self, known: Container[str] = ()) -> list[Record]:
        """Return the installations of all agents that are not among `known`, in the order of the ids."""
        names = (name for name in self._names() if name not in known)
        return [record for record in map(self.record, names) if record is not None]

    def find_broken(self) -> list[str]:
        """Return the agents whose installation record cannot be read, or whose folder is gone."""
        return [name for name in self._names() if os.access(self._file(name), os.F_OK) and self.record(name) is None]

    def find_spare(self) -> list[Path]:
        """Return the folders that no record uses: of agents that still run, or of installs under way or interrupted."""
        used = {(record.agent, record.folder) for record in self.records()}
        folders = [path for name in self._names() for path in _find_folders(self.directory / name)]
        return [path for path in folders if (path.parent.name, path.name) not in used]

    def folder(self, record: Record) -> Path:
        return self.directory / record.agent / record.folder

    def launch(self, record: Record, agent: Agent, environ: Mapping[str, str]) -> Launch:
        """Return how to start an agent. The user's own variables win, and our Node comes last on PATH."""
        folder = self.folder(record)
        values = {NODE: str(bundled_node().program), FOLDER: str(folder), PYTHON: sys.executable}
        env = {name: _fill(value, values) for name, value in record.env.items() if name not in agent.env}
        path = agent.env.get("PATH") or environ.get("PATH") or os.defpath
        env["PATH"] = f"{path}{os.pathsep}{self.directory / SHIMS}"
        return Launch(tuple(_fill(part, values) for part in record.command), env, folder)

    def shims(self) -> Path:
        """Make or renew the folder with our Node and npm, and return it."""
        return make_shims(self.directory / SHIMS)

    @contextmanager
    def locked(self, agent: str) -> Generator[bool]:
        """Try to lock the agent for installing or removing, across processes. Yield whether that succeeded."""
        self.directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(
            self.directory / f".{agent}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
        finally:
            os.close(descriptor)

    def begin(self, agent: str) -> Path:
        """Make a new folder to install into, beside the existing ones. Needs the lock."""
        folder = self.directory / agent / f"{int(time.time())}-{token_hex(4)}"
        folder.mkdir(parents=True)
        return folder

    def write(self, record: Record) -> None:
        """Write the record to disk, so that it can be committed. May take a while. Needs the lock."""
        new = self._new(record.agent)
        # Always a new file, because an existing one may be a link.
        new.unlink(missing_ok=True)
        with new.open("xb") as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(record)))
            stream.flush()
            os.fsync(stream.fileno())

    def commit(self, record: Record) -> Record:
        """Make the written record the installation in use, and return it with its final paths. Needs the lock."""
        self._new(record.agent).replace(self._file(record.agent))
        return self._placed(record)

    def remove(self, agent: str) -> bool:
        """Forget the installation and delete its files if it is not running. Return False if there was none.

        Needs the lock.
        """
        there = self.record(agent) is not None
        self._file(agent).unlink(missing_ok=True)
        self.clean(agent)
        return there

    def clean(self, agent: str) -> None:
        """Delete all folders that are neither installed nor running. Needs the lock."""
        record = self.record(agent)
        directory = self.directory / agent
        if not directory.is_dir():
            return
        self._new(agent).unlink(missing_ok=True)
        for path in _find_folders(directory):
            if path.name.startswith(REMOVED):  # Its removal was interrupted.
                discard(path)
            elif record is None or path.name != record.folder:
                remove_unused(path)
        with suppress(OSError):  # Not empty.
            directory.rmdir()

    def remove_leftovers(self) -> None:
        """Delete leftovers of interrupted installs, unless an install is under way, and renew the shims.

        Never raises.
        """
        try:
            for name in [each.name for each in self.directory.iterdir() if _find_folders(each)]:
                self._sweep_agent(name)
            if (self.directory / SHIMS).is_dir():
                self.shims()
        except FileNotFoundError:
            return
        except OSError as error:
            # Installed agents can be used all the same: a directory of an image is often read-only.
            logger.warning("agents not swept path=%s reason=%s", self.directory, error.strerror)
        except Exception:
            # A package's content must never keep a server from starting.
            logger.exception("agents not swept path=%s", self.directory)

    def _sweep_agent(self, name: str) -> None:
        try:
            with self.locked(name) as ours:
                if ours:
                    self.clean(name)
        except OSError as error:
            logger.warning("agent not swept path=%s reason=%s", self.directory / name, error.strerror)

    def _names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self.directory) if name[0] != ".")
        except OSError:
            return []

    def _file(self, agent: str) -> Path:
        return self.directory / agent / "installed.json"

    def _new(self, agent: str) -> Path:
        return self._file(agent).with_suffix(".new")

    def _read(self, agent: str, path: Path) -> Record | None:
        try:
            record = read(path.read_bytes(), Record)
        except (OSError, UnicodeDecodeError, msgspec.DecodeError):
            # Of another version, or broken. It counts as not installed, and the next install repairs it.
            return None
        usable = record.agent == agent and re.fullmatch(_FOLDER, record.folder) and record.artifacts
        return self._placed(record) if usable else None

    def _placed(self, record: Record) -> Record:
        values = {FOLDER: str(self.folder(record))}
        artifacts = [structs.replace(each, path=each.path and _fill(each.path, values)) for each in record.artifacts]
        return structs.replace(record, artifacts=artifacts)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # We have no permission to read it.
        return False


def _find_folders(directory: Path) -> list[Path]:
    """Return the folders of installations in an agent's directory, including those that are being removed."""
    try:
        return [path for path in directory.iterdir() if re.fullmatch(_FOLDER, path.name.removeprefix(REMOVED))]
    except (NotADirectoryError, PermissionError):
        return []


def now() -> str:
    """Return the current time, as records and views write it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fill(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text
