"""What is known of an agent on this machine, without any process of it: the same facts for the server and the CLI."""

from collections.abc import Mapping

from msgspec import UNSET, Struct, UnsetType

from sandbox_agent import __version__
from sandbox_agent.agents.catalog import Catalog
from sandbox_agent.agents.credentials import Credential, available, credentials
from sandbox_agent.agents.install.progress import Progress
from sandbox_agent.agents.install.record import Artifact, Record
from sandbox_agent.agents.instructions import instructions
from sandbox_agent.agents.manifest import Agent, Features, Source
from sandbox_agent.envelope import Object


class InstallFacts(Struct, rename="camel", kw_only=True):
    """Where an agent comes from."""

    source: Source
    """Where it comes from; `path` is `agents.toml`, `fallback` are the manifest's pins."""
    non_registry: bool
    """It does not come from the ACP registry."""
    verified: bool
    """It answered a handshake when it was installed, or runs now."""
    artifacts: list[Artifact]
    registry_slug: str | UnsetType = UNSET
    """Its name in the ACP registry."""
    package: str | UnsetType = UNSET
    """The package it comes from, or would."""
    folder: str | UnsetType = UNSET
    """Where it is installed."""
    installed_at: str | UnsetType = UNSET
    verified_at: str | UnsetType = UNSET
    verification_error: str | UnsetType = UNSET
    """Why the last install failed; absent after one that did not."""
    platform: str | UnsetType = UNSET
    """The machine it was installed for."""
    node: str | UnsetType = UNSET
    """The Node it was installed with."""
    note: str | UnsetType = UNSET
    """What else is to be said about its source."""
    progress: Progress | UnsetType = UNSET
    """While it is being installed."""


class AgentFacts(Struct, rename="camel", kw_only=True):
    """One agent."""

    id: str
    """By which it is named everywhere."""
    title: str
    description: str
    supported: bool
    """Whether it can be had at all."""
    installed: bool
    """It could be started now."""
    credentials_available: bool
    """One of the variables or files that let it reach a model is there, or it needs none."""
    credentials: list[Credential]
    """All it could use, by name; empty when none is needed."""
    install: InstallFacts
    instructions: str
    """How to install it and what it needs, for people."""
    capabilities: Object
    """As it advertised them in ACP, when it was installed or by now."""
    unsupported_reason: str | UnsetType = UNSET
    """Why not."""
    version: str | UnsetType = UNSET
    """Of the program that speaks ACP."""
    native_version: str | UnsetType = UNSET
    """Of the agent behind it, where that is another."""
    path: str | UnsetType = UNSET
    """The program that would be started."""
    agent_info: Object | UnsetType = UNSET
    """What it said of itself when it was installed."""
    features: Features | UnsetType = UNSET
    """What to know before choosing it."""


def facts(agent: Agent, catalog: Catalog, environ: Mapping[str, str]) -> AgentFacts:
    """What is known of an agent on this machine, with this environment."""
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
        credentials_available=available(agent, environ),
        credentials=credentials(agent, environ),
        install=_install(agent, catalog, record),
        instructions=instructions(agent),
        capabilities=record.capabilities if record else {},
        unsupported_reason=UNSET if supported else agent.unsupported_reason or UNSET,
        version=version or UNSET,
        native_version=(record and record.native_version) or UNSET,
        path=path or UNSET,
        agent_info=(record and record.agent_info) or UNSET,
        features=agent.features or UNSET,
    )


def _install(agent: Agent, catalog: Catalog, record: Record | None) -> InstallFacts:
    source = catalog.source(agent)
    install = InstallFacts(
        source=source,
        non_registry=source != "registry",
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
