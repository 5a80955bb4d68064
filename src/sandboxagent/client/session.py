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
from sandboxagent.client.errors import InvalidCall, RequestError
from sandboxagent.client.events import SessionEvent
from sandboxagent.client.files import Files
from sandboxagent.client.following import Following, SessionLog, read_history
from sandboxagent.client.incoming import LogReader, Notification, as_notification
from sandboxagent.client.reducer import SessionReducer
from sandboxagent.client.requests import (
    Decided,
    ElicitationRequest,
    Handlers,
    PermissionRequest,
    QuestionRequest,
    Request,
    read_pending,
)
from sandboxagent.client.turn import Turn
from sandboxagent.client.updates import (
    FINAL,
    Gap,
    PromptBlock,
    SessionEnded,
    SessionItem,
    blocks,
    read_item,
)
from sandboxagent.client.view import Context, Cost, SessionView
from sandboxagent.core.cursor import Cursor
from sandboxagent.protocol import methods
from sandboxagent.protocol.acp import SessionConfigOptionBoolean, SessionConfigOptionSelect
from sandboxagent.protocol.decode import read
from sandboxagent.protocol.envelope import META, Object, list_at, object_at, objects_at, text_at
from sandboxagent.protocol.errors import UnknownSession


class Activity(Struct, rename="camel", kw_only=True, frozen=True):
    """The current activity of a session, and the resources that it has used."""

    kind: str | None = None
    """The last thing that the agent did: `message`, `thought` or `tool`."""
    said: str = ""
    """The last line of that message or thought, or the title of that tool call; at most 240 characters."""
    turn_started_at: datetime | None = None
    """The time when the running turn started; None if no turn runs."""
    tokens: int | None = None
    """Number of tokens of all the session's turns, if the agent counts them."""
    context: Context | None = None
    """The fill level of the agent's context window, if the agent reports it."""
    cost: Cost | None = None
    """The cost of the session, if the agent reports it."""


class SessionInfo(Struct, rename="camel", kw_only=True, frozen=True):
    """A session's state at the time of the call."""

    session_id: str
    """Id of the session."""
    agent: str
    """Id of the session's agent."""
    cwd: str
    """The session's directory on the server's machine."""
    title: str | None = None
    """Title that the agent gave to the session, or else the one requested at its creation."""
    created_at: datetime | None = None
    """The time when the session was created."""
    updated_at: datetime | None = None
    """The time of the last event in the session's log."""
    ended: bool = False
    """Whether no agent process holds the session. If the session is `resumable`, a prompt resumes it."""
    resumable: bool = False
    """Whether a prompt can resume the session after it has ended."""
    running: bool = False
    """Whether a turn runs."""
    event_count: int = 0
    """Number of events in the session's log."""
    pending: int = 0
    """Number of permissions, questions and forms that wait for an answer."""
    model: str | None = None
    """Id of the current model, if the agent reports it."""
    mode: str | None = None
    """Id of the current mode, if the agent reports it."""
    termination_info: Object | None = None
    """How and why the session ended; None if it has not ended."""
    metadata: Object = {}
    """Metadata that clients have stored with the session."""
    activity: Activity = Activity()
    """The current activity of the session, and the resources that it has used."""
    alias: str | None = None
    """The session's alias, which you can use in place of its id."""
    node: str | None = None
    """At a gateway: the node that the session belongs to."""
    left_out: list[str] = []
    """Names of fields, such as `metadata`, whose stored values are too deeply nested to be shown. Only sessions of an
    earlier release have such values."""


class _Page(Struct, rename="camel"):
    sessions: list[SessionInfo]
    next_cursor: str | None = None


async def fetch_session(api: Api, id: str) -> SessionInfo:
    """Return one session, by id or alias. Raises ServerProblem (`session-not-found`) if it is unknown."""
    return await api.json("GET", f"/v1/sessions/{quote(id, safe='')}", type=SessionInfo)


async def fetch_sessions(api: Api, cwd: str | None = None) -> AsyncGenerator[SessionInfo]:
    """Yield all sessions, or those of one directory, newest first. Pages are requested as they are needed."""
    cursor = None
    while True:
        page = await api.json("GET", "/v1/sessions", params={"cursor": cursor, "cwd": cwd}, type=_Page)
        for session in page.sessions:
            yield session
        if page.next_cursor is None:
            return
        cursor = page.next_cursor


