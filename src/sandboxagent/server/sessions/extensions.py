"""Answer the `_sandboxagent/*` methods: attach, history, metadata, ending, files, and the HTTP views.

The file API is among them, for files that fit into an envelope.
"""

import asyncio
import base64
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct

from sandboxagent.core.threads import Pool, Pools
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import LARGE, Envelope, Object, notification, success, text_at
from sandboxagent.protocol.errors import BadPath, BadRequest, FileTooLarge, InvalidParams
from sandboxagent.protocol.extensions import AgentParams, ChangesParams, EventsRange
from sandboxagent.protocol.files import (
    Content,
    DeleteParams,
    Done,
    EntriesParams,
    Moved,
    MoveParams,
    PathParams,
    ReadParams,
    SearchParams,
    StatParams,
    WriteParams,
    Written,
)
from sandboxagent.protocol.json_bounds import excess
from sandboxagent.server.agents.installs import AgentInstalls, read_install_request
from sandboxagent.server.agents.views import AgentViews
from sandboxagent.server.files.changes import delete, make_directory, move
from sandboxagent.server.files.entries import IncomingFile, WriteCondition, etag, read_entry, read_page
from sandboxagent.server.files.roots import Roots, encode_name, file_problems
from sandboxagent.server.sessions.activity import Changes
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.dispatch import Dispatcher, Method
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.listing import SessionListing
from sandboxagent.server.sessions.load import CloseSession
from sandboxagent.server.sessions.policy import check_rules
from sandboxagent.server.sessions.reply import Answer
from sandboxagent.server.sessions.session import Session, iso

MAX_PAGE = 5000
SHOWN = 4096
"""Bytes that are shown of an envelope that cannot be shown."""
MAX_WAIT_TIMEOUT = 60.0
"""Seconds that a client may wait for a change."""


