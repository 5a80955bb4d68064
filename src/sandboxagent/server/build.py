"""Construct every long-lived object of a server, bottom to top."""

import os
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from sandboxagent.core.settings import Settings
from sandboxagent.core.threads import Pools
from sandboxagent.protocol.errors import SettingsError, ShuttingDown
from sandboxagent.server.agents.build import InstallOnUse, open_catalog, open_installer, open_starter
from sandboxagent.server.agents.capabilities import FILE as OFFERS_FILE
from sandboxagent.server.agents.capabilities import AgentCapabilities
from sandboxagent.server.agents.catalog import Catalog
from sandboxagent.server.agents.install.installer import Installer
from sandboxagent.server.agents.installs import AgentInstalls
from sandboxagent.server.agents.supervisor import Supervisor
from sandboxagent.server.agents.views import AgentViews
from sandboxagent.server.capability import Capability, CapabilitySet, ServerCore
from sandboxagent.server.files.attached import AttachedFiles
from sandboxagent.server.files.roots import Roots, find_working_directory
from sandboxagent.server.files.text import TextFiles
from sandboxagent.server.http.acp import Acp
from sandboxagent.server.http.app import App
from sandboxagent.server.http.asgi import App as Asgi
from sandboxagent.server.http.auth import Auth
from sandboxagent.server.http.deliver import Delivery
from sandboxagent.server.http.duplex import WebSocketTransport
from sandboxagent.server.http.health import HealthCheck, InstalledAgents
from sandboxagent.server.http.ports import HubClients
from sandboxagent.server.http.rpc import Rpc
from sandboxagent.server.http.stream import StreamLimits, Streams
from sandboxagent.server.log.log import Limits, Log
from sandboxagent.server.log.recovery import open_database
from sandboxagent.server.permissions.file import load_rules
from sandboxagent.server.permissions.rules import Policy
from sandboxagent.server.processes.children import ProcessTrees
from sandboxagent.server.sessions.agent_events import AgentEvents
from sandboxagent.server.sessions.attachments import AttachmentLimits, Attachments
from sandboxagent.server.sessions.close import CloseSession
from sandboxagent.server.sessions.dispatch import Dispatcher
from sandboxagent.server.sessions.extensions import ExtensionMethods
from sandboxagent.server.sessions.host_methods import HostRequests
from sandboxagent.server.sessions.hub import Hub, HubLimits
from sandboxagent.server.sessions.listing import SessionListing
from sandboxagent.server.sessions.load import LoadSession
from sandboxagent.server.sessions.methods import SessionMethods
from sandboxagent.server.sessions.policy import PolicyCheck
from sandboxagent.server.sessions.requests import Requests
from sandboxagent.server.sessions.settings import SessionSettings
from sandboxagent.server.sessions.terminals import TerminalLimits, Terminals
from sandboxagent.server.sessions.timeouts import TimeoutLoop
from sandboxagent.server.sessions.turns import Turns

if TYPE_CHECKING:
    from sandboxagent.server.files.search import Searches


LOG = "log.db"


def list_capabilities() -> Sequence[type[Capability]]:
    """Return all capabilities. None knows another one, and the hub knows none.

    The imports are local, so that a server without a capability imports nothing of it.
    """
    from sandboxagent.adapters.opencode.capability import OpenCodeApi
    from sandboxagent.server.file_api.capability import FileApi

    return (FileApi, OpenCodeApi)


class ServerParts(Struct, frozen=True):
    """The parts of a server that have to be started and ended."""

    app: App
    log: Log
    hub: Hub
    requests: Requests
    turns: Turns
    streams: Streams
    supervisor: Supervisor
    installer: Installer
    offers: AgentCapabilities
    roots: Roots
    files: TextFiles
    attached: AttachedFiles
    terminals: Terminals
    timeout_loop: TimeoutLoop
    capabilities: CapabilitySet
    catalog: Catalog

    def is_busy(self) -> bool:
        """Return whether an agent is working or is being installed, or a capability is busy.

        Prompts that wait need no check, because they wait behind one that runs.
        """
        return not self.hub.calls.empty or self.installer.busy or self.offers.busy or self.capabilities.is_busy()

    def stop(self) -> None:
        """Release all waiting callers."""
        self.hub.stopping = True
        self.roots.close()
        self.capabilities.stop()
        self.files.close()
        self.attached.close()
        self.hub.calls.fail_all(ShuttingDown())
        self.turns.fail_all(ShuttingDown())
        self.hub.changes.close()
        self.streams.close("the server is stopping")


