"""Define capabilities: parts of the server beside the hub that add, observe and refuse.

A capability is a folder with one class that inherits `Capability`, and one line in `server/build.py`. The hub does not
know its name. `docs/architecture.md` has an example.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from sandboxagent.core.settings import Settings
from sandboxagent.core.threads import Pools
from sandboxagent.protocol.envelope import Envelope
from sandboxagent.server.agents.catalog import Catalog
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.agents.start import AgentStarter
from sandboxagent.server.agents.supervisor import Supervisor
from sandboxagent.server.agents.views import AgentViews
from sandboxagent.server.files.roots import Roots
from sandboxagent.server.http.asgi import App as Asgi
from sandboxagent.server.http.auth import Access
from sandboxagent.server.processes.children import ProcessTrees
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.dispatch import Dispatcher, Method
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.listing import SessionListing
from sandboxagent.server.sessions.observers import Observer
from sandboxagent.server.sessions.policy import PolicyCheck
from sandboxagent.server.sessions.requests import Requests
from sandboxagent.server.sessions.session import Prompt, Session
from sandboxagent.server.sessions.terminals import Terminals
from sandboxagent.server.sessions.turns import Turns

if TYPE_CHECKING:
    from sandboxagent.server.files.search import Searches
    from sandboxagent.server.http.views import Endpoint

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT = 1.0
"""Seconds that `close` of a capability may take, because the server promises to exit within two seconds."""
_SERVER_PATHS = ("/v1", "/acp", "/ui", "/openapi.json")
"""The paths of the server itself, which no capability may answer with an app."""


class ServerCore(Struct, frozen=True):
    """The parts of a server that a capability may use.

    The log is `hub.log`. `hub.log.reader` reads it from your own position.
    """

    settings: Settings
    hub: Hub
    requests: Requests
    """Handles envelopes as if a client had sent them."""
    dispatcher: Dispatcher
    turns: Turns
    listing: SessionListing
    starter: AgentStarter
    supervisor: Supervisor
    catalog: Catalog
    agent_views: AgentViews
    policy_check: PolicyCheck
    terminals: Terminals
    children: ProcessTrees
    pools: Pools
    roots: Roots
    searches: "Callable[[], Searches]"
    """Makes the searches on first use."""


class _Absent:
    """A part of a server that does not exist. It may be kept, and called for a part that does not exist either."""

    def __call__(self) -> "_Absent":
        return self


def describing_core(settings: Settings) -> ServerCore:
    """Return a core without a server. With it, capabilities can describe their endpoints, and nothing else."""
    parts: dict[str, object] = dict.fromkeys(ServerCore.__struct_fields__, _Absent())
    return cast("Callable[..., ServerCore]", ServerCore)(**parts | {"settings": settings, "pools": Pools()})


class Capability(Observer):
    """A part of the server beside the hub.

    Override only the methods you need: the others do nothing and refuse nothing.

    A server makes it at its start, with its `ServerCore`. So its module must import little: import the needs of `app`,
    `endpoints` and `run` inside of them.
    """

    name: str
    """The capability's name in log messages and errors."""
    access: Access | None = None
    """The paths that `app` answers. A gateway passes requests for them to a node."""
    forwarded: tuple[str, ...] = ()
    """Paths of `endpoints`, with all paths beneath them, whose requests a gateway passes to a node."""
    large_methods: frozenset[str] = frozenset()
    """Those of `methods` that accept an envelope of any size. They limit it themselves, and parse it in a thread."""

    def __init__(self, core: ServerCore) -> None:
        """Store the core. Nothing of the server is running yet."""

    # Additions to the server

    def app(self) -> Asgi:
        """Make the app for the paths of `access`, at the first request to one of them."""
        raise NotImplementedError

    def endpoints(self) -> "Sequence[Endpoint]":
        """Return routes below `/v1/`, with their part of the OpenAPI document.

        Called when the first request needs one. A gateway calls it to describe the routes that it passes on. Its core
        has settings and pools only, so this method and `__init__` may keep the other parts, but not use them.
        """
        return ()

    def methods(self) -> Mapping[str, Method]:
        """Return JSON-RPC methods that the server itself answers. `initialize` lists those that begin with `_`."""
        return {}

    def notifications(self) -> Sequence[str]:
        """Return the capability's own notifications to clients. `initialize` lists them."""
        return ()

    def run(self) -> Coroutine[object, None, None] | None:
        """Return work that runs until it is cancelled at the server's end; None if there is none."""
        return None

    def is_busy(self) -> bool:
        """Return whether the capability is busy, so that a server with `--idle-exit` keeps running."""
        return False

    def trouble(self) -> str | None:
        """Return why the capability does not work, for health and doctor; None if it works. Must return at once."""
        return None

    def stop(self) -> None:
        """Release all waiting callers, because the server is stopping."""

    async def close(self) -> None:
        """End processes, and wait for them for at most half a second. Called after `stop`."""

    # Names of its own

    def reserves_name(self, name: str) -> bool:
        """Return whether the capability's clients use a name for a session. No other session gets that id or alias."""
        return False

    # Checks, which may refuse an action: see `core/gates.py`

    def before_session(self, connection: Connection, envelope: Envelope) -> Awaitable[None] | None:
        """Check a client's request for a session: `session/new` or `session/fork`."""
        return None

    def before_prompt(self, session: Session, prompt: Prompt) -> Awaitable[None] | None:
        """Check a prompt before it goes to its agent. The prompts behind it wait too."""
        return None

    def before_process(self, agent: Agent, environment: Mapping[str, str]) -> Awaitable[None] | None:
        """Check the start of an agent process, also of one that only tells the server about its agent."""
        return None


