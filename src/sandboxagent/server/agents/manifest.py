"""Read the known agents from manifest.toml of this package and from the user's agents.toml.

The user's file adds agents and changes ours. This module defines agents; it does not install or start any.
"""

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, cast

import msgspec
from msgspec import Meta, Struct, field, structs

from sandboxagent.core.settings.sources import did_you_mean, line_of, read_toml
from sandboxagent.protocol.errors import SettingsError
from sandboxagent.protocol.views import Attaching, Features, Isolation, Source

_ID = r"[a-z0-9][a-z0-9._-]{0,63}"
Text = Annotated[str, Meta(pattern=r"^[^\x00]*$")]
Name = Annotated[str, Meta(pattern=r"^[^\x00=]+$")]
Slugs = str | tuple[str, ...]
Dialect = Literal["qwen", "opencode"]
"""Names of the dialects: known agents that ask questions in a form of their own."""


# The keys of agents.toml: expected value and meaning.
KEYS = {
    "command": (
        "a list of texts, the program first",
        "A program that speaks ACP on stdio, and its arguments; run as is: no shell, the server's working directory.",
    ),
    "registry": (
        "a slug of the ACP registry, or [] for none",
        "Install it by that slug, instead of naming a command; `[]` installs what sandbox-agent pins.",
    ),
    "env": ("a table of texts", "Variables added to its environment."),
    "title": ("a text", "Name to show to people."),
    "description": ("a text", "What people should know about it."),
    "isolation": (
        '"agent" or "session"',
        "One process for all its sessions, or one for each.",
    ),
    "credentials": (
        "a list of names of variables",
        "Variables of the server's environment that it may see, any one of which lets it reach a model.",
    ),
    "credential_files": (
        "a list of paths",
        "Files, any one of which lets it reach a model as well; `~` and `$NAME` are understood.",
    ),
    "variables": (
        "a list of names of variables",
        "Further variables of the server's environment that it may see; `MY_*` is understood.",
    ),
    "echoes_prompts": ("true or false", "Whether it sends a prompt's text back as an update."),
    "any_model": ("true or false", "Whether it takes models that are not in its list."),
    "dialect": (
        '"qwen" or "opencode"',
        "The known agent whose own way of asking questions it has; the server translates that.",
    ),
    "attachments": (
        '"link", "file-link", "text-link" or "text"',
        "Attachments that it gets as links: all, files, short text files, or none; the rest is named in the text.",
    ),
}


class OwnAgent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of `[agents.<id>]` in agents.toml."""

    command: Annotated[tuple[Text, ...], Meta(min_length=1)] | None = None
    registry: Slugs | None = None
    env: dict[Name, Text] = {}
    title: str | None = None
    description: str | None = None
    isolation: Isolation | None = None
    credentials: tuple[Name, ...] | None = None
    credential_files: tuple[Text, ...] | None = None
    variables: tuple[Name, ...] | None = None
    echoes_prompts: bool | None = None
    any_model: bool | None = None
    dialect: Dialect | None = None
    attachments: Attaching | None = None


class Package(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pinned package of npm or PyPI. `{platform}` in its name stands for the machine's platform."""

    name: str
    version: str
    index: Literal["npm", "pypi"] = "npm"
    integrity: str | dict[str, str] | None = None
    """Digest that npm must find, where that is known; by platform when the name depends on the platform."""
    program: str | None = None
    """Path of the program in the package, if package.json does not name that program by the command's name."""
    optional: bool = True
    """Whether the optional dependencies of the package are installed."""


