"""Take requests, notifications and answers of a gateway's clients, and answer or forward them.

The node of a session makes all decisions about it: which prompt runs, which answer came first, and which outcome
belongs to an idempotency key. Gateways find that node, and store nothing.
"""

import asyncio
import hashlib
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import cast

from sandboxagent import __version__
from sandboxagent.core.tasks import Tasks
from sandboxagent.core.threads import Pool
from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import BusError, Conflict, Table
from sandboxagent.fleet.gateway.connection import FleetConnection, ResponsePromise
from sandboxagent.fleet.gateway.connections import FleetConnections
from sandboxagent.fleet.gateway.ingest import IsThere
from sandboxagent.fleet.gateway.methods import GatewayMethods
from sandboxagent.fleet.gateway.node_calls import NodeCalls, refused
from sandboxagent.fleet.gateway.placement import PlacementRequest, place
from sandboxagent.fleet.gateway.registry import ListedSession, NodeRegistry
from sandboxagent.fleet.gateway.tunnels import NodeAnswer
from sandboxagent.fleet.messages import IntroductionReply
from sandboxagent.protocol import headers, methods
from sandboxagent.protocol.envelope import (
    LARGE_BYTES,
    META,
    Envelope,
    Kind,
    Object,
    failure,
    object_at,
    objects_at,
    parse,
    parse_answer,
    request,
    same_id,
    success,
    text_at,
    with_result,
)
from sandboxagent.protocol.errors import (
    InvalidParams,
    LogUnavailable,
    MissingAgent,
    NobodyAsked,
    NodeUnreachable,
    NoNode,
    NotAnEnvelope,
    RpcError,
    SandboxAgentError,
)
from sandboxagent.protocol.request_ids import asker
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.dispatch import check_size
from sandboxagent.server.sessions.reply import Answer, Reply

logger = logging.getLogger(__name__)

LIST_TIMEOUT = 2.0
"""Seconds that the response to a request which changes the list waits until the fleet's list has the change."""
MAX_SILENT_NODES = 4
"""Maximum number of silent nodes that are skipped. After that, a node is used without a check."""
PROBE_INTERVAL = 0.25
"""Seconds between two probes of a node that has not yet answered a client's `initialize`."""
MANY_TIMEOUT = 10.0
"""Seconds that each node has for a request to several nodes. A silent node does not delay the others."""
_LAST_EVENT = headers.raw(headers.LAST_EVENT)
_KEY = headers.raw(headers.IDEMPOTENCY_KEY)
_ASYNC = (headers.raw(headers.PREFER), headers.RESPOND_ASYNC.encode())
_FINISHED_HERE = (methods.NEW, methods.FORK)
"""Requests whose response waits for the fleet's list, which nodes do not see."""
_LISTING = (methods.NEW, methods.FORK, methods.LOAD, methods.RESUME)
_READ_HERE = (*_LISTING, methods.ATTACH, methods.SET_METADATA)
"""Requests whose response the gateway reads."""
MAX_READ_BYTES = 4 << 20
"""Maximum bytes of a response that the gateway reads. The answers that servers read themselves are shorter."""


