"""Call nodes for the connections of clients, and introduce each connection to the nodes it uses.

A connection's id at a node is valid only there. A node that has forgotten the connection, or was restarted, gets it
again.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress

import msgspec
from msgspec import Raw

from sandboxagent.core.tasks import Tasks
from sandboxagent.fleet.gateway.connection import FleetConnection
from sandboxagent.fleet.gateway.connections import FleetConnections
from sandboxagent.fleet.gateway.ingest import LEASE_TIMEOUT
from sandboxagent.fleet.gateway.registry import NodeRegistry
from sandboxagent.fleet.gateway.tunnels import Caller, NodeAnswer, NodeRequest
from sandboxagent.fleet.messages import Introduction, IntroductionReply, Lease, Opened
from sandboxagent.fleet.node.connections import OPENED
from sandboxagent.fleet.node.connections import PATH as REMOTE_CONNECTIONS
from sandboxagent.protocol import headers, methods
from sandboxagent.protocol.envelope import request, text_at
from sandboxagent.protocol.errors import (
    URN,
    NodeLost,
    NodeRefused,
    NodeUnreachable,
    SandboxAgentError,
    ShuttingDown,
    UnknownConnection,
    UnknownSession,
)
from sandboxagent.protocol.json_bounds import read_answer
from sandboxagent.server.http.asgi import JSON

logger = logging.getLogger(__name__)

NODE_TIMEOUT = 60.0
"""Seconds for which a call to a node is repeated that has a lease and does not answer."""
RETRY_INTERVAL = 0.25
_TYPE = (b"content-type", JSON.encode())


def refused(answer: NodeAnswer) -> NodeRefused:
    """Return the error that a node's answer describes."""
    problem = _decode(answer.body)
    slug = str(problem.pop("type", "")).removeprefix(URN) or "internal-error"
    title = str(problem.pop("title", "Error"))
    status = answer.status if 400 <= answer.status < 600 else 502
    problem.pop("status", None)
    return NodeRefused(slug, title, status, str(problem.pop("detail", "the node gave no reason")), problem)


