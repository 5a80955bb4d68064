"""Answer `GET /v1/health` without Starlette."""

import time
from collections.abc import Callable, Iterator, Sequence

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
    capability_troubles: Callable[[], Sequence[str]]
    started_at: float = field(default_factory=time.monotonic)

    def view(self) -> HealthView:
        agents = [self._agent(agent) for agent in self.catalog.agents()]
        troubles = [*self._troubles()]
        return HealthView(
            "degraded" if troubles else "ok",
            __version__,
            int((time.monotonic() - self.started_at) * 1000),
            agents,
            "; ".join(troubles) if troubles else UNSET,
        )

    def _troubles(self) -> Iterator[str]:
        if self.log.failure is not None:
            yield f"the session log cannot be written: {self.log.failure}"
        if self.log.damage.reason is not None:
            yield f"the session log was damaged: {self.log.damage.reason}"
        if self.log.publisher is not None and self.log.publisher.trouble is not None:
            yield f"the fleet does not see this server: {self.log.publisher.trouble}"
        yield from self.capability_troubles()

    def _agent(self, agent: Agent) -> AgentHealth:
        installed, running = self.catalog.program(agent), self.supervisor.running(agent.id)
        return AgentHealth(agent.id, installed is not None, running is not None)
