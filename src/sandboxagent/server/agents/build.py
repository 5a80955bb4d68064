"""Construct the catalog, the starter of processes and the installer from the settings.

The server uses them, and so does the command line. Also installs an agent on first use where that is allowed.
"""

from collections.abc import Collection, Mapping

from msgspec import Struct

from sandboxagent.core.settings import Settings
from sandboxagent.protocol.errors import AgentNotInstalled
from sandboxagent.server.agents.catalog import Catalog, write_instructions
from sandboxagent.server.agents.install.installer import Installer
from sandboxagent.server.agents.install.record import Store
from sandboxagent.server.agents.install.registry import Registry
from sandboxagent.server.agents.install.tools import Runner
from sandboxagent.server.agents.launch import Launch
from sandboxagent.server.agents.manifest import Agent, load_manifest
from sandboxagent.server.agents.start import AgentStarter, ProcessLimits, ProcessObservers
from sandboxagent.server.processes.children import ProcessTrees


def open_catalog(settings: Settings, environ: Mapping[str, str]) -> Catalog:
    """Return all agents, installed or not. Raises SettingsError when agents.toml is wrong."""
    registry = Registry(settings.acp_registry_url, settings.agents_dir / ".registry")
    return Catalog(load_manifest(settings.agents_file), Store(settings.agents_dir), registry, environ)


def open_starter(
    settings: Settings,
    children: ProcessTrees,
    environ: Mapping[str, str],
    secrets: Collection[str] = (),
    observers: ProcessObservers | None = None,
) -> AgentStarter:
    """Return the starter of agents. None of the `secrets` gets into their environment."""
    limits = ProcessLimits(settings.request_timeout, settings.max_line, settings.stdin_limit, settings.stop_grace)
    return AgentStarter(children, environ, secrets, limits, settings.data_dir / "logs", observers)


def open_installer(settings: Settings, children: ProcessTrees, catalog: Catalog, starter: AgentStarter) -> Installer:
    """Return the installer of the catalog's agents, which starts each agent once to see that it works."""
    return Installer(
        catalog.store,
        catalog.registry,
        Runner(children),
        starter.verify,
        catalog.environ,
        settings.install_timeout,
        require_hashes=settings.require_hashes,
    )


class InstallOnUse(Struct, frozen=True):
    """A callable that returns how to start an agent, and installs the agent first where that is allowed."""

    catalog: Catalog
    installer: Installer
    may_install: bool

    async def __call__(self, agent: Agent) -> Launch:
        """Return how to start an agent. Raises AgentNotInstalled, or the error of the install."""
        launch = await self.catalog.pool.run(self.catalog.launch, agent)
        if launch is not None:
            return launch
        if not self.may_install:
            raise AgentNotInstalled(agent.id, write_instructions(agent))
        record = (await self.installer.install(agent)).record
        return self.catalog.store.launch(record, agent, self.catalog.environ)
