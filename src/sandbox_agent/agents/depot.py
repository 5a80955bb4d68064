"""The agents of one machine, put together by the settings, and having one ready to start.

For the server, and for a command line beside it. An agent is installed because a client asks, or on first use when that
is allowed.
"""

import asyncio
from collections.abc import Collection, Mapping

import msgspec
from msgspec import UNSET, Struct

from sandbox_agent.agents.boot import Boots, Launch, ProcessLimits
from sandbox_agent.agents.catalog import Catalog, write_instructions
from sandbox_agent.agents.install.installer import Installer, InstallOutcome
from sandbox_agent.agents.install.packages import Runner
from sandbox_agent.agents.install.plan import Job, Wanted
from sandbox_agent.agents.install.record import Store
from sandbox_agent.agents.install.registry import Registry
from sandbox_agent.agents.manifest import Agent, load_manifest
from sandbox_agent.envelope import Object
from sandbox_agent.processes.children import Children
from sandbox_agent.protocol.errors import AgentNotInstalled, BadRequest
from sandbox_agent.settings import Settings
from sandbox_agent.wire.views import InstallRequest, InstallResult


def open_catalog(settings: Settings, environ: Mapping[str, str]) -> Catalog:
    """All agents, installed or not; raises SettingsError when agents.toml is wrong."""
    registry = Registry(settings.acp_registry_url, settings.agents_dir / ".registry")
    return Catalog(load_manifest(settings.agents_file), Store(settings.agents_dir), registry, environ)


def open_boots(
    settings: Settings, children: Children, environ: Mapping[str, str], secrets: Collection[str] = ()
) -> Boots:
    """What starts agents; none of the `secrets` gets into their environment."""
    limits = ProcessLimits(settings.request_timeout, settings.max_line, settings.stdin_limit, settings.stop_grace)
    return Boots(children, environ, secrets, limits, settings.data_dir / "logs")


def open_installer(settings: Settings, children: Children, catalog: Catalog, boots: Boots) -> Installer:
    """What installs agents of the catalog, and starts each once to see that it works."""
    return Installer(
        catalog.store,
        catalog.registry,
        Runner(children),
        boots.verify,
        catalog.environ,
        settings.install_timeout,
        require_hashes=settings.require_hashes,
    )


class AgentInstalls(Struct, frozen=True):
    """The way from a request to the installer."""

    catalog: Catalog
    installer: Installer

    async def install(self, name: str, asked: InstallRequest) -> InstallResult:
        """Install an agent. The install continues even if the caller stops waiting."""
        begun = await self.begin(name, asked)
        return begun if isinstance(begun, InstallResult) else await self.wait_for_result(begun[1])

    async def begin(
        self, name: str, asked: InstallRequest
    ) -> "InstallResult | tuple[Job, asyncio.Task[InstallOutcome]]":
        """The result when there is nothing to do, else what is under way."""
        agent = await self.catalog.find(name)
        if not agent.installable:
            return self._describe_present(agent)
        wanted = Wanted(asked.agent_version, asked.agent_process_version)
        return self.installer.begin(agent, wanted, reinstall=asked.reinstall)

    async def wait_for_result(self, task: "asyncio.Task[InstallOutcome]") -> InstallResult:
        """The result of an install that other callers may be waiting for, too."""
        outcome = await asyncio.shield(task)
        record = outcome.record
        return InstallResult(
            record.agent,
            outcome.already,
            record.version,
            record.source,
            True,
            record.artifacts,
            record.native_version or UNSET,
        )

    def _describe_present(self, agent: Agent) -> InstallResult:
        artifacts = self.catalog.artifacts(agent)
        if not artifacts:
            raise AgentNotInstalled(agent.id, write_instructions(agent))
        verified = agent.source == "bundled"
        return InstallResult(agent.id, True, artifacts[0].version, agent.source, verified, artifacts)


def read_install_request(params: Object) -> InstallRequest:
    """What a client asks for; raises BadRequest, which names the field."""
    try:
        return msgspec.convert(params, InstallRequest)
    except msgspec.ValidationError as error:
        raise BadRequest(f"install takes reinstall, agentVersion and agentProcessVersion: {error}") from None


class Provision(Struct, frozen=True):
    """Gives the way to start an agent."""

    catalog: Catalog
    installer: Installer
    may_install: bool

    async def __call__(self, agent: Agent) -> Launch:
        """Raises AgentNotInstalled, or what hinders the install."""
        launch = self.catalog.launch(agent)
        if launch is not None:
            return launch
        if not self.may_install:
            raise AgentNotInstalled(agent.id, write_instructions(agent))
        record = (await self.installer.install(agent)).record
        return self.catalog.store.launch(record, agent, self.catalog.environ)
