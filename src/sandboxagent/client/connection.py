"""Open one connection to the server, and hand incoming envelopes to the calls they are for.

The first call that needs the connection opens it, because `initialize` names an agent.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar, cast
from weakref import WeakSet, WeakValueDictionary

from sandboxagent import __version__
from sandboxagent.client.api import Api, retry
from sandboxagent.client.errors import ClientError, ConnectionLost, InvalidCall, ServerProblem
from sandboxagent.client.incoming import Arrival, Hooks, LogEntry, LogReader, LogSource, Notification, RequestId
from sandboxagent.client.requests import Asking, Handlers
from sandboxagent.client.transport import Transport
from sandboxagent.client.updates import FINAL
from sandboxagent.core.cursor import Cursor, Item
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import META, Object, object_at, text_at

logger = logging.getLogger(__name__)

T = TypeVar("T")
ItemT = TypeVar("ItemT", bound=Item)


BUNDLED_AGENT = "mock"
"""An agent that every server has."""
ATTACH_INTERVAL = 1.0
"""Seconds between two attempts to attach to a session again, in addition to the retries of each request."""
MAX_REMEMBERED_PROMPTS = 10_000
"""Maximum number of own prompts that a client recognizes when it reads the log."""

Tap = Callable[[str, Object, int | None], None]
"""Called with `"sent"` or `"received"`, the envelope, and its id on the stream if it came from there."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """The settings of a client's connection. `timeout` and `silence` are in seconds, `buffer` is in bytes."""

    agent: str | None
    name: str | None
    user: str | None
    timeout: float
    buffer: int
    silence: float
    websocket: bool
    alone: bool
    """Whether no other client can be connected. Requests that this client has no handler for are then rejected."""


class SentPrompt:
    """A prompt of this client whose turn has not ended."""

    def __init__(self, id: str) -> None:
        self.id = id
        """The `promptId`, by which the prompt's turn is recognized."""
        self.request_id: object = None
        """JSON-RPC id of the request that carried the prompt."""
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the prompt's turn has started."""


