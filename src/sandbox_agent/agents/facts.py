"""What is known of an agent on this machine, without any process of it: the same facts for the server and the CLI."""

from collections.abc import Mapping

from msgspec import UNSET

from sandbox_agent import __version__
from sandbox_agent.agents.catalog import Catalog
from sandbox_agent.agents.credentials import available, credentials
from sandbox_agent.agents.install.record import Record
from sandbox_agent.agents.instructions import instructions
from sandbox_agent.agents.manifest import Agent
from sandbox_agent.wire.agents import AgentFacts, InstallFacts


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
