"""Find which agents there are, and which of them can start now.

The server and the command line get the same facts, without any process of an agent. Credentials appear by name and
path, never with a value. Instructions for people are made from the manifest.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from sandboxagent import __version__
from sandboxagent.core.threads import Pool
from sandboxagent.protocol.errors import RegistryUnavailable, UnknownAgent
from sandboxagent.protocol.views import AgentFacts, Artifact, InstallFacts, Source
from sandboxagent.server.agents.credentials import find_credentials, has_credentials
from sandboxagent.server.agents.install.record import Record, Store
from sandboxagent.server.agents.install.registry import Registry
from sandboxagent.server.agents.launch import Launch
from sandboxagent.server.agents.manifest import Agent, Manifest, is_id

if TYPE_CHECKING:
    from sandboxagent.server.agents.install.registry_entries import RegistryEntry


class Catalog(Struct, frozen=True):
    """All agents.

    All functions but the coroutines may read the disk. On an event loop, call them in a thread of `pool`.
    """

    manifest: Manifest
    store: Store
    registry: Registry
    environ: Mapping[str, str]
    pool: Pool = field(default_factory=lambda: Pool("catalog", 2))
    """For reading installations and looking for credentials. Of its own, so that a disk that hangs stops only this."""

    def agents(self) -> list[Agent]:
        """Return the agents of the manifest, the user's own agents, and all others that are installed."""
        known = {name for agent in self.manifest.agents for name in (agent.id, *agent.registry)}
        return [*map(self._as_installed, self.manifest.agents), *map(_installed, self.store.records(known))]

    async def all(self) -> list[Agent]:
        """Return all known agents, and all agents of the ACP registry, if it can be read."""
        known = await self.pool.run(self.agents)
        try:
            entries = (await self.registry.snapshot()).entries
        except RegistryUnavailable:
            return known
        taken = {slug for agent in known for slug in (agent.id, *agent.registry)}
        return known + [_listed(entry) for slug, entry in entries.items() if slug not in taken]

    def agent(self, id: str) -> Agent:
        """Return the agent with an id or a registry slug. Raises UnknownAgent, which lists the known agents."""
        agent = self._known(id)
        if agent is None and (entry := self._kept_entry(id)) is not None:
            agent = _listed(entry)
        if agent is None:
            raise self._unknown(id)
        return agent

    async def find(self, id: str) -> Agent:
        """Return the agent with an id or a registry slug. Look up unknown names in the registry.

        Raises UnknownAgent.
        """
        if not is_id(id):
            return self.agent(id)
        if (known := await self.pool.run(self._known, id)) is not None:
            return known
        try:
            snapshot = await self.registry.snapshot()
        except RegistryUnavailable as error:
            raise await self.pool.run(self._unknown, id, str(error)) from error
        entry = snapshot.entries.get(id)
        if entry is None:
            raise await self.pool.run(self._unknown, id, snapshot.problem)
        return _listed(entry)

    def record(self, agent: Agent) -> Record | None:
        """Return the agent's installation, if there is one."""
        record = self.store.record(agent.id) if agent.installable else None
        return record if record is not None and record.is_of(agent) else None

    def launch(self, agent: Agent) -> Launch | None:
        """Return how the agent would be started now; None when it has to be installed first."""
        if not agent.installable:
            return Launch(agent.command)
        record = self.record(agent)
        return None if record is None else self.store.launch(record, agent, self.environ)

    def program(self, agent: Agent) -> str | None:
        """Return the program that would run now; None when there is none."""
        if not agent.installable:
            return Launch(agent.command).program(agent.env.get("PATH") or self.environ.get("PATH"))
        record = self.record(agent)
        return None if record is None else record.artifacts[0].path

    def artifacts(self, agent: Agent) -> list[Artifact]:
        """Return the agent's artifacts: as installed, or the program of an agent that the server did not install."""
        record, path = self.record(agent), self.program(agent)
        if record is not None or path is None:
            return record.artifacts if record else []
        version = __version__ if agent.source == "bundled" else None
        return [Artifact(kind="agent_process", name=Path(path).name, version=version, path=path, source=agent.source)]

    def source(self, agent: Agent) -> Source:
        """Return where the agent comes from, or would come from according to the registry's copy."""
        if (record := self.record(agent)) is not None:
            return record.source
        if self.registry.cached() is None and agent.registry:
            return "registry"  # Never read yet, but an install looks there first.
        return "registry" if any(map(self._kept_entry, agent.registry)) else agent.source

    def supported(self, agent: Agent) -> bool:
        """Whether the agent can be installed, as far as is known.

        The registry may have an agent without a package here.
        """
        return agent.supported or self.record(agent) is not None or any(map(self._kept_entry, agent.registry))

    def _kept_entry(self, slug: str) -> "RegistryEntry | None":
        """Return the entry in the registry's copy, without network."""
        snapshot = self.registry.cached()
        return snapshot.entries.get(slug) if snapshot else None

    def _unknown(self, id: str, problem: str | None = None) -> UnknownAgent:
        """Make the error for an unknown agent.

        It has the registry's problem, if any: the registry may know the name.
        """
        unknown = UnknownAgent(id, [each.id for each in self.agents()])
        if problem is not None:
            unknown.fields["registry"] = problem
        return unknown

    def _known(self, id: str) -> Agent | None:
        named = self._find_in_manifest(id)
        if named is not None:
            return self._as_installed(named)
        # The id comes from a client, and becomes a path.
        record = self.store.record(id) if is_id(id) else None
        return None if record is None else _installed(record)

    def _as_installed(self, agent: Agent) -> Agent:
        """Return the agent as it is installed.

        Where the registry's adapter is installed instead of ours, the manifest's facts about our adapter do not apply.
        """
        record = self.store.record(agent.id) if agent.adapter is not None else None
        if record is None or record.registry_slug is None:
            return agent
        return replace(
            agent, description=record.description, features=None, echoes_prompts=None, attachments="link", adapter=None
        )

    def _find_in_manifest(self, id: str) -> Agent | None:
        by_slug = (agent for agent in self.manifest.agents if id in agent.registry)
        return self.manifest.find(id) or next(by_slug, None)


