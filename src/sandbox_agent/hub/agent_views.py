"""The agents as clients see them, over HTTP and over ACP alike."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from sandbox_agent import __version__
from sandbox_agent.agents.catalog import Catalog
from sandbox_agent.agents.credentials import available
from sandbox_agent.agents.install.installer import Installer
from sandbox_agent.agents.install.progress import Progress
from sandbox_agent.agents.install.record import Artifact, Record
from sandbox_agent.agents.instructions import instructions
from sandbox_agent.agents.manifest import Agent, Features, Source
from sandbox_agent.agents.supervisor import Supervisor
from sandbox_agent.envelope import Object
from sandbox_agent.hub.hub import Hub


class InstallView(Struct, rename="camel", kw_only=True):
    """Where an agent comes from."""

    source: Source
    non_registry: bool
    verified: bool
    artifacts: list[Artifact]
    registry_slug: str | UnsetType = UNSET
    package: str | UnsetType = UNSET
    installed_at: str | UnsetType = UNSET
    verified_at: str | UnsetType = UNSET
    verification_error: str | UnsetType = UNSET
    note: str | UnsetType = UNSET
    """What else is to be said about its source."""
    node: str | UnsetType = UNSET
    progress: Progress | UnsetType = UNSET
    """While it is being installed."""


class ServerStatus(Struct, rename="camel", kw_only=True):
    """How an agent's process is doing."""

    status: Literal["stopped", "installing", "starting", "running", "error"]
    restart_count: int
    pid: int | UnsetType = UNSET
    uptime_ms: int | UnsetType = UNSET
    last_error: str | UnsetType = UNSET


class AgentView(Struct, rename="camel", kw_only=True):
    """An agent, as `GET /v1/agents` shows it."""

    id: str
    title: str
    supported: bool
    installed: bool
    credentials_available: bool
    install: InstallView
    capabilities: Object
    server_status: ServerStatus
    instructions: str
    unsupported_reason: str | UnsetType = UNSET
    version: str | UnsetType = UNSET
    native_version: str | UnsetType = UNSET
    path: str | UnsetType = UNSET
    features: Features | UnsetType = UNSET
    models: Object | UnsetType = UNSET
    modes: Object | UnsetType = UNSET


class AgentsView(Struct):
    """All agents."""

    agents: list[AgentView]


@dataclass(frozen=True, slots=True)
class AgentViews:
    """Makes the views from the catalog, the processes and the sessions."""

    hub: Hub
    catalog: Catalog
    installer: Installer
    supervisor: Supervisor
    environ: Mapping[str, str]

    async def all(self, *, registry: bool = False) -> AgentsView:
        """Those that are known here; with `registry`, all that could be installed too."""
        agents = await self.catalog.all() if registry else self.catalog.agents()
        return AgentsView([self.view(agent) for agent in agents])

    def view(self, agent: Agent) -> AgentView:
        running = self.supervisor.running(agent.id)
        record = self.catalog.record(agent)
        path = self.catalog.program(agent)
        newest = self.hub.newest_session(agent.id)
        known = record.capabilities if record else {}
        version = __version__ if agent.source == "bundled" else record and record.version
        supported = self.catalog.supported(agent)
        return AgentView(
            id=agent.id,
            title=agent.title,
            supported=supported,
            installed=path is not None,
            credentials_available=available(agent, self.environ),
            install=self._install(agent, record, verified=running is not None or agent.source == "bundled"),
            capabilities=running.handshake.capabilities if running else known,
            server_status=self._status(agent.id),
            instructions=instructions(agent),
            unsupported_reason=UNSET if supported else agent.unsupported_reason or UNSET,
            version=version or UNSET,
            native_version=(record and record.native_version) or UNSET,
            path=path or UNSET,
            features=agent.features or UNSET,
            models=newest.models() if newest else UNSET,
            modes=newest.modes() if newest else UNSET,
        )

    def _install(self, agent: Agent, record: Record | None, *, verified: bool) -> InstallView:
        job = self.installer.job(agent.id)
        progress = job.progress if job else UNSET
        failure = self.installer.failure(agent.id) or UNSET
        artifacts, source = self.catalog.artifacts(agent), self.catalog.source(agent)
        if record is None:
            return InstallView(
                source=source,
                non_registry=source != "registry",
                verified=verified,
                artifacts=artifacts,
                registry_slug=agent.registry[0] if agent.registry else UNSET,
                package=agent.packages[0].name if agent.packages else UNSET,
                verification_error=failure,
                progress=progress,
            )
        return InstallView(
            source=source,
            non_registry=source != "registry",
            verified=True,
            artifacts=artifacts,
            registry_slug=record.registry_slug or UNSET,
            package=record.package or UNSET,
            installed_at=record.installed_at,
            verified_at=record.verified_at,
            verification_error=failure,
            note=record.note or UNSET,
            node=record.node,
            progress=progress,
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
