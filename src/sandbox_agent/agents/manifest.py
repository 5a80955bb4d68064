"""The agents we know: manifest.toml of this package, and the user's agents.toml, which adds to it and changes it.

Knows what an agent is and which environment its process gets; does not install or start anything.
"""

import json
import re
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, cast

import msgspec
from msgspec import Meta, structs

from sandbox_agent import __version__
from sandbox_agent.errors import SettingsError, UnknownAgent
from sandbox_agent.settings.files import did_you_mean, line_of, read_toml
from sandbox_agent.settings.options import PREFIX

Isolation = Literal["agent", "session"]
Source = Literal["bundled", "path", "fallback"]

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
Text = Annotated[str, Meta(pattern=r"^[^\x00]*$")]
Name = Annotated[str, Meta(pattern=r"^[^\x00=]+$")]

# What every agent may see of the server's environment.
_ALLOWED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "COLORTERM", "TMPDIR", "TZ"),
    *("LANG", "LANGUAGE", "LC_*", "XDG_*"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
)

# The keys of agents.toml: what is expected, and what it means.
KEYS = {
    "command": (
        "a list of texts, the program first",
        "A program that speaks ACP on stdio, and its arguments; run as is: no shell, the server's working directory.",
    ),
    "env": ("a table of texts", "Variables added to its environment."),
    "title": ("a text", "Name to show to people."),
    "description": ("a text", "What people should know about it."),
    "isolation": ('"agent" or "session"', "One process for all its sessions, or one for each."),
    "credentials": (
        "a list of names of variables",
        "Variables of the server's environment that it may see, any one of which lets it reach a model.",
    ),
    "variables": (
        "a list of names of variables",
        "Further variables of the server's environment that it may see; `MY_*` is understood.",
    ),
    "echoes_prompts": ("true or false", "Whether it sends a prompt's text back as an update."),
    "any_model": ("true or false", "Whether it takes models that are not in its list."),
}


class OwnAgent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `[agents.<id>]` may hold in agents.toml."""

    command: Annotated[tuple[Text, ...], Meta(min_length=1)] | None = None
    env: dict[Name, Text] = {}
    title: str | None = None
    description: str | None = None
    isolation: Isolation | None = None
    credentials: tuple[Name, ...] | None = None
    variables: tuple[Name, ...] | None = None
    echoes_prompts: bool | None = None
    any_model: bool | None = None


class Package(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A package, pinned."""

    name: str
    version: str
    index: Literal["npm", "pypi"] = "npm"


class KnownAgent(OwnAgent, frozen=True, forbid_unknown_fields=True):
    """What `[agents.<id>]` may hold in manifest.toml."""

    bundled: bool = False
    registry: str | None = None
    packages: tuple[Package, ...] = ()
    supported: bool = True
    unsupported_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent. `command` is None as long as there is nothing to run; `instructions` say how to get there."""

    id: str
    title: str
    description: str
    source: Source
    command: tuple[str, ...] | None
    env: Mapping[str, str] = field(repr=False)
    isolation: Isolation
    credentials: tuple[str, ...]
    variables: tuple[str, ...]
    echoes_prompts: bool | None
    any_model: bool
    registry: str | None
    packages: tuple[Package, ...]
    version: str | None
    supported: bool
    unsupported_reason: str | None
    instructions: str

    @property
    def path(self) -> str | None:
        """The program that would run now; None when there is none."""
        return None if self.command is None else shutil.which(self.command[0], path=self.env.get("PATH"))

    @property
    def installed(self) -> bool:
        return self.path is not None


@dataclass(frozen=True, slots=True)
class Manifest:
    """All agents: those of the package in its order, then the user's own."""

    agents: tuple[Agent, ...]
    _by_id: dict[str, Agent] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {agent.id: agent for agent in self.agents})

    def agent(self, id: str) -> Agent:
        """The agent of that id, or UnknownAgent, which lists them all."""
        agent = self._by_id.get(id)
        if agent is None:
            raise UnknownAgent(id, list(self._by_id))
        return agent


def load_manifest(agents_file: Path | None) -> Manifest:
    """The package's agents and those of the user's file; a missing file is an empty one.

    Raises SettingsError, which names the file, the line and the key.
    """
    content, _ = read_toml(Path(__file__).with_name("manifest.toml"))
    known = msgspec.convert(content["agents"], dict[str, KnownAgent])
    own = {} if agents_file is None else _OwnAgents(agents_file).read(known)
    ids = [*known, *(id for id in own if id not in known)]
    return Manifest(tuple(_agent(id, known.get(id), own.get(id), agents_file) for id in ids))