class CapabilitySet:
    """All capabilities of one server."""

    def __init__(self, every: Sequence[type[Capability]], core: ServerCore) -> None:
        """Make all capabilities, and connect them to the core.

        Raises ValueError for a path or a method that the server or another capability has.
        """
        self.all = [each(core) for each in every]
        _check_paths(self.all)
        for each in self.all:
            _connect(each, core)

    def apps(self) -> list[tuple[Access, Callable[[], Asgi]]]:
        return [(each.access, each.app) for each in self.all if each.access is not None]

    def accesses(self) -> tuple[Access, ...]:
        return tuple(access for access, _ in self.apps())

    def endpoints(self) -> "list[Endpoint]":
        return [endpoint for each in self.all for endpoint in each.endpoints()]

    def work(self) -> list[tuple[str, Coroutine[object, None, None]]]:
        """Return the work that capabilities do beside the server, each with the name of its capability."""
        return [(each.name, work) for each in self.all if (work := each.run()) is not None]

    def is_busy(self) -> bool:
        return any(each.is_busy() for each in self.all)

    def troubles(self) -> list[str]:
        return [f"{each.name}: {trouble}" for each in self.all if (trouble := _find_trouble(each)) is not None]

    def stop(self) -> None:
        """Stop all capabilities. One that fails does not keep the others from stopping."""
        for each in self.all:
            try:
                each.stop()
            except Exception:
                logger.exception("capability failed to stop capability=%r", each.name)

    async def close(self) -> None:
        """Close all capabilities side by side. One that fails or takes too long is only logged."""
        await asyncio.gather(*map(_close, self.all))


def _find_trouble(capability: Capability) -> str | None:
    try:
        return capability.trouble()
    except Exception:
        logger.exception("capability failed to check itself capability=%r", capability.name)
        return "it could not check itself"


async def _close(capability: Capability) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await capability.close()
    except Exception:
        logger.exception("capability failed to close capability=%r", capability.name)


def _check_paths(capabilities: Sequence[Capability]) -> None:
    """Raise ValueError if a capability has a path of the server or of another capability."""
    owners = [
        (path, each)
        for each in capabilities
        if each.access is not None
        for path in (each.access.path, each.access.health)
        if path is not None
    ]
    for path, owner in owners:
        if any(_overlap(path, taken) for taken in _SERVER_PATHS):
            raise ValueError(f"the path {path} of the capability {owner.name!r} belongs to the server")
    for (path, owner), (other_path, other) in combinations(owners, 2):
        if owner is not other and _overlap(path, other_path):
            raise ValueError(f"the capabilities {owner.name!r} and {other.name!r} both answer {path}")


def _overlap(path: str, other: str) -> bool:
    return f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/")


def _connect(capability: Capability, core: ServerCore) -> None:
    kind, name = type(capability), capability.name
    core.requests.add_methods(capability.methods(), capability.notifications(), capability.large_methods)
    core.hub.observers.add(capability)
    if kind.reserves_name is not Capability.reserves_name:
        core.hub.watch_names(capability.reserves_name)
    if kind.before_session is not Capability.before_session:
        core.hub.before_session.add(name, capability.before_session)
    if kind.before_prompt is not Capability.before_prompt:
        core.hub.before_prompt.add(name, capability.before_prompt)
    if kind.before_process is not Capability.before_process:
        core.starter.before_start.add(name, capability.before_process)
