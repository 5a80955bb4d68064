"""Connect OpenCode's programs to the hub as one of its clients."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count

from sandboxagent.adapters.opencode.errors import BridgeError
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import (
    META,
    Envelope,
    Object,
    notification,
    parse,
    parse_answer,
    request,
    success,
    text_at,
)
from sandboxagent.protocol.errors import AgentTimeout, SandboxAgentError
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.pending import PendingRequest
from sandboxagent.server.sessions.requests import Requests
from sandboxagent.server.sessions.session import Session

logger = logging.getLogger(__name__)

INTRODUCTION: Object = {"clientInfo": {"name": "opencode"}, "_meta": {META: {"questions": True}}}
"""Params of this client's `initialize`. It declares questions, so that the hub translates forms to questions."""
_UNKNOWN_SESSION = "unknown-session"


class HubClient:
    """Sends envelopes to the hub, each on its own connection, which is closed afterwards."""

    def __init__(self, hub: Hub, from_client: Requests) -> None:
        self.hub = hub
        self._requests = from_client
        self._ids = count(1)
        self._own: dict[str, Connection] = {}
        """Open connections of this client, by tag."""

    @asynccontextmanager
    async def connected(self, agent: str) -> AsyncGenerator[Connection]:
        """Open a connection, and close it at the end of the block."""
        connection = self.hub.connections.open(agent, INTRODUCTION)
        # Mark it as busy, so that it does not expire while an agent works.
        connection.busy += 1
        self._own[connection.tag] = connection
        try:
            yield connection
        finally:
            del self._own[connection.tag]
            self.hub.close_connection(connection, "done")

    async def call(self, agent: str, method: str, params: Object) -> Object:
        """Send a request, and return its result once that is on disk.

        Raises BridgeError, or the failure of the exchange.
        """
        async with self.connected(agent) as connection:
            answer = await self._requests.submit(connection, self._make(method, params))
            try:
                await self.hub.log.committed(answer.commit)
            finally:
                answer.release_updates()
        return read_result(parse_answer(answer.line))

    async def prompt(self, session: Session, params: Object) -> "Prompted":
        """Send a prompt, and return once it is accepted. The turn does not depend on whether the caller waits."""
        taken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._run_prompt(session, params, taken), name=f"prompt {session.id}")
        await asyncio.wait([taken, task], return_when=asyncio.FIRST_COMPLETED)
        if not taken.done():
            await task
            raise BridgeError(500, "the prompt could not be sent to the agent")
        return Prompted(await taken, task)

    async def _run_prompt(self, session: Session, params: Object, taken: "asyncio.Future[str]") -> None:
        async with self.connected(session.facts.agent) as connection:
            envelope = self._make(methods.PROMPT, params)
            reply = self._requests.submit(connection, envelope)
            position = await reply.accepted()
            if not _has_prompt_of(session, connection):
                # The prompt was refused, and so answered at once.
                read_result(parse_answer((await reply).line))
                return
            taken.set_result(f"turn-{position}")
            try:
                answer = await reply
                await self.hub.log.committed(answer.commit)
            except AgentTimeout:
                # The agent has been silent for too long. The turn continues, and the log will have its end.
                return

    async def notify(self, agent: str, method: str, params: Object) -> None:
        async with self.connected(agent) as connection:
            await self._requests.notify(connection, parse(notification(method, params)))

    async def answer(self, pending: PendingRequest, result: Object) -> None:
        """Answer an agent's request. Raises NobodyAsked, AlreadyAnswered or WrongAnswer."""
        assert pending.session is not None
        own = self._own.get(pending.only_tag or "")
        if own is not None:
            await self._answer(own, pending, result)
            return
        async with self.connected(pending.session.facts.agent) as connection:
            self.hub.attach(connection, pending.session)
            await self._answer(connection, pending, result)

    async def _answer(self, connection: Connection, pending: PendingRequest, result: Object) -> None:
        await self._requests.answer(connection, parse(success(pending.id, result)))

    def may_answer(self, pending: PendingRequest) -> bool:
        """Return whether a request is for people, and not for another client alone."""
        if pending.session is None or pending.deciding or pending.kind == "request":
            return False
        others = {connection.tag for connection in self.hub.connections.all()} - self._own.keys()
        return pending.only_tag is None or pending.only_tag not in others

    def _make(self, method: str, params: Object) -> Envelope:
        return parse(request(b'"opencode-%d"' % next(self._ids), method, params))


class Prompted:
    """A prompt that the hub has accepted."""

    def __init__(self, turn_id: str, task: "asyncio.Task[None]") -> None:
        self.turn_id = turn_id
        self._task = task
        task.add_done_callback(_look_at)

    async def over(self) -> None:
        """Wait until its turn is over. Cancelling the wait does not end the turn."""
        await asyncio.wait([self._task])


def _has_prompt_of(session: Session, connection: Connection) -> bool:
    """Return whether a prompt of a connection runs or waits in a session."""
    prompts = [*session.waiting, *([] if session.running is None else [session.running])]
    return any(prompt.tag == connection.tag for prompt in prompts)


def _look_at(task: "asyncio.Task[None]") -> None:
    """Log an unforeseen failure of the task. The session's log has the failures of turns themselves."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, SandboxAgentError):
        logger.error("prompt failed", exc_info=error)


def read_result(response: Envelope) -> Object:
    """Return the result of a response. Raises BridgeError for an error."""
    if response.succeeded:
        return response.result()
    error = response.error()
    message = text_at(error, "message") or "the agent refused it"
    raise BridgeError(404 if text_at(error, "data", "type") == _UNKNOWN_SESSION else 400, message)