def build(settings: Settings, children: ProcessTrees, capabilities: Sequence[type[Capability]]) -> ServerParts:
    """Construct everything, bottom to top. Needs a running event loop."""
    catalog = open_catalog(settings, os.environ)
    tail = settings.replay_bytes
    limits = Limits(settings.log_max_bytes, settings.log_max_age, tail, settings.write_backlog)
    opened = open_database(None if settings.no_persist else settings.data_dir / LOG)
    log = Log(opened.database, limits, damage=opened.damage, beginning=_beginning(settings))
    hub_limits = HubLimits(settings.agent_memory, settings.pending_requests)
    hub = Hub(log, hub_limits, node=settings.node if settings.join else "")
    turns = Turns(hub, settings.prompt_queue)
    secret = [settings.token] if settings.token else []
    roots = _roots(settings)
    pools = Pools()
    files = TextFiles(settings.text_limit, scan=settings.text_scan, within=roots.within)
    terminal_limits = TerminalLimits(settings.terminals, settings.terminal_output, settings.stop_grace)
    terminals = Terminals(children, pools.agents, terminal_limits, hub.budgets)
    host = HostRequests(hub, files, terminals, pools.agents, os.environ, secret, client_fs=settings.client_fs)
    rules = load_rules(settings.permissions_file)
    policy = Policy(rules, str(Path.home()), os.path.realpath, settings.rules_steps)
    policy_check = PolicyCheck(hub, policy, settings.rules_time)
    agent_events = AgentEvents(hub, turns, host, policy_check, pools.lines, os.environ)
    starter = open_starter(settings, children, os.environ, secret, hub.observers)
    installer = open_installer(settings, children, catalog, starter)
    install_on_use = InstallOnUse(catalog, installer, may_install=not settings.require_preinstall)
    supervisor = Supervisor(agent_events, starter, install_on_use)
    dispatcher = Dispatcher(hub, supervisor, catalog, settings.request_timeout, pools.files)
    listing = SessionListing(hub)
    session_settings = SessionSettings(hub, dispatcher)
    offers_file = None if settings.no_persist else settings.data_dir / OFFERS_FILE
    as_installed = InstallOnUse(catalog, installer, may_install=False)
    offers = AgentCapabilities(
        catalog, starter, as_installed, os.environ, offers_file, settings.request_timeout, pools.files
    )
    agent_views = AgentViews(hub.store.find_newest, offers, catalog, installer, supervisor, os.environ)
    installs = AgentInstalls(catalog, installer, offers.begin)
    loading = LoadSession(hub, dispatcher)
    ending = CloseSession(hub, dispatcher, turns)
    attached = AttachedFiles(roots.confined)
    attachment_limits = AttachmentLimits(settings.attachments, settings.attached_images)
    attachments = Attachments(attached, attachment_limits, pools.files)
    session_methods = SessionMethods(
        *(hub, dispatcher, turns, agent_events.release, listing, session_settings, loading, ending, attachments),
        pools.lines,
    )
    extensions = ExtensionMethods(hub, dispatcher, ending, listing, agent_views, installs)

    @cache
    def searches() -> "Searches":
        from sandboxagent.server.files.search import Searches, SearchLimits

        most = SearchLimits(settings.search_results, settings.search_bytes, settings.search_time, settings.searches)
        return Searches(roots.confined, children, most, pools.searches)

    own_methods = session_methods.table() | extensions.table()
    requests = Requests(
        hub,
        dispatcher,
        turns,
        session_methods.prompt,
        own_methods,
        settings.request_timeout,
        settings.default_agent,
    )
    stream_limits = StreamLimits(
        settings.stream_buffer, settings.stall_timeout, settings.heartbeat, settings.peer_timeout
    )
    streams = Streams(log, stream_limits)
    core = ServerCore(
        *(settings, hub, requests, dispatcher, turns, listing, starter, supervisor, catalog, agent_views),
        *(policy_check, terminals, children, pools, roots, searches),
    )
    capable = CapabilitySet(capabilities, core)
    hub.end_interrupted()
    health = HealthCheck(log, InstalledAgents(catalog), supervisor, capable.troubles)

    def control() -> Asgi:
        from sandboxagent.server.http.routes import make_control_app
        from sandboxagent.server.http.ui import Ui
        from sandboxagent.server.http.views import Installs, Views

        logs = settings.data_dir / "logs"
        views = Views(hub, listing, agent_views, Installs(installs, settings.heartbeat), health, logs, pools.files)
        return make_control_app([*views.endpoints(), *capable.endpoints()], Ui(settings.frame_origin, pools.files))

    hosts = {name.lower() for name in settings.allow_host}
    auth = Auth(settings.token, settings.host, hosts, settings.cors_origin, settings.public_health, capable.accesses())
    clients = HubClients(hub)
    delivery = Delivery(clients, requests, settings.stream_requests)
    websockets = WebSocketTransport(clients, requests, streams, delivery, pools.lines, settings.max_body)
    shared = (clients, requests, streams, delivery, websockets, pools.lines, settings.max_body)
    rpc, acp = Rpc(*shared), Acp(*shared, settings.session_streams)
    app = App(auth, rpc, acp, health, capable.apps(), control)
    timeout_loop = TimeoutLoop(
        hub,
        settings.request_timeout,
        settings.turn_idle_timeout,
        settings.permission_timeout,
        settings.connection_ttl,
    )
    return ServerParts(
        *(app, log, hub, requests, turns, streams, supervisor, installer, offers),
        *(roots, files, attached, terminals, timeout_loop, capable, catalog),
    )


def _beginning(settings: Settings) -> int:
    """Return the position where a new log begins.

    The log of a node must begin after all logs that a node of that name had before it lost its disk, because the fleet
    identifies events by positions. The time in microseconds is such a position: no log grows by an event per
    microsecond.
    """
    return time.time_ns() // 1000 if settings.join else 0


def _roots(settings: Settings) -> Roots:
    try:
        return Roots([str(each) for each in settings.fs_root], find_working_directory())
    except OSError as error:
        raise SettingsError(f"--fs-root {os.fsdecode(error.filename or '')}: {error.strerror}") from error
