"""Install agents because a client asks, and read such a request."""

import asyncio

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
