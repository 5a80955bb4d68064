"""Servers, gateways and the nodes of a fleet, as clients see them."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class AgentHealth(Struct):
    """One agent, in short."""

    agent: str
    """Its id."""
    installed: bool
    """It could be started now."""
    running: bool
    """Its shared process runs."""


class HealthView(Struct, rename="camel"):
    """How the server is doing."""

    status: Literal["ok", "degraded"]
    """`degraded` while the session log cannot be written, or was damaged and that is not acknowledged yet,
    or does not reach the fleet."""
    version: str
    """Of sandbox-agent."""
    uptime_ms: int
    """Since the server started."""
    agents: list[AgentHealth]
    detail: str | UnsetType = UNSET
    """Why it is degraded."""


class GatewayHealth(Struct, rename="camel"):
    """How the gateway is doing, and what it sees of the fleet."""

    status: Literal["ok", "degraded"]
    """`degraded` while NATS cannot be reached, or no node is there."""
    version: str
    """Of sandbox-agent."""
    uptime_ms: int
    """Since the gateway started."""
    gateway: str
    """Its name, a new one each time it starts."""
    nodes: int
    """That are there."""
    sessions: int
    """In the list, those of nodes that are away included."""
    running: int
    """Turns that run."""
    agents: list[AgentHealth]
    """Those that are installed on any node; `running` where any node runs them. `GET /v1/agents?node=` has more."""
    detail: str | UnsetType = UNSET
    """Why it is degraded."""


class NodeView(Struct, rename="camel"):
    """A node that is there."""

    node: str
    version: str
    """Of sandbox-agent."""
    labels: dict[str, str]
    agents: list[str]
    """That are installed there."""
    running: int
    """Turns that run."""
    sessions: int
    """That belong to it."""
    since: str
    """When it was started, by its own clock: UTC, ISO 8601 with milliseconds."""
    draining: bool = False
    """It gets no new sessions."""


class NodesView(Struct):
    """All nodes that are there."""

    nodes: list[NodeView]