ConfigOption: TypeAlias = SessionConfigOptionSelect | SessionConfigOptionBoolean
"""An option that a session's agent offers."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file or directory on the server's machine that is sent with a prompt."""

    path: str | PurePath
    """An absolute path, a `file://` URI, or a path relative to the session's directory."""
    mime: str | None = None
    """Media type of the file. Without it, the server uses the type of the file's content or name."""
    filename: str | None = None
    """Name to show for the file. Without it, the last part of the path is used."""

    def document(self) -> Object:
        """Return the attachment as JSON for the wire."""
        facts = {"path": str(self.path), "mime": self.mime, "filename": self.filename}
        return {name: value for name, value in facts.items() if value is not None}


@dataclass(frozen=True, slots=True)
class SessionParts:
    """The HTTP client and the connection that a session uses."""

    api: Api
    connection: ClientConnection


_GONE: Object = {
    "reason": "deleted",
    "terminatedBy": "daemon",
    "message": "the server no longer has this session",
}


class Updates(AsyncIterator[SessionItem]):
    """The events of a session from one position of its log on. The iteration continues when the connection breaks.

    A slow reader does not delay others and misses nothing: it reads missed events from the session's log. When the
    agent crashes or the session is closed, the iteration yields a `SessionEnded` and continues, because a prompt may
    resume the session. The iteration ends when the session is terminated or deleted, or when you detach.
    """

    def __init__(self, feed: Cursor[Notification], log: LogReader) -> None:
        self._feed = feed
        self._log = log
        self._notification: Notification | None = None
        """A notification that has to wait for events before it."""
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
            # Kept in an attribute until everything before it has arrived, so that no cancelled call loses it.
            if self._notification is None:
                item = await self._feed.next()
                if item is None:
                    return False
                self._notification = as_notification(item)
            before = await self._log.before(self._notification)
        except RequestError as error:
            if error.slug != UnknownSession.slug:
                raise
            # The session was deleted while this reader was behind, or the server has lost it.
            before, self._notification = [], Notification(0, methods.ENDED, _GONE, 0)
        self._ready += [*before, self._notification]
        self._notification = None
        return True


