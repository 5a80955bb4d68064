"""Keep the agents' requests to people, and render them for each client.

The first answer wins. An agent asks by `elicitation/create` or by the server's question extension; a client may
understand one, the other, or both. Pure.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from enum import StrEnum
from typing import cast

from msgspec import Struct, field

from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import (
    META,
    Envelope,
    Object,
    at,
    failure,
    object_at,
    objects_at,
    request,
    same_id,
    success,
    text_at,
)
from sandboxagent.protocol.errors import InvalidRequest, MethodNotFound, RequestCancelled, WrongAnswer
from sandboxagent.protocol.request_ids import RequestIds
from sandboxagent.server.sessions import forms
from sandboxagent.server.sessions.budgets import KEPT_COST_BYTES, Budgets
from sandboxagent.server.sessions.forms import is_url, question_id
from sandboxagent.server.sessions.session import Process, Session

MAX_REMEMBERED_REQUESTS = 10_000
"""Maximum number of settled requests that are remembered, so that a late answer gets the request's outcome."""
MAX_REMEMBERED_BYTES = 8 << 20
"""Maximum bytes of the texts of remembered requests."""
QUESTION = methods.REQUEST_QUESTION
PERMISSION = methods.REQUEST_PERMISSION
ELICITATION = methods.ELICITATION


class RequestFormat(Struct, frozen=True):
    """The forms of requests that a client has declared to understand."""

    form: bool = False
    url: bool = False
    questions: bool = False

    @classmethod
    def of(cls, capabilities: Object, meta: Object) -> "RequestFormat":
        """Read the client's forms from its `initialize`.

        The members are `elicitation.form`, `elicitation.url`, and the server's `questions` in `_meta` of the
        capabilities or of the params.
        """

        def offered(*path: str) -> bool:
            return at(capabilities, *path) not in (None, False)

        ours = offered("_meta", META, "questions") or at(meta, META, "questions") is True
        return cls(offered("elicitation", "form"), offered("elicitation", "url"), ours)

    def method(self, asked: Envelope) -> str:
        """Return the method by which this client gets an agent's request."""
        if asked.method == QUESTION:
            return ELICITATION if self.form and not self.questions else QUESTION
        if asked.method == ELICITATION:
            known = self.url if is_url(asked.params()) else self.form
            return ELICITATION if known or ((self.form or self.url) and not self.questions) else QUESTION
        return asked.method


def render(asked: Envelope, request_format: RequestFormat, key: int) -> bytes:
    """Render an agent's request for a client. It is unchanged if the client understands the agent's form."""
    assert asked.id is not None
    method = request_format.method(asked)
    if method == asked.method and method != ELICITATION:
        return asked.line
    params = asked.params()
    if method == asked.method:
        if is_url(params) and not request_format.url:
            return request(asked.id, ELICITATION, forms.url_as_form(params))
        return asked.line
    if method == QUESTION:
        return request(asked.id, QUESTION, forms.make_question(params, key))
    return request(asked.id, ELICITATION, forms.make_form(params))


def translate_answer(asked: Envelope, request_format: RequestFormat, answer: Envelope) -> bytes:
    """Translate a client's answer into the form of the agent's request.

    Raises WrongAnswer, which names the error; the request then stays open.
    """
    assert asked.id is not None
    if not answer.succeeded:
        return answer.line
    params, result = asked.params(), answer.result()
    if asked.method == PERMISSION:
        _check_permission(params, result)
        return answer.line
    method = request_format.method(asked)
    if method == ELICITATION:
        forms.check_form(forms.make_form(params) if asked.method == QUESTION else params, result)
        return success(asked.id, forms.question_answer(params, result)) if asked.method == QUESTION else answer.line
    if method == QUESTION:
        if asked.method == QUESTION:
            forms.check_question(params, result)
            return answer.line
        return success(asked.id, forms.form_answer(params, result))
    return answer.line