def _installed(record: Record) -> Agent:
    return _registry_agent(record.agent, record.title, record.description)


def _listed(entry: "RegistryEntry") -> Agent:
    return _registry_agent(entry.id, entry.name, entry.description)


def _registry_agent(slug: str, title: str, description: str) -> Agent:
    return Agent(id=slug, title=title, description=description, source="registry", command=(), env={}, registry=(slug,))


def write_instructions(agent: Agent) -> str:
    """Return a few lines for people: how to install the agent, its credentials, and its description."""
    steps = [_install_line(agent)]
    if agent.credentials or agent.credential_files:
        steps.append(f"To reach a model, it needs that {_describe_needs(agent)}. Their values are not checked.")
    if agent.description:
        steps.append(agent.description)
    return "\n".join(steps)


def _install_line(agent: Agent) -> str:
    if agent.source == "bundled":
        return "Nothing to install: it comes with sandbox-agent."
    if agent.source == "path":
        command = json.dumps(agent.command, ensure_ascii=False)
        return f"agents.toml runs {command}; that program must be on PATH, or be a path that exists."
    line = f"Run: sandbox-agent agents install {agent.id}"
    slugs = " or ".join(agent.registry)
    if not agent.supported:
        return f"Not supported: {agent.unsupported_reason}. Where the registry has {slugs}: {line[5:]}"
    pins = ", ".join(f"{each.name}@{each.version}" for each in agent.packages)
    where = [f"what the ACP registry has as {slugs}"] if slugs else []
    where += [f"{pins} of {'PyPI' if agent.packages[0].index == 'pypi' else 'npm'}"] if pins else []
    return f"{line}\nIt installs {', else '.join(where)}."


def _describe_needs(agent: Agent) -> str:
    variables = ", ".join(agent.credentials)
    files = ", ".join(agent.credential_files)
    either = [f"the server has one of these variables: {variables}"] if variables else []
    either += [f"one of these files is there: {files}"] if files else []
    return ", or ".join(either)


def read_facts(agent: Agent, catalog: Catalog, environ: Mapping[str, str]) -> AgentFacts:
    """Return all that is known of an agent on this machine, with this environment."""
    record = catalog.record(agent)
    path = catalog.program(agent)
    supported = catalog.supported(agent)
    version = __version__ if agent.source == "bundled" else record and record.version
    return AgentFacts(
        id=agent.id,
        title=agent.title,
        description=agent.description,
        supported=supported,
        installed=path is not None,
        credentials_available=has_credentials(agent, environ),
        credentials=find_credentials(agent, environ),
        install=_read_install(agent, catalog, record),
        instructions=write_instructions(replace(agent, supported=supported)),
        isolation=agent.isolation,
        capabilities=record.capabilities if record else {},
        unsupported_reason=UNSET if supported else agent.unsupported_reason or UNSET,
        version=version or UNSET,
        native_version=(record and record.native_version) or UNSET,
        path=path or UNSET,
        agent_info=(record and record.agent_info) or UNSET,
        features=agent.features or UNSET,
    )


def _read_install(agent: Agent, catalog: Catalog, record: Record | None) -> InstallFacts:
    source = catalog.source(agent)
    install = InstallFacts(
        source=source,
        non_registry=source != "registry",
        expected=agent.installable and record is None,
        verified=record is not None or agent.source == "bundled",
        artifacts=catalog.artifacts(agent),
        registry_slug=agent.registry[0] if agent.registry else UNSET,
        package=agent.packages[0].name if agent.packages else UNSET,
    )
    if record is not None:
        install.registry_slug = record.registry_slug or UNSET
        install.package = record.package or UNSET
        install.folder = str(catalog.store.folder(record))
        install.installed_at, install.verified_at = record.installed_at, record.verified_at
        install.platform, install.node = record.platform, record.node
        install.note = record.note or UNSET
    return install
