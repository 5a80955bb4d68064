"""Describe agents to clients, the same over HTTP and ACP."""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import UNSET, Struct, structs

from sandboxagent.protocol.envelope import Object
from sandboxagent.protocol.views import AgentFacts, AgentsView, AgentView, ServerStatus
from sandboxagent.server.agents.catalog import Catalog, read_facts
from sandboxagent.server.agents.install.installer import Installer
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.agents.supervisor import Supervisor


class Announced(Protocol):
    """The offers that an agent last announced in a session."""

    def models(self) -> Object: ...
    def modes(self) -> Object: ...
    def config_options(self) -> list[Object]: ...


class Offered(Announced, Protocol):
    """The offers of an agent that was asked without a session of a client."""

    @property
    def capabilities(self) -> Object: ...


class CapabilitiesReader(Protocol):
    """The answers of agents that were asked for their offers."""

    def find(self, agent: Agent) -> Offered | None: ...
    def failure(self, agent: Agent) -> str | None: ...
    def is_asking(self, agent: Agent) -> bool: ...
    def begin(self, agent: Agent) -> None: ...
    async def ask(self, agent: Agent) -> Offered: ...


class AgentViews(Struct, frozen=True):
    """The views of agents, made from the catalog, the processes and the sessions."""

    newest_session: Callable[[str], Announced | None]
    """Function that returns the last announcement, by an agent's id; None when no session has announced anything."""
    offers: CapabilitiesReader
    catalog: Catalog
    installer: Installer
    supervisor: Supervisor
    environ: Mapping[str, str]

    async def all(self, *, registry: bool = False) -> AgentsView:
        """Return the agents that are known here; with `registry`, all that could be installed, too."""
        pool = self.catalog.pool
        agents = await self.catalog.all() if registry else await pool.run(self.catalog.agents)
        known = await pool.run(lambda: [read_facts(agent, self.catalog, self.environ) for agent in agents])
        return AgentsView([self._complete(agent, facts) for agent, facts in zip(agents, known, strict=True)])

    def find_announced(self, agent: Agent) -> Announced | None:
        """Return the announcement of the agent's newest session, else its answer when it was asked.

        Starts no process.
        """
        return self.newest_session(agent.id) or self.offers.find(agent)

    async def view_with_models(self, agent: Agent) -> AgentView:
        """Return the view. Ask the agent for its models if they are not known. Raises the errors of asking."""
        if self.find_announced(agent) is None:
            await self.offers.ask(agent)
        return await self.view(agent)

    async def view(self, agent: Agent) -> AgentView:
        """Return the view. If the agent's offers are not known, it is asked for them in the background."""
        known = await self.catalog.pool.run(read_facts, agent, self.catalog, self.environ)
        if known.installed and self.find_announced(agent) is None:
            self.offers.begin(agent)
        return self._complete(agent, known)

    def find_capabilities(self, agent: Agent) -> Object:
        """Return the capabilities that an agent has announced; empty if they are not known."""
        if (running := self.supervisor.running(agent.id)) is not None:
            return running.handshake.capabilities
        record, offered = self.catalog.record(agent), self.offers.find(agent)
        return (record.capabilities if record else {}) or (offered.capabilities if offered else {})

    def _complete(self, agent: Agent, known: AgentFacts) -> AgentView:
        """Add to what is known of an agent on this machine what its processes and sessions tell."""
        if not known.capabilities and (offered := self.offers.find(agent)) is not None:
            known.capabilities = offered.capabilities
        running = self.supervisor.running(agent.id)
        if running is not None:
            known.capabilities, known.install.verified = running.handshake.capabilities, True
        job = self.installer.job(agent.id)
        known.install.progress = job.progress if job else UNSET
        known.install.verification_error = self.installer.failure(agent.id) or UNSET
        announced = self.find_announced(agent)
        return AgentView(
            **structs.asdict(known),
            server_status=self._status(agent.id),
            offers="known" if announced else "asking" if self.offers.is_asking(agent) else "unknown",
            offers_error=UNSET if announced else self.offers.failure(agent) or UNSET,
            models=announced.models() if announced else UNSET,
            modes=announced.modes() if announced else UNSET,
            config_options=announced.config_options() if announced else UNSET,
        )

    def _status(self, agent: str) -> ServerStatus:
        status = self.supervisor.status(agent)
        process = status.running.process if status.running else None
        return ServerStatus(
            status="installing" if process is None and self.installer.job(agent) else status.status,
            restart_count=status.restart_count,
            pid=process.pid if process else UNSET,
            uptime_ms=int((time.time() - process.started_at) * 1000) if process else UNSET,
            last_error=status.last_error or UNSET,
        )