def _check_permission(params: Object, result: Object) -> None:
    outcome = object_at(result, "outcome")
    match outcome.get("outcome"):
        case "cancelled":
            return
        case "selected":
            offered = [option.get("optionId") for option in objects_at(params, "options")]
            if outcome.get("optionId") not in offered:
                raise WrongAnswer(f"optionId must be one of: {', '.join(map(str, offered))}")
        case _:
            raise WrongAnswer('a permission is answered by {"outcome": {"outcome": "selected", "optionId": …}}')


_KINDS = {PERMISSION: "permission", QUESTION: "question", ELICITATION: "elicitation"}


def kind_of(method: str) -> str:
    """Return the kind of a request by its method; `request` for an unknown method."""
    return _KINDS.get(method, "request")


def leaves_open(answer: Envelope) -> bool:
    """Return whether an answer cancels, so that it decides nothing.

    ACP demands such an answer of a client after a cancellation.
    """
    if not answer.succeeded:
        return is_cancellation(answer)
    result = answer.result()
    said = (text_at(result, "outcome", "outcome"), result.get("status"), result.get("action"))
    return said in (("cancelled", None, None), (None, "cancelled", None), (None, None, "cancel"))


def is_cancellation(answer: Envelope) -> bool:
    """Return whether an answer is the error for `$/cancel_request`: its client has stopped asking the person."""
    return answer.error().get("code") == RequestCancelled.rpc_code


def _unchanged(answer: bytes) -> bytes:
    return answer


class Outcome(StrEnum):
    """The outcome of a request."""

    REQUESTED = "requested"
    ANSWERED = "answered"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


