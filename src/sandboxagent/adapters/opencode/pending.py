"""Send permissions and questions to OpenCode's programs, and pass their answers to the hub.

The hub keeps the pending requests. The first answer of any client wins.
"""

import asyncio
import fnmatch
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import TypeVar

from sandboxagent.adapters.opencode.errors import BridgeError, refuse_request
from sandboxagent.adapters.opencode.events import EventBus, EventReader
from sandboxagent.adapters.opencode.hub_client import HubClient
from sandboxagent.adapters.opencode.objects import PermissionRequest, QuestionRequest
from sandboxagent.adapters.opencode.prompts import KEY
from sandboxagent.adapters.opencode.questions import (
    answer_permission,
    answer_question,
    find_rule,
    is_remembered_by_agent,
    label_answers,
    make_permission,
    make_question,
    read_kind,
    read_reply,
    request_id,
)
from sandboxagent.adapters.opencode.session_ids import Facts, id_of
from sandboxagent.adapters.opencode.transcript import Transcript
from sandboxagent.adapters.opencode.transcripts import Transcripts
from sandboxagent.core.tasks import Tasks
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import Object, list_at, parse, text_at
from sandboxagent.protocol.errors import AlreadyAnswered, NobodyAsked, SandboxAgentError, WrongAnswer
from sandboxagent.server.sessions.observers import Observer
from sandboxagent.server.sessions.pending import PendingRequest, RequestFormat, render
from sandboxagent.server.sessions.session import Session

logger = logging.getLogger(__name__)

_SPEECH = RequestFormat(questions=True)
T = TypeVar("T")


