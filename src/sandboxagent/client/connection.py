"""Open one connection to the server, and hand incoming envelopes to the calls they are for.

Opened by the first thing that needs it, because `initialize` names an agent.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar, cast
from weakref import WeakSet, WeakValueDictionary

from sandboxagent import __version__
from sandboxagent.client.api import Api, retry
from sandboxagent.client.errors import ClientError, ConnectionLost, InvalidCall, ServerProblem
from sandboxagent.client.incoming import Arrival, Hooks, LogReader, Notification, RequestId
from sandboxagent.client.requests import Asking, Handlers
from sandboxagent.client.transport import Transport
from sandboxagent.client.updates import FINAL
from sandboxagent.core.cursor import Cursor
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import META, Object, object_at, text_at

logger = logging.getLogger(__name__)

T = TypeVar("T")


BUNDLED_AGENT = "mock"
"""Every server has it."""
ATTACH_INTERVAL = 1.0
"""Seconds between two tries to attach to a session again, beyond those that a request makes."""
REMEMBERED_PROMPTS = 10_000
"""How many of its own prompts a client can tell from those of others when it reads the log."""

Tap = Callable[[str, Object, int | None], None]
"""Called with `"sent"` or `"received"`, the envelope, and its id on the stream if it came from there."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How a client wants its connection; `patience` and `silence` are in seconds, `buffer` in bytes."""

    agent: str | None
    name: str | None
    user: str | None
    patience: float
    buffer: int
    silence: float
    websocket: bool
    alone: bool
    """No other client can be connected: what this client does not answer is rejected."""