class PendingRequest(Struct, eq=False):
    """One request of an agent to people."""

    key: int
    """The request's position in the log."""
    id: bytes
    """The id for all clients. No other request ever has it."""
    request: Envelope
    """The request, translated from the agent's dialect. The log has the agent's original."""
    process: Process
    session: Session | None
    asked_at: float
    """Wall-clock time, for display: the time of its event in the log."""
    waits_since: float = 0.0
    """Monotonic time, for its deadline."""
    only_tag: str | None = None
    """Tag of the connection to whose call it belongs, if any. Others may answer only after that one is closed."""
    outcome: Outcome = Outcome.REQUESTED
    answered_by: str | None = None
    translate: Callable[[bytes], bytes] = _unchanged
    """Translates an answer into the agent's dialect."""
    answering: bool = False
    """Whether an answer is being written to disk. The request may still be cancelled, but accepts no other answer."""
    answered_with: tuple[str, bytes] | None = None
    """Tag of the connection whose answer was first, and the digest of that answer."""
    held: int = 0
    """Bytes that it takes of the budget of its agent process."""
    deciding: bool = False
    """Whether the rules are deciding it. People are not asked, or not yet."""
    about: Object | None = None
    """The result of `Envelope.asked`, while it is cached: the thread of the rules has read it."""
    asked: set[str] = field(default_factory=set[str])
    """Tags of the connections that were asked. They may answer, and get the outcome."""

    @property
    def size(self) -> int:
        """Approximate bytes that the request takes in memory."""
        return len(self.request.line) + KEPT_COST_BYTES

    @property
    def agent_id(self) -> bytes:
        return cast(bytes, self.request.id)

    @property
    def session_id(self) -> str | None:
        return self.session.id if self.session is not None else None

    @property
    def kind(self) -> str:
        return kind_of(self.request.method)

    def read(self) -> Object:
        """Return the members of the request that an answer refers to."""
        return self.request.asked() if self.about is None else self.about

    @property
    def question_id(self) -> str | None:
        """The question id that clients see; None if the request has none."""
        match self.kind:
            case "question":
                return text_at(self.read(), "questionId")
            case "elicitation":
                return question_id(self.key)
            case _:
                return None

    @property
    def open(self) -> bool:
        return self.outcome is Outcome.REQUESTED

    def outcome_of(self, answer: Envelope) -> Outcome:
        """Return the outcome that an answer means. The answer must be in the agent's form."""
        if not answer.succeeded:
            return Outcome.ANSWERED
        said = answer.result().get("status" if self.kind == "question" else "action")
        match self.kind, said:
            case ("question", "rejected") | ("elicitation", "decline"):
                return Outcome.REJECTED
            case ("question", "cancelled") | ("elicitation", "cancel"):
                return Outcome.CANCELLED
            case _:
                return Outcome.ANSWERED

    def cancellation(self) -> bytes:
        """Return the answer for a request that is cancelled before a person has answered."""
        match self.kind:
            case "permission":
                return success(self.agent_id, {"outcome": {"outcome": "cancelled"}})
            case "question":
                return success(self.agent_id, {"status": "cancelled"})
            case "elicitation":
                return success(self.agent_id, {"action": "cancel"})
            case _:
                return failure(self.agent_id, RequestCancelled("the request was cancelled"))

    def rejection(self) -> bytes:
        """Return the answer that rejects. It is used in case of doubt, and never allows anything."""
        match self.kind:
            case "permission":
                option = self._option("reject_once")
                chosen = {"outcome": "cancelled"} if option is None else {"outcome": "selected", "optionId": option}
                return success(self.agent_id, {"outcome": chosen})
            case "question":
                return success(self.agent_id, {"status": "rejected"})
            case "elicitation":
                return success(self.agent_id, {"action": "decline"})
            case _:
                return failure(self.agent_id, MethodNotFound(f"no client answered {self.request.method}"))

    def refusal(self, reason: str) -> bytes:
        """Return the answer for a request that must not wait for people. It never allows anything."""
        if self.kind == "request":
            return failure(self.agent_id, InvalidRequest(reason, method=self.request.method))
        return self.rejection()

    def permission(self, *, remember: bool) -> bytes | None:
        """Return the answer that allows; None unless the agent offers exactly one option for that.

        `remember` prefers the option that allows always.
        """
        once, always = self._options("allow_once"), self._options("allow_always")
        chosen = always if remember and len(always) == 1 else once
        if len(chosen) != 1:
            return None
        return success(self.agent_id, {"outcome": {"outcome": "selected", "optionId": chosen[0]}})

    def _option(self, kind: str) -> str | None:
        return next(iter(self._options(kind)), None)

    def _options(self, kind: str) -> list[str]:
        offered = objects_at(self.read(), "options")
        return [id for option in offered if option.get("kind") == kind and (id := text_at(option, "optionId"))]


class Settled(Struct):
    """The remembered part of a settled request: its outcome, and the connections that may see it."""

    outcome: Outcome
    request: Envelope | None
    """The request itself, for a client that reads it again. It is forgotten first."""
    asked: tuple[str, ...]
    session_id: str | None
    answered_with: tuple[str, bytes] | None


MAX_OPEN = 10_000
"""Maximum number of open requests of one agent process."""


