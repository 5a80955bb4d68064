"""Answer the `_sandboxagent/*` methods: attach, history, metadata, terminate, and the HTTP views."""

import asyncio

import msgspec
from msgspec import UNSET, Raw, Struct

from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import Envelope, Object, notification, success, text_at
from sandboxagent.protocol.errors import BadRequest, InvalidParams
from sandboxagent.protocol.extensions import AgentParams, ChangesParams, EventsRange
from sandboxagent.protocol.json_bounds import excess
from sandboxagent.server.agents.installs import AgentInstalls, read_install_request
from sandboxagent.server.agents.views import AgentViews
from sandboxagent.server.sessions.activity import Changes
from sandboxagent.server.sessions.close import CloseSession
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.dispatch import Dispatcher, Method
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.listing import SessionListing
from sandboxagent.server.sessions.policy import check_rules
from sandboxagent.server.sessions.reply import Answer
from sandboxagent.server.sessions.session import Session, iso

MAX_PAGE = 5000
MAX_SHOWN_BYTES = 4096
"""Maximum bytes shown of an envelope that is nested too deep to be shown whole."""
MAX_WAIT_TIMEOUT = 60.0
"""Maximum seconds that a client may wait for a change."""


class ExtensionMethods(Struct, frozen=True):
    """Handlers of the `_sandboxagent/*` methods."""

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
        agent = await self.dispatcher.find_agent(text_at(envelope.params(), "agent") or connection.agent)
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
        chunks = await self.hub.log.history(session.id, asked.after, end, asked.limit + 1)
        open_requests = self.listing.request_ids(connection, session)
        events: list[Object] = []
        for chunk in chunks:
            at = iso(chunk.at)
            for position, line in enumerate(chunk.lines, chunk.first):
                if position < end:
                    event: Object = {"id": position, "at": at, "direction": chunk.direction, "envelope": shown(line)}
                    if position in open_requests:
                        event["requestId"] = Raw(open_requests[position])
                    events.append(event)
        page = events[: asked.limit]
        # The log limits a page by bytes, too. It may have more events although this page is not full.
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
        return _answer(envelope, await (views.view_with_models if asked.models else views.view)(agent))

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
    """Return an envelope of the log for a page.

    An envelope that is nested too deep, which an earlier release accepted, becomes an `unparsed` notification with its
    beginning. It would make the whole page unreadable.
    """
    reason = excess(line)
    if reason is None:
        return Raw(line)
    head = line[:MAX_SHOWN_BYTES].decode(errors="replace")
    return Raw(notification(methods.UNPARSED, {"agent": None, "reason": reason, "line": head, "truncated": True}))


def _answer(envelope: Envelope, result: object, commit: int = 0) -> Answer:
    assert envelope.id is not None
    return Answer(success(envelope.id, result), commit)


def advertise(methods: list[str]) -> Object:
    """Return the extensions as `initialize` advertises them: each as a flag, and a list of all method names."""
    return {**{_flag(name): True for name in methods}, "methods": methods}


def _flag(method: str) -> str:
    """Return the flag of a method: `_sandboxagent/session/list_models` → `sessionListModels`."""
    words = method.removeprefix("_sandboxagent/").replace("/", "_").split("_")
    return words[0] + "".join(word.capitalize() for word in words[1:])


async def wait_for_change(changes: Changes, cursor: str, timeout: float) -> None:
    """Wait until something has changed after the cursor, at most `timeout` seconds.

    It returns at once if something has changed already.
    """
    changed = asyncio.Event()
    cancel_wait = changes.call_after(cursor, changed.set)
    try:
        async with asyncio.timeout(timeout):
            await changed.wait()
    except TimeoutError:
        return
    finally:
        cancel_wait()