class Native(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The agent itself, if the first package is an adapter to it."""

    name: str
    program: str
    env: str
    """Variable that gives the adapter the path of the agent."""
    version: str | None = None
    """Version of the agent; None if the adapter brings its own. In that case another is installed only on request."""
    inside: str | None = None
    """Package in which the adapter brings the agent."""
    found_in: str | None = None
    """Package that has the program then; `inside` unless given."""
    version_field: str = "version"
    integrity: str | None = None


class Binary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The program for this machine, if a script of the agent's packages starts it."""

    package: str
    """Package that has the program. `{platform}` stands for the machine's platform."""
    program: str
    """Path of the program in the package. `*` stands for a folder of any name."""


class Adapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program of ours that speaks ACP, if the first package is an agent that does not."""

    module: str
    env: str
    """Variable that gives it the path of the agent. The same name with `_VERSION` has the agent's version."""


class KnownAgent(OwnAgent, frozen=True, forbid_unknown_fields=True):
    """The keys of `[agents.<id>]` in manifest.toml."""

    bundled: bool = False
    packages: tuple[Package, ...] = ()
    native: Native | None = None
    binary: Binary | None = None
    adapter: Adapter | None = None
    platforms: tuple[str, ...] = ()
    random_env: tuple[str, ...] = ()
    not_offered: tuple[Literal["fs", "terminal"], ...] = ()
    """Capabilities of the host that the agent misuses. They are not offered, so that it uses its own."""
    refuses: tuple[str, ...] = ()
    """Proprietary requests that no client can answer, so they are refused."""
    tells_kinds: bool = True
    """Whether the agent's requests for permission name the kind of the tool."""
    permission_modes: dict[str, str] = {}
    """Further names that clients may use as `permissionMode`, and the agent's own modes that they mean."""
    replays_late: bool = False
    """Whether the agent answers `session/load` before it has repeated the past. It announces its commands last."""
    features: Features | None = None
    command_in_title: bool = False
    """Whether the agent gives a command that it asks for only in the title of the tool call."""
    supported: bool = True
    unsupported_reason: str | None = None


class Agent(Struct, frozen=True, kw_only=True):
    """One agent, which `command` starts. An agent that is neither bundled nor the user's own is installed first."""

    id: str
    title: str
    description: str
    source: Source
    command: tuple[str, ...]
    env: Mapping[str, str]
    isolation: Isolation = "agent"
    credentials: tuple[str, ...] = ()
    credential_files: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    random_env: tuple[str, ...] = ()
    not_offered: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    replays_late: bool = False
    echoes_prompts: bool | None = None
    any_model: bool = False
    dialect: Dialect | None = None
    tells_kinds: bool = True
    permission_modes: Mapping[str, str] = field(default_factory=dict[str, str])
    attachments: Attaching = "link"
    registry: tuple[str, ...] = ()
    packages: tuple[Package, ...] = ()
    native: Native | None = None
    binary: Binary | None = None
    adapter: Adapter | None = None
    platforms: tuple[str, ...] = ()
    features: Features | None = None
    command_in_title: bool = False
    supported: bool = True
    unsupported_reason: str | None = None

    def __repr__(self) -> str:
        return f"Agent({self.id})"

    @property
    def installable(self) -> bool:
        """Whether the agent comes from a package index or the registry, rather than from this package or the user."""
        return self.source in ("registry", "fallback")


class Manifest(Struct, frozen=True):
    """All agents: those of the package in its order, then the user's own."""

    agents: tuple[Agent, ...]

    def find(self, id: str) -> Agent | None:
        return next((agent for agent in self.agents if agent.id == id), None)


def is_id(text: str) -> bool:
    """Whether a text may be the id of an agent, and the name of a folder."""
    return re.fullmatch(_ID, text) is not None


def load_manifest(agents_file: Path | None) -> Manifest:
    """Load the package's agents and those of the user's file. A missing file is an empty one.

    Raises SettingsError, which names the file, the line and the key.
    """
    content, _ = read_toml(Path(__file__).with_name("manifest.toml"))
    known = msgspec.convert(content["agents"], dict[str, KnownAgent])
    own = {} if agents_file is None else _OwnAgents(agents_file).read(known)
    ids = [*known, *(id for id in own if id not in known)]
    return Manifest(tuple(_agent(id, known.get(id), own.get(id)) for id in ids))


def _agent(id: str, known: KnownAgent | None, own: OwnAgent | None) -> Agent:
    known, own = known or KnownAgent(), own or OwnAgent()
    if own.command is not None:  # The facts about our program do not apply to another.
        known = KnownAgent(title=known.title, env=known.env, credentials=known.credentials, variables=known.variables)
    elif own.registry:  # The user's choice, not our pins. An empty list is our pins, whatever the registry has.
        known = structs.replace(
            known,
            packages=(),
            native=None,
            binary=None,
            adapter=None,
            platforms=(),
            supported=True,
            unsupported_reason=None,
        )
    changed = {key: value for key, value in structs.asdict(own).items() if value is not None}
    entry = structs.replace(known, **changed | {"env": {**known.env, **own.env}})
    return Agent(
        id=id,
        title=entry.title or id,
        description=entry.description or "",
        source=_source(entry, own),
        command=tuple(sys.executable if part == "{python}" and known.bundled else part for part in entry.command or ()),
        env=entry.env,
        isolation=entry.isolation or "agent",
        credentials=entry.credentials or (),
        credential_files=entry.credential_files or (),
        variables=entry.variables or (),
        random_env=entry.random_env,
        not_offered=entry.not_offered,
        refuses=entry.refuses,
        replays_late=entry.replays_late,
        echoes_prompts=entry.echoes_prompts,
        any_model=bool(entry.any_model),
        dialect=entry.dialect,
        tells_kinds=entry.tells_kinds,
        permission_modes=entry.permission_modes,
        attachments=entry.attachments or (entry.features.attachments if entry.features else "link"),
        registry=(entry.registry,) if isinstance(entry.registry, str) else entry.registry or (),
        packages=entry.packages,
        native=entry.native,
        binary=entry.binary,
        adapter=entry.adapter,
        platforms=entry.platforms,
        features=entry.features,
        command_in_title=entry.command_in_title,
        supported=entry.supported,
        unsupported_reason=entry.unsupported_reason,
    )


def _source(entry: KnownAgent, own: OwnAgent) -> Source:
    if own.command is not None:
        return "path"
    if entry.bundled:
        return "bundled"
    return "fallback" if entry.packages else "registry"


class _OwnAgents:
    """The reader of agents.toml. Each error names the file, the line and the key."""

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
        if not is_id(id):
            rule = "use a-z, 0-9, '.', '_' and '-', at most 64 of them and no punctuation in front"
            raise self._wrong(["agents", id], f"{id!r} cannot be the id of an agent; {rule}")
        table = self._table(["agents", id], raw, f"expected a table [agents.{id}]")
        types = {info.name: cast("type", info.type) for info in structs.fields(OwnAgent)}
        for key, value in table.items():
            if key not in types:
                raise self._unknown(id, key, value)
            self._check(id, key, value, types[key])
        if "command" in table and "registry" in table:
            raise self._wrong(["agents", id, "registry"], f"agent {id} has both a command and a registry slug")
        if "command" not in table and not table.get("registry") and id not in known:
            needed = f"a command, which is {KEYS['command'][0]}, nor a registry slug"
            raise self._wrong(["agents", id], f"agent {id} has neither {needed}")
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
