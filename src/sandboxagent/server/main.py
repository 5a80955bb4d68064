"""Run a server: take the port and the data directory, serve until it is stopped, and end everything."""

import asyncio
import ctypes
import errno
import gc
import logging
import secrets
import signal
import socket
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import uvloop

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
from sandboxagent.core.tasks import Tasks
from sandboxagent.protocol.errors import SettingsError
from sandboxagent.server.agents.capabilities import FILE as OFFERS_FILE
from sandboxagent.server.agents.install.record import Store
from sandboxagent.server.announce import announce
from sandboxagent.server.build import LOG, ServerParts, build, list_capabilities
from sandboxagent.server.capability import Capability
from sandboxagent.server.lifetime import IdleTimer, Parent
from sandboxagent.server.listen import PORT, TOKEN, make_server, open_listener, provide_token, publish, set_up_logging
from sandboxagent.server.log.database import DatabaseError
from sandboxagent.server.log.recovery import FILE_SUFFIXES
from sandboxagent.server.processes.cgroup import open_cgroup
from sandboxagent.server.processes.children import ProcessTrees
from sandboxagent.server.sessions.listing import SessionListing

if TYPE_CHECKING:
    from sandboxagent.fleet.node.tunnels import NodeTunnels
    from sandboxagent.protocol.views import SessionView

logger = logging.getLogger(__name__)

EXIT_PORT_TAKEN = 3
GC_THRESHOLDS = (20_000, 10, 10)
"""Envelopes, requests and sockets form no reference cycles. So the collector may run rarely, but must run."""
_MMAP_THRESHOLD, _TRIM_THRESHOLD = (-3, 1 << 20), (-1, 4 << 20)
"""Options of `mallopt`: the size from which memory is mapped separately, and the free memory that is not returned to
the kernel. Both are in bytes."""
LAST_TIMEOUT = 0.5
"""Seconds that agents get when the server stops, because the server promises to exit within two seconds."""


def run(settings: Settings, capabilities: Sequence[type[Capability]] | None = None) -> int:
    """Serve until the server is stopped, with all capabilities unless some are given. Returns the exit code."""
    capabilities = list_capabilities() if capabilities is None else capabilities
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
            runner.run(_serve(settings, listener, owner, parent, capabilities))
    except DatabaseError as error:
        raise SettingsError(f"the session log cannot be opened: {error}; choose another --data-dir") from error
    return 0


async def _serve(
    settings: Settings,
    listener: socket.socket,
    owner: str,
    parent: Parent | None,
    capabilities: Sequence[type[Capability]],
) -> None:
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
    parts = build(settings, children, capabilities)
    await asyncio.to_thread(Store(settings.agents_dir).remove_leftovers)
    server = make_server(parts.app, settings)
    sockets = server.sockets
    clocks = Tasks()
    clocks.run(parts.timeout_loop.run(), "timeouts")
    clocks.run(parts.streams.run(), "streams")
    clocks.run(sockets.run(), "sockets")
    for name, work in parts.capabilities.work():
        clocks.run(work, f"capability {name}")
    flows = _make_flows(settings, parts) if settings.join else None
    if flows is not None:
        clocks.run(_join_fleet(settings, parts, flows), "fleet")
    await server.start(listener)
    # All objects allocated so far stay alive, so the collector need not scan them.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    keep_buffers()
    if settings.idle_exit is not None:
        busy = parts.is_busy
        idle_timer = IdleTimer(
            lambda: sockets.in_use or busy() or (flows is not None and flows.busy), settings.idle_exit
        )
        waiting = clocks.run(_stop_when_idle(idle_timer, stopping), "idle exit")
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
            parts.capabilities.close(),
        )
        # Stop the server last, because a client that waits for an agent gets its answer when the agent has ended.
        await server.stop()
        clocks.cancel()
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
    """Keep freed memory for later reads and writes: each page from the kernel costs a fault, every time."""
    # Some C libraries have no such options.
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            mallopt(*option)


async def _join_fleet(settings: Settings, parts: ServerParts, flows: "NodeTunnels") -> None:
    """Take part in the fleet while the server runs. Imports are local, so that a server alone does not load them."""
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


async def _stop_when_idle(idle_timer: IdleTimer, stopping: asyncio.Event) -> None:
    await idle_timer.wait()
    logger.info("idle for long enough")
    stopping.set()


@contextmanager
def _temporary(settings: Settings) -> Generator[Settings]:
    """Yield the settings, with a data directory that is deleted at the end if the settings want a temporary one."""
    if not settings.temporary:
        yield settings
        return
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(make_temporary(discard))
        except OSError as error:
            raise SettingsError(f"no temporary data directory: {error.strerror}; choose one with --data-dir") from error
        # No later server uses these directories, so this one ends the processes that killed servers left behind.
        for left in find_leftovers():
            logger.warning("removing leftovers of a killed server path=%s", left)
            ProcessTrees(owner_of(left)).kill_leftovers()
            discard(left)
        yield settings.changed(data_dir=directory)


@contextmanager
def _data_directory(settings: Settings) -> Generator[str]:
    """Create the data directory, and lock it for this server. Yields the mark of the server's processes."""
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
        # Without a log, servers share nothing through the directory, so any number of them may use it.
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