class SentPrompt:
    """A prompt of this client whose turn has not ended."""

    def __init__(self, id: str) -> None:
        self.id = id
        """By which its turn is known."""
        self.request_id: object = None
        """Of the request that it was sent with."""
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when its turn has started."""


class ClientConnection:
    """Requests to the server, feeds of its sessions, and what agents ask."""

    def __init__(self, api: Api, settings: ConnectionSettings, handlers: Handlers) -> None:
        self._api = api
        self._settings = settings
        self._feeds: dict[str, WeakSet[Cursor[Notification]]] = {}
        """By session. Weak: who no longer reads a feed need not say so."""
        self._alarms: dict[str, WeakSet[asyncio.Event]] = {}
        """By session: set when something happens in it."""
        self._attached: dict[str, int] = {}
        """Sessions, and the newest position that is known of each."""
        self._detached: set[str] = set()
        """Sessions that a new connection is not attached to yet: its stream misses some of their events."""
        self._attaching: asyncio.Task[None] | None = None
        self._prompts: dict[str, None] = {}
        """The ids of our own latest prompts."""
        self._under_way: WeakValueDictionary[str, SentPrompt] = WeakValueDictionary()
        self.taps: list[Tap] = []
        self.asking = Asking(handlers, self._answer, self._reply, alone=settings.alone)
        self._transport: Transport | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._failure: ConnectionLost | None = None
        """Why the server is gone."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def position(self) -> int:
        """The newest position of the log that the server has mentioned."""
        return 0 if self._transport is None else self._transport.stream_order.position

    async def request(self, method: str, params: Object | None = None, *, agent: str | None = None) -> Object:
        """The result of a request; `agent` is for a connection that is not open yet.

        Raises:
            RequestError: the method failed, at the server or at the agent.
            ServerProblem: the server refuses.
            ConnectionLost: the server cannot be reached, or went away.
        """
        transport = await self._open_once(agent)
        return cast("Object", await transport.request(method, params or {}) or {})

    async def read(self, call: Callable[[], Awaitable[T]]) -> T:
        """What a call over HTTP gives that may be made any number of times; the server is waited for."""
        return await retry(call, self._settings.patience)

    async def notify(self, method: str, params: Object | None = None) -> None:
        """Send a notification. Raises as `request` does."""
        transport = await self._open_once(None)
        await transport.notify(method, params or {})

    async def attach(self, session_id: str, agent: str) -> Object:
        """Attach: from now on this client gets the session's events and its agent's requests."""
        try:
            await self._open_once(agent)
        except ServerProblem as problem:
            # Its agent cannot be had any more; its log is there all the same, and any agent opens a connection.
            logger.info("opening a connection without the session's agent agent=%s reason=%s", agent, problem)
            await self._open_once(BUNDLED_AGENT)
        result = await self.request(methods.ATTACH, {"sessionId": session_id})
        if text_at(result, "session", "terminationInfo", "reason") not in FINAL:
            self.mark_attached(session_id, result.get("position"))
        return result

    async def begin(self, method: str, params: Object, agent: str) -> Object:
        """The result of a request that makes a session, or takes one up: this client is attached to it then."""
        transport = await self._open_once(agent)
        generation = transport.generation
        result = await self.request(method, params)
        session_id = text_at(result, "sessionId") or text_at(params, "sessionId") or ""
        self.mark_attached(session_id)
        if generation != transport.generation:
            # It was attached to a connection that is gone by now.
            self._set_apart([session_id])
        return result

    def mark_attached(self, session_id: str, position: object = None) -> None:
        """The server has attached this connection: events after a position come on the stream."""
        known = position if isinstance(position, int) else self.position
        self._attached[session_id] = max(known, self._attached.get(session_id, 0))

    def mark_detached(self, session_id: str) -> None:
        """End the session's feeds: no more events will come."""
        self._attached.pop(session_id, None)
        self._detached.discard(session_id)
        self.asking.withdraw_session(session_id)
        self._ring(session_id)
        for feed in self._feeds.pop(session_id, ()):
            feed.close()

    def new_prompt(self) -> SentPrompt:
        """A prompt that is about to be sent."""
        prompt = SentPrompt(secrets.token_urlsafe(12))
        self._under_way[prompt.id] = prompt
        self._prompts[prompt.id] = None
        if len(self._prompts) > REMEMBERED_PROMPTS:
            del self._prompts[next(iter(self._prompts))]
        return prompt

    async def cancel_queued(self, prompt: SentPrompt) -> None:
        """Take a prompt back that waits for its turn."""
        if prompt.request_id is not None:
            await self.notify(methods.CANCEL_REQUEST, {"requestId": prompt.request_id})

    def open_log(self, session_id: str) -> LogReader:
        """What a reader of a session's feed reads in the log."""
        return LogReader(self.request, session_id, self._prompts.__contains__)

    def open_feed(self, session_id: str, log: LogReader) -> Cursor[Notification]:
        """A feed of everything that happens in a session from now on, for as long as you keep a reference to it."""
        after = max(self.position, self._attached.get(session_id, 0))
        feed = Cursor(log, after, self._settings.buffer, is_live=True)
        if self._failure is not None or not self.is_attached(session_id):
            feed.close(self._failure)
        else:
            self._feeds.setdefault(session_id, WeakSet()).add(feed)
        return feed

    def open_alarm(self, session_id: str) -> asyncio.Event:
        """An event that is set whenever something happens in a session, for as long as you keep a reference to it."""
        alarm = asyncio.Event()
        self._alarms.setdefault(session_id, WeakSet()).add(alarm)
        return alarm

    def is_attached(self, session_id: str) -> bool:
        return session_id in self._attached and not self._closed

    @property
    def is_closed(self) -> bool:
        return self._closed

    def fail(self, failure: ConnectionLost) -> None:
        """The server is gone for good: fail everything that waits for it."""
        self._failure = failure
        if self._attaching is not None:
            self._attaching.cancel()
        if self._transport is not None:
            self._transport.fail(failure)
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.close(failure)
        self._ring_all()

    async def close(self) -> None:
        """Disconnect from the server; sessions and their turns continue."""
        self._closed = True
        self._ring_all()
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.close()
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
        transport = Transport(self._api, hooks, settings.patience, settings.silence, websocket=settings.websocket)
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
        """The server was restarted, or has forgotten us: what happens until we are attached again is in the log."""
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
        self._ring(session_id)
        for feed in self._feeds.get(session_id, ()):
            feed.fall_behind() if failure is None else feed.close(failure)

    # What comes in

    def _received(self, arrival: Arrival) -> None:
        """Give an event to the feeds of its session, and a request to the handlers."""
        self._tap("received", arrival.envelope, arrival.position)
        method = text_at(arrival.envelope, "method")
        if method is None or arrival.position is None:
            return
        params = object_at(arrival.envelope, "params")
        session_id = text_at(params, "sessionId") or ""
        if session_id in self._attached:
            self._attached[session_id] = max(arrival.position, self._attached[session_id])
        self._ring(session_id)
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

    def _ring(self, session_id: str) -> None:
        for alarm in self._alarms.get(session_id, ()):
            alarm.set()

    def _ring_all(self) -> None:
        for session_id in self._alarms:
            self._ring(session_id)

    def _missed(self) -> None:
        self._ring_all()
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.fall_behind()

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
