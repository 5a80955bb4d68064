"""Answer `GET /v1/health` without Starlette."""

import time

from msgspec import UNSET, Struct, field

from sandboxagent import __version__
from sandboxagent.protocol.views import AgentHealth, HealthView
from sandboxagent.server.agents.catalog import Catalog
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.agents.supervisor import Supervisor
from sandboxagent.server.log.log import Log


class HealthCheck(Struct, frozen=True):
    """The health of a server, from the state of its parts."""

    log: Log
    catalog: Catalog
    supervisor: Supervisor
    started_at: float = field(default_factory=time.monotonic)

    def view(self) -> HealthView:
        agents = [self._agent(agent) for agent in self.catalog.agents()]
        trouble = self._trouble()
        return HealthView(
            "ok" if trouble is None else "degraded",
            __version__,
            int((time.monotonic() - self.started_at) * 1000),
            agents,
            UNSET if trouble is None else trouble,
        )

    def _trouble(self) -> str | None:
        if self.log.failure is not None:
            return f"the session log cannot be written: {self.log.failure}"
        damage = self.log.damage.reason
        if damage is not None:
            return f"the session log was damaged: {damage}"
        apart = None if self.log.publisher is None else self.log.publisher.trouble
        return None if apart is None else f"the fleet does not see this server: {apart}"

    def _agent(self, agent: Agent) -> AgentHealth:
        installed, running = self.catalog.program(agent), self.supervisor.running(agent.id)
        return AgentHealth(agent.id, installed is not None, running is not None)