class FleetRequests:
    """The entry point for envelopes from a gateway's clients."""

    def __init__(
        self,
        gateway: str,
        connections: FleetConnections,
        node_calls: NodeCalls,
        own: GatewayMethods,
        registry: NodeRegistry,
        answers: IsThere,
        lines: Pool,
        keys: Table,
        keys_ttl: float,
        default_agent: str | None,
        large_methods: Collection[str] = (),
    ) -> None:
        """Create the entry point. `answers` says whether a run of a node answers at the moment.

        A thread of `lines` parses long answers of nodes. `large_methods` are methods of nodes that accept an envelope
        of any size.
        """
        self._gateway = gateway
        self._connections = connections
        self._node_calls = node_calls
        self._methods = own
        own.list_open = self._list_open
        self._own = own.table()
        self._without_node = own.table_without_node()
        self._registry = registry
        self._answers = answers
        self._lines = lines
        self._keys = keys
        self._keys_ttl = keys_ttl
        self._default_agent = default_agent
        self._large_methods = large_methods
        self._random = random.SystemRandom()
        self._tasks = Tasks()

    # Connections

    async def open(
        self, envelope: Envelope, agent: str | None = None, connection_id: str | None = None
    ) -> tuple[FleetConnection, Answer]:
        """Handle `initialize`: open a connection, with a home among the nodes. Without nodes it can only read.

        Raises errors that become HTTP problems.
        """
        assert envelope.id is not None
        check_size(envelope)
        request = PlacementRequest.read(envelope.params(), agent or self._default_agent)
        if request.agent is None:
            raise MissingAgent
        id = connection_id or self._connections.make_id()
        if not self._registry.leases and not request.is_particular:
            connection = await self._connections.open(id, request.agent, envelope, None)
            return connection, Answer(success(envelope.id, self._greeting()))
        home = self._pick(request, set())
        connection = await self._connections.open(id, request.agent, envelope, home)
        try:
            home, introduced = await self._settle(connection, home, request)
        except BaseException:
            await self._connections.close(connection, "it was not opened")
            raise
        connection.agent = introduced.agent
        greeting = await self._read_response(home, envelope, bytes(introduced.greeting))
        return connection, Answer(greeting.line)

    async def _settle(
        self, connection: FleetConnection, home: str, request: PlacementRequest
    ) -> tuple[str, IntroductionReply]:
        """Find a node that answers `initialize`. A silent node is replaced, unless no other node fits."""
        silent: set[str] = set()
        while home not in silent and len(silent) < MAX_SILENT_NODES:
            try:
                return home, await self._greet(connection, home)
            except NodeUnreachable:
                silent.add(home)
                connection.home = home = self._pick(request, silent)
        return home, await self._node_calls.introduce(connection, home, greet=True)

    async def _greet(self, connection: FleetConnection, node: str) -> IntroductionReply:
        """Let a node answer `initialize`.

        The node may need long for it, but must answer probes meanwhile. Raises NodeUnreachable if it does not.
        """
        greeting = asyncio.create_task(self._node_calls.introduce(connection, node, greet=True))
        try:
            while not (await asyncio.wait([greeting], timeout=PROBE_INTERVAL))[0]:
                lease = self._registry.leases.get(node)
                is_silent = lease is not None and not await self._answers(node, lease.nonce)
                if is_silent and not greeting.done():
                    raise NodeUnreachable(node, "does not answer")
            return greeting.result()
        finally:
            greeting.cancel()

    def _greeting(self) -> Object:
        ours = {"version": __version__, "gateway": self._gateway, "extensions": {"methods": list(self._own)}}
        return {
            "protocolVersion": 1,
            "agentCapabilities": {"sessionCapabilities": {"list": {}}, "_meta": {META: ours}},
            "agentInfo": {"name": "sandbox-agent gateway", "version": __version__},
            "authMethods": [],
        }

    # Requests

    def submit(
        self, connection: Connection, envelope: Envelope, key: str | None = None, *, on_stream: bool = False
    ) -> Reply:
        """Take a request, which this gateway or a node will answer.

        With `on_stream`, a node puts the response on the stream, even if this gateway ends.
        """
        assert isinstance(connection, FleetConnection)
        reply = Reply()
        self._tasks.run(self._work(connection, envelope, key, reply, on_stream=on_stream), envelope.method)
        return reply

    async def _work(
        self, connection: FleetConnection, envelope: Envelope, key: str | None, reply: Reply, *, on_stream: bool
    ) -> None:
        try:
            is_at_node = on_stream and await self.begin(connection, envelope, key)
            reply.accept(0)
            if is_at_node:
                reply.set_done()
            else:
                reply.set_result(await self._answer(connection, envelope, key))
        except Exception as error:
            reply.set_exception(error)

    async def _answer(self, connection: FleetConnection, envelope: Envelope, key: str | None) -> Answer:
        assert envelope.id is not None
        method = self._own.get(envelope.method)
        try:
            if method is not None or (envelope.session_id is None and envelope.method not in self._large_methods):
                check_size(envelope)
            if method is not None:
                connection.note_asked(envelope.id, subjects.GATEWAY)
                return Answer(success(envelope.id, await method(connection, envelope)))
            return await self._forward(connection, envelope, key)
        except (RpcError, NoNode) as error:
            return Answer(failure(envelope.id, error))

    async def _forward(self, connection: FleetConnection, envelope: Envelope, key: str | None) -> Answer:
        assert envelope.id is not None
        if _is_about_all(envelope):
            return await self._all_pending(connection, envelope)
        node = await self.node_for(connection, envelope, key)
        without = self._without_node.get(envelope.method)
        if without is not None and node not in self._registry.leases:
            return Answer(success(envelope.id, await without(connection, envelope)))
        session_id = envelope.session_id and self._connections.find_session(envelope.session_id)
        attached = session_id is not None and connection.attached(session_id)
        answer = await self._request(connection, node, envelope, key)
        if answer.status != 200:
            raise refused(answer)
        response = await self._read_response(node, envelope, answer.body)
        line = response.line
        if len(line) > MAX_READ_BYTES and envelope.method in _READ_HERE:
            raise NodeUnreachable(node, "sends too long an answer")
        await self._connections.ordering.wait_sent(connection, node, _position(answer), session_id)
        if response.succeeded:
            await self._until_listed(node, envelope, response)
            line = self._with_lost_alias(envelope, response)
            if envelope.method == methods.ATTACH:
                line = self._with_position(connection, node, attached, response)
            if envelope.method in methods.MAKE_SESSIONS:
                made = text_at(response.result(), "sessionId") or ""
                return Answer(line, session_opened=partial(self._connections.session_opened, connection, node, made))
        return Answer(line)

    async def _read_response(self, node: str, envelope: Envelope, line: bytes) -> Envelope:
        """Parse a node's answer as the response to a request. Raises NodeUnreachable if it is not one."""
        assert envelope.id is not None
        with suppress(NotAnEnvelope):
            response = parse_answer(line) if len(line) <= LARGE_BYTES else await self._lines.run(parse_answer, line)
            is_for_it = response.id is not None and same_id(response.id) == same_id(envelope.id)
            if response.kind is Kind.RESPONSE and is_for_it:
                return response
        raise NodeUnreachable(node, "sends invalid data")

    async def _request(
        self, connection: FleetConnection, node: str, envelope: Envelope, key: str | None, *more: tuple[bytes, bytes]
    ) -> NodeAnswer:
        assert envelope.id is not None
        self._connections.promises.note_asked(connection, envelope.id, node)
        under = [] if key is None else [(_KEY, key.encode("latin-1"))]
        repeatable = key is not None or envelope.method in methods.READS
        return await self._node_calls.post(connection, node, envelope.line, [*under, *more], repeatable=repeatable)

    async def begin(self, connection: FleetConnection, envelope: Envelope, key: str | None) -> bool:
        """Let a node accept a request whose response comes on the stream. Return False if it is answered here."""
        assert envelope.id is not None
        if envelope.method in self._own or envelope.method in _FINISHED_HERE or _is_about_all(envelope):
            return False
        node = await self.node_for(connection, envelope, key)
        if envelope.method in self._without_node and node not in self._registry.leases:
            return False
        if envelope.method == methods.ATTACH:
            if connection.is_full(node):
                # The connection has the maximum number of attachments. The check is made when the request is answered
                # here.
                return False
            await self._connections.promises.note_attaching(connection, envelope.id)
        after = self._connections.position
        answer = await self._request(connection, node, envelope, key, _ASYNC)
        if answer.status != 202:
            raise refused(answer)
        try:
            promise = ResponsePromise(node, answer.run, after)
            await self._connections.promises.note_accepted(connection, envelope.id, promise)
        finally:
            # The node's run may have ended before its promise was noted.
            self._node_calls.fail_unanswered(connection, node)
        return True

    async def _all_pending(self, connection: FleetConnection, envelope: Envelope) -> Answer:
        """List the pending requests of all connected nodes."""
        assert envelope.id is not None
        nodes = (self._registry.nodes_with_pending() | set(connection.remotes)) & set(self._registry.leases)
        found = await asyncio.gather(*(self._pending_at(connection, node, envelope) for node in sorted(nodes)))
        return Answer(success(envelope.id, {"pending": [each for of_node in found for each in of_node]}))

    async def _list_open(self, connection: FleetConnection, envelope: Envelope, session: ListedSession) -> list[Object]:
        """List a session's requests that a client may answer; none while its node is not connected."""
        assert envelope.id is not None
        if session.node not in self._registry.leases:
            return []
        asking = request(envelope.id, methods.PENDING, {"sessionId": session.session_id})
        return await self._pending_at(connection, session.node, parse(asking))

    async def _pending_at(self, connection: FleetConnection, node: str, envelope: Envelope) -> list[Object]:
        """List the pending requests of one node.

        The list is empty if the node does not answer in time, or answers without a list.
        """
        try:
            async with asyncio.timeout(MANY_TIMEOUT):
                answer = await self._request(connection, node, envelope, None)
            response = await self._read_response(node, envelope, answer.body) if answer.status == 200 else None
            if response is None:
                result: Object = {}
            else:
                is_long = len(response.line) > LARGE_BYTES
                result = await self._lines.run(response.result) if is_long else response.result()
        except (SandboxAgentError, TimeoutError) as error:
            logger.info("pending requests not listed node=%s reason=%s", node, error)
            return []
        pending = objects_at(result, "pending")
        return [each for each in pending if self._may_name(node, text_at(each, "sessionId"))]

    def _may_name(self, node: str, session_id: str | None) -> bool:
        """Return whether a session may belong to a node: it is listed for that node, or not listed."""
        seen = None if session_id is None else self._registry.find(session_id)
        return seen is None or seen.node == node

    async def _until_listed(self, node: str, envelope: Envelope, response: Envelope) -> None:
        """Wait, for a limited time, until this gateway's list shows a client's change."""
        made = text_at(response.result(), "sessionId") if envelope.method in _LISTING else None
        is_listed = self._listing_of(envelope, response, made)
        if is_listed is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LIST_TIMEOUT):
                    await self._registry.until(is_listed)
        if made is not None and await self._methods.owner(made) not in (node, None):
            # Some agents number their sessions, so that ids are the same on every machine.
            raise RpcError(f"the session {made} of {node} cannot be used here: another node has one of this name")

    def _listing_of(self, envelope: Envelope, response: Envelope, made: str | None) -> Callable[[], bool] | None:
        """Return a function that tells whether the list shows the effect of a request; None if there is no effect."""
        name = made or envelope.session_id or ""
        match envelope.method:
            case methods.NEW | methods.FORK | methods.LOAD | methods.RESUME:
                return None if made is None else lambda: self._registry.find(name) is not None
            case methods.DELETE:
                return lambda: self._registry.find(name) is None
            case methods.SET_METADATA:
                metadata = response.result().get("metadata")
                return lambda: self._registry.view(name).get("metadata") == metadata
            case methods.TERMINATE | methods.CLOSE:
                return lambda: self._registry.view(name).get("ended") is not False
            case _:
                return None

    def _with_lost_alias(self, envelope: Envelope, response: Envelope) -> bytes:
        """Return the response to `session/new`, with a warning if another session has got the requested alias first."""
        alias = _alias_of(envelope)
        seen = None if alias is None else self._registry.find(text_at(response.result(), "sessionId") or "")
        if seen is None or seen.alias == alias:
            return response.line
        meta = object_at(response.result(), "_meta")
        ours = object_at(meta, META)
        said = ours.get("warnings")
        warnings = [*(cast("list[object]", said) if isinstance(said, list) else ())]
        warnings.append(f"requestedSessionId {alias!r} is taken in this fleet by now; the session goes by its id alone")
        return with_result(response.line, "_meta", meta | {META: ours | {"warnings": warnings}})

    def _with_position(self, connection: FleetConnection, node: str, attached: bool, response: Envelope) -> bytes:
        """Replace a node's position in the response to `attach` by a position of the stream.

        A stream brings the events after the start of the window, so pages have to end there. A client that was
        `attached` before gets the current position of its stream.
        """
        session_id = text_at(response.result(), "session", "sessionId") or ""
        if not connection.attached(session_id) and connection.is_full(node):
            raise RpcError(f"the session {session_id} cannot be followed: this client follows too many of {node}")
        windows = connection.windows.get(session_id)
        start = windows[-1].start if windows else connection.last_event
        position = max(start, self._connections.handed_over(session_id)) if attached else start
        return with_result(response.line, "position", position)

    # Choice of the node

    async def node_for(self, connection: FleetConnection, envelope: Envelope, key: str | None = None) -> str:
        """Return the node of an envelope's session, the node for a new session, or else the connection's home.

        Raises:
            NoNode: no node fits.
            NodeUnreachable: the node does not answer.
            LogUnavailable: the fleet's tables or its stream cannot be read.
        """
        if envelope.method == methods.NEW:
            return await self._place(connection, envelope, key)
        if envelope.session_id is not None:
            owner = await self._methods.owner(envelope.session_id)
            if owner is not None:
                return owner
        if connection.home is None:
            raise NoNode("no node was there when this connection was opened; open another one")
        return connection.home

    def _pick(self, request: PlacementRequest, silent: set[str]) -> str:
        """Choose a node. Raises NoNode."""
        return place(self._registry.leases, self._registry.closed(), request, self._random, silent)

    async def _choose(self, request: PlacementRequest) -> str:
        """Choose a node that answers, because a frozen or cut-off node keeps its lease for a while. Raises NoNode."""
        silent: set[str] = set()
        while True:
            node = self._pick(request, silent)
            if node in silent or len(silent) == MAX_SILENT_NODES:
                return node
            if await self._answers(node, self._registry.leases[node].nonce):
                return node
            silent.add(node)

    async def _place(self, connection: FleetConnection, envelope: Envelope, key: str | None) -> str:
        request = PlacementRequest.read(envelope.params(), connection.agent)
        if key is None:
            await self._check_alias(envelope)
            return await self._choose(request)
        # The same key leads to the same node through every gateway, because that node knows the outcome.
        name = hashlib.sha256(f"{connection.tag}\0{key}".encode()).hexdigest()
        try:
            kept = await self._keys.get(name)
            if kept is None:
                await self._check_alias(envelope)
                node = await self._choose(request)
                with suppress(Conflict):
                    await self._keys.put(name, node.encode(), expected=0, ttl=self._keys_ttl)
                    return node
                kept = await self._keys.get(name)
        except BusError as error:
            raise LogUnavailable.of_fleet(error) from error
        if kept is None or kept.value is None:
            raise LogUnavailable.of_fleet("the table of idempotency keys has lost a key")
        return kept.value.decode()

    async def _check_alias(self, envelope: Envelope) -> None:
        """Check that an alias is free in the whole fleet; a node knows only its own sessions. Raises InvalidParams."""
        alias = _alias_of(envelope)
        if alias is not None and await self._methods.owner(alias) is not None:
            raise InvalidParams(f"requestedSessionId {alias!r} is taken; choose another", requestedSessionId=alias)

    # Envelopes without a response

    def notify(self, connection: Connection, envelope: Envelope) -> Reply:
        """Pass a notification on. Errors are only logged, because a notification has no response."""
        assert isinstance(connection, FleetConnection)
        return self._run(self._notify(connection, envelope), envelope.method)

    def _run(self, work: Coroutine[object, None, None], name: str) -> Reply:
        """Handle an envelope without a response in a task, because the bus must be asked."""
        reply = Reply()
        self._tasks.run(_settle_after(work, reply), name)
        return reply

    async def _notify(self, connection: FleetConnection, envelope: Envelope) -> None:
        try:
            if envelope.method == methods.CANCEL_REQUEST:
                check_size(envelope)
                # Only nodes know which of them works on the request.
                nodes = [node for node in connection.remotes if node in self._registry.leases]
                await asyncio.gather(*(self._notify_one_of_many(connection, node, envelope) for node in nodes))
            else:
                node = await self.node_for(connection, envelope)
                await self._node_calls.post(connection, node, envelope.line, [], repeatable=True)
        except SandboxAgentError as error:
            logger.info("notification dropped method=%s reason=%s", envelope.method, error.slug)

    async def _notify_one_of_many(self, connection: FleetConnection, node: str, envelope: Envelope) -> None:
        try:
            async with asyncio.timeout(MANY_TIMEOUT):
                await self._node_calls.post(connection, node, envelope.line, [], repeatable=True)
        except (SandboxAgentError, TimeoutError) as error:
            logger.info("notification dropped method=%s node=%s reason=%s", envelope.method, node, error)

    def answer(self, connection: Connection, envelope: Envelope) -> Reply:
        """Send an answer to the node whose agent asked. That node accepts the first answer, and refuses all others."""
        assert isinstance(connection, FleetConnection)
        return self._run(self._send_answer(connection, envelope), "answer")

    async def _send_answer(self, connection: FleetConnection, envelope: Envelope) -> None:
        assert envelope.id is not None
        node = asker(envelope.id)
        if node is None or node not in connection.remotes:
            raise NobodyAsked(envelope.id.decode())
        try:
            answer = await self._node_calls.post(connection, node, envelope.line, [], repeatable=True)
        except RpcError as error:
            # The node may have accepted the answer before it was lost. Sending it again later does no harm.
            raise NodeUnreachable(node, "is gone") from error
        if answer.status != 202:
            raise refused(answer)
        self._connections.withdrawals.note_answered(connection, envelope.id)


async def _settle_after(work: Coroutine[object, None, None], reply: Reply) -> None:
    try:
        await work
    except Exception as error:
        reply.set_exception(error)
    else:
        reply.set_done()


def _alias_of(envelope: Envelope) -> str | None:
    """Return the requested alias of a new session."""
    if envelope.method != methods.NEW:
        return None
    return text_at(object_at(envelope.params(), "_meta", META), "requestedSessionId")


def _is_about_all(envelope: Envelope) -> bool:
    """Return whether every node has a part of the answer."""
    return envelope.method == methods.PENDING and envelope.session_id is None


def _position(answer: NodeAnswer) -> int:
    values: Mapping[bytes, bytes] = {name.lower(): value for name, value in answer.headers}
    value = values.get(_LAST_EVENT, b"0")
    return int(value) if value.isdigit() and len(value) < 20 else 0
