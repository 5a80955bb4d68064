"""Prompt, follow and change a session that this client is attached to."""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePath
from typing import TypeAlias
from urllib.parse import quote

import msgspec
from msgspec import Struct, ValidationError

from sandboxagent.client.agents import Agents, Models, Modes
from sandboxagent.client.api import Api
from sandboxagent.client.connection import ClientConnection
from sandboxagent.client.errors import RequestError
from sandboxagent.client.files import Files
from sandboxagent.client.incoming import LogEvent, LogReader, Notification, as_notification, read_log_page
from sandboxagent.client.requests import (
    Decided,
    ElicitationRequest,
    Handlers,
    PermissionRequest,
    QuestionRequest,
    Request,
)
from sandboxagent.client.turn import Turn
from sandboxagent.client.updates import (
    FINAL,
    Gap,
    PromptBlock,
    SessionEnded,
    SessionItem,
    blocks,
    read_gap,
    read_item,
)
from sandboxagent.core.cursor import Cursor
from sandboxagent.protocol import methods
from sandboxagent.protocol.acp import SessionConfigOptionBoolean, SessionConfigOptionSelect
from sandboxagent.protocol.decode import read
from sandboxagent.protocol.envelope import META, Object, list_at, object_at, text_at
from sandboxagent.protocol.errors import UnknownSession


class Context(Struct, frozen=True):
    """How full an agent's context is, in tokens."""

    used: int
    size: int


class Cost(Struct, frozen=True):
    """What something has cost."""

    amount: float
    currency: str
    """ISO 4217, such as `USD`."""


class Activity(Struct, rename="camel", kw_only=True, frozen=True):
    """What a session is doing."""

    kind: str | None = None
    """What its agent did last: `message`, `thought` or `tool`."""
    said: str = ""
    """The last line of that, or the title of the tool call."""
    turn_started_at: datetime | None = None
    """When the turn that runs was started."""
    tokens: int | None = None
    """Tokens of all its turns, if its agent counts them."""
    context: Context | None = None
    cost: Cost | None = None


class SessionInfo(Struct, rename="camel", kw_only=True, frozen=True):
    """A session's state at the time of the call."""

    session_id: str
    agent: str
    cwd: str
    title: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    ended: bool = False
    """Its agent process is gone; when it is `resumable`, a prompt brings it back."""
    resumable: bool = False
    running: bool = False
    """A turn runs now."""
    event_count: int = 0
    pending: int = 0
    """How many permissions, questions and elicitations wait for an answer."""
    model: str | None = None
    mode: str | None = None
    termination_info: Object | None = None
    """How and why it ended."""
    metadata: Object = {}
    activity: Activity = Activity()
    """What its agent did last, and what it has used."""
    alias: str | None = None
    """Its alias, which you can use in place of the id."""
    node: str | None = None
    """At a gateway: the node that it belongs to."""
    left_out: list[str] = []
    """Facts that an earlier release kept and that are nested too deep to be shown, such as `metadata`."""


class _Page(Struct, rename="camel"):
    sessions: list[SessionInfo]
    next_cursor: str | None = None


async def fetch_session(api: Api, id: str) -> SessionInfo:
    """One session, by id or alias; an unknown one is a ServerProblem, `session-not-found`."""
    return await api.json("GET", f"/v1/sessions/{quote(id, safe='')}", type=SessionInfo)


async def fetch_sessions(api: Api, cwd: str | None = None) -> AsyncGenerator[SessionInfo]:
    """All sessions, or those of a directory, newest first; asks for a page when it is needed."""
    cursor = None
    while True:
        page = await api.json("GET", "/v1/sessions", params={"cursor": cursor, "cwd": cwd}, type=_Page)
        for session in page.sessions:
            yield session
        if page.next_cursor is None:
            return
        cursor = page.next_cursor


class Following(AsyncIterator[LogEvent | Gap]):
    """All events of a session's log after an id, for as long as it is not ended for good and we are attached."""

    def __init__(self, connection: ClientConnection, session_id: str, after: int) -> None:
        self._connection = connection
        self._session_id = session_id
        self._after = after
        self._page: deque[LogEvent | Gap] = deque()
        self._alarm = connection.open_alarm(session_id)
        self._alarm.set()
        self._over = False

    async def __anext__(self) -> LogEvent | Gap:
        while not self._page:
            if self._over:
                raise StopAsyncIteration
            await self._alarm.wait()
            await self._read()
        event = self._page.popleft()
        self._after = event.id if isinstance(event, LogEvent) else max(self._after, event.resumes_at - 1)
        return event

    async def _read(self) -> None:
        self._alarm.clear()
        if self._connection.is_closed:
            self._over = True
            return
        # Before the log is read: what is written after this is announced again.
        gone = not self._connection.is_attached(self._session_id)
        try:
            page = await read_log_page(self._connection.request, self._session_id, self._after)
        except RequestError as error:
            if error.slug == UnknownSession.slug:
                # It was deleted, and its log with it.
                self._over = True
                return
            self._alarm.set()
            raise
        except BaseException:
            self._alarm.set()
            raise
        if page.gap is not None:
            self._page.append(read_gap(page.gap))
        self._page += page.events
        if page.next is not None:
            self._alarm.set()
        elif gone or any(_is_final(event) for event in page.events):
            self._over = True