class ExtensionMethods(Struct, frozen=True):
    """The methods, and what they work on."""

    hub: Hub
    dispatcher: Dispatcher
    ending: CloseSession
    listing: SessionListing
    agent_views: AgentViews
    installs: AgentInstalls

    def table(self) -> dict[str, Method]:
        return {
            methods.ATTACH: self.attach,
            methods.DETACH: self.detach,
            methods.LIST_SESSIONS: self.list,
            methods.SESSION_CHANGES: self.await_changes,
            methods.GET_SESSION: self.get,
            methods.LIST_MODELS: self.list_models,
            methods.SET_METADATA: self.set_metadata,
            methods.TERMINATE: self.ending.terminate,
            methods.EVENTS: self.events,
            methods.PENDING: self.pending,
            methods.LIST_AGENTS: self.agent_list,
            methods.GET_AGENT: self.agent_get,
            methods.INSTALL_AGENT: self.agent_install,
        }

    async def attach(self, connection: Connection, envelope: Envelope) -> Answer:
        session = self.hub.session(envelope.session_id)
        position = self.hub.log.position
        self.hub.attach(connection, session)
        pending = self.listing.pending(connection, [session])
        view = self.listing.view(session)
        return _answer(envelope, {"session": view, "pending": pending, "position": position})

    async def detach(self, connection: Connection, envelope: Envelope) -> Answer:
        self.hub.detach(connection, self.hub.session(envelope.session_id))
        return _answer(envelope, {})

    async def list(self, connection: Connection, envelope: Envelope) -> Answer:
        params = envelope.params()
        cursor, cwd, changed_after = (text_at(params, name) for name in ("cursor", "cwd", "changedAfter"))
        return _answer(envelope, self.listing.list_sessions(cursor, cwd, changed_after))

    async def await_changes(self, connection: Connection, envelope: Envelope) -> Answer:
        try:
            asked = msgspec.convert(envelope.params(), ChangesParams)
        except msgspec.ValidationError as error:
            raise InvalidParams(f"changes takes after and wait: {error}") from None
        changes = self.hub.changes
        await wait_for_change(changes, asked.after, min(asked.wait, MAX_WAIT_TIMEOUT))
        return _answer(envelope, {"changes": changes.cursor})

    async def get(self, connection: Connection, envelope: Envelope) -> Answer:
        return _answer(envelope, {"session": self.listing.view(self.hub.session(envelope.session_id))})

    async def list_models(self, connection: Connection, envelope: Envelope) -> Answer:
        if envelope.session_id is not None:
            return _answer(envelope, self.hub.session(envelope.session_id).models())
        agent = self.dispatcher.find_agent(text_at(envelope.params(), "agent") or connection.agent)
        known = self.agent_views.find_announced(agent)
        return _answer(envelope, known.models() if known else {"availableModels": [], "currentModelId": None})

    async def set_metadata(self, connection: Connection, envelope: Envelope) -> Answer:
        session = self.hub.session(envelope.session_id)
        change = envelope.params().get("metadata")
        try:
            metadata = msgspec.convert(change, Object)
        except msgspec.ValidationError:
            raise InvalidParams("set_metadata needs metadata, an object; null removes a key") from None
        check_rules(metadata)
        merged = {name: value for name, value in (session.facts.metadata | metadata).items() if value is not None}
        session.facts.metadata = merged
        if "title" in metadata:
            session.facts.title = text_at(metadata, "title")
        update = notification(methods.METADATA_UPDATE, {"sessionId": session.id, "metadata": merged})
        self.hub.save(session)
        position = self.hub.tell(session, update).last
        return _answer(envelope, {"metadata": merged}, position)

    async def events(self, connection: Connection, envelope: Envelope) -> Answer:
        session = self.hub.session(envelope.session_id)
        asked = self._range(envelope.params())
        end = self.hub.log.position + 1 if asked.before is None else asked.before
        events: list[Object] = []
        for chunk in await self.hub.log.history(session.id, asked.after, end, asked.limit + 1):
            at = iso(chunk.at)
            for position, line in enumerate(chunk.lines, chunk.first):
                if position < end:
                    events.append({"id": position, "at": at, "direction": chunk.direction, "envelope": shown(line)})
        page = events[: asked.limit]
        # The log gives as much as fits a page of bytes: it may have more although the page is not full.
        more = len(events) > asked.limit or (bool(page) and await self._has_more(session, page[-1]["id"], end))
        result: Object = {"events": page, "next": page[-1]["id"] if more else None}
        trimmed = self.hub.log.ask(lambda index: index.trimmed(f"history:{session.id}"))
        if trimmed > asked.after:
            result["gap"] = {"after": asked.after, "resumesAt": page[0]["id"] if page else end}
        return _answer(envelope, result)

    async def _has_more(self, session: Session, after: object, end: int) -> bool:
        assert isinstance(after, int)
        return bool(await self.hub.log.history(session.id, after, end, 1))

    @staticmethod
    def _range(params: Object) -> "EventsRange":
        try:
            asked = msgspec.convert(params, EventsRange)
        except msgspec.ValidationError as error:
            raise InvalidParams(f"events takes after, before and limit: {error}") from None
        return msgspec.structs.replace(asked, limit=min(asked.limit, MAX_PAGE))

    async def pending(self, connection: Connection, envelope: Envelope) -> Answer:
        named = envelope.params().get("sessionId")
        if named is not None and not isinstance(named, str):
            raise InvalidParams("sessionId must be a string; leave it out for all sessions", sessionId=named)
        sessions = self.hub.pending.sessions() if named is None else [self.hub.session(named)]
        return _answer(envelope, {"pending": self.listing.pending(connection, sessions)})

    async def agent_list(self, connection: Connection, envelope: Envelope) -> Answer:
        registry = envelope.params().get("registry") is True
        return _answer(envelope, await self.agent_views.all(registry=registry))

    async def agent_get(self, connection: Connection, envelope: Envelope) -> Answer:
        try:
            asked = msgspec.convert(envelope.params(), AgentParams)
        except msgspec.ValidationError as error:
            raise InvalidParams(f"get takes agent and models: {error}") from None
        name = connection.agent if asked.agent is UNSET else asked.agent
        agent = await self.agent_views.catalog.find(name)
        views = self.agent_views
        return _answer(envelope, await views.view_with_models(agent) if asked.models else views.view(agent))

    async def agent_install(self, connection: Connection, envelope: Envelope) -> Answer:
        params = envelope.params()
        try:
            asked = read_install_request(params)
        except BadRequest as error:
            raise InvalidParams(str(error)) from error
        agent = params.get("agent", connection.agent)
        if not isinstance(agent, str):
            raise InvalidParams("install needs the name of an agent, or none for the connection's own")
        return _answer(envelope, await self.installs.install(agent, asked))


def shown(line: bytes) -> Raw:
    """An envelope of the log, as a page shows it: one that nests too deep, which an earlier release let in, by itself.

    It would make the whole page unreadable.
    """
    reason = excess(line)
    if reason is None:
        return Raw(line)
    head = line[:SHOWN].decode(errors="replace")
    return Raw(notification(methods.UNPARSED, {"agent": None, "reason": reason, "line": head, "truncated": True}))


def _answer(envelope: Envelope, result: object, commit: int = 0) -> Answer:
    assert envelope.id is not None
    return Answer(success(envelope.id, result), commit)


def advertise(methods: list[str]) -> Object:
    """The extensions as `initialize` advertises them: each as a flag, and by its method's name."""
    return {**{_flag(name): True for name in methods}, "methods": methods}


def _flag(method: str) -> str:
    """`_sandboxagent/session/list_models` → `sessionListModels`."""
    words = method.removeprefix("_sandboxagent/").replace("/", "_").split("_")
    return words[0] + "".join(word.capitalize() for word in words[1:])


async def wait_for_change(changes: Changes, cursor: str, patience: float) -> None:
    """Return when something has changed since then, at once if it has; or when the time is over."""
    changed = asyncio.Event()
    take_back = changes.call_after(cursor, changed.set)
    try:
        async with asyncio.timeout(patience):
            await changed.wait()
    except TimeoutError:
        return
    finally:
        take_back()


if TYPE_CHECKING:
    from sandboxagent.server.files.search import Searches

CARRIED = 8 << 20
"""Bytes of a file that an envelope may carry."""

