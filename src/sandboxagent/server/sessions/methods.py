"""Answer the session methods of ACP: new, fork, list, prompt, authenticate, logout.

Other modules handle the methods that load, set up and end sessions; the table here has all of them.
"""

import re
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial

from msgspec import Raw, Struct

from sandboxagent.core.threads import Pool
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import (
    LARGE_BYTES,
    META,
    Envelope,
    LargeEnvelope,
    Object,
    ReplaceableRanges,
    find_replaceable,
    has_prompt,
    object_at,
    params_text,
    parse,
    success,
    text_at,
    with_param,
    with_result,
)
from sandboxagent.protocol.errors import (
    AgentTimeout,
    InvalidParams,
    LogUnavailable,
    SandboxAgentError,
)
from sandboxagent.server.agents.options import OPTIONS, complete_answer, complete_offers, read_wished_mode
from sandboxagent.server.log.event import FROM_AGENT, FROM_CLIENT, FROM_SERVER
from sandboxagent.server.sessions.attachments import KEY, Attachments, has_attachments, read_takes
from sandboxagent.server.sessions.calls import Call
from sandboxagent.server.sessions.close import CloseSession
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.dispatch import (
    Dispatcher,
    Method,
    fill_from_session,
    make_not_offered,
    prompt_id,
    require_advertised,
    take_environment,
)
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.lifecycle import Event
from sandboxagent.server.sessions.listing import SessionListing
from sandboxagent.server.sessions.load import LoadSession
from sandboxagent.server.sessions.policy import check_rules
from sandboxagent.server.sessions.reply import Answer, Reply
from sandboxagent.server.sessions.session import Process, Prompt, Session
from sandboxagent.server.sessions.settings import SessionSettings
from sandboxagent.server.sessions.turns import Turns

_ALIAS = r"[^/?#%\x00-\x1f\x7f]{1,256}"


class _ReadPrompt(Struct, frozen=True):
    """A prompt in the form that the log records, with the client's own id of it."""

    line: bytes
    name: str | None
    places: ReplaceableRanges | None = None
    """Byte ranges that the server may replace; only for a large prompt."""


def _read_prompt(envelope: Envelope, session_id: str) -> _ReadPrompt:
    """Convert a prompt to the form that the log records. Raises InvalidParams."""
    line, name = envelope.line, prompt_id(envelope.line)
    if not has_prompt(line) and (text := text_at(envelope.params(), "content")) is not None:
        line = with_param(line, "prompt", [{"type": "text", "text": text}])
    if envelope.session_id != session_id:
        line = with_param(line, "sessionId", session_id)
    if not isinstance(envelope, LargeEnvelope):
        return _ReadPrompt(line, name)
    return _ReadPrompt(line, name, envelope.places) if line is envelope.line else _lay_out(line, name)


def _lay_out(line: bytes, name: str | None) -> _ReadPrompt:
    line, places = find_replaceable(line)
    return _ReadPrompt(line, name, places)