class PendingRequests:
    """All open requests, and the newest settled ones."""

    def __init__(self, ids: RequestIds, budgets: Budgets | None = None, most: int = MAX_OPEN) -> None:
        """`most` is the maximum number of open requests of one agent process."""
        self.ids = ids
        self._budgets = budgets or Budgets()
        self._most = most
        self._counts: Counter[str] = Counter()
        """Number of open requests, by key of the agent process."""
        self._settled: OrderedDict[int, Settled] = OrderedDict()
        self._legible: deque[int] = deque()
        """Keys of the settled requests whose text is still remembered, oldest first."""
        self._legible_bytes = 0
        self._open: dict[int, PendingRequest] = {}
        self._by_agent_id: dict[tuple[str, bytes], PendingRequest] = {}
        self._of_session: dict[Session, dict[int, PendingRequest]] = {}

    def find_limit(self, pending: PendingRequest) -> str | None:
        """Return the reason why this request may not wait with the others; None if it may."""
        process = pending.process.key
        if self._counts[process] >= self._most:
            return (
                f"{self._most} requests of this agent process wait for people already; answer some, "
                "or start the server with a higher --pending-requests"
            )
        if self._budgets.used(process) + pending.size > self._budgets.most:
            return self._budgets.refusal()
        return None

    def ask(self, pending: PendingRequest) -> None:
        self._counts[pending.process.key] += 1
        # The budget may have no room for a request that is about to be rejected.
        pending.held = pending.size if self._budgets.take(pending.process.key, pending.size) else 0
        self._open[pending.key] = pending
        if pending.session is not None:
            self._of_session.setdefault(pending.session, {})[pending.key] = pending
        self._by_agent_id[pending.process.key, same_id(pending.agent_id)] = pending

    def settle(self, pending: PendingRequest, outcome: Outcome, tag: str | None) -> None:
        """Set the outcome of an open request, and remove it from the open ones."""
        pending.outcome, pending.answered_by = outcome, tag
        del self._open[pending.key]
        process = pending.process.key
        self._counts[process] -= 1
        if not self._counts[process]:
            del self._counts[process]
        self._budgets.release_bytes(process, pending.held)
        if pending.session is not None:
            siblings = self._of_session[pending.session]
            del siblings[pending.key]
            if not siblings:
                del self._of_session[pending.session]
        id = (pending.process.key, same_id(pending.agent_id))
        if self._by_agent_id.get(id) is pending:
            del self._by_agent_id[id]
        if pending.asked:
            self._remember(pending)

    def _remember(self, pending: PendingRequest) -> None:
        asked, session_id = tuple(pending.asked), pending.session_id
        settled = Settled(pending.outcome, pending.request, asked, session_id, pending.answered_with)
        self._settled[pending.key] = settled
        self._legible.append(pending.key)
        self._legible_bytes += len(pending.request.line)
        while self._legible_bytes > MAX_REMEMBERED_BYTES:
            self._forget_question()
        if len(self._settled) > MAX_REMEMBERED_REQUESTS:
            oldest = next(iter(self._settled))
            if self._legible and self._legible[0] == oldest:
                self._forget_question()
            del self._settled[oldest]

    def _forget_question(self) -> None:
        """Forget the text of the oldest settled request that still has its text."""
        settled = self._settled[self._legible.popleft()]
        assert settled.request is not None
        self._legible_bytes -= len(settled.request.line)
        settled.request = None

    def find_known(self, id: bytes) -> PendingRequest | Settled | None:
        """Return a request by its id for clients; None if it is neither open nor among the remembered ones."""
        key = self.ids.position(id)
        return None if key is None else self.find_asked(key)

    def find_asked(self, key: int) -> PendingRequest | Settled | None:
        """Like `find_known`, by the request's position in the log."""
        return self._open.get(key) or self._settled.get(key)

    def forget_connection(self, tag: str) -> None:
        """Remove a closed connection from the open requests."""
        for pending in self._open.values():
            pending.asked.discard(tag)

    def find(self, process: Process, agent_id: bytes) -> PendingRequest | None:
        return self._by_agent_id.get((process.key, same_id(agent_id)))

    def of_session(self, session: Session) -> list[PendingRequest]:
        return list(self._of_session.get(session, {}).values())

    def has(self, session: Session) -> bool:
        """Return whether a session has open requests."""
        return session in self._of_session

    def sessions(self) -> list[Session]:
        """Return the sessions with open requests."""
        return list(self._of_session)

    def of_process(self, process: Process) -> list[PendingRequest]:
        return [pending for pending in self._open.values() if pending.process is process]

    def find_for(self, tag: str) -> list[PendingRequest]:
        """Return the open requests that belong to the call of one connection."""
        return [pending for pending in self._open.values() if pending.only_tag == tag]

    def waiting_since(self, at: float) -> list[PendingRequest]:
        """Return the requests that have waited since before `at`, by the monotonic clock."""
        return [pending for pending in self._open.values() if pending.waits_since < at]
