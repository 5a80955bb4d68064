"""Construct and run a gateway."""

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
import time

import msgspec
import uvloop

from sandboxagent.core.settings import Settings
from sandboxagent.core.tasks import Tasks
from sandboxagent.core.threads import Pool
from sandboxagent.fleet import messages
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import BusError, BusRefused
from sandboxagent.fleet.bus.nats import NatsBus, connect
from sandboxagent.fleet.gateway.app import Forwarding, GatewayApp
from sandboxagent.fleet.gateway.connections import FleetConnections
from sandboxagent.fleet.gateway.events import GatewayEvents
from sandboxagent.fleet.gateway.feed import Feed
from sandboxagent.fleet.gateway.ingest import LEASE_TIMEOUT, Ingest
from sandboxagent.fleet.gateway.intake import Intake
from sandboxagent.fleet.gateway.limits import ExcessReports, NodeLimits
from sandboxagent.fleet.gateway.methods import GatewayMethods
from sandboxagent.fleet.gateway.node_calls import NodeCalls
from sandboxagent.fleet.gateway.owners import TABLE as OWNERS
from sandboxagent.fleet.gateway.owners import Owners
from sandboxagent.fleet.gateway.placement import NodeProbe
from sandboxagent.fleet.gateway.registry import ORDERS, NodeRegistry, Orders
from sandboxagent.fleet.gateway.requests import FleetRequests
from sandboxagent.fleet.gateway.shares import TABLE as USAGE
from sandboxagent.fleet.gateway.shares import Shares
from sandboxagent.fleet.gateway.tunnels import GatewayTunnels
from sandboxagent.fleet.gateway.validate import Quotas
from sandboxagent.fleet.gateway.views import GatewayViews
from sandboxagent.protocol.errors import SettingsError
from sandboxagent.server.announce import announce
from sandboxagent.server.build import list_capabilities
from sandboxagent.server.http.acp import Acp
from sandboxagent.server.http.auth import Auth
from sandboxagent.server.http.deliver import Delivery
from sandboxagent.server.http.duplex import WebSocketTransport
from sandboxagent.server.http.rpc import Rpc
from sandboxagent.server.http.stream import StreamLimits, Streams
from sandboxagent.server.http.ui import Ui
from sandboxagent.server.listen import make_server, open_listener, set_up_logging

logger = logging.getLogger(__name__)

ANNOUNCE_INTERVAL = 1.0
CLEAN_INTERVAL = 10.0
UI_THREADS = 2
MAX_ANSWER_BYTES = 64 << 20
"""Maximum number of bytes of a node's answer to one envelope."""


def run(settings: Settings) -> int:
    """Serve until stopped, and return the exit code."""
    if not settings.join:
        raise SettingsError("a gateway needs --join, the address of a NATS server of the fleet")
    set_up_logging(settings)
    try:
        listener = open_listener(settings)
    except OSError as error:
        raise SettingsError(f"--host {settings.host} --port {settings.port}: {error.strerror}") from error
    with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(settings, listener))
        except BusError as error:
            raise SettingsError(f"cannot join the fleet: {error}") from error
    return 0


async def _serve(settings: Settings, listener: socket.socket) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    name = f"g-{secrets.token_hex(6)}"
    bus = await connect(settings.join, subjects.inbox_of_gateway(name), name, settings.creds, settings.join_proxy)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(bus.close)
        await _serve_on(settings, listener, bus, name, stopping)


