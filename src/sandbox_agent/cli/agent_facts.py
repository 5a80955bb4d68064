"""What is known of agents without a server: the same facts, under the same names, as `GET /v1/agents` tells."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import UNSET, Struct, UnsetType

from sandbox_agent import __version__
from sandbox_agent.agents.catalog import Catalog
from sandbox_agent.agents.credentials import Credential, available, credentials
from sandbox_agent.agents.install.record import Artifact, Record
from sandbox_agent.agents.instructions import instructions
from sandbox_agent.agents.manifest import Agent, Features, Source
from sandbox_agent.envelope import Object


class InstallFacts(Struct, rename="camel", kw_only=True):
    """Where an agent comes from."""

    source: Source
    non_registry: bool
    verified: bool
    artifacts: list[Artifact]
    registry_slug: str | UnsetType = UNSET
    package: str | UnsetType = UNSET
    folder: str | UnsetType = UNSET
    installed_at: str | UnsetType = UNSET
    verified_at: str | UnsetType = UNSET
    platform: str | UnsetType = UNSET
    node: str | UnsetType = UNSET
    note: str | UnsetType = UNSET


class AgentFacts(Struct, rename="camel", kw_only=True):
    """One agent."""

    id: str
    title: str
    description: str
    supported: bool
    installed: bool
    credentials_available: bool
    credentials: list[Credential]
    """All it could use, by name; empty when none is needed."""
    install: InstallFacts
    instructions: str
    capabilities: Object
    unsupported_reason: str | UnsetType = UNSET
    version: str | UnsetType = UNSET
    native_version: str | UnsetType = UNSET
    path: str | UnsetType = UNSET
    command: tuple[str, ...] | UnsetType = UNSET
    """What would be run now."""
    agent_info: Object | UnsetType = UNSET
    features: Features | UnsetType = UNSET


class AgentList(Struct):
    """Several of them."""

    agents: list[AgentFacts]


def facts(agent: Agent, catalog: Catalog, environ: Mapping[str, str]) -> AgentFacts:
    """What is known of an agent on this machine, with this environment."""
    record = catalog.record(agent)
    path = catalog.program(agent)
    launch = catalog.launch(agent)
    version = __version__ if agent.source == "bundled" else record and record.version
    return AgentFacts(
        id=agent.id,
        title=agent.title,
        description=agent.description,
        supported=agent.supported or record is not None,
        installed=path is not None,
        credentials_available=available(agent, environ),
        credentials=credentials(agent, environ),
        install=_from_elsewhere(agent, path) if record is None else _installed(record, catalog),
        instructions=instructions(agent),
        capabilities=record.capabilities if record else {},
        unsupported_reason=agent.unsupported_reason or UNSET,
        version=version or UNSET,
        native_version=(record and record.native_version) or UNSET,
        path=path or UNSET,
        command=launch.command if launch else UNSET,
        agent_info=(record and record.agent_info) or UNSET,
        features=agent.features or UNSET,
    )


def _installed(record: Record, catalog: Catalog) -> InstallFacts:
    return InstallFacts(
        source=record.source,
        non_registry=record.registry_slug is None,
        verified=True,
        artifacts=record.artifacts,
        registry_slug=record.registry_slug or UNSET,
        package=record.package or UNSET,
        folder=str(catalog.store.folder(record)),
        installed_at=record.installed_at,
        verified_at=record.verified_at,
        platform=record.platform,
        node=record.node,
        note=record.note or UNSET,
    )


def _from_elsewhere(agent: Agent, path: str | None) -> InstallFacts:
    """Of one that we did not install: what would be, or the program that is there."""
    version = __version__ if agent.source == "bundled" else None
    program = path and Artifact(
        kind="agent_process", name=Path(path).name, version=version, path=path, source=agent.source
    )
    return InstallFacts(
        source=agent.source,
        non_registry=not agent.registry,
        verified=False,
        artifacts=[program] if program else [],
        registry_slug=agent.registry[0] if agent.registry else UNSET,
        package=agent.packages[0].name if agent.packages else UNSET,
    )