class OpenRequests(Observer):
    """Permissions and questions. The hub calls its methods when one is asked, and when one is settled."""

    def __init__(self, client: HubClient, transcripts: Transcripts, bus: EventBus) -> None:
        self._client = client
        self._hub = client.hub
        self._transcripts = transcripts
        self._bus = bus
        self._answering = Tasks()

    # Listing

    async def permissions(self, directory: str | None) -> list[PermissionRequest]:
        """Return the open permissions of one directory, or of all."""
        waiting = [each for each in self._open(directory) if each.kind == "permission"]
        return [made async for made in self._make_each(waiting, self._permission)]

    async def questions(self, directory: str | None) -> list[QuestionRequest]:
        waiting = [each for each in self._open(directory) if each.kind != "permission"]
        return [made async for made in self._make_each(waiting, self._question)]

    @staticmethod
    async def _make_each(waiting: list[PendingRequest], make: Callable[[PendingRequest], T]) -> AsyncGenerator[T]:
        """Yield an object for each request that is still open.

        Other tasks run after each, because a request may be large, with changes of files.
        """
        for pending in waiting:
            if pending.open:
                yield make(pending)
                await asyncio.sleep(0)

    async def greet(self, reader: EventReader) -> None:
        """Send a new reader the open requests, which were asked before it connected."""
        async for pending, asked in self._make_each(
            self._open(reader.directory), lambda each: (each, self._asked(each))
        ):
            assert pending.session is not None
            self._bus.send(reader, pending.session.facts.cwd, *asked)

    def _open(self, directory: str | None) -> list[PendingRequest]:
        waiting = [each for session in self._hub.pending.sessions() for each in self._hub.pending.of_session(session)]
        wanted = [each for each in waiting if self._client.may_answer(each)]
        return [each for each in wanted if directory is None or (each.session and each.session.facts.cwd == directory)]

    def _asked(self, pending: PendingRequest, transcript: Transcript | None = None) -> tuple[str, object]:
        if pending.kind == "permission":
            return "permission.asked", self._permission(pending, transcript)
        return "question.asked", self._question(pending, transcript)

    def _permission(self, pending: PendingRequest, transcript: Transcript | None = None) -> PermissionRequest:
        assert pending.session is not None
        call_id = text_at(pending.request.params(), "toolCall", "toolCallId")
        return make_permission(pending, id_of(pending.session), self._message(pending.session, call_id, transcript))

    def _question(self, pending: PendingRequest, transcript: Transcript | None = None) -> QuestionRequest:
        assert pending.session is not None
        params = _show_question(pending)
        message_id = self._message(pending.session, text_at(params, "toolCallId"), transcript)
        return make_question(params, pending, id_of(pending.session), message_id)

    def _message(self, session: Session, call_id: str | None, transcript: Transcript | None) -> str | None:
        transcript = transcript or self._transcripts.find(session)
        return None if transcript is None or call_id is None else transcript.find_call(call_id)

    def denies(self, session: Session, permission: str, asked: str) -> bool:
        """Return whether a session's permissions, which its program has set, deny an action."""
        return _find_action(Facts.of(session).permission, permission, asked) == "deny"

    # Replying

    async def reply_permission(self, id: str, said: str, message: str | None) -> None:
        """Answer a permission. Raises BridgeError."""
        pending = self._find(id, "Permission")
        reply = read_reply(said)
        result = answer_permission(pending, reply, message)
        await self._answer(pending, result, "Permission")
        if reply == "always" and not is_remembered_by_agent(pending):
            await self._remember(pending)

    async def reply_question(self, id: str, answers: list[list[str]]) -> None:
        pending = self._find(id, "Question")
        await self._answer(pending, answer_question(_show_question(pending), answers), "Question")

    async def reject_question(self, id: str) -> None:
        await self._answer(self._find(id, "Question"), {"status": "rejected"}, "Question")

    def _find(self, id: str, kind: str) -> PendingRequest:
        for pending in self._open(None):
            if request_id(pending) == id and (pending.kind == "permission") == (kind == "Permission"):
                return pending
        return refuse_request(kind, id)

    async def _answer(self, pending: PendingRequest, result: Object, kind: str) -> None:
        try:
            await self._client.answer(pending, result)
        except (NobodyAsked, AlreadyAnswered):
            refuse_request(kind, request_id(pending))
        except WrongAnswer as error:
            raise BridgeError(400, str(error)) from error

    async def _remember(self, pending: PendingRequest) -> None:
        """Save a permission that was given for good in the session's metadata, because its agent asks each time."""
        session = pending.session
        assert session is not None
        rule, facts = find_rule(pending), Facts.of(session)
        if rule is None or rule in facts.always:
            return
        kept = replace(facts, always=(*facts.always, rule)).write()
        params: Object = {"sessionId": session.id, "metadata": {KEY: kept}}
        await self._client.call(session.facts.agent, methods.SET_METADATA, params)

    # Callbacks of the hub

    def request_opened(self, pending: PendingRequest) -> None:
        try:
            if not self._client.may_answer(pending):
                return
            result = self._decide(pending)
            if result is None:
                assert pending.session is not None
                self._transcripts.after_all(pending.session, lambda transcript: self._announce(pending, transcript))
                return
            self._answering.run(self._answer_quietly(pending, result), "answer for opencode")
        except Exception:
            logger.exception("request not sent session=%s", pending.session.id if pending.session else None)

    def _announce(self, pending: PendingRequest, transcript: Transcript) -> None:
        # The request may have been settled while the transcript was read.
        if pending.open:
            assert pending.session is not None
            self._transcripts.publish(pending.session, *self._asked(pending, transcript))

    def request_settled(self, pending: PendingRequest, decision: bytes | None) -> None:
        session = pending.session
        if session is None or decision is None or not self._bus.read:
            return
        try:
            said = parse(decision).params()
            about: Object = {"sessionID": id_of(session), "requestID": request_id(pending)}
            if pending.kind == "permission":
                self._transcripts.publish(session, "permission.replied", {**about, "reply": read_kind(said)})
            elif said.get("outcome") == "answered":
                answers = label_answers(_show_question(pending), list_at(said, "answers"))
                self._transcripts.publish(session, "question.replied", {**about, "answers": answers})
            else:
                self._transcripts.publish(session, "question.rejected", about)
        except Exception:
            logger.exception("decision not sent session=%s", session.id)

    def session_deleted(self, session: Session) -> None:
        try:
            self._transcripts.publish_session(session, "session.deleted")
            self._transcripts.forget(session.id)
        except Exception:
            logger.exception("deletion not sent session=%s", session.id)

    def _decide(self, pending: PendingRequest) -> Object | None:
        """Return an answer that the session's permissions have decided in advance; None if they decide nothing."""
        assert pending.session is not None
        facts = Facts.of(pending.session)
        if pending.kind != "permission":
            denied = _find_action(facts.permission, "question", "*") == "deny"
            return {"status": "rejected"} if denied else None
        if not facts.permission and not facts.always:
            return None
        asked = self._permission(pending)
        if any(_find_action(facts.permission, asked.permission, each) == "deny" for each in asked.patterns):
            return answer_permission(pending, "reject", None)
        if find_rule(pending) in facts.always and not is_remembered_by_agent(pending):
            return answer_permission(pending, "once", None)
        return None

    async def _answer_quietly(self, pending: PendingRequest, result: Object) -> None:
        try:
            await self._client.answer(pending, result)
        except SandboxAgentError as error:
            logger.info("request not answered reason=%s", error.slug)


def _show_question(pending: PendingRequest) -> Object:
    """Return the params of a question in the form for clients that understand questions."""
    return parse(render(pending.request, _SPEECH, pending.key)).params()


def _find_action(rules: tuple[Object, ...], permission: str, asked: str) -> str | None:
    """Return the action of the last matching rule; None if none matches.

    Callers use only `deny`: a rule that allows may mean something else here.
    """
    action = None
    for rule in rules:
        name, pattern = text_at(rule, "permission") or "", text_at(rule, "pattern") or "*"
        if fnmatch.fnmatchcase(permission, name) and fnmatch.fnmatchcase(asked, pattern):
            action = text_at(rule, "action")
    return action
