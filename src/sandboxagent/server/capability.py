"""Define what a part of the server beside the hub may bring, hear and refuse.

A capability is a folder with one class that inherits `Capability`, and one line in `server/build.py`. The hub does not
know its name. `docs/architecture.md` has an example.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from sandboxagent.core.settings import Settings
from sandboxagent.core.threads import Pools
from sandboxagent.protocol.envelope import Envelope
from sandboxagent.server.agents.catalog import Catalog
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.agents.supervisor import Supervisor
from sandboxagent.server.agents.views import AgentViews
from sandboxagent.server.files.roots import Roots
from sandboxagent.server.http.asgi import App as Asgi
from sandboxagent.server.http.auth import Access
from sandboxagent.server.processes.children import ProcessTrees
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.dispatch import Method
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.observers import Observer
from sandboxagent.server.sessions.policy import PolicyCheck
from sandboxagent.server.sessions.requests import Requests
from sandboxagent.server.sessions.session import Prompt, Session
from sandboxagent.server.sessions.terminals import Terminals

if TYPE_CHECKING:
    from sandboxagent.server.files.search import Searches
    from sandboxagent.server.http.views import Endpoint


class ServerCore(Struct, frozen=True):
    """What a capability may use of a server. Its log is `hub.log`: read it with `log.since` from your own position."""

    settings: Settings
    hub: Hub
    requests: Requests
    """Takes envelopes as if a client had sent them."""
    supervisor: Supervisor
    catalog: Catalog
    agent_views: AgentViews
    policy_check: PolicyCheck
    terminals: Terminals
    children: ProcessTrees
    pools: Pools
    roots: Roots
    searches: "Callable[[], Searches]"
    """Made on first use."""


class Capability(Observer):
    """One of them. Override what you need: everything else brings nothing, hears nothing and refuses nothing.

    A server makes it at its start, with its `ServerCore`, so its module imports little: what only `app`, `endpoints` or
    `run` need is imported there.
    """

    name: str
    """In reports and errors."""
    access: Access | None = None
    """Paths of its own, which `app` answers."""

    def __init__(self, core: ServerCore) -> None:
        """Nothing of the server runs yet."""

    # What it brings

    def app(self) -> Asgi:
        """Make the app for the paths of `access`, when the first of them is asked for."""
        raise NotImplementedError

    def endpoints(self) -> "Sequence[Endpoint]":
        """Routes below `/v1/`, with their part of the OpenAPI document. Called when the first request needs one."""
        return ()

    def methods(self) -> Mapping[str, Method]:
        """Methods of JSON-RPC that the server answers itself. `initialize` tells those that begin with `_`."""
        return {}

    def notifications(self) -> Sequence[str]:
        """Notifications of its own that clients receive. `initialize` tells them."""
        return ()

    def run(self) -> Coroutine[object, None, None] | None:
        """Work that goes on beside the server, until it is cancelled at the end; None when there is none."""
        return None

    def is_busy(self) -> bool:
        """Whether it works, so that a server with `--idle-exit` stays."""
        return False

    def stop(self) -> None:
        """The server ends: release everyone who waits."""

    async def close(self) -> None:
        """End processes, and wait for them: after `stop`, and for half a second at most."""

    # What it knows

    def means_session(self, name: str) -> bool:
        """Whether its clients mean a session by a name: no other session gets that id or alias."""
        return False

    # What it may refuse: see `core/gates.py`

    def before_session(self, connection: Connection, envelope: Envelope) -> Awaitable[None] | None:
        """A client opens a session: `session/new` or `session/fork`."""
        return None

    def before_prompt(self, session: Session, prompt: Prompt) -> Awaitable[None] | None:
        """A prompt is about to go to its agent. The prompts behind it wait, too."""
        return None

    def before_process(self, agent: Agent, environment: Mapping[str, str]) -> Awaitable[None] | None:
        """A process of an agent is about to be started."""
        return None


class Capabilities:
    """All capabilities of one server."""

    def __init__(self, every: Sequence[type[Capability]], core: ServerCore) -> None:
        self.all = [each(core) for each in every]
        for each in self.all:
            _connect(each, core)

    def apps(self) -> list[tuple[Access, Callable[[], Asgi]]]:
        return [(each.access, each.app) for each in self.all if each.access is not None]

    def accesses(self) -> tuple[Access, ...]:
        return tuple(access for access, _ in self.apps())

    def endpoints(self) -> "list[Endpoint]":
        return [endpoint for each in self.all for endpoint in each.endpoints()]

    def work(self) -> list[Coroutine[object, None, None]]:
        return [work for each in self.all if (work := each.run()) is not None]

    def is_busy(self) -> bool:
        return any(each.is_busy() for each in self.all)

    def stop(self) -> None:
        for each in self.all:
            each.stop()


def _connect(capability: Capability, core: ServerCore) -> None:
    kind, name = type(capability), capability.name
    core.requests.add_methods(capability.methods(), capability.notifications())
    core.hub.observers.add(capability)
    if kind.means_session is not Capability.means_session:
        core.hub.watch_names(capability.means_session)
    if kind.before_session is not Capability.before_session:
        core.hub.before_session.add(name, capability.before_session)
    if kind.before_prompt is not Capability.before_prompt:
        core.hub.before_prompt.add(name, capability.before_prompt)
    if kind.before_process is not Capability.before_process:
        core.supervisor.before_start.add(name, capability.before_process)
