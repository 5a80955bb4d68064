"""The agents as clients see them, over HTTP and over ACP alike."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from sandbox_agent.agents.manifest import Agent, Manifest
from sandbox_agent.agents.supervisor import Supervisor
from sandbox_agent.envelope import Object
from sandbox_agent.hub.hub import Hub


class Artifact(Struct, rename="camel", kw_only=True):
    """One program that an agent needs."""

    kind: Literal["agent_process", "native"]
    name: str
    version: str | None
    path: str | None
    source: str


class InstallView(Struct, rename="camel", kw_only=True):
    """Where an agent comes from."""

    source: str
    non_registry: bool
    verified: bool
    artifacts: list[Artifact]
    registry_slug: str | UnsetType = UNSET
    package: str | UnsetType = UNSET


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
    path: str | UnsetType = UNSET
    models: Object | UnsetType = UNSET
    modes: Object | UnsetType = UNSET


class AgentsView(Struct):
    """All agents."""

    agents: list[AgentView]


@dataclass(frozen=True, slots=True)
class AgentViews:
    """Makes the views from the manifest, the processes and the sessions."""

    hub: Hub
    manifest: Manifest
    supervisor: Supervisor
    environ: Mapping[str, str]

    def all(self) -> AgentsView:
        return AgentsView([self.view(agent) for agent in self.manifest.agents])

    def view(self, agent: Agent) -> AgentView:
        status = self.supervisor.status(agent.id)
        running = status.running
        path = agent.path
        newest = self.hub.newest_session(agent.id)
        return AgentView(
            id=agent.id,
            title=agent.title,
            supported=agent.supported,
            installed=path is not None,
            credentials_available=not agent.credentials or any(map(self.environ.get, agent.credentials)),
            install=self._install(agent, path, verified=running is not None),
            capabilities=running.handshake.capabilities if running else {},
            server_status=self._status(agent.id),
            instructions=agent.instructions,
            unsupported_reason=agent.unsupported_reason or UNSET,
            version=agent.version or UNSET,
            path=path or UNSET,
            models=newest.models() if newest else UNSET,
            modes=newest.modes() if newest else UNSET,
        )

    def _install(self, agent: Agent, path: str | None, *, verified: bool) -> InstallView:
        artifacts: list[Artifact] = []
        if path is not None:
            name = Path(path).name
            artifacts = [
                Artifact(kind="agent_process", name=name, version=agent.version, path=path, source=agent.source)
            ]
        return InstallView(
            source=agent.source,
            non_registry=agent.registry is None,
            verified=verified,
            artifacts=artifacts,
            registry_slug=agent.registry or UNSET,
            package=agent.packages[0].name if agent.packages else UNSET,
        )

    def _status(self, agent: str) -> ServerStatus:
        status = self.supervisor.status(agent)
        process = status.running.process if status.running else None
        return ServerStatus(
            status=status.status,
            restart_count=status.restart_count,
            pid=process.pid if process else UNSET,
            uptime_ms=int((time.time() - process.started_at) * 1000) if process else UNSET,
            last_error=status.last_error or UNSET,
        )
