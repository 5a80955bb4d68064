"""Answer `GET /v1/health` without Starlette."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from msgspec import UNSET, Struct, field

from sandboxagent import __version__
from sandboxagent.protocol.views import AgentHealth, HealthView
from sandboxagent.server.agents.catalog import Catalog
from sandboxagent.server.agents.supervisor import Supervisor
from sandboxagent.server.log.log import Log

DISK_TIMEOUT = 0.25
"""Seconds that a health check waits for the disk. After that, it tells what the disk said last."""


class InstalledAgents:
    """The ids of the agents, each with whether it is installed, by a disk that may hang."""

    def __init__(self, catalog: Catalog, timeout: float = DISK_TIMEOUT) -> None:
        self._catalog = catalog
        self._timeout = timeout
        self._known = [(agent.id, False) for agent in catalog.manifest.agents]
        self._reading: asyncio.Future[list[tuple[str, bool]]] | None = None

    async def read(self) -> list[tuple[str, bool]]:
        """Read the disk, or return what it said last if it takes too long. At most one thread reads at a time."""
        if self._reading is None or self._reading.done():
            self._reading = self._catalog.pool.start(self._read)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                self._known = await asyncio.shield(self._reading)
        return self._known

    def _read(self) -> list[tuple[str, bool]]:
        return [(agent.id, self._catalog.program(agent) is not None) for agent in self._catalog.agents()]


class HealthCheck(Struct, frozen=True):
    """The health of a server, from the state of its parts."""

    log: Log
    agents: InstalledAgents
    supervisor: Supervisor
    capability_troubles: Callable[[], Sequence[str]]
    started_at: float = field(default_factory=time.monotonic)

    async def view(self) -> HealthView:
        agents = [self._agent(id, installed) for id, installed in await self.agents.read()]
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
        if self.log.publisher is not None and self.log.publisher.failure_reason is not None:
            yield f"the fleet does not see this server: {self.log.publisher.failure_reason}"
        yield from self.capability_troubles()

    def _agent(self, id: str, installed: bool) -> AgentHealth:
        return AgentHealth(id, installed, self.supervisor.running(id) is not None)