class SessionMethods(Struct, frozen=True):
    """Handlers of the session methods."""

    hub: Hub
    dispatcher: Dispatcher
    turns: Turns
    release: Callable[[Process, str], None]
    """Delivers the updates that an agent sent for a session before the session was known."""
    listing: SessionListing
    settings: SessionSettings
    loading: LoadSession
    ending: CloseSession
    attachments: Attachments
    lines: Pool
    """Runs the threads that parse large prompts."""

    def table(self) -> dict[str, Method]:
        return {
            methods.NEW: self.new,
            methods.LOAD: self.loading.load,
            methods.RESUME: self.loading.resume,
            methods.FORK: self.fork,
            methods.LIST: self.list,
            methods.CLOSE: self.ending.close,
            methods.DELETE: self.ending.delete,
            methods.SET_MODEL: self.settings.set_model,
            methods.SET_MODE: self.settings.set_mode,
            methods.SET_CONFIG_OPTION: self.settings.set_config_option,
            "authenticate": self.authenticate,
            "logout": self.logout,
        }

    # Opening

    async def new(self, connection: Connection, envelope: Envelope) -> Answer:
        params = envelope.params()
        asked = object_at(params, "_meta", META)
        agent = await self.dispatcher.agent(connection, envelope)
        await self.dispatcher.directory(params)
        check_rules(asked)
        wished = read_wished_mode(asked)
        environment, checked = take_environment(envelope)
        self._check_log()
        await self._ask_to_open(connection, envelope)
        alias = self._alias(asked)
        try:
            running = await self.dispatcher.spawn(agent, environment)
            settle = partial(self._created, alias=alias, asked=asked, request=checked)
            answer = await self._begin(connection, running, checked, settle)
        except AgentTimeout:
            # Keep the alias reserved: the agent may still answer, and then its session gets the alias.
            raise
        except BaseException:
            self.hub.store.free_alias(alias)
            raise
        try:
            return await self._apply(asked, wished, answer)
        except BaseException:
            answer.release_updates()
            raise

    async def _ask_to_open(self, connection: Connection, envelope: Envelope) -> None:
        """Ask the capabilities whether a client may open a session. Raises the error of one that refuses."""
        wait = self.hub.before_session.ask(connection, envelope)
        if wait is not None:
            await wait

    async def _begin(
        self,
        connection: Connection,
        running: Process,
        envelope: Envelope,
        settle: Callable[[Call, Envelope], Answer],
    ) -> Answer:
        try:
            answer = await self.dispatcher.call(connection, running, None, envelope, settle, makes_session=True)
        except AgentTimeout:
            # Keep the process: the agent may still open the session. The late response goes to the stream.
            raise
        except BaseException:
            await self.dispatcher.stop_if_unused(running)
            raise
        await self.dispatcher.stop_if_unused(running)
        return answer

    def _created(
        self, call: Call, response: Envelope, *, alias: str | None, asked: Object, request: Envelope
    ) -> Answer:
        line = response.addressed(call.client_id, None)
        agent_session_id = text_at(response.result(), "sessionId")
        if not agent_session_id or call.connection is None:
            self.hub.store.free_alias(alias)
            return self._finish_unopened(call, line)
        params = request.params()
        opened_with = Raw(params_text(request.line))
        session = self.hub.add_session(call.running, agent_session_id, text_at(params, "cwd") or "", opened_with)
        session.learn_offers(response.result())
        session.facts.title = text_at(asked, "title")
        session.facts.metadata = {name: value for name, value in asked.items() if name not in ("agent", "env")}
        session.facts.own_environment = bool(call.running.environment)
        if alias is not None:
            self.hub.store.set_alias(session, alias)
        return self._finish_opened(call, session, request, line)

    def _finish_unopened(self, call: Call, line: bytes) -> Answer:
        """Finish a call that has opened no session: flush the buffered updates, and stop a process without use."""
        self.release(call.running, "")
        if call.late is not None:
            self.dispatcher.stop_if_unused_soon(call.running)
        return Answer(line)

    def _finish_opened(self, call: Call, session: Session, request: Envelope, line: bytes) -> Answer:
        """Finish a call that has opened a session: save it, attach its client, and deliver buffered updates."""
        assert call.connection is not None
        self.hub.move(session, Event.OPENED)
        session.mark_reported()
        session.facts.creator = call.connection.tag
        self.hub.attach(call.connection, session)
        self.hub.save(session)
        self.hub.record(session, request.line, FROM_CLIENT)
        self.hub.held_updates.hold(session)
        self.release(call.running, session.facts.agent_session_id)
        if session.id != session.facts.agent_session_id:
            line = with_result(line, "sessionId", session.id)
        line = complete_answer(line, session.facts.offers)
        session_opened = partial(self.hub.held_updates.release, session.id)
        return Answer(line, self.hub.record(session, line, FROM_AGENT).last, session_opened)

    async def _apply(self, asked: Object, permissions: str | None, answer: Answer) -> Answer:
        """Set the model, mode, options and permission mode that the client asked for."""
        session = self.hub.find_session(text_at(parse(answer.line).result(), "sessionId"))
        if session is None:
            return answer
        if permissions is None and not {"mode", "model", OPTIONS} & asked.keys():
            return answer
        warnings = await self.settings.apply(session, asked)
        if permissions is not None:
            await self._permit(session, permissions)
        line, result = answer.line, parse(answer.line).result()
        offers = complete_offers(session.facts.offers)
        for name in offers.keys() & result.keys():
            line = with_result(line, name, offers[name])
        if warnings:
            meta = object_at(result, "_meta")
            line = with_result(line, "_meta", meta | {META: object_at(meta, META) | {"warnings": warnings}})
        # The log has these settings after the agent's own response.
        return Answer(line, self.hub.record(session, line, FROM_SERVER).last, answer.session_opened)

    async def _permit(self, session: Session, wished: str) -> None:
        """Set the permission mode. If that fails, delete the session and raise the error."""
        try:
            await self.settings.permit(session, wished)
        except SandboxAgentError:
            running = session.process
            self.hub.move(session, Event.DELETE)
            if running is not None:
                await self.dispatcher.close_at_agent(running, session.facts.agent_session_id)
            raise

    def _alias(self, asked: Object) -> str | None:
        alias = asked.get("requestedSessionId")
        if alias is None:
            return None
        if not isinstance(alias, str) or re.fullmatch(_ALIAS, alias) is None:
            message = (
                'requestedSessionId must be 1 to 256 characters, none of them "/", "?", "#", "%" or a control character'
            )
            raise InvalidParams(message, requestedSessionId=alias)
        if not self.hub.store.reserve_alias(alias):
            raise InvalidParams(f"requestedSessionId {alias!r} is taken; choose another", requestedSessionId=alias)
        return alias

    def _check_log(self) -> None:
        """Raise LogUnavailable if the log cannot record anything."""
        if self.hub.log.failure is not None:
            raise LogUnavailable(self.hub.log.failure)

    async def fork(self, connection: Connection, envelope: Envelope) -> Answer:
        if "cwd" in envelope.params():
            await self.dispatcher.directory(envelope.params())
        await self._ask_to_open(connection, envelope)
        running, session = await self.dispatcher.process(connection, envelope)
        require_advertised(running, envelope.method)
        assert session is not None
        settle = partial(self._forked, source=session, request=envelope)
        return await self.dispatcher.call(connection, running, session, envelope, settle, makes_session=True)

    def _forked(self, call: Call, response: Envelope, *, source: Session, request: Envelope) -> Answer:
        line = response.addressed(call.client_id, None)
        agent_session_id = text_at(response.result(), "sessionId")
        if not agent_session_id:
            return self._finish_unopened(call, line)
        cwd = text_at(request.params(), "cwd") or source.facts.cwd
        opened_with = Raw(params_text(fill_from_session(request.line, source)))
        session = self.hub.add_session(call.running, agent_session_id, cwd, opened_with)
        session.learn_offers(source.facts.offers | response.result())
        session.facts.title = source.facts.title
        session.facts.ruled_as = source.facts.ruled_as
        session.facts.metadata = source.facts.metadata | {"forkedFrom": source.id}
        session.facts.own_environment = source.facts.own_environment
        return self._finish_opened(call, session, request, line)

    # Prompts, lists and logins

    async def list(self, connection: Connection, envelope: Envelope) -> Answer:
        assert envelope.id is not None
        params = envelope.params()
        cursor, cwd = params.get("cursor"), params.get("cwd")
        if not isinstance(cursor, str | None) or not isinstance(cwd, str | None):
            raise InvalidParams("cursor and cwd must be strings")
        page, following = self.listing.page(cursor, cwd)
        result: Object = {"sessions": [self.listing.entry(session) for session in page]}
        return Answer(success(envelope.id, result if following is None else result | {"nextCursor": following}))

    def prompt(self, connection: Connection, envelope: Envelope, reply: Reply) -> Coroutine[object, None, None] | None:
        """Submit a prompt; return the remaining work if it has to wait for files, for a thread, or for its session.

        The turn does not depend on whether a client waits for the reply.
        """
        session = self.hub.session(envelope.session_id)
        self._check_log()
        self.turns.check(session)
        if isinstance(envelope, LargeEnvelope):
            place = self.attachments.queue(session.id)
            return self._prompt_later(place, connection, session, envelope, None, reply)
        read = _read_prompt(envelope, session.id)
        line = read.line
        self.hub.attach(connection, session)
        if (line.find(KEY) >= 0 and has_attachments(line)) or self.attachments.is_busy(session.id):
            place = self.attachments.queue(session.id)
            return self._prompt_later(place, connection, session, envelope, read, reply)
        prompt = self._submit(connection, session, envelope, read, reply)
        return None if session.held is not None else self._bring_back(session, prompt, reply)

    async def _prompt_later(
        self,
        place: AbstractAsyncContextManager[None],
        connection: Connection,
        session: Session,
        envelope: Envelope,
        read: "_ReadPrompt | None",
        reply: Reply,
    ) -> None:
        """Submit a prompt that a thread has to parse, or that waits for its files."""
        async with place:
            if read is None:
                read = await self.lines.run(_read_prompt, envelope, session.id)
                self._check_again(session)
                self.hub.attach(connection, session)
            read = await self._attached(session, read)
        self._check_again(session)
        prompt = self._submit(connection, session, envelope, read, reply)
        if session.held is None:
            await self._bring_back(session, prompt, reply)

    def _submit(
        self, connection: Connection, session: Session, envelope: Envelope, read: "_ReadPrompt", reply: Reply
    ) -> Prompt:
        # Updates that the agent sent before the prompt must come before it in the log.
        self.hub.held_updates.release(session.id)
        position = self.hub.record(session, read.line, FROM_CLIENT).last
        prompt = Prompt(session.id, connection.tag, read.line, position, read.name, read.places)
        reply.accept(position)
        self.turns.submit(connection, session, envelope, prompt, reply)
        return prompt

    async def _bring_back(self, session: Session, prompt: Prompt, reply: Reply) -> None:
        """Resume a prompt's session, and start the prompt. It may be cancelled meanwhile."""
        if reply.result is not None:
            return
        try:
            await self.dispatcher.resume(session)
        except SandboxAgentError as error:
            if reply.result is None:
                self.turns.drop(session, prompt, error)
                raise
        else:
            self.turns.advance(session)

    async def _attached(self, session: Session, read: "_ReadPrompt") -> "_ReadPrompt":
        """Add its attachments to a prompt. Raises if one is invalid, without side effects."""
        line = read.line
        asked = (
            await self.lines.run(self.attachments.read_asked, line)
            if read.places
            else self.attachments.read_asked(line)
        )
        if not asked:
            return read
        running = await self.dispatcher.get_holder(session)
        line = await self.attachments.add(line, asked, session.facts.cwd, read_takes(running))
        return (
            await self.lines.run(_lay_out, line, read.name) if len(line) > LARGE_BYTES else _ReadPrompt(line, read.name)
        )

    def _check_again(self, session: Session) -> None:
        """Check again after a wait that the session exists, that the log works, and that the queue has room."""
        self.hub.session(session.id)
        self._check_log()
        self.turns.check(session)

    async def authenticate(self, connection: Connection, envelope: Envelope) -> Answer:
        running, session = await self.dispatcher.process(connection, envelope)
        if not running.handshake.facts.get("authMethods"):
            raise make_not_offered(running.agent.id, envelope.method)
        return await self.dispatcher.call(connection, running, session, envelope)

    async def logout(self, connection: Connection, envelope: Envelope) -> Answer:
        running, session = await self.dispatcher.process(connection, envelope)
        require_advertised(running, envelope.method)
        return await self.dispatcher.call(connection, running, session, envelope)