class ClientConnection:
    """A connection to the server, with feeds of its sessions and the agents' requests."""

    def __init__(self, api: Api, settings: ConnectionSettings, handlers: Handlers) -> None:
        self._api = api
        self._settings = settings
        self._feeds: dict[str, WeakSet[Cursor[Notification]]] = {}
        """Feeds by session. The references are weak, so that readers do not have to close their feeds."""
        self._followers: dict[str, WeakSet[Cursor[LogEntry]]] = {}
        """Cursors by session that fall behind when an event arrives, and so read it from the log. Weak, like feeds."""
        self._attached: dict[str, int] = {}
        """Sessions that this client is attached to, with the newest known position of each."""
        self._detached: set[str] = set()
        """Sessions that a new connection is not attached to yet. Its stream lacks some of their events."""
        self._attaching: asyncio.Task[None] | None = None
        self._prompts: dict[str, None] = {}
        """Ids of this client's latest prompts."""
        self._under_way: WeakValueDictionary[str, SentPrompt] = WeakValueDictionary()
        self.taps: list[Tap] = []
        self.asking = Asking(handlers, self._answer, self._reply, alone=settings.alone)
        self._transport: Transport | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._failure: ConnectionLost | None = None
        """Why the server is gone for good."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def position(self) -> int:
        """The newest position of the log that the server has mentioned."""
        return 0 if self._transport is None else self._transport.stream_order.position

    async def request(self, method: str, params: Object | None = None, *, agent: str | None = None) -> Object:
        """Send a request, and return its result. `agent` is used if the connection is not open yet.

        Raises:
            RequestError: the method failed, at the server or at the agent.
            ServerProblem: the server refuses.
            ConnectionLost: the server cannot be reached, or the connection broke.
        """
        transport = await self._open_once(agent)
        return cast("Object", await transport.request(method, params or {}) or {})

    async def read(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a read over HTTP, which is safe to repeat, until the server answers, and return its result."""
        return await retry(call, self._settings.timeout)

    async def notify(self, method: str, params: Object | None = None) -> None:
        """Send a notification. Raises the errors of `request`."""
        transport = await self._open_once(None)
        await transport.notify(method, params or {})

    async def attach(self, session_id: str, agent: str) -> Object:
        """Attach to a session: this client gets its events and its agent's requests from this call on."""
        try:
            await self._open_once(agent)
        except ServerProblem as problem:
            # The session's agent is not available any more. Its log is, and any agent can open a connection.
            logger.info("opening a connection without the session's agent agent=%s reason=%s", agent, problem)
            await self._open_once(BUNDLED_AGENT)
        result = await self.request(methods.ATTACH, {"sessionId": session_id})
        if text_at(result, "session", "terminationInfo", "reason") not in FINAL:
            self.mark_attached(session_id, result.get("position"))
        return result

    async def begin(self, method: str, params: Object, agent: str) -> Object:
        """Send a request that creates or resumes a session, which attaches this client, and return its result."""
        transport = await self._open_once(agent)
        generation = transport.generation
        result = await self.request(method, params)
        session_id = text_at(result, "sessionId") or text_at(params, "sessionId") or ""
        self.mark_attached(session_id)
        if generation != transport.generation:
            # The session was attached to a connection that is gone.
            self._set_apart([session_id])
        return result

    def mark_attached(self, session_id: str, position: object = None) -> None:
        """Record that the server has attached this connection. Events after `position` come on the stream."""
        known = position if isinstance(position, int) else self.position
        self._attached[session_id] = max(known, self._attached.get(session_id, 0))

    def mark_detached(self, session_id: str) -> None:
        """End the session's feeds, because no more events will come."""
        self._attached.pop(session_id, None)
        self._detached.discard(session_id)
        self.asking.withdraw_session(session_id)
        for follower in self._followers.get(session_id, ()):
            # The log may have events that did not arrive.
            follower.fall_behind()
        for cursor in self._cursors(session_id):
            cursor.close()
        self._feeds.pop(session_id, None)
        self._followers.pop(session_id, None)

    def new_prompt(self) -> SentPrompt:
        """Register a prompt that is about to be sent."""
        prompt = SentPrompt(secrets.token_urlsafe(12))
        self._under_way[prompt.id] = prompt
        self._prompts[prompt.id] = None
        if len(self._prompts) > MAX_REMEMBERED_PROMPTS:
            del self._prompts[next(iter(self._prompts))]
        return prompt

    async def cancel_queued(self, prompt: SentPrompt) -> None:
        """Withdraw a prompt that waits for its turn."""
        if prompt.request_id is not None:
            await self.notify(methods.CANCEL_REQUEST, {"requestId": prompt.request_id})

    def open_log(self, session_id: str) -> LogReader:
        """Return the reader with which a feed of the session reads the log."""
        return LogReader(self.request, session_id, self._prompts.__contains__)

    def open_feed(self, session_id: str, log: LogReader, after: int | None = None) -> Cursor[Notification]:
        """Return a feed of all events of a session after a position, or from this call on.

        Dropping the last reference ends it.
        """
        now = max(self.position, self._attached.get(session_id, 0))
        feed = Cursor(log, now if after is None else after, self._settings.buffer, is_live=after is None)
        self._register(feed, session_id, self._feeds)
        return feed

    def open_follower(self, session_id: str, after: int, before: int | None = None) -> Cursor[LogEntry]:
        """Return a cursor over all events of a session's log after a position, or between two positions.

        Dropping the last reference ends it.
        """
        follower = Cursor(LogSource(self.request, session_id, before), after, self._settings.buffer)
        if before is None:
            self._register(follower, session_id, self._followers)
        else:
            follower.close()
        return follower

    def _register(self, cursor: Cursor[ItemT], session_id: str, registry: dict[str, WeakSet[Cursor[ItemT]]]) -> None:
        if self._failure is not None or not self.is_attached(session_id):
            cursor.close(self._failure)
        else:
            registry.setdefault(session_id, WeakSet()).add(cursor)

    def _cursors(self, session_id: str | None = None) -> Iterator[Cursor[Notification] | Cursor[LogEntry]]:
        """Yield the feeds and followers of one session or of all sessions."""
        for registry in (self._feeds, self._followers):
            for cursors in registry.values() if session_id is None else [registry.get(session_id, ())]:
                yield from cursors

    def is_attached(self, session_id: str) -> bool:
        return session_id in self._attached and not self._closed

    @property
    def is_closed(self) -> bool:
        return self._closed

    def fail(self, failure: ConnectionLost) -> None:
        """Fail everything that waits for the server, because it is gone for good."""
        self._failure = failure
        if self._attaching is not None:
            self._attaching.cancel()
        if self._transport is not None:
            self._transport.fail(failure)
        for cursor in self._cursors():
            cursor.close(failure)

    async def close(self) -> None:
        """Disconnect from the server. Sessions and their turns continue."""
        self._closed = True
        for cursor in self._cursors():
            cursor.close()
        if self._attaching is not None:
            self._attaching.cancel()
        try:
            if self._transport is not None:
                await self._transport.close()
        finally:
            await self.asking.close()

    # Opening

    def _check(self) -> None:
        if self._closed:
            raise InvalidCall("this client is closed")

    async def _open_once(self, agent: str | None) -> Transport:
        self._check()
        async with self._opening:
            if self._transport is None:
                self._transport = await self._open(agent or self._settings.agent)
            return self._transport

    async def _open(self, agent: str | None) -> Transport:
        if agent is None:
            raise InvalidCall("no agent is named: give one to connect() or start(), or begin with a session")
        hooks = Hooks(self._received, self._lost, self._missed, self.asking.answered, self._sent)
        settings = self._settings
        transport = Transport(self._api, hooks, settings.timeout, settings.silence, websocket=settings.websocket)
        meta: Object = (
            {"agent": agent} if self._settings.user is None else {"agent": agent, "user": self._settings.user}
        )
        params: Object = {
            "protocolVersion": methods.PROTOCOL_VERSION,
            "clientInfo": {"name": self._settings.name or "sandbox-agent-python", "version": __version__},
            "clientCapabilities": self._capabilities(),
            "_meta": {META: meta},
        }
        try:
            await transport.open(params)
            self._check()
        except BaseException:
            await transport.close()
            raise
        return transport

    def _capabilities(self) -> Object:
        handlers = self.asking.handlers
        if handlers.elicitation is None:
            return {"_meta": {META: {"questions": True}}}
        forms: Object = {"elicitation": {"form": {}, "url": {}}}
        return forms if handlers.question is None else {**forms, "_meta": {META: {"questions": True}}}

    # A new connection

    def _lost(self) -> None:
        """Handle a new connection, after the server has restarted or has forgotten the old one.

        Until the client is attached again, its feeds read events from the log.
        """
        self.asking.withdraw_all()
        self._missed()
        self._set_apart(self._attached)

    def _set_apart(self, session_ids: Iterable[str]) -> None:
        self._detached.update(session_ids)
        if self._attaching is None or self._attaching.done():
            self._attaching = asyncio.create_task(self._attach_again(), name="sandbox-agent attaching")

    async def _attach_again(self) -> None:
        assert self._transport is not None
        while self._detached and not self._closed:
            session_id, generation = next(iter(self._detached)), self._transport.generation
            failure, result = None, {}
            try:
                result = await self.request(methods.ATTACH, {"sessionId": session_id})
            except ConnectionLost as error:
                logger.warning("a session cannot be attached yet session=%s reason=%s", session_id, error)
                await asyncio.sleep(ATTACH_INTERVAL)
                continue
            except ClientError as error:
                failure = error
            if generation == self._transport.generation and session_id in self._detached:
                self._attached_again(session_id, result.get("position"), failure)

    def _attached_again(self, session_id: str, position: object, failure: Exception | None) -> None:
        self._detached.discard(session_id)
        if failure is None:
            self.mark_attached(session_id, position)
        else:
            logger.warning("a session is lost session=%s reason=%s", session_id, failure)
            self._attached.pop(session_id, None)
        for cursor in self._cursors(session_id):
            cursor.fall_behind()
            if failure is not None:
                cursor.close(failure)

    # Incoming envelopes

    def _received(self, arrival: Arrival) -> None:
        """Pass an event to the feeds of its session, and a request to the handlers."""
        self._tap("received", arrival.envelope, arrival.position)
        method = text_at(arrival.envelope, "method")
        if method is None or arrival.position is None:
            return
        params = object_at(arrival.envelope, "params")
        session_id = text_at(params, "sessionId") or ""
        if session_id in self._attached:
            self._attached[session_id] = max(arrival.position, self._attached[session_id])
        for follower in self._followers.get(session_id, ()):
            if not follower.is_closed:
                follower.fall_behind()
        if "id" in arrival.envelope:
            id = arrival.envelope["id"]
            self.asking.ask(method, params, RequestId.of(arrival, id), str(id))
            return
        if method == methods.CANCEL_REQUEST:
            outcome = text_at(params, "_meta", META, "outcome")
            self.asking.withdraw(RequestId.of(arrival, params.get("requestId")), outcome)
            return
        if method == methods.TURN:
            self._note_turn(params)
        if method == methods.GAP:
            self._missed()
        notification = Notification(arrival.position, method, params, arrival.size)
        for feed in self._feeds.get(session_id, ()):
            feed.fall_behind() if session_id in self._detached else feed.push(notification)
        if method == methods.ENDED and text_at(params, "reason") in FINAL:
            self.mark_detached(session_id)

    def _note_turn(self, turn: Object) -> None:
        prompt = self._under_way.get(text_at(turn, "promptId") or "")
        if prompt is not None and turn.get("state") == "started" and not prompt.started.done():
            prompt.started.set_result(None)

    def _missed(self) -> None:
        for cursor in self._cursors():
            cursor.fall_behind()

    async def _answer(self, id: RequestId, outcome: Object) -> None:
        assert self._transport is not None
        await self._transport.answer(id, outcome)

    async def _reply(self, id: RequestId, result: Object) -> None:
        assert self._transport is not None
        await self._transport.reply(id, result)

    def _sent(self, envelope: Object) -> None:
        if envelope.get("method") == methods.PROMPT:
            prompt = self._under_way.get(text_at(envelope, "params", "_meta", META, "promptId") or "")
            if prompt is not None:
                prompt.request_id = envelope.get("id")
        self._tap("sent", envelope, None)

    def _tap(self, direction: str, envelope: Object, position: int | None) -> None:
        for tap in tuple(self.taps):
            try:
                tap(direction, envelope, position)
            except Exception:
                logger.exception("a tap failed")
