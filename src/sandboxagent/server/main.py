"""Construct every long-lived object of a server, bottom to top, run it, and end it."""

import asyncio
import ctypes
import errno
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop
from msgspec import Struct

from sandboxagent.core.archives.remove import discard
from sandboxagent.core.data_directory import (
    DirectoryLocked,
    Untrusted,
    check_content,
    check_owner,
    find_leftovers,
    lock_directory,
    make_temporary,
    owner_of,
)
from sandboxagent.core.discovery import STAY_SIGNAL
from sandboxagent.core.settings import Settings
from sandboxagent.core.threads import Pools
from sandboxagent.protocol.errors import SettingsError, ShuttingDown
from sandboxagent.server.agents.build import InstallOnUse, open_catalog, open_installer, open_starter
from sandboxagent.server.agents.capabilities import FILE as OFFERS_FILE
from sandboxagent.server.agents.capabilities import AgentCapabilities
from sandboxagent.server.agents.catalog import Catalog
from sandboxagent.server.agents.environment import allowed_environment
from sandboxagent.server.agents.install.installer import Installer
from sandboxagent.server.agents.install.record import Store
from sandboxagent.server.agents.installs import AgentInstalls
from sandboxagent.server.agents.supervisor import Supervisor
from sandboxagent.server.agents.views import AgentViews
from sandboxagent.server.files.attached import AttachedFiles
from sandboxagent.server.files.roots import Roots, find_working_directory
from sandboxagent.server.files.text import TextFiles
from sandboxagent.server.files.watch import Watches
from sandboxagent.server.http.acp import Acp
from sandboxagent.server.http.app import App
from sandboxagent.server.http.asgi import App as Asgi
from sandboxagent.server.http.auth import Auth
from sandboxagent.server.http.body import WebSocketTransport
from sandboxagent.server.http.health import HealthCheck
from sandboxagent.server.http.ports import Delivery, HubClients
from sandboxagent.server.http.rpc import Rpc
from sandboxagent.server.http.stream import StreamLimits, Streams
from sandboxagent.server.lifetime import IdleTimer, Parent
from sandboxagent.server.listen import (
    PORT,
    TOKEN,
    announce,
    make_server,
    open_listener,
    provide_token,
    publish,
    set_up_logging,
)
from sandboxagent.server.log.database import DatabaseError
from sandboxagent.server.log.log import Limits, Log
from sandboxagent.server.log.recovery import FILE_SUFFIXES, open_database
from sandboxagent.server.permissions.file import load_rules
from sandboxagent.server.permissions.rules import Policy
from sandboxagent.server.processes.cgroup import open_cgroup
from sandboxagent.server.processes.children import ProcessTrees
from sandboxagent.server.sessions.agent_events import AgentEvents
from sandboxagent.server.sessions.attachments import AttachmentLimits, Attachments
from sandboxagent.server.sessions.dispatch import Dispatcher
from sandboxagent.server.sessions.extensions import ExtensionMethods, FileMethods
from sandboxagent.server.sessions.host_methods import HostRequests
from sandboxagent.server.sessions.hub import Hub, HubLimits
from sandboxagent.server.sessions.listing import SessionListing
from sandboxagent.server.sessions.load import CloseSession, LoadSession
from sandboxagent.server.sessions.methods import SessionMethods
from sandboxagent.server.sessions.policy import PolicyCheck
from sandboxagent.server.sessions.requests import Requests
from sandboxagent.server.sessions.settings import SessionSettings
from sandboxagent.server.sessions.terminals import TerminalLimits, Terminals
from sandboxagent.server.sessions.timeouts import TimeoutLoop
from sandboxagent.server.sessions.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from sandboxagent.adapters.opencode.app import OpenCodeBridge
    from sandboxagent.fleet.node.tunnels import NodeTunnels
    from sandboxagent.protocol.views import SessionView
    from sandboxagent.server.files.search import Searches

logger = logging.getLogger(__name__)

EXIT_PORT_TAKEN = 3
LOG = "log.db"
GC_THRESHOLDS = (20_000, 10, 10)
"""Envelopes, requests and sockets make no reference cycles, so the collector can run rarely; but not never."""
_MMAP_THRESHOLD, _TRIM_THRESHOLD = (-3, 1 << 20), (-1, 4 << 20)
"""Options of `mallopt`: bytes from which on memory is the kernel's own business, and bytes that are not given back."""
LAST_TIMEOUT = 0.5
"""How long agents get when the server itself stops: it promises to exit within two seconds."""