async def _serve_on(
    settings: Settings, listener: socket.socket, bus: NatsBus, name: str, stopping: asyncio.Event
) -> None:
    replicas, capabilities = settings.replicas, list_capabilities()
    events = await bus.stream(
        "EV",
        [subjects.EVENTS],
        max_bytes=settings.log_max_bytes,
        max_age=settings.log_max_age,
        replicas=replicas,
    )
    leases, listed = await bus.table("nodes", replicas), await bus.table("sess", replicas)
    owners = Owners(await bus.table(OWNERS, replicas), events)
    usage = await bus.table(USAGE, replicas)
    shares = Shares(name, usage, events, owners, most=settings.log_max_bytes, max_age=settings.log_max_age)
    await shares.start()
    visits, keys = await bus.table("conns", replicas), await bus.table("keys", replicas)
    given = Orders()
    await given.start(await bus.table(ORDERS, replicas))
    registry = NodeRegistry(given, require_pins=settings.require_pins, most=settings.node_sessions)
    await registry.start(leases, listed)
    feed = Feed(events, settings.replay_bytes, longest=settings.node_line, dropped=owners.dropped)
    await feed.start()
    quotas = Quotas(settings.node_rate, time.monotonic)
    limits = NodeLimits(settings.node_sessions, settings.node_views, settings.session_view, settings.node_line)
    marks = ExcessReports(time.monotonic)
    feed.gave_up = lambda node: marks.note(node, "it has begun too many long lines that it has not ended (--node-line)")
    gateway_events = GatewayEvents(events)
    connections = FleetConnections(name, feed, registry, visits, gateway_events, settings.connection_ttl)
    await connections.start()
    presence = NodeProbe(name, bus)
    known = (registry.leases, connections.is_remote, presence.is_there)
    ingest = Ingest(
        *(name, events, owners, leases, listed, *known),
        registry=registry,
        quotas=quotas,
        limits=limits,
        marks=marks,
        orders=given,
        shares=shares,
    )
    intake = Intake(name, bus, ingest.take, quotas, registry, leases, time.monotonic, LEASE_TIMEOUT)
    await intake.start()
    stream_limits = StreamLimits(
        settings.stream_buffer, settings.stall_timeout, settings.heartbeat, settings.peer_timeout
    )
    streams = Streams(feed, stream_limits, connections.announce_stream, connections.is_incomplete)
    accesses = tuple(each.access for each in capabilities if each.access is not None)
    further = [name for access in accesses for name in access.headers]
    flows = GatewayTunnels(name, bus, registry.leases, settings.flows, feed.progress.kept, further)
    flows.stray, intake.silenced = quotas.stray, flows.silence
    node_calls = NodeCalls(connections, flows, registry, MAX_ANSWER_BYTES)
    own_methods = GatewayMethods(feed, registry, owners)
    lines = Pool("lines", 1)
    calls = FleetRequests(
        *(name, connections, node_calls, own_methods, registry, presence.answers, lines, keys),
        settings.log_max_age,
        settings.default_agent,
        {method for each in capabilities for method in each.large_methods},
    )
    delivery = Delivery(connections, calls, settings.stream_requests)
    websockets = WebSocketTransport(connections, calls, streams, delivery, lines, settings.max_body)
    shared = (connections, calls, streams, delivery, websockets, lines, settings.max_body)
    rpc, acp = Rpc(*shared), Acp(*shared, settings.session_streams)
    hosts = {host.lower() for host in settings.allow_host}
    auth = Auth(settings.token, settings.host, hosts, settings.cors_origin, settings.public_health, accesses)
    views = GatewayViews(
        name,
        registry,
        flows,
        lambda: None if bus.connected else "NATS cannot be reached; see whether the servers which --join names run",
    )
    ui = Ui(settings.frame_origin, Pool("files", UI_THREADS))
    forwarding = Forwarding(registry, flows, capabilities)
    app = GatewayApp(auth, rpc, acp, views, forwarding, ui, settings, lambda: bus.cut_off_for)
    server = make_server(app, settings)
    clocks = Tasks()
    for each in (
        streams.run(),
        server.sockets.run(),
        flows.run(),
        shares.run(),
        _show(bus, name, intake),
        _keep(connections, node_calls),
    ):
        clocks.run(each, "clock")
    await server.start(listener)
    announce(settings, listener, name)
    lost = asyncio.create_task(bus.lost())
    told = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait([lost, told], return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            # The error ends the process, so that a supervisor restarts it and logs the reason.
            raise BusRefused(lost.result())
    finally:
        lost.cancel()
        told.cancel()
        connections.stopping = True
        streams.close("the gateway is stopping")
        await server.stop()
        clocks.cancel()
        await connections.close_all()
        await feed.close()
        await registry.close()
        await shares.close()
        await intake.close()
        await given.close()


async def _show(bus: NatsBus, name: str, intake: Intake) -> None:
    """Announce this gateway to all nodes once a second."""
    announcement = msgspec.msgpack.encode(messages.GatewayAnnouncement(name, messages.OLDEST, messages.PROTOCOL))
    while True:
        await intake.renew()
        with contextlib.suppress(BusError):
            await bus.publish(subjects.GATEWAY_ANNOUNCEMENTS, announcement)
        await asyncio.sleep(ANNOUNCE_INTERVAL)


async def _keep(connections: FleetConnections, node_calls: NodeCalls) -> None:
    """Keep used connections alive, and forget unused ones."""
    while True:
        await asyncio.sleep(CLEAN_INTERVAL)
        connections.close_unused()
        await node_calls.keep_all()
