"""Install agents because a client asks, and read such a request."""

import asyncio
from collections.abc import Callable

import msgspec
from msgspec import UNSET, Struct

from sandboxagent.protocol.envelope import Object
from sandboxagent.protocol.errors import AgentNotInstalled, BadRequest
from sandboxagent.protocol.views import InstallRequest, InstallResult
from sandboxagent.server.agents.catalog import Catalog, write_instructions
from sandboxagent.server.agents.install.installer import Installer, InstallOutcome
from sandboxagent.server.agents.install.plan import Job, Wanted
from sandboxagent.server.agents.manifest import Agent


class AgentInstalls(Struct, frozen=True):
    """Installs at the request of clients."""

    catalog: Catalog
    installer: Installer
    ask_offers: Callable[[Agent], None] | None = None
    """Begins to ask an agent for its offers, once it is installed. None asks no agent."""

    async def install(self, name: str, asked: InstallRequest) -> InstallResult:
        """Install an agent. The install continues even if the caller stops waiting."""
        begun = await self.begin(name, asked)
        return begun if isinstance(begun, InstallResult) else await self.wait_for_result(begun[1])

    async def begin(
        self, name: str, asked: InstallRequest
    ) -> "InstallResult | tuple[Job, asyncio.Task[InstallOutcome]]":
        """Begin an install, and return its job and task. If there is nothing to do, return the result instead."""
        agent = await self.catalog.find(name)
        if not agent.installable:
            return await self.catalog.pool.run(self._describe_present, agent)
        wanted = Wanted(asked.agent_version, asked.agent_process_version)
        job, task = self.installer.begin(agent, wanted, reinstall=asked.reinstall)
        task.add_done_callback(lambda done: self._after_install(agent, done))
        return job, task

    def _after_install(self, agent: Agent, done: "asyncio.Task[InstallOutcome]") -> None:
        if self.ask_offers is not None and not done.cancelled() and done.exception() is None:
            self.ask_offers(agent)

    async def wait_for_result(self, task: "asyncio.Task[InstallOutcome]") -> InstallResult:
        """Wait for the result of an install. Other callers may wait for it, too."""
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
    """Read a client's request for an install. Raises BadRequest, which names the field."""
    try:
        return msgspec.convert(params, InstallRequest)
    except msgspec.ValidationError as error:
        raise BadRequest(f"install takes reinstall, agentVersion and agentProcessVersion: {error}") from None
