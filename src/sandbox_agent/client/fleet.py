"""Nodes of a fleet: what a gateway knows of the servers behind it."""

from msgspec import Struct

from sandbox_agent.client.api import Api


class FleetNode(Struct, rename="camel", kw_only=True, frozen=True):
    """A server behind a gateway, while it is there."""

    node: str
    """Its name."""
    version: str = ""
    """Of sandbox-agent."""
    labels: dict[str, str] = {}
    agents: list[str] = []
    """Ids of the agents that are installed there."""
    running: int = 0
    """Turns that run there."""
    sessions: int = 0
    """How many sessions belong to it."""
    since: str = ""
    """When it was started, by its own clock: UTC, ISO 8601 with milliseconds."""


class _Nodes(Struct):
    nodes: list[FleetNode]


async def fetch_nodes(api: Api) -> list[FleetNode]:
    """All nodes that are there, by name."""
    return (await api.json("GET", "/v1/nodes", type=_Nodes)).nodes
