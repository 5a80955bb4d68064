"""Routes that nodes answer through a gateway, for its OpenAPI document: those of a server, with `node`."""

from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from sandbox_agent.agents.depot import AgentInstalls
from sandbox_agent.agents.views import AgentViews
from sandbox_agent.errors import SessionNotFound, TooMany
from sandbox_agent.fleet_errors import FleetUnreachable, MissingNode, NodeUnreachable, NoNode
from sandbox_agent.gateway.forwarding import NODE, is_forwarded
from sandbox_agent.host.search import Searches
from sandbox_agent.host.transfer.archives import UploadLimits
from sandbox_agent.host.watching import Watches
from sandbox_agent.http.directories import Archives, SearchRoute, Watching
from sandbox_agent.http.files import FileRoutes
from sandbox_agent.http.health import HealthCheck
from sandbox_agent.http.paths import Paths
from sandbox_agent.http.views import Endpoint, Installs, Views
from sandbox_agent.hub.hub import Hub
from sandbox_agent.hub.inventory import Inventory
from sandbox_agent.pools import Pool, Pools

_PROBLEMS = (MissingNode, NoNode, NodeUnreachable, FleetUnreachable, SessionNotFound, TooMany)


T = TypeVar("T")


def describe_forwarded() -> list[Endpoint]:
    """The endpoints. Their handlers are those of a server that has nothing; they are not called."""
    paths, pool = _absent(Paths), Pool("none", 1)
    views = Views(
        _absent(Hub),
        _absent(Inventory),
        _absent(AgentViews),
        Installs(_absent(AgentInstalls), 0),
        _absent(HealthCheck),
        Path(),
        pool,
    )
    tables = (
        views,
        FileRoutes(paths, None, 0, Pools()),
        Archives(paths, _absent(UploadLimits), 0, pool),
        SearchRoute(paths, _absent(Searches)),
        Watching(paths, _absent(Watches), 0),
    )
    return [
        replace(each, query={**each.query, "node": NODE}, problems=tuple(dict.fromkeys((*each.problems, *_PROBLEMS))))
        for table in tables
        for each in table.endpoints()
        if is_forwarded(each.path)
    ]


def _absent(kind: type[T]) -> T:
    """What stands for a part that is not there."""
    return cast("T", object())