class ServerParts(Struct, frozen=True):
    """What a running server consists of, as far as it has to be started and ended."""

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
    watches: Watches
    timeout_loop: TimeoutLoop
    bridges: "list[OpenCodeBridge]"
    """To OpenCode's programs: none until the first of them calls."""
    catalog: Catalog

    def is_busy(self) -> bool:
        """Whether an agent works, or is being installed; a prompt that waits does so behind one that runs."""
        return not self.hub.calls.empty or self.installer.busy or self.offers.busy

    def stop(self) -> None:
        """Release all waiting callers."""
        self.hub.stopping = True
        self.roots.close()
        self.watches.close()
        for bridge in self.bridges:
            bridge.close()
        self.files.close()
        self.attached.close()
        self.hub.calls.fail_all(ShuttingDown())
        self.turns.fail_all(ShuttingDown())
        self.hub.changes.close()
        self.streams.close("the server is stopping")


def build(settings: Settings, children: ProcessTrees) -> ServerParts:
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
    terminals = Terminals(children, pools.agents, terminal_limits)
    host = HostRequests(hub, files, terminals, pools.agents, os.environ, secret, client_fs=settings.client_fs)
    rules = load_rules(settings.permissions_file)
    policy = Policy(rules, str(Path.home()), os.path.realpath, settings.rules_steps)
    policy_check = PolicyCheck(hub, policy, settings.rules_time)
    agent_events = AgentEvents(hub, turns, host, policy_check, pools.lines, os.environ)
    starter = open_starter(settings, children, os.environ, secret)
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
    installs = AgentInstalls(catalog, installer)
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

    file_methods = FileMethods(hub, roots, settings.max_file, pools, searches)
    own_methods = session_methods.table() | extensions.table() | file_methods.table()
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
    health = HealthCheck(log, catalog, supervisor)
    watches = Watches(settings.watches, settings.watch_buffer, settings.watched_directories, pools.watches)

    def control() -> Asgi:
        from sandboxagent.server.files.upload import UploadLimits
        from sandboxagent.server.http.archives import Archives
        from sandboxagent.server.http.files import FileRoutes, Paths
        from sandboxagent.server.http.routes import make_control_app
        from sandboxagent.server.http.search import SearchRoute
        from sandboxagent.server.http.ui import Ui
        from sandboxagent.server.http.views import Installs, Views
        from sandboxagent.server.http.watch import Watching

        logs = settings.data_dir / "logs"
        views = Views(hub, listing, agent_views, Installs(installs, settings.heartbeat), health, logs, pools.files)
        paths = Paths(roots, hub)
        files = FileRoutes(paths, settings.max_file, settings.max_body, pools)
        upload_limits = UploadLimits(
            settings.archive_bytes, settings.archive_entries, settings.archive_ratio, settings.archive_depth
        )
        archives = Archives(paths, upload_limits, settings.archives, pools.files)
        watching = Watching(paths, watches, settings.heartbeat)
        tables = (views, files, archives, SearchRoute(paths, searches()), watching)
        ui = Ui(settings.frame_origin, pools.files)
        return make_control_app([endpoint for table in tables for endpoint in table.endpoints()], ui)

    bridges: list[OpenCodeBridge] = []

    def opencode() -> Asgi:
        from sandboxagent.adapters.opencode.app import BridgeLimits, make_bridge
        from sandboxagent.adapters.opencode.file_routes import HostFiles

        bridge_limits = BridgeLimits(settings.max_body, settings.stream_buffer, settings.opencode_memory)
        host_files = HostFiles(roots, searches, pools.files)
        environment = allowed_environment(os.environ, ())
        bridge = make_bridge(
            *(hub, requests, agent_views, terminals, host_files, policy_check, environment, settings.default_agent),
            bridge_limits,
            shell=settings.opencode_shell == "on",
        )
        bridges.append(bridge)
        return bridge.app

    def is_opencodes_name(name: str) -> bool:
        """Whether OpenCode's programs mean a session, or a draft, by a name that no session has in the hub."""
        if not name.startswith("ses_"):
            return False
        from sandboxagent.adapters.opencode.session_ids import find_session

        return any(bridge.has_draft(name) for bridge in bridges) or find_session(hub, name, hub.clock()) is not None

    hub.watch_names(is_opencodes_name)
    hosts = {name.lower() for name in settings.allow_host}
    auth = Auth(settings.token, settings.host, hosts, settings.cors_origin, settings.public_health)
    clients = HubClients(hub)
    delivery = Delivery(clients, requests, settings.stream_requests)
    websockets = WebSocketTransport(clients, requests, streams, delivery, pools.lines, settings.max_body)
    shared = (clients, requests, streams, delivery, websockets, pools.lines, settings.max_body)
    rpc, acp = Rpc(*shared), Acp(*shared, settings.session_streams)
    app = App(auth, rpc, acp, health, opencode, control)
    timeout_loop = TimeoutLoop(
        hub,
        settings.request_timeout,
        settings.turn_idle_timeout,
        settings.permission_timeout,
        settings.connection_ttl,
    )
    return ServerParts(
        *(app, log, hub, requests, turns, streams, supervisor, installer, offers),
        *(roots, files, attached, terminals, watches, timeout_loop, bridges, catalog),
    )


