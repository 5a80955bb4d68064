"""Decide what to install for an agent: the ACP registry's choice, else the manifest's pins."""

import asyncio
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import UNSET, Struct
from msgspec.structs import replace

from sandboxagent.protocol.errors import UnknownVersion, UnsupportedAgent, UnsupportedPlatform
from sandboxagent.protocol.views import Progress, Stage
from sandboxagent.server.agents.install.registry import Snapshot
from sandboxagent.server.agents.manifest import Agent, Package

if TYPE_CHECKING:
    from sandboxagent.server.agents.install.registry_entries import (
        BinaryTarget,
        Machine,
        PackageDistribution,
        RegistryEntry,
    )

# A version becomes part of a package's name, where npm would also take an address, a path or an archive's name.
_VERSION = r"(?i)(?!.*\.(tgz|tar|tar\.gz)$)[A-Za-z0-9][A-Za-z0-9.+_-]{0,99}"


class Wanted(Struct, frozen=True):
    """The requested versions: of the agent itself, and of the program that speaks ACP for it."""

    agent: str | None = None
    process: str | None = None

    def __post_init__(self) -> None:
        for version in (self.agent, self.process):
            if version is not None and not re.fullmatch(_VERSION, version):
                raise UnknownVersion(f"{version!r:.100} is not a version", version=version[:100])


class Plan(Struct, frozen=True, kw_only=True):
    """The packages or the archive to fetch, and the command that starts them."""

    source: Literal["registry", "fallback"]
    version: str
    program: str
    arguments: tuple[str, ...]
    env: Mapping[str, str]
    packages: tuple[Package, ...] = ()
    native: Package | None = None
    archive: "BinaryTarget | None" = None
    slug: str | None = None
    note: str | None = None

    def __repr__(self) -> str:
        return f"Plan({self.program}, {self.version})"


def make_plan(agent: Agent, snapshot: Snapshot | None, note: str | None, wanted: Wanted, machine: "Machine") -> Plan:
    """Make the plan for an agent. `note` is the snapshot's problem, or the reason why there is no snapshot."""
    process = _process_version(agent, wanted)
    entry = None if snapshot is None else _find_entry(agent, snapshot)
    chosen = None if entry is None else _from_registry(agent, entry, process, machine)
    if chosen is None:
        chosen = _from_manifest(agent, entry, process, machine)
    return replace(chosen, native=_plan_native(agent, wanted, machine), note=note)


def _find_entry(agent: Agent, snapshot: Snapshot) -> "RegistryEntry | None":
    return next((snapshot.entries[slug] for slug in agent.registry if slug in snapshot.entries), None)


def _process_version(agent: Agent, wanted: Wanted) -> str | None:
    if agent.native is not None or wanted.agent is None:
        return wanted.process
    if wanted.process not in (None, wanted.agent):
        text = f"agent {agent.id} is one program: agentVersion and agentProcessVersion cannot differ"
        raise UnknownVersion(text, agent=agent.id)
    return wanted.agent


def _plan_native(agent: Agent, wanted: Wanted, machine: "Machine") -> Package | None:
    native = agent.native
    version = native and (wanted.agent or native.version)
    if native is None or version is None:
        return None
    name = native.name.replace("{platform}", machine.npm)
    return Package(name, version, program=native.program, integrity=_pin(native.integrity, native.version, version))


def _from_registry(agent: Agent, entry: "RegistryEntry", process: str | None, machine: "Machine") -> Plan | None:
    """Return a plan from the registry for the machine; None when it has nothing suitable.

    Packages come first, because a package index vouches for its packages.
    """
    ways = entry.distribution
    if ways.npx is not None:
        return _from_package(agent, entry, ways.npx, "npm", process)
    if ways.uvx is not None:
        return _from_package(agent, entry, ways.uvx, "pypi", process)
    target = ways.binary.get(machine.registry)
    other_version = process not in (None, entry.version)
    if target is None or (other_version and agent.packages):
        return None
    if other_version:
        text = f"agent {agent.id} comes as an archive, which the registry has only in version {entry.version}"
        raise UnknownVersion(text, agent=agent.id, offered=[entry.version])
    return Plan(
        source="registry",
        version=entry.version,
        program=target.cmd,
        arguments=tuple(target.args),
        env=target.env,
        archive=target,
        slug=entry.id,
    )


def _from_package(
    agent: Agent, entry: "RegistryEntry", way: "PackageDistribution", index: Literal["npm", "pypi"], process: str | None
) -> Plan:
    name, version = way.name, process or way.version or entry.version
    # The program of @scope/name[extra] is called name.
    packages, program = (Package(name, version, index),), name.rpartition("/")[2].partition("[")[0]
    if agent.packages and agent.packages[0].name == name:  # The manifest knows it better.
        packages, program = (_in_version(agent.packages[0], version), *agent.packages[1:]), agent.command[0]
    return Plan(
        source="registry",
        version=version,
        program=program,
        arguments=tuple(way.args),
        env=way.env,
        packages=packages,
        slug=entry.id,
    )


def _from_manifest(agent: Agent, entry: "RegistryEntry | None", process: str | None, machine: "Machine") -> Plan:
    if not agent.packages:
        if entry is not None:
            raise UnsupportedPlatform(agent.id, machine.registry, sorted(entry.distribution.binary))
        missing = f"the ACP registry does not have it ({', '.join(agent.registry) or 'no slug'})"
        raise UnsupportedAgent(agent.id, agent.unsupported_reason or missing)
    if agent.platforms and machine.npm not in agent.platforms:
        raise UnsupportedPlatform(agent.id, machine.npm, list(agent.platforms))
    first, *more = agent.packages
    version = process or first.version
    first = replace(_in_version(first, version), name=first.name.replace("{platform}", machine.npm))
    program, *arguments = agent.command
    return Plan(
        source="fallback",
        version=version,
        program=program,
        arguments=tuple(arguments),
        env={},
        packages=(first, *more),
    )


def _in_version(package: Package, version: str) -> Package:
    return replace(package, version=version, integrity=_pin(package.integrity, package.version, version))


def _pin(integrity: str | dict[str, str] | None, pinned: str | None, version: str) -> str | dict[str, str] | None:
    """Return the pinned digest only for the pinned version: it says nothing about other versions."""
    return integrity if version == pinned else None


class Job:
    """One install under way. A slow reader may miss states, but never the newest."""

    def __init__(self) -> None:
        self.progress = Progress("waiting", "waiting for its turn")
        self._changed = asyncio.Event()

    def tell(self, stage: Stage, message: str, bytes: int | None = None, total: int | None = None) -> None:
        self.progress = Progress(stage, message, UNSET if bytes is None else bytes, UNSET if total is None else total)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def changed(self) -> None:
        """Wait until `progress` changes."""
        await self._changed.wait()
