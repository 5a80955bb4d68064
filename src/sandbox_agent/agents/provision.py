"""Having an agent ready to start: as it is, or installed first when it is missing and that is allowed."""

from dataclasses import dataclass

from sandbox_agent.agents.catalog import Catalog
from sandbox_agent.agents.install.installer import Installer
from sandbox_agent.agents.instructions import instructions
from sandbox_agent.agents.launch import Launch
from sandbox_agent.agents.manifest import Agent
from sandbox_agent.errors import AgentNotInstalled


@dataclass(frozen=True, slots=True)
class Provision:
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
            raise AgentNotInstalled(agent.id, instructions(agent))
        record = (await self.installer.install(agent)).record
        return self.catalog.store.launch(record, agent, self.catalog.environ)
