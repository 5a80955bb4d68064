"""The bridge put together: OpenCode's API on one side, the hub on the other."""

from collections.abc import Mapping
from dataclasses import dataclass

from sandbox_agent.agents.views import AgentViews
from sandbox_agent.host.terminals import Terminals
from sandbox_agent.http.asgi import App
from sandbox_agent.hub.from_client import FromClient
from sandbox_agent.hub.hub import Hub
from sandbox_agent.opencode.app import make_app
from sandbox_agent.opencode.asking_routes import AskingRoutes
from sandbox_agent.opencode.bus import Bus
from sandbox_agent.opencode.conversations import Conversations
from sandbox_agent.opencode.file_routes import FileRoutes, Files
from sandbox_agent.opencode.hub_client import HubClient
from sandbox_agent.opencode.missed import Missed
from sandbox_agent.opencode.naming import project_id
from sandbox_agent.opencode.offerings import Offerings
from sandbox_agent.opencode.reading import Reading
from sandbox_agent.opencode.requests import Requests
from sandbox_agent.opencode.server_routes import ServerRoutes
from sandbox_agent.opencode.session_routes import SessionRoutes
from sandbox_agent.opencode.shells import Shells
from sandbox_agent.opencode.streams import EventStreams
from sandbox_agent.opencode.transcripts import Transcripts


@dataclass(frozen=True, slots=True)
class BridgeLimits:
    """What the bridge may take, in bytes."""

    body: int
    stream: int
    """That waits for one reader."""
    memory: int
    """For transcripts."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """The app, and its end."""

    app: App
    bus: Bus

    def close(self) -> None:
        """End all streams."""
        self.bus.close()


def make_bridge(
    hub: Hub,
    from_client: FromClient,
    views: AgentViews,
    terminals: Terminals,
    files: Files,
    environment: Mapping[str, str],
    default_agent: str | None,
    limits: BridgeLimits,
) -> Bridge:
    """Everything that the bridge consists of, bottom to top. From then on it hears of every session."""
    bus = Bus(limits.stream, project_id, hub.clock)
    transcripts = Transcripts(hub, bus, limits.memory)
    client = HubClient(hub, from_client)
    requests = Requests(client, transcripts, bus)
    offerings = Offerings(views, default_agent, bus.refresh, hub.monotonic)
    conversations = Conversations(client, transcripts, bus, offerings, hub.clock)
    shells = Shells(client, conversations, transcripts, terminals, environment)
    reading = Reading(limits.body, files.roots.base)
    app = make_app(
        reading,
        EventStreams(bus, requests, Missed(hub, transcripts, bus)),
        SessionRoutes(reading, conversations, requests, shells).table(),
        AskingRoutes(reading, requests).table(),
        ServerRoutes(reading, hub, offerings, transcripts).table(),
        FileRoutes(reading, files).table(),
    )
    hub.log.follow_history(transcripts)
    hub.observe(requests)
    return Bridge(app, bus)