Params = TypeVar("Params", bound="PathParams")


class FileMethods(Struct, frozen=True):
    """The methods. All of their work is done in threads."""

    hub: Hub
    roots: Roots
    max_file: int | None
    pools: Pools
    searches: "Callable[[], Searches]"
    """Made on first use."""

    def table(self) -> dict[str, Method]:
        return {
            methods.READ_FILE: self._method(ReadParams, self._read),
            methods.WRITE_FILE: self._method(WriteParams, self._write),
            methods.LIST_ENTRIES: self._method(EntriesParams, self._entries),
            methods.STAT: self._method(StatParams, self._stat),
            methods.MAKE_DIRECTORY: self._method(PathParams, self._mkdir),
            methods.MOVE: self._move,
            methods.SEARCH: self._search,
            methods.DELETE_FILE: self._method(DeleteParams, self._delete, self.pools.trees),
        }

    def _method(self, type: type[Params], work: Callable[[str, Params], object], pool: Pool | None = None) -> Method:
        async def method(connection: Connection, envelope: Envelope) -> Answer:
            is_large = len(envelope.line) > LARGE
            asked = await self.pools.files.run(_params, envelope, type) if is_large else _params(envelope, type)
            path = self._absolute(asked.path, asked.session_id)
            return await _answer_in_thread(envelope, lambda: work(path, asked), pool or self.pools.files)

        return method

    def _absolute(self, path: str, session_id: str | None) -> str:
        if not path:
            raise BadPath(path, "a path has at least one character")
        directory = None if session_id is None else self.hub.session(session_id).facts.cwd
        return self.roots.absolute(path, directory)

    def _read(self, path: str, asked: "ReadParams") -> Content:
        with file_problems(path), self.roots.confined.open(path) as file:
            facts = os.fstat(file.fileno())
            wanted = CARRIED + 1 if asked.length is None else min(asked.length, CARRIED + 1)
            content = bytearray()
            # Some files, those of /proc for one, give less at a time than was asked for.
            while part := os.pread(file.fileno(), wanted - len(content), asked.offset + len(content)):
                content += part
        if len(content) > CARRIED:
            raise _too_large(path, "GET /v1/fs/file")
        return Content(encode_name(path), base64.b64encode(content).decode(), facts.st_size, etag(facts))

    def _write(self, path: str, asked: "WriteParams") -> Written:
        if len(asked.content) > CARRIED:
            raise _too_large(path, "PUT /v1/fs/file")
        incoming = IncomingFile(self.roots, path, WriteCondition(), self.max_file)
        try:
            incoming.write([asked.content])
            return incoming.finish()
        finally:
            incoming.close()

    def _entries(self, path: str, asked: "EntriesParams") -> object:
        return read_page(self.roots.confined, path, asked.cursor, asked.limit)

    def _stat(self, path: str, asked: "StatParams") -> object:
        return read_entry(self.roots.confined, path, follow=asked.follow)

    def _mkdir(self, path: str, asked: "PathParams") -> Done:
        make_directory(self.roots, path)
        return Done(encode_name(path))

    def _delete(self, path: str, asked: "DeleteParams") -> Done:
        delete(self.roots, path, recursive=asked.recursive, stopped=self.roots.stopped)
        return Done(encode_name(path))

    async def _move(self, connection: Connection, envelope: Envelope) -> Answer:
        asked = _params(envelope, MoveParams)
        source, target = (self._absolute(path, asked.session_id) for path in (asked.source, asked.target))

        def work() -> Moved:
            move(self.roots, source, target, overwrite=asked.overwrite, stopped=self.roots.stopped)
            return Moved(encode_name(source), encode_name(target))

        return await _answer_in_thread(envelope, work, self.pools.trees)

    async def _search(self, connection: Connection, envelope: Envelope) -> Answer:
        from sandboxagent.server.files.search import Query

        asked = _params(envelope, SearchParams)
        path, searches = self._absolute(asked.path, asked.session_id), self.searches()
        wanted = Query(asked.text, asked.name, asked.regex, asked.case, asked.hidden, asked.ignored)
        try:
            found = await searches.find(searches.prepare(path, wanted, asked.limit), path)
        except BadRequest as error:
            raise InvalidParams(str(error), **error.fields) from error
        return await _answer_in_thread(envelope, lambda: found, self.pools.files)


T = TypeVar("T")


def _params(envelope: Envelope, type: type[T]) -> T:
    try:
        return msgspec.convert(envelope.params(), type)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"{envelope.method}: {error}", method=envelope.method) from None


async def _answer_in_thread(envelope: Envelope, work: Callable[[], object], pool: Pool) -> Answer:
    """The result as a line, made in a thread as well: a file may be large."""
    assert envelope.id is not None
    id = envelope.id
    return Answer(await pool.run(lambda: success(id, work())))


def _too_large(path: str, route: str) -> FileTooLarge:
    meaning = f"more than the {CARRIED} bytes that an envelope carries; use {route}"
    return FileTooLarge(encode_name(path), meaning, limit=CARRIED, route=route)