def _is_final(event: LogEvent) -> bool:
    return event.envelope.get("method") == methods.ENDED and text_at(event.envelope, "params", "reason") in FINAL


ConfigOption: TypeAlias = SessionConfigOptionSelect | SessionConfigOptionBoolean
"""A setting that a session's agent offers."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file for a prompt: an absolute path, a `file://` URI, or a path relative to the session's directory."""

    path: str | PurePath
    mime: str | None = None
    filename: str | None = None

    def document(self) -> Object:
        """Its form on the wire."""
        facts = {"path": str(self.path), "mime": self.mime, "filename": self.filename}
        return {name: value for name, value in facts.items() if value is not None}


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What a session is made with."""

    api: Api
    connection: ClientConnection


_GONE: Object = {
    "reason": "deleted",
    "terminatedBy": "daemon",
    "message": "the server no longer has this session",
}


class Updates(AsyncIterator[SessionItem]):
    """What happens in a session from the moment this was made; it continues when the connection breaks.

    A slow reader delays no other and misses nothing: it catches up from the session's log. When the agent crashes or
    the session is closed, it says so with a `SessionEnded` and continues: a prompt may bring the session back. It ends
    when the session is terminated or deleted, or when you detach.
    """

    def __init__(self, feed: Cursor[Notification], log: LogReader) -> None:
        self._feed = feed
        self._log = log
        self._notification: Notification | None = None
        """An item that must wait for those before it."""
        self._ready: deque[Notification] = deque()
        self._over = False

    async def __anext__(self) -> SessionItem:
        while not self._over:
            if not self._ready and not await self._more():
                break
            notification = self._ready.popleft()
            item = read_item(notification.method, notification.params)
            self._over = isinstance(item, SessionEnded) and item.reason in FINAL
            if item is not None:
                return item
        self._over = True
        raise StopAsyncIteration

    async def _more(self) -> bool:
        try:
            # Kept until everything before it has arrived: a caller that is cancelled meanwhile finds it again.
            if self._notification is None:
                item = await self._feed.next()
                if item is None:
                    return False
                self._notification = as_notification(item)
            before = await self._log.before(self._notification)
        except RequestError as error:
            if error.slug != UnknownSession.slug:
                raise
            # It was deleted while this reader was behind, or the server has lost it.
            before, self._notification = [], Notification(0, methods.ENDED, _GONE, 0)
        self._ready += [*before, self._notification]
        self._notification = None
        return True


class Session:
    """One conversation with one agent. It continues without you; come back to it by its id."""

    def __init__(self, parts: SessionParts, id: str, agent: str, cwd: str, opened: Object) -> None:
        self._parts = parts
        self._connection = parts.connection
        self.id = id
        self.agent = agent
        self.cwd = cwd
        self.warnings = [str(each) for each in list_at(opened, "_meta", META, "warnings")]
        """Requested settings that the agent could not apply."""
        self.config_options: list[ConfigOption] = _options(opened)
        """The settings that its agent offers, as they were when this was made, or when one was set here; a session that
        was attached to has none until then."""
        self.files = Files(parts.api, id)
        """Files of the server's machine; paths are relative to the session's directory."""

    def __repr__(self) -> str:
        return f"Session({self.id!r}, agent={self.agent!r})"

    # Prompting

    def prompt(
        self,
        prompt: str | Sequence[PromptBlock],
        attachments: Sequence[str | PurePath | Attachment] = (),
        meta: Mapping[str, object] | None = None,
    ) -> Turn:
        """Send a prompt. The turn runs from here on; iterate it for its updates, or await it for its end.

        Args:
            prompt: a text, or content blocks.
            attachments: files of the server's machine.
            meta: what else the agent gets with it, as `_meta`.
        """
        sent = self._connection.new_prompt()
        self._connection.mark_attached(self.id)
        ours: Object = {"promptId": sent.id}
        if attachments:
            files = [each if isinstance(each, Attachment) else Attachment(each) for each in attachments]
            ours["attachments"] = [file.document() for file in files]
        params: Object = {"sessionId": self.id, "prompt": blocks(prompt), "_meta": {**(meta or {}), META: ours}}
        return Turn(self._connection, self.id, sent, params)

    async def cancel(self) -> None:
        """End the running turn and those that wait; they end with the stop reason `cancelled`."""
        await self._connection.notify(methods.CANCEL, {"sessionId": self.id})

    # Following

    def updates(self) -> "Updates":
        """Everything that happens from now on, from any client; see `Updates` for when it ends."""
        log = self._connection.open_log(self.id)
        return Updates(self._connection.open_feed(self.id, log), log)

    async def history(self, after: int = 0, before: int | None = None) -> AsyncIterator[LogEvent | Gap]:
        """The session's log between two ids, both exclusive: every envelope to and from its agent.

        A `Gap` comes where part of it is no longer kept.
        """
        while True:
            page = await read_log_page(self._connection.request, self.id, after, before)
            if page.gap is not None:
                yield read_gap(page.gap)
            for event in page.events:
                yield event
            if page.next is None:
                return
            after = page.next

    def follow(self, after: int = 0) -> Following:
        """The session's log from an id on, and each new event as it comes; ends as `updates` does.

        Use it to store or relay a session: keep the last id, and continue from there after any interruption.
        """
        return Following(self._connection, self.id, after)

    async def pending(self) -> list[Object]:
        """Open requests from its agent."""
        result = await self._call(methods.PENDING)
        return [each for each in list_at(result, "pending") if isinstance(each, dict)]

    def requests(self) -> list[Request]:
        """What this client was asked here and has not answered: see `client.reply_question` and its like."""
        return [each for each in self._connection.asking.requests() if each.session_id == self.id]

    # Who answers for this session, in place of the client's handlers

    def on_permission(self, handler: Callable[[PermissionRequest], Decided]) -> Callable[[PermissionRequest], Decided]:
        """Let this handler answer permissions of this session."""
        self._handlers.permission = handler
        return handler

    def on_question(self, handler: Callable[[QuestionRequest], Decided]) -> Callable[[QuestionRequest], Decided]:
        """Let this handler answer questions of this session."""
        self._handlers.question = handler
        return handler

    def on_elicitation(
        self, handler: Callable[[ElicitationRequest], Decided]
    ) -> Callable[[ElicitationRequest], Decided]:
        """Let this handler fill in forms of this session; the client must have one, too, to be asked by forms."""
        self._handlers.elicitation = handler
        return handler

    # Settings

    async def models(self) -> Models:
        """The models to choose from, and the current one."""
        result = await self._call(methods.LIST_MODELS)
        return msgspec.convert(result, Models)

    async def set_model(self, model: str) -> None:
        """Switch to another model. Raises RequestError, which lists the available ones."""
        await self._call(methods.SET_MODEL, modelId=model)

    async def modes(self) -> Modes:
        """The modes to choose from, and the current one."""
        offered = (await Agents(self._parts.api, self.id).get(self.agent)).modes
        current = (await self.info()).mode
        return Modes(available_modes=offered.available_modes if offered else [], current_mode_id=current)

    async def set_mode(self, mode: str) -> None:
        """Switch to another mode. Raises RequestError, which lists the available ones."""
        await self._call(methods.SET_MODE, modeId=mode)

    async def set_config_option(self, option: str, value: str | bool) -> None:
        """Change one of `config_options`, by its id or category."""
        kind: Object = {"type": "boolean"} if isinstance(value, bool) else {}
        result = await self._call(methods.SET_CONFIG_OPTION, configId=option, value=value, **kind)
        self.config_options = _options(result) or self.config_options

    async def set_metadata(self, metadata: Mapping[str, object]) -> Object:
        """Merge into the session's metadata, None removes a key; gives all of it."""
        result = await self._call(methods.SET_METADATA, metadata=dict(metadata))
        return object_at(result, "metadata")

    async def info(self) -> SessionInfo:
        """Its state at the server now."""
        return await self._connection.read(lambda: fetch_session(self._parts.api, self.id))

    # Endings

    async def fork(self, cwd: str | None = None) -> "Session":
        """A new session that begins with the history of this one; its agent must be able to do that."""
        directory = cwd or self.cwd
        params: Object = {"sessionId": self.id, "cwd": directory, "mcpServers": []}
        result = await self._connection.begin(methods.FORK, params, self.agent)
        return Session(self._parts, text_at(result, "sessionId") or "", self.agent, directory, result)

    async def close(self) -> None:
        """End it at its agent; it can be resumed where its agent can do that."""
        await self._call(methods.CLOSE)

    async def terminate(self) -> Object:
        """End it for good: the turn is cancelled, and it cannot be resumed. Its log stays."""
        return await self._call(methods.TERMINATE)

    async def detach(self) -> None:
        """Stop following the session; it continues without you."""
        await self._call(methods.DETACH)
        self._connection.mark_detached(self.id)

    @property
    def _handlers(self) -> Handlers:
        return self._connection.asking.of_session.setdefault(self.id, Handlers())

    async def _call(self, method: str, **params: object) -> Object:
        return await self._connection.request(method, {"sessionId": self.id, **params})


def _options(opened: Object) -> list[ConfigOption]:
    try:
        return read(opened.get("configOptions") or [], list[ConfigOption])
    except ValidationError:
        return []
