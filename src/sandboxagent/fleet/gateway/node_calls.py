"""Call nodes for the connections of clients, and introduce each connection to the nodes it uses.

A guest's id at a node is of no use elsewhere. A node that has forgotten it, or was started again, gets it again.
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
from sandboxagent.fleet.messages import Introduced, Introduction, Lease, Opened
from sandboxagent.fleet.node.connections import OPENED
from sandboxagent.fleet.node.connections import PATH as REMOTE_CONNECTIONS
from sandboxagent.protocol import headers, methods
from sandboxagent.protocol.envelope import request, text_at
from sandboxagent.protocol.errors import (
    URN,
    NodeLost,
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
"""Seconds for which a node is tried that has a lease and does not answer."""
RETRY_INTERVAL = 0.25
_TYPE = (b"content-type", JSON.encode())


class Refusal(SandboxAgentError):
    """A problem that a node has answered with, as it came."""

    def __init__(self, answer: NodeAnswer) -> None:
        problem = _decode(answer.body)
        self.slug = str(problem.pop("type", "")).removeprefix(URN) or "internal-error"
        self.title = str(problem.pop("title", "Error"))
        self.status = answer.status if 400 <= answer.status < 600 else 502
        problem.pop("status", None)
        super().__init__(str(problem.pop("detail", "the node gave no reason")), **problem)


class NodeCalls:
    """All calls to nodes that are made for a connection."""

    def __init__(self, connections: FleetConnections, caller: Caller, registry: NodeRegistry, most: int) -> None:
        """`most` is how many bytes an answer may have."""
        self._connections = connections
        self._caller = caller
        self._registry = registry
        self._most = most
        self._introducing: dict[tuple[str, str], asyncio.Task[Introduced]] = {}
        self._tasks = Tasks()
        registry.watch(self._take_change)
        connections.watch_closed(self._forget_remotes)
        connections.watch_streams(self._meet_nodes)
        connections.watch_opened(self._tell_opened)

    # Introductions

    async def introduce(self, connection: FleetConnection, node: str, *, greet: bool = False) -> Introduced:
        """Make it known to a node; with `greet`, the node answers its `initialize`.

        Raises NodeUnreachable, Refusal or LogUnavailable.
        """
        key = (connection.tag, node)
        task = self._introducing.get(key)
        if task is None or greet:
            task = self._introducing[key] = asyncio.create_task(self._introduce(connection, node, greet=greet))
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)

    def _forget(self, key: tuple[str, str], task: "asyncio.Task[Introduced]") -> None:
        if self._introducing.get(key) is task:
            del self._introducing[key]
        if not task.cancelled():
            task.exception()

    async def _introduce(self, connection: FleetConnection, node: str, *, greet: bool) -> Introduced:
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
            # A greeting may have to start an agent first, which has limits of its own.
            async with asyncio.timeout(None if greet else NODE_TIMEOUT):
                introduced = await self._say_who(node, said)
                await self._attach_again(connection, node, known=introduced.known)
        except TimeoutError:
            raise NodeUnreachable(node, "does not answer") from None
        connection.remotes[node] = lease.nonce
        return introduced

    async def _say_who(self, node: str, said: Introduction) -> Introduced:
        answer = await self._call(
            node, NodeRequest("POST", REMOTE_CONNECTIONS.encode(), headers=[_TYPE]), msgspec.json.encode(said)
        )
        if answer.status != 200:
            raise Refusal(answer)
        try:
            return read_answer(answer.body, Introduced)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise NodeUnreachable(node, "sends what makes no sense") from None

    async def _attach_again(self, connection: FleetConnection, node: str, *, known: bool) -> None:
        """Attach it at a node that did not know it; what an earlier attempt did not come to is not forgotten."""
        if known and node not in connection.unattached:
            return
        connection.unattached |= {node}
        attached = self._attached_at(connection, node)
        known_at = await self._connections.endings.catch_up(connection, node) if attached else 0
        for session_id in attached:
            attach = request(b'"again"', methods.ATTACH, {"sessionId": session_id})
            answer = await self._call(node, self._asked(connection, node, []), attach)
            if answer.status != 200:
                raise Refusal(answer)
            if text_at(_decode(answer.body), "error", "data", "type") == UnknownSession.slug:
                # It has lost its disk.
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
        """Send an envelope for a connection, and wait for what comes of it, hours if need be.

        What is `repeatable` is sent again for as long as the node has its lease. Raises NodeUnreachable when the node
        has not got it, NodeLost when the node went away while it worked on it, Refusal and LogUnavailable.
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
                    # It worked on it for long: only the time for which it cannot be reached counts.
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
        """Whether a run of a node that does not answer has ended: its lease says so, after a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LEASE_TIMEOUT):
                await self._registry.until(lambda: self._has_ended(lease))
        return self._has_ended(lease)

    def _has_ended(self, lease: Lease) -> bool:
        """Whether this run of a node has its lease no longer."""
        now = self._registry.leases.get(lease.node)
        return now is None or now.nonce != lease.nonce

    async def _tell_opened(self, node: str, session_id: str) -> None:
        """Its client has the response that names a new session: the node waits for that before it sends updates."""
        asked = NodeRequest("POST", OPENED.encode(), headers=[_TYPE])
        try:
            await self._call(node, asked, msgspec.json.encode(Opened(session_id)))
        except SandboxAgentError as error:
            # It goes on by itself after a while.
            logger.info("new session not announced session=%s node=%s reason=%s", session_id, node, error.slug)

    def _forget_remotes(self, connection: FleetConnection) -> None:
        """Its client has closed it: no node need keep it."""
        for node in connection.remotes:
            if node in self._registry.leases:
                asked = self._asked(connection, node, [], "DELETE")
                self._spawn(self._try(node, asked))

    async def _try(self, node: str, asked: NodeRequest) -> None:
        try:
            await self._call(node, asked, b"")
        except SandboxAgentError as error:
            logger.info("guest not forgotten node=%s reason=%s", node, error.slug)

    def _asked(
        self, connection: FleetConnection, node: str, more: list[tuple[bytes, bytes]], method: str = "POST"
    ) -> NodeRequest:
        identity = (headers.raw(headers.CONNECTION_ID), connection.remote_id(node).encode())
        return NodeRequest(method, b"/v1/rpc", headers=[_TYPE, identity, *more])

    async def _call(self, node: str, asked: NodeRequest, body: bytes) -> NodeAnswer:
        """Raises NodeUnreachable also when the node loses its lease meanwhile, or another run of it gets one."""
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
        """A node is gone, or was started again: what waits on the old run ends, and the new one gets its guests."""
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
        """Its client reads here: a node that was started again meanwhile has to know that it can ask here."""
        for node, known in connection.remotes.items():
            self._give_up(connection, node)
            lease = self._registry.leases.get(node)
            if lease is not None and known != lease.nonce:
                self._spawn(self._introduce_again(connection, node))

    def _give_up(self, connection: FleetConnection, node: str) -> None:
        """Runs of a node may have ended: withdraw what their agents asked, then answer in their place."""
        if self._connections.withdrawals.may_have(connection, node):
            self._spawn(self._withdraw_and_fail(connection, node))
        else:
            self.fail_unanswered(connection, node)

    async def _withdraw_and_fail(self, connection: FleetConnection, node: str) -> None:
        await self._connections.withdrawals.withdraw(connection, node)
        self.fail_unanswered(connection, node)

    def fail_unanswered(self, connection: FleetConnection, node: str) -> None:
        """Answer in the place of runs of a node that have ended, and had promised responses."""
        lease = self._registry.leases.get(node)
        run = None if lease is None else lease.nonce
        lost = {id: each for id, each in connection.unanswered.items() if each.node == node and each.run != run}
        connection.forget_promises(lost)
        if lost:
            self._connections.promises.tell_lost(connection, lost, node)

    async def keep_all(self) -> None:
        """Keep connections in the fleet's table, and at the nodes that know them: both forget what is not used."""
        for connection in self._connections.all():
            try:
                overdue = await self._connections.keep(connection)
            except SandboxAgentError as error:
                logger.info("connection not kept connection=%s reason=%s", connection.tag, error.slug)
                continue
            for node in list(connection.remotes) if overdue else ():
                is_there = node in self._registry.leases
                if is_there or node in self._registry.orders.forgotten:
                    # A run publishes what the one before it has asked, after it got its lease; and another gateway may
                    # have heard later that a node was forgotten.
                    self._give_up(connection, node)
                if is_there:
                    # Not waited for: a node that does not answer must not keep the others' connections from being kept.
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
