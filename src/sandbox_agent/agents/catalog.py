"""Which agents there are, by manifest, agents.toml, ACP registry and installations, and which could be started now."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from sandbox_agent import __version__
from sandbox_agent.agents.install.record import Record, Store
from sandbox_agent.agents.install.registry import Registry, RegistryEntry
from sandbox_agent.agents.launch import Launch
from sandbox_agent.agents.manifest import Agent, Manifest, is_id
from sandbox_agent.errors import UnknownAgent
from sandbox_agent.install_errors import RegistryUnavailable
from sandbox_agent.wire.agents import Artifact, Source


class Catalog(Struct, frozen=True):
    """All agents."""

    manifest: Manifest
    store: Store
    registry: Registry
    environ: Mapping[str, str]

    def agents(self) -> list[Agent]:
        """Those that we know, the user's own, and whatever else is installed."""
        known = {name for agent in self.manifest.agents for name in (agent.id, *agent.registry)}
        return [*map(self._as_installed, self.manifest.agents), *map(_installed, self.store.records(known))]

    async def all(self) -> list[Agent]:
        """The same and all that the ACP registry has, as far as it can be read."""
        known = self.agents()
        try:
            entries = (await self.registry.snapshot()).entries
        except RegistryUnavailable:
            return known
        taken = {slug for agent in known for slug in (agent.id, *agent.registry)}
        return known + [_listed(entry) for slug, entry in entries.items() if slug not in taken]

    def agent(self, id: str) -> Agent:
        """The agent of that name or registry slug; raises UnknownAgent, which lists those that we know."""
        agent = self._known(id)
        if agent is None and (entry := self._kept_entry(id)) is not None:
            agent = _listed(entry)
        if agent is None:
            raise self._unknown(id)
        return agent

    async def find(self, id: str) -> Agent:
        """The same, but also looks up unknown names in the registry."""
        if self._known(id) is not None or not is_id(id):
            return self.agent(id)
        try:
            snapshot = await self.registry.snapshot()
        except RegistryUnavailable as error:
            raise self._unknown(id, str(error)) from error
        entry = snapshot.entries.get(id)
        if entry is None:
            raise self._unknown(id, snapshot.problem)
        return _listed(entry)

    def record(self, agent: Agent) -> Record | None:
        """Its installation, if there is one."""
        record = self.store.record(agent.id) if agent.installable else None
        return record if record is not None and record.is_of(agent) else None

    def launch(self, agent: Agent) -> Launch | None:
        """How it would be started now; None when it has to be installed first."""
        if not agent.installable:
            return Launch(agent.command)
        record = self.record(agent)
        return None if record is None else self.store.launch(record, agent, self.environ)

    def program(self, agent: Agent) -> str | None:
        """The program that would run now; None when there is none."""
        if not agent.installable:
            return Launch(agent.command).program(agent.env.get("PATH") or self.environ.get("PATH"))
        record = self.record(agent)
        return None if record is None else record.artifacts[0].path

    def artifacts(self, agent: Agent) -> list[Artifact]:
        """Its artifacts: as installed, or the program of an agent that we did not install."""
        record, path = self.record(agent), self.program(agent)
        if record is not None or path is None:
            return record.artifacts if record else []
        version = __version__ if agent.source == "bundled" else None
        return [Artifact(kind="agent_process", name=Path(path).name, version=version, path=path, source=agent.source)]

    def source(self, agent: Agent) -> Source:
        """Where it comes from; or would, as far as the registry's copy says."""
        if (record := self.record(agent)) is not None:
            return record.source
        if self.registry.cached() is None and agent.registry:
            return "registry"  # Never read yet: it is where an install looks first.
        return "registry" if any(map(self._kept_entry, agent.registry)) else agent.source

    def supported(self, agent: Agent) -> bool:
        """Whether it can be had, as far as we know: what we have no package for, the registry may have."""
        return agent.supported or self.record(agent) is not None or any(map(self._kept_entry, agent.registry))

    def _kept_entry(self, slug: str) -> RegistryEntry | None:
        """What the registry's copy has, without network."""
        snapshot = self.registry.cached()
        return snapshot.entries.get(slug) if snapshot else None

    def _unknown(self, id: str, problem: str | None = None) -> UnknownAgent:
        """Also says what is wrong with the registry: it may know the name."""
        unknown = UnknownAgent(id, [each.id for each in self.agents()])
        if problem is not None:
            unknown.fields["registry"] = problem
        return unknown

    def _known(self, id: str) -> Agent | None:
        named = self._find_in_manifest(id)
        if named is not None:
            return self._as_installed(named)
        # It comes from a client, and becomes a path.
        record = self.store.record(id) if is_id(id) else None
        return None if record is None else _installed(record)

    def _as_installed(self, agent: Agent) -> Agent:
        """Where the registry's adapter is installed instead of ours, what we know of ours says nothing about it."""
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


def _listed(entry: RegistryEntry) -> Agent:
    return _registry_agent(entry.id, entry.name, entry.description)


def _registry_agent(slug: str, title: str, description: str) -> Agent:
    return Agent(id=slug, title=title, description=description, source="registry", command=(), env={}, registry=(slug,))