def _agent(id: str, known: KnownAgent | None, own: OwnAgent | None, agents_file: Path | None) -> Agent:
    known, own = known or KnownAgent(), own or OwnAgent()
    if own.command is not None:  # Another program: what we knew of ours says nothing about it.
        known = structs.replace(
            known, bundled=False, packages=(), registry=None, supported=True, unsupported_reason=None
        )
    changed = {key: value for key, value in structs.asdict(own).items() if value is not None}
    entry = structs.replace(known, **changed | {"env": {**known.env, **own.env}})
    source: Source = "path" if own.command is not None else "bundled" if known.bundled else "fallback"
    command = tuple(sys.executable if part == "{python}" and known.bundled else part for part in entry.command or ())
    return Agent(
        id=id,
        title=entry.title or id,
        description=entry.description or "",
        source=source,
        command=None if source == "fallback" else command,
        env=entry.env,
        isolation=entry.isolation or "agent",
        credentials=entry.credentials or (),
        variables=entry.variables or (),
        echoes_prompts=entry.echoes_prompts,
        any_model=bool(entry.any_model),
        registry=entry.registry,
        packages=entry.packages,
        version=__version__ if entry.bundled else entry.packages[0].version if entry.packages else None,
        supported=entry.supported,
        unsupported_reason=entry.unsupported_reason,
        instructions=_instructions(id, source, entry, agents_file or Path("agents.toml")),
    )


def _instructions(id: str, source: Source, entry: KnownAgent, agents_file: Path) -> str:
    command = json.dumps(entry.command, ensure_ascii=False)
    if source == "bundled":
        return "nothing to install: it comes with sandbox-agent"
    if source == "path":
        return f"{agents_file} runs {command}; that program must be on PATH, or be a path that exists"
    if not entry.supported:
        return f"not supported: {entry.unsupported_reason}"
    npm = [f"{each.name}@{each.version}" for each in entry.packages if each.index == "npm"]
    pypi = [f"{each.name}=={each.version}" for each in entry.packages if each.index == "pypi"]
    steps = [f"npm install --prefix DIR {' '.join(npm)}"] if npm else []
    steps += [f"pip install --prefix DIR {' '.join(pypi)}"] if pypi else []
    folder = "DIR/node_modules/.bin" if npm else "DIR/bin"
    parts = [f"{folder}/{part}" if at == 0 else part for at, part in enumerate(entry.command or ())]
    line = f"agents.{id}.command = {json.dumps(parts, ensure_ascii=False)}"
    return f"run {', then '.join(steps)} (DIR: a folder of yours), and add to {agents_file}: {line}"


class _OwnAgents:
    """Reads agents.toml; each complaint names the file, the line and the key."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content, self._text = read_toml(path)

    def read(self, known: Collection[str]) -> dict[str, OwnAgent]:
        for key in self._content:
            if key != "agents":
                raise self._wrong([key], f"unknown key {key}; an agent is a table [agents.<id>]")
        agents = self._table(["agents"], self._content.get("agents", {}), "expected tables [agents.<id>]")
        return {id: self._agent(id, raw, known) for id, raw in agents.items()}

    def _agent(self, id: str, raw: object, known: Collection[str]) -> OwnAgent:
        if not _ID.fullmatch(id):
            rule = "use a-z, 0-9, '.', '_' and '-', at most 64 of them and no punctuation in front"
            raise self._wrong(["agents", id], f"{id!r} cannot be the id of an agent; {rule}")
        table = self._table(["agents", id], raw, f"expected a table [agents.{id}]")
        types = {info.name: cast("type", info.type) for info in structs.fields(OwnAgent)}
        for key, value in table.items():
            if key not in types:
                raise self._unknown(id, key, value)
            self._check(id, key, value, types[key])
        if "command" not in table and id not in known:
            raise self._wrong(["agents", id], f"agent {id} has no command, which is {KEYS['command'][0]}")
        return msgspec.convert(table, OwnAgent)

    def _unknown(self, id: str, key: str, value: object) -> SettingsError:
        quoted = f'; an id with a dot is quoted: [agents."{id}.{key}"]' if isinstance(value, dict) else ""
        hint = quoted or did_you_mean(key, KEYS)
        return self._wrong(["agents", id, key], f"unknown key {key} of agent {id} (known: {', '.join(KEYS)}){hint}")

    def _check(self, id: str, key: str, value: object, expected: type) -> None:
        try:
            msgspec.convert(value, expected)
        except msgspec.ValidationError:
            got = "" if key == "env" else f", got {value!r:.100}"  # There may be secrets in it.
            complaint = f"{key} of agent {id}: expected {KEYS[key][0]}{got}"
            raise self._wrong(["agents", id, key], complaint) from None

    def _table(self, keys: Sequence[str], raw: object, expected: str) -> dict[str, object]:
        if not isinstance(raw, dict):
            raise self._wrong(keys, expected)
        return cast("dict[str, object]", raw)

    def _wrong(self, keys: Sequence[str], complaint: str) -> SettingsError:
        return SettingsError(f"{self._path}, line {line_of(self._text, keys)}: {complaint}")


def child_environment(
    agent: Agent, environ: Mapping[str, str], extra: Mapping[str, str], secrets: Collection[str] = ()
) -> dict[str, str]:
    """The environment of an agent's process: what it may see of the server's, then its own `env`, then `extra`.

    Nothing of the server's own settings, and no value that is one of `secrets`, wherever it comes from.
    """
    patterns = (*_ALLOWED, *agent.credentials, *agent.variables)
    seen = {
        name: value
        for name, value in environ.items()
        if not name.startswith(PREFIX) and any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    return {name: value for name, value in {**seen, **agent.env, **extra}.items() if value not in secrets}