class NodeCalls:
    """All calls to nodes that are made for a connection."""

    def __init__(self, connections: FleetConnections, caller: Caller, registry: NodeRegistry, most: int) -> None:
        """Create the calls. `most` is the maximum number of bytes of an answer."""
        self._connections = connections
        self._caller = caller
        self._registry = registry
        self._most = most
        self._introducing: dict[tuple[str, str], asyncio.Task[IntroductionReply]] = {}
        self._tasks = Tasks()
        registry.watch(self._take_change)
        connections.watch_closed(self._forget_remotes)
        connections.watch_streams(self._meet_nodes)
        connections.watch_opened(self._tell_opened)

    # Introductions

    async def introduce(self, connection: FleetConnection, node: str, *, greet: bool = False) -> IntroductionReply:
        """Introduce a connection to a node. With `greet`, the node answers the connection's `initialize`.

        Raises NodeUnreachable, NodeRefused or LogUnavailable.
        """
        key = (connection.tag, node)
        task = self._introducing.get(key)
        if task is None or greet:
            # Not a `Shared`: a greeting does not join an introduction under way, and later callers wait for it.
            task = self._introducing[key] = asyncio.create_task(self._introduce(connection, node, greet=greet))
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)

    def _forget(self, key: tuple[str, str], task: "asyncio.Task[IntroductionReply]") -> None:
        if self._introducing.get(key) is task:
            del self._introducing[key]
        if not task.cancelled():
            task.exception()

    async def _introduce(self, connection: FleetConnection, node: str, *, greet: bool) -> IntroductionReply:
        lease = self._registry.leases.get(node)
        if lease is None:
            raise NodeUnreachable(node, "is not there")
        await self._connections.add_node(connection, node)
        said = Introduction(
            connection.remote_id(node),
            connection.tag,
            Raw(connection.initialize),
            connection.agent or None,
            greet,
        )
        try:
            # The node may first have to start the agent, which has limits of its own.
            async with asyncio.timeout(None if greet else NODE_TIMEOUT):
                introduced = await self._say_who(node, said)
                await self._attach_again(connection, node, known=introduced.known)
        except TimeoutError:
            raise NodeUnreachable(node, "does not answer") from None
        connection.remotes[node] = lease.nonce
        return introduced

    async def _say_who(self, node: str, said: Introduction) -> IntroductionReply:
        answer = await self._call(
            node, NodeRequest("POST", REMOTE_CONNECTIONS.encode(), headers=[_TYPE]), msgspec.json.encode(said)
        )
        if answer.status != 200:
            raise refused(answer)
        try:
            return read_answer(answer.body, IntroductionReply)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise NodeUnreachable(node, "sends invalid data") from None

    async def _attach_again(self, connection: FleetConnection, node: str, *, known: bool) -> None:
        """Attach a connection to its sessions at a node that did not know it.

        This also completes an earlier attempt that was not finished.
        """
        if known and node not in connection.unattached:
            return
        connection.unattached |= {node}
        attached = self._attached_at(connection, node)
        known_at = await self._connections.endings.catch_up(connection, node) if attached else 0
        for session_id in attached:
            attach = request(b'"again"', methods.ATTACH, {"sessionId": session_id})
            answer = await self._call(node, self._asked(connection, node, []), attach)
            if answer.status != 200:
                raise refused(answer)
            if text_at(_decode(answer.body), "error", "data", "type") == UnknownSession.slug:
                # The node has lost its disk.
                self._connections.endings.tell_gone(connection, session_id, known_at)
        connection.unattached -= {node}

    def _attached_at(self, connection: FleetConnection, node: str) -> list[str]:
        attached = [session_id for session_id in connection.windows if connection.attached(session_id)]
        return [one for one in attached if (seen := self._registry.find(one)) is not None and seen.node == node]

    # Calls

    async def post(
        self,
        connection: FleetConnection,
        node: str,
        body: bytes,
        more: list[tuple[bytes, bytes]],
        *,
        repeatable: bool,
    ) -> NodeAnswer:
        """Send an envelope for a connection, and wait for the answer, for hours if necessary.

        A `repeatable` envelope is sent again for as long as the node has its lease.

        Raises:
            NodeUnreachable: the node has not got the envelope.
            NodeLost: the node was lost while it worked on the envelope.
            NodeRefused: the node refuses.
            LogUnavailable: the fleet's table or its stream does not work.
        """
        clock = asyncio.get_running_loop().time
        failing_since, sent, forgotten = clock(), False, 0
        while True:
            lease = self._registry.leases.get(node)
            if lease is None:
                raise NodeLost(node) if sent else NodeUnreachable(node, "is not there")
            began = clock()
            try:
                if connection.remotes.get(node) != lease.nonce:
                    await self.introduce(connection, node)
                sent = True
                answer = await self._call(node, self._asked(connection, node, more), body)
            except NodeUnreachable:
                if clock() - began > NODE_TIMEOUT:
                    # The node has worked on it for long. Only the time for which it cannot be reached counts.
                    failing_since = clock()
                if sent and not repeatable:
                    if await self._is_lost(lease):
                        raise NodeLost(node) from None
                    raise
                if node in self._registry.leases and clock() - failing_since > NODE_TIMEOUT:
                    raise
                await asyncio.sleep(RETRY_INTERVAL)
                continue
            if _is_refused(answer, UnknownConnection):
                connection.remotes[node], sent = "", False
                forgotten += 1
            elif not (repeatable and _is_refused(answer, ShuttingDown)):
                return answer
            if clock() - failing_since > NODE_TIMEOUT:
                return answer
            await asyncio.sleep(0 if forgotten == 1 and not sent else RETRY_INTERVAL)

    async def _is_lost(self, lease: Lease) -> bool:
        """Return whether a node's run that does not answer has ended. Its lease shows this after a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LEASE_TIMEOUT):
                await self._registry.until(lambda: self._has_ended(lease))
        return self._has_ended(lease)

    def _has_ended(self, lease: Lease) -> bool:
        """Return whether this run of a node does not have its lease any more."""
        now = self._registry.leases.get(lease.node)
        return now is None or now.nonce != lease.nonce

    async def _tell_opened(self, node: str, session_id: str) -> None:
        """Tell a node that the client has the response with its new session. Before that, the node sends no updates."""
        asked = NodeRequest("POST", OPENED.encode(), headers=[_TYPE])
        try:
            await self._call(node, asked, msgspec.json.encode(Opened(session_id)))
        except SandboxAgentError as error:
            # The node continues by itself after a while.
            logger.info("new session not announced session=%s node=%s reason=%s", session_id, node, error.slug)

    def _forget_remotes(self, connection: FleetConnection) -> None:
        """Tell nodes to forget a connection that its client has closed."""
        for node in connection.remotes:
            if node in self._registry.leases:
                asked = self._asked(connection, node, [], "DELETE")
                self._spawn(self._try(node, asked))

    async def _try(self, node: str, asked: NodeRequest) -> None:
        try:
            await self._call(node, asked, b"")
        except SandboxAgentError as error:
            logger.info("remote connection not removed node=%s reason=%s", node, error.slug)

    def _asked(
        self, connection: FleetConnection, node: str, more: list[tuple[bytes, bytes]], method: str = "POST"
    ) -> NodeRequest:
        identity = (headers.raw(headers.CONNECTION_ID), connection.remote_id(node).encode())
        return NodeRequest(method, b"/v1/rpc", headers=[_TYPE, identity, *more])

    async def _call(self, node: str, asked: NodeRequest, body: bytes) -> NodeAnswer:
        """Send a request to a node.

        Raises NodeUnreachable also if the node loses its lease meanwhile, or another run of it gets one.
        """
        lease = self._registry.leases.get(node)
        calling = asyncio.create_task(self._caller.call(node, asked, body, most=self._most))
        gone = asyncio.create_task(self._registry.until(lambda: lease is None or self._has_ended(lease)))
        try:
            await asyncio.wait([calling, gone], return_when=asyncio.FIRST_COMPLETED)
            if calling.done():
                return calling.result()
            raise NodeUnreachable(node, "is not there")
        finally:
            gone.cancel()
            calling.cancel()

    # Nodes that come and go

    def _take_change(self, node: str) -> None:
        """Handle a node that is lost or was restarted.

        Calls to the old run end, and the new run gets its connections.
        """
        lease = self._registry.leases.get(node)
        for connection in self._connections.all():
            known = connection.remotes.get(node)
            if known is None:
                continue
            if lease is not None and known == lease.nonce:
                continue
            self._give_up(connection, node)
            if lease is not None and (connection.stream is not None or connection.busy):
                self._spawn(self._introduce_again(connection, node))

    def _meet_nodes(self, connection: FleetConnection) -> None:
        """Introduce a connection with a new stream to nodes that were restarted meanwhile.

        These nodes have to know that they can send requests to its client.
        """
        for node, known in connection.remotes.items():
            self._give_up(connection, node)
            lease = self._registry.leases.get(node)
            if lease is not None and known != lease.nonce:
                self._spawn(self._introduce_again(connection, node))

    def _give_up(self, connection: FleetConnection, node: str) -> None:
        """Withdraw requests of a node's ended runs, and then respond in their place."""
        if self._connections.withdrawals.may_have(connection, node):
            self._spawn(self._withdraw_and_fail(connection, node))
        else:
            self.fail_unanswered(connection, node)

    async def _withdraw_and_fail(self, connection: FleetConnection, node: str) -> None:
        await self._connections.withdrawals.withdraw(connection, node)
        self.fail_unanswered(connection, node)

    def fail_unanswered(self, connection: FleetConnection, node: str) -> None:
        """Respond in the place of a node's ended runs that had promised responses."""
        lease = self._registry.leases.get(node)
        run = None if lease is None else lease.nonce
        lost = {id: each for id, each in connection.unanswered.items() if each.node == node and each.run != run}
        connection.forget_promises(lost)
        if lost:
            self._connections.promises.tell_lost(connection, lost, node)

    async def keep_all(self) -> None:
        """Renew connections in the fleet's table and at the nodes that know them. Both forget unused connections."""
        for connection in self._connections.all():
            try:
                overdue = await self._connections.keep(connection)
            except SandboxAgentError as error:
                logger.info("connection not kept connection=%s reason=%s", connection.tag, error.slug)
                continue
            for node in list(connection.remotes) if overdue else ():
                is_there = node in self._registry.leases
                if is_there or node in self._registry.orders.forgotten:
                    # A new run publishes requests of the previous run after it got its lease. And another gateway may
                    # have learned later that a node was forgotten.
                    self._give_up(connection, node)
                if is_there:
                    # Not awaited, because a silent node must not delay the renewal of other connections.
                    self._spawn(self._introduce_again(connection, node))

    async def _introduce_again(self, connection: FleetConnection, node: str) -> None:
        try:
            await self.introduce(connection, node)
        except SandboxAgentError as error:
            logger.info("connection not introduced connection=%s node=%s reason=%s", connection.tag, node, error.slug)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.run(work, "call a node for a connection")


def _is_refused(answer: NodeAnswer, kind: type[SandboxAgentError]) -> bool:
    return answer.status == kind.status and _decode(answer.body).get("type") == URN + kind.slug


def _decode(body: bytes) -> dict[str, object]:
    try:
        return read_answer(body, dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