class Session:
    """One conversation with one agent. It continues without this client. Return to it by its id."""

    def __init__(self, parts: SessionParts, id: str, agent: str, cwd: str, opened: Object) -> None:
        self._parts = parts
        self._connection = parts.connection
        self.id = id
        """Id of the session."""
        self.agent = agent
        """Id of the session's agent."""
        self.cwd = cwd
        """The session's directory on the server's machine."""
        self.warnings = [str(each) for each in list_at(opened, "_meta", META, "warnings")]
        """Requested settings that the agent could not apply, as sentences for people."""
        self.config_options: list[ConfigOption] = _options(opened)
        """Options that the session's agent offers, as of the creation of this object or the last `set_config_option`.
        Empty until then if you attached to the session."""
        self.files = Files(parts.api, id)
        """Files on the server's machine. Paths are relative to the session's directory."""

    def __repr__(self) -> str:
        return f"Session({self.id!r}, agent={self.agent!r})"

    # Prompting

    def prompt(
        self,
        prompt: str | Sequence[PromptBlock],
        attachments: Sequence[str | PurePath | Attachment] = (),
        meta: Mapping[str, object] | None = None,
    ) -> Turn:
        """Send a prompt, and return its turn at once.

        The turn runs whether you read it or not. Iterate over it for its updates, or await its end.

        Args:
            prompt: a text, or a list of content blocks.
            attachments: files on the server's machine that are sent with the prompt.
            meta: further members of the prompt's `_meta`, which the agent gets.
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
        """Cancel the running turn and all waiting prompts. Their turns end with the stop reason `cancelled`."""
        await self._connection.notify(methods.CANCEL, {"sessionId": self.id})

    # Following

    def updates(self, after: int | None = None) -> "Updates":
        """Return all events of the session from this call on, no matter which client causes them.

        The iteration continues when the agent crashes or the connection breaks. It ends when the session is terminated
        or deleted, or when you detach.

        Args:
            after: position in the log after which the events begin, instead of the time of this call.
        """
        log = self._connection.open_log(self.id)
        return Updates(self._connection.open_feed(self.id, log, after), log)

    def history(self, after: int = 0, before: int | None = None) -> AsyncIterator[SessionEvent]:
        """Return the session's past as typed events, oldest first.

        A `Gap` takes the place of events that were deleted from the log.

        Args:
            after: position before the first event.
            before: position after the last event; without it, the past is read to its end.
        """
        return read_history(self._connection, self.id, after, before)

    def follow(self, after: int = 0, *, view: SessionView | None = None) -> Following:
        """Return the session's past as typed events, and then each new event as it comes, with the session's state.

        `following.view` is the session after the last event, as an app draws it. The iteration ends when the session
        is terminated or deleted, or when you detach.

        Args:
            after: position before the first event. The view then begins with a gap.
            view: a view that you have stored, to continue from it.

        Raises:
            InvalidCall: both `after` and `view` are given.
        """
        if after and view is not None:
            raise InvalidCall("give follow() either after or view")
        reducer = SessionReducer(view)
        if after:
            reducer.add(Gap(0, after + 1))
        return Following(SessionLog(self._connection, self.id, reducer.view.position), reducer)

    def log(self, after: int = 0, before: int | None = None) -> SessionLog:
        """Return the session's log: every envelope to and from its agent, as it was sent.

        Use it to store or relay a session: keep the last id, and continue from there after any interruption. With
        `before` it ends there. Without it, each new event follows as it comes, as with `follow`.

        Args:
            after: position before the first event.
            before: position after the last event.
        """
        return SessionLog(self._connection, self.id, after, before)

    async def pending(self) -> list[Request]:
        """Return all requests of the session's agent that wait for an answer, oldest first.

        Every client that is attached to the session can answer them.
        """
        found = map(read_pending, objects_at(await self._call(methods.PENDING), "pending"))
        return [each for each in found if each is not None]

    def requests(self) -> list[Request]:
        """Return the requests of the session's agent that wait for an answer of this client.

        Answer them with `client.reply_permission`, `client.reply_question` or `client.reply_elicitation`.
        """
        return [each for each in self._connection.asking.requests() if each.session_id == self.id]

    # Handlers of this session, which take precedence over those of the client

    def on_permission(self, handler: Callable[[PermissionRequest], Decided]) -> Callable[[PermissionRequest], Decided]:
        """Set the handler that answers this session's requests for permission, in place of the client's handler."""
        self._handlers.permission = handler
        return handler

    def on_question(self, handler: Callable[[QuestionRequest], Decided]) -> Callable[[QuestionRequest], Decided]:
        """Set the handler that answers this session's questions, in place of the client's handler."""
        self._handlers.question = handler
        return handler

    def on_elicitation(
        self, handler: Callable[[ElicitationRequest], Decided]
    ) -> Callable[[ElicitationRequest], Decided]:
        """Set the handler that fills in this session's forms, in place of the client's handler.

        The client must have such a handler, too. Without it, this client gets forms as questions.
        """
        self._handlers.elicitation = handler
        return handler

    # Settings

    async def models(self) -> Models:
        """Return the models that the session can use, and the current one."""
        result = await self._call(methods.LIST_MODELS)
        return msgspec.convert(result, Models)

    async def set_model(self, model: str) -> None:
        """Switch to another model. Raises RequestError, which lists the available models, if the id is unknown."""
        await self._call(methods.SET_MODEL, modelId=model)

    async def modes(self) -> Modes:
        """Return the modes that the session can use, and the current one."""
        offered = (await Agents(self._parts.api, self.id).get(self.agent)).modes
        current = (await self.info()).mode
        return Modes(available_modes=offered.available_modes if offered else [], current_mode_id=current)

    async def set_mode(self, mode: str) -> None:
        """Switch to another mode. Raises RequestError, which lists the available modes, if the id is unknown."""
        await self._call(methods.SET_MODE, modeId=mode)

    async def set_config_option(self, option: str, value: str | bool) -> None:
        """Set one of `config_options`, by its id or category."""
        kind: Object = {"type": "boolean"} if isinstance(value, bool) else {}
        result = await self._call(methods.SET_CONFIG_OPTION, configId=option, value=value, **kind)
        self.config_options = _options(result) or self.config_options

    async def set_metadata(self, metadata: Mapping[str, object]) -> Object:
        """Merge keys into the session's metadata, and return all of the metadata. The value None removes a key."""
        result = await self._call(methods.SET_METADATA, metadata=dict(metadata))
        return object_at(result, "metadata")

    async def info(self) -> SessionInfo:
        """Return the session's current state."""
        return await self._connection.read(lambda: fetch_session(self._parts.api, self.id))

    # Endings

    async def fork(self, cwd: str | None = None) -> "Session":
        """Create a session that begins with the history of this one. The agent must support this."""
        directory = cwd or self.cwd
        params: Object = {"sessionId": self.id, "cwd": directory, "mcpServers": []}
        result = await self._connection.begin(methods.FORK, params, self.agent)
        return Session(self._parts, text_at(result, "sessionId") or "", self.agent, directory, result)

    async def close(self) -> None:
        """Close the session at its agent. It can be resumed if the agent supports this."""
        await self._call(methods.CLOSE)

    async def terminate(self) -> Object:
        """End the session for good: its turn is cancelled, and it cannot be resumed. Its log stays.

        The result is the server's answer as JSON, with `reason` and `terminatedBy`.
        """
        return await self._call(methods.TERMINATE)

    async def detach(self) -> None:
        """Stop receiving the session's events. The session continues without this client."""
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