def run(settings: Settings) -> int:
    """Serve until stopped; returns the exit code."""
    for root in settings.fs_root:
        if not root.is_dir():
            raise SettingsError(f"--fs-root {root}: there is no such directory")
    set_up_logging(settings)
    parent = Parent() if settings.embedded else None
    try:
        listener = open_listener(settings)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            print(
                f"sandbox-agent: port {settings.port} on {settings.host} is taken; "
                "stop what listens there, or choose another with --port",
                file=sys.stderr,
            )
            return EXIT_PORT_TAKEN
        raise SettingsError(f"--host {settings.host} --port {settings.port}: {error.strerror}") from error
    try:
        with (
            listener,
            _temporary(settings) as settings,
            _data_directory(settings) as owner,
            provide_token(settings, listener) as settings,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(_serve(settings, listener, owner, parent))
    except DatabaseError as error:
        raise SettingsError(f"the session log cannot be opened: {error}; choose another --data-dir") from error
    return 0


async def _serve(settings: Settings, listener: socket.socket, owner: str, parent: Parent | None) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    if parent is not None:
        parent.watch(stopping.set)
    children = ProcessTrees(owner, open_cgroup(owner))
    logger.info("starting data=%s config=%s agents=%s", settings.data_dir, settings.config_dir, settings.agents_file)
    left_over = children.kill_leftovers()
    if left_over:
        logger.warning("ended processes of an earlier server processes=%d", left_over)
    parts = build(settings, children)
    await asyncio.to_thread(Store(settings.agents_dir).remove_leftovers)
    server = make_server(parts.app, settings)
    sockets = server.sockets
    running: list[Coroutine[None, None, None]] = [parts.timeout_loop.run(), parts.streams.run(), sockets.run()]
    flows = _make_flows(settings, parts) if settings.join else None
    if flows is not None:
        running.append(_join_fleet(settings, parts, flows))
    clocks = [asyncio.create_task(each) for each in running]
    await server.start(listener)
    # Everything allocated so far stays: the collector need not scan it again, not even once.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    keep_buffers()
    if settings.idle_exit is not None:
        busy = parts.is_busy
        idle_timer = IdleTimer(
            lambda: sockets.in_use or busy() or (flows is not None and flows.busy), settings.idle_exit
        )
        waiting = asyncio.create_task(_stop_when_idle(idle_timer, stopping))
        clocks.append(waiting)
        asyncio.get_running_loop().add_signal_handler(STAY_SIGNAL, _stay, waiting)
    try:
        with publish(settings, listener):
            announce(settings, listener)
            await stopping.wait()
    finally:
        logger.info("stopping")
        parts.stop()
        await asyncio.gather(
            parts.offers.close(),
            parts.installer.close(),
            parts.supervisor.close(LAST_TIMEOUT),
            parts.terminals.close(LAST_TIMEOUT),
        )
        # Not before: a client that waits for an agent gets its answer when the agent has ended.
        await server.stop()
        for clock in clocks:
            clock.cancel()
        children.close()
        parts.log.close()


def _stay(waiting: asyncio.Task[None]) -> None:
    waiting.cancel()
    logger.info("idle or not, staying until it is stopped")


def _make_flows(settings: Settings, parts: ServerParts) -> "NodeTunnels":
    from sandboxagent.fleet.node.connections import RemoteConnections
    from sandboxagent.fleet.node.tunnels import NodeTunnels

    remote_connections = RemoteConnections(settings.node, parts.hub, parts.requests, settings.max_body)
    answer = partial(parts.app.answer_gateway, remote_connections.routes)
    return NodeTunnels(settings.node, answer, settings.flows, parts.app.read_gateway_post)


def keep_buffers() -> None:
    """Keep some memory for what is read and written next: from the kernel each page of it costs a fault, every time."""
    # Some C libraries have no such options.
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            mallopt(*option)


async def _join_fleet(settings: Settings, parts: ServerParts, flows: "NodeTunnels") -> None:
    """Take part, as long as the server runs. Nothing of this is imported by a server that stands alone."""
    from sandboxagent.fleet.bus import subjects
    from sandboxagent.fleet.bus.nats import connect
    from sandboxagent.fleet.node.membership import FILE, Identity, Membership, Memory

    hub, listing, catalog = parts.hub, SessionListing(parts.hub), parts.catalog
    identity = Identity(
        settings.node,
        dict(label.split("=", 1) for label in settings.label),
        lambda: [agent.id for agent in catalog.agents() if catalog.program(agent) is not None],
        lambda: hub.calls.count,
        lambda: [agent.id for agent in catalog.agents() if parts.supervisor.running(agent.id) is not None],
        hub.pending.ids.run,
    )

    def view(session_id: str) -> "SessionView | None":
        session = hub.find_session(session_id)
        return None if session is None else listing.view(session)

    inbox = subjects.inbox_of_node(settings.node)
    path = None if settings.no_persist else settings.data_dir / FILE
    membership = Membership(
        identity,
        lambda: connect(settings.join, inbox, settings.node, settings.creds, settings.join_proxy),
        parts.log,
        view,
        listing.ids,
        Memory(path, settings.node),
        settings.publish_backlog,
        flows=flows,
    )
    parts.log.publisher = membership
    await membership.run()


def _beginning(settings: Settings) -> int:
    """Where a new log begins: that of a node after all logs that a node of its name had before it lost its disk.

    The fleet knows what it has of a node by positions. No log is written as fast as the microseconds go by.
    """
    return time.time_ns() // 1000 if settings.join else 0


async def _stop_when_idle(idle_timer: IdleTimer, stopping: asyncio.Event) -> None:
    await idle_timer.wait()
    logger.info("idle for long enough")
    stopping.set()


def _roots(settings: Settings) -> Roots:
    try:
        return Roots([str(each) for each in settings.fs_root], find_working_directory())
    except OSError as error:
        raise SettingsError(f"--fs-root {os.fsdecode(error.filename or '')}: {error.strerror}") from error


@contextmanager
def _temporary(settings: Settings) -> Generator[Settings]:
    """The settings, with a data directory that ends with the server if there is to be one."""
    if not settings.temporary:
        yield settings
        return
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(make_temporary(discard))
        except OSError as error:
            raise SettingsError(f"no temporary data directory: {error.strerror}; choose one with --data-dir") from error
        # No other server will ever come to end what these have left.
        for left in find_leftovers():
            logger.warning("removing what a killed server left path=%s", left)
            ProcessTrees(owner_of(left)).kill_leftovers()
            discard(left)
        yield settings.changed(data_dir=directory)


@contextmanager
def _data_directory(settings: Settings) -> Generator[str]:
    """Create it, and lock it for this server; yields the mark that its processes carry."""
    directory = settings.data_dir
    with ExitStack() as stack:
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            _check_data_directory(settings)
            if not settings.no_persist:
                stack.enter_context(lock_directory(directory))
        except DirectoryLocked as other:
            raise SettingsError(
                f"--data-dir {directory} is in use by another sandbox-agent (pid {other.pid or 'unknown'}); "
                "stop it (sandbox-agent daemon stop), choose another directory, or use --no-persist"
            ) from None
        except Untrusted as reason:
            raise SettingsError(f"--data-dir {directory}: {reason}; or use --trust-data-dir") from None
        except OSError as error:
            raise SettingsError(f"--data-dir {directory}: {error.strerror}") from error
        # Without a log nothing is shared through the directory, so any number of servers may use it.
        yield secrets.token_hex(16) if settings.no_persist else owner_of(directory)


def _check_data_directory(settings: Settings) -> None:
    directory = settings.data_dir
    if not settings.trust_data_dir:
        check_owner(directory)
    with suppress(FileExistsError):
        (directory / "logs").mkdir(mode=0o700)
    if not settings.trust_data_dir:
        files = [] if settings.no_persist else [TOKEN, PORT, OFFERS_FILE, *(LOG + suffix for suffix in FILE_SUFFIXES)]
        check_content(directory, files, ["logs"])
