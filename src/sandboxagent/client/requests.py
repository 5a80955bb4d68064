"""Answer agents' requests to people (permissions, questions, forms), by handlers or by id.

In doubt, the answer is *reject*: if a handler fails, and if an answer does not fit.
"""

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias, TypeVar

import msgspec
from msgspec import ValidationError

from sandboxagent.client.errors import AlreadyAnswered, ClientError, RequestError, ServerProblem
from sandboxagent.client.incoming import RequestId
from sandboxagent.core.tasks import Tasks
from sandboxagent.protocol import methods
from sandboxagent.protocol.acp import PermissionOption, ToolCallUpdate
from sandboxagent.protocol.decode import read
from sandboxagent.protocol.envelope import META, Object, list_at, object_at, objects_at, text_at
from sandboxagent.protocol.errors import NobodyAsked

logger = logging.getLogger(__name__)


METHOD_NOT_FOUND = -32601
ARRIVAL_TIMEOUT = 10.0
"""Seconds for the stream to bring a request that the server has listed."""
MAX_REMEMBERED = 1000
"""Maximum number of settled requests that are remembered, so that a late answer gets the outcome."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to an agent's request. Create it with a method of the request, such as `request.allow()`."""

    result: Object
    """The JSON-RPC result that is sent."""

    def because(self, reason: str | None) -> "Answer":
        """Return this answer with a reason, which the agent and every attached client get."""
        return self if reason is None else Answer({**self.result, "_meta": {META: {"reason": reason}}})


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """A request of an agent for permission to do something."""

    id: str
    """Unique id of the request. Answer the request later with `client.reply_permission(id, …)`."""
    session_id: str
    """Id of the session whose agent asks."""
    tool_call: ToolCallUpdate
    """The tool call that needs the permission."""
    options: list[PermissionOption]
    """The options to choose from."""
    asked_at: datetime | None = None
    """The time of the request. None in a handler, and in `client.requests()`."""

    def allow(self) -> Answer:
        """Allow the tool call once. If the agent offers no such option, or several, the request is rejected."""
        return self._only("allow_once")

    def allow_always(self) -> Answer:
        """Allow this tool call and, from then on, all that the agent considers the same.

        If the agent offers no such option, or several, the request is rejected.
        """
        return self._only("allow_always")

    def reject(self, *, reason: str | None = None) -> Answer:
        """Reject the tool call. The agent gets the reason."""
        kinds = [option for option in self.options if option.kind == "reject_once"]
        return (self.select(kinds[0].option_id) if kinds else self.cancel()).because(reason)

    def select(self, option_id: str) -> Answer:
        """Choose one of `options` by its id."""
        return Answer({"outcome": {"outcome": "selected", "optionId": option_id}})

    def cancel(self) -> Answer:
        """Choose none of `options`."""
        return Answer({"outcome": {"outcome": "cancelled"}})

    def _only(self, kind: str) -> Answer:
        options = [option for option in self.options if option.kind == kind]
        if len(options) == 1:
            return self.select(options[0].option_id)
        logger.warning("rejected: not one %s option session=%s options=%d", kind, self.session_id, len(options))
        return self.reject()


@dataclass(frozen=True, slots=True)
class Choice:
    """A predefined answer to a question."""

    id: str
    """Id of the choice, which an answer contains."""
    label: str
    """Text of the choice, for people."""
    description: str | None = None
    """Explanation of the choice, for people."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question of an agent. A question without options is answered by a text."""

    question: str
    """Text of the question."""
    header: str | None
    """Short heading of the question."""
    options: list[Choice]
    """The predefined answers."""
    multi_select: bool
    """Whether an answer may contain several choices."""


@dataclass(frozen=True, slots=True)
class QuestionRequest:
    """A request of an agent with one or several questions."""

    id: str
    """Unique id of the request. Answer the request later with `client.reply_question(id, …)`."""
    session_id: str
    """Id of the session whose agent asks."""
    prompt: str
    """All questions as one text."""
    questions: list[Question]
    """The questions, one by one."""
    question_id: str | None = None
    """The agent's own id of the request, which a `Decision` has as well. Another agent may use the same id."""
    asked_at: datetime | None = None
    """The time of the request. None in a handler, and in `client.requests()`."""

    def answer(self, *answers: str | Sequence[str]) -> Answer:
        """Answer each question, in order.

        Each argument answers one question: the id of a choice or a free text, or a list of them. Several choices are
        accepted only if the question allows them.
        """
        lists = [[each] if isinstance(each, str) else list(each) for each in answers]
        return Answer({"status": "answered", "answers": lists})

    def reject(self, *, reason: str | None = None) -> Answer:
        """Decline to answer. The agent gets the reason."""
        return Answer({"status": "rejected"}).because(reason)


@dataclass(frozen=True, slots=True)
class ElicitationRequest:
    """A request of an agent to fill in a form (`mode` is "form") or to visit an address ("url")."""

    id: str
    """Unique id of the request. Answer the request later with `client.reply_elicitation(id, …)`."""
    session_id: str | None
    """Id of the session whose agent asks; None if the request belongs to no session."""
    message: str
    """Text that explains the request."""
    mode: Literal["form", "url"]
    """`form` or `url`."""
    schema: Object = field(default_factory=dict[str, object])
    """JSON Schema of the form."""
    url: str | None = None
    """The address to visit, if `mode` is `url`."""
    asked_at: datetime | None = None
    """The time of the request. None in a handler, and in `client.requests()`."""

    def accept(self, content: Object | None = None) -> Answer:
        """Submit the form, with `content` as the values of its fields."""
        return Answer({"action": "accept"} if content is None else {"action": "accept", "content": content})

    def decline(self, *, reason: str | None = None) -> Answer:
        """Decline the request. The agent gets the reason."""
        return Answer({"action": "decline"}).because(reason)

    def cancel(self) -> Answer:
        """Dismiss the request without accepting or declining it."""
        return Answer({"action": "cancel"})


Request: TypeAlias = PermissionRequest | QuestionRequest | ElicitationRequest
"""Any request from an agent that a person can answer."""
Decided = TypeVar("Decided", bound=Awaitable[Answer | None] | Answer | None)
"""The return type of a handler. It lets a decorator return a handler without changing its type."""
PermissionHandler: TypeAlias = Callable[[PermissionRequest], Awaitable[Answer | None] | Answer | None]
"""A function, async or not, that answers permission requests. If it returns None, answer later with
`reply_permission`."""
QuestionHandler: TypeAlias = Callable[[QuestionRequest], Awaitable[Answer | None] | Answer | None]
"""A function, async or not, that answers questions. If it returns None, answer later with `reply_question`."""
ElicitationHandler: TypeAlias = Callable[[ElicitationRequest], Awaitable[Answer | None] | Answer | None]
"""A function, async or not, that fills in forms. If it returns None, answer later with `reply_elicitation`."""


@dataclass(slots=True)
class Handlers:
    """The handlers of a client or of a session. `Asking` decides what happens without a handler."""

    permission: PermissionHandler | None = None
    question: QuestionHandler | None = None
    elicitation: ElicitationHandler | None = None

    def of_method(self, method: str) -> object:
        """Return the handler for a method's requests; None if there is none."""
        handlers: Object = {
            methods.REQUEST_PERMISSION: self.permission,
            methods.REQUEST_QUESTION: self.question,
            methods.ELICITATION: self.elicitation,
        }
        return handlers.get(method)

    def decide(self, request: Request) -> Callable[[], Awaitable[Answer | None] | Answer | None] | None:
        """Return the call of the handler for a request; None if there is no handler."""
        match request:
            case PermissionRequest():
                handler = self.permission
                return None if handler is None else lambda: handler(request)
            case QuestionRequest():
                ask = self.question
                return None if ask is None else lambda: ask(request)
            case ElicitationRequest():
                show = self.elicitation
                return None if show is None else lambda: show(request)


class Asking:
    """The requests that wait for an answer of this client, and the handlers that answer them."""

    def __init__(
        self,
        handlers: Handlers,
        answer: Callable[[RequestId, Object], Awaitable[None]],
        reply: Callable[[RequestId, Object], Awaitable[None]],
        *,
        alone: bool,
    ) -> None:
        self.handlers = handlers
        self.of_session: dict[str, Handlers] = {}
        self._send = answer
        """Sends a `result` or an `error`, and repeats this until the server has it."""
        self._reply = reply
        """Sends a result once, and raises an error if the server refuses it."""
        self._alone = alone
        """Whether no other client can be connected. Requests without a handler are then rejected."""
        self._open: dict[RequestId, Request] = {}
        self._settled: OrderedDict[str, str] = OrderedDict()
        """The outcomes of the newest settled requests, by id."""
        self._tasks: dict[RequestId, asyncio.Task[None]] = {}
        """Tasks of requests that wait for an answer, including requests that this client cannot parse."""
        self._working = Tasks()
        """All tasks in `_tasks`, and tasks that send an answer."""
        self._rejections: dict[RequestId, Object] = {}
        """For each answer that is being sent: the rejection to send if the server refuses the answer."""
        self._warned: set[str] = set()
        self._changed: asyncio.Future[None] | None = None
        """Done when a request has arrived or is settled."""

    def ask(self, method: str, params: Object, key: RequestId, id: str) -> None:
        """Answer an agent's request in a task of its own, because the answer may take as long as a person needs."""
        self.withdraw(key)
        self._tasks[key] = self._working.run(self._ask(method, params, key, id), "sandbox-agent answering")

    async def close(self) -> None:
        """Stop answering requests."""
        await self._working.close()

    async def _ask(self, method: str, params: Object, key: RequestId, id: str) -> None:
        """Answer a request. If no handler answers it, wait until the task is cancelled."""
        try:
            outcome: Object = {"result": await self._result(_request(method, params, id), method, params, key)}
        except RequestError as error:
            outcome = {"error": {"code": error.code, "message": error.message, "data": error.data}}
        finally:
            if self._tasks.get(key) is asyncio.current_task():
                del self._tasks[key]
                self._open.pop(key, None)
        self._remember(id, "answered")
        with _reported():
            await self._send(key, outcome)

    def _has_handler(self, method: str, params: Object) -> bool:
        handlers = self.of_session.get(text_at(params, "sessionId") or "", Handlers())
        return any(each.of_method(method) is not None for each in (handlers, self.handlers))

    async def _result(self, request: Request | None, method: str, params: Object, key: RequestId) -> Object:
        if request is None:
            if self._alone or self._has_handler(method, params):
                return _unread(method)
            return await asyncio.Future()  # Another client may understand it.
        self._open[key] = request
        self._note_change()
        answer = await self._answer(request)
        if answer is None:
            return await asyncio.Future()  # Deferred: `reply` or a withdrawal cancels this task.
        self._rejections[key] = rejection(request).result
        return answer.result

    async def reply(self, id: str, answer: Callable[[Request], Answer | None]) -> None:
        """Answer a request by its id. Raises ServerProblem if it is settled or unknown, or the answer does not fit."""
        for key, request in self._open.items():
            if request.id == id and (given := answer(request)) is not None:
                await self._reply(key, given.result)
                self.withdraw(key, "answered")
                return
        if id in self._settled:
            raise _already_answered(id, self._settled[id])
        raise nobody_asked(id)

    def knows(self, id: str) -> bool:
        """Return whether a request is open here, or its outcome is known."""
        return id in self._settled or any(request.id == id for request in self._open.values())

    async def wait_for(self, id: str) -> None:
        """Wait until the stream has brought a request or its outcome, for a limited time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ARRIVAL_TIMEOUT):
                while not self.knows(id):
                    if self._changed is None or self._changed.done():
                        self._changed = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._changed)

    def _note_change(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def requests(self) -> list[Request]:
        """Return the requests that wait for an answer of this client."""
        return list(self._open.values())

    def withdraw(self, key: RequestId, outcome: str | None = None) -> None:
        """Stop answering a request.

        With an `outcome` the request is settled. Without one it may be open, but not for this client.
        """
        request = self._open.pop(key, None)
        if request is not None and outcome is not None:
            self._remember(request.id, outcome)
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    def _remember(self, id: str, outcome: str) -> None:
        self._settled[id] = outcome
        self._note_change()
        if len(self._settled) > MAX_REMEMBERED:
            self._settled.popitem(last=False)

    def withdraw_session(self, session_id: str) -> None:
        """Stop answering the requests of a session, because its agent does not send them to this client any more."""
        for key in [key for key, request in self._open.items() if request.session_id == session_id]:
            self.withdraw(key)

    def withdraw_all(self) -> None:
        """Stop answering all requests, because the connection is gone.

        The server sends open requests again on the next connection.
        """
        for key in list(self._tasks):
            self.withdraw(key)

    def answered(self, key: RequestId, problem: ServerProblem | None) -> None:
        """Handle the server's response to a handler's answer.

        If the answer does not fit, send a rejection instead, because the agent must not wait forever.
        """
        rejected = self._rejections.pop(key, None)
        if problem is None or rejected is None:
            return
        logger.error("an answer was refused, rejecting instead reason=%s", problem)
        self._working.run(self._reject(key, rejected), "sandbox-agent rejecting")

    async def _reject(self, key: RequestId, rejected: Object) -> None:
        with _reported():
            await self._reply(key, rejected)

    async def _answer(self, request: Request) -> Answer | None:
        handlers = self.of_session.get(request.session_id or "", Handlers())
        decide = handlers.decide(request) or self.handlers.decide(request)
        if decide is None:
            return self._unhandled(request)
        try:
            decided = decide()
            return _check_answer(await decided if inspect.isawaitable(decided) else decided)
        except Exception:
            logger.exception("a handler failed, rejecting request=%s session=%s", request.id, request.session_id)
            return rejection(request)

    def _unhandled(self, request: Request) -> Answer | None:
        session = request.session_id or ""
        kind = type(request).__name__.removesuffix("Request").lower()
        if session not in self._warned:
            self._warned.add(session)
            what = "rejected" if self._alone else "left open for other clients"
            logger.warning("no handler on_%s, so it is %s session=%s", kind, what, session)
        return rejection(request) if self._alone else None


@contextmanager
def _reported() -> Generator[None]:
    """Report an answer that the server does not get. The connection's own errors say why to the user."""
    try:
        yield
    except ClientError as error:
        logger.info("an answer was not given reason=%s", error)


def _already_answered(id: str, outcome: str) -> AlreadyAnswered:
    detail = f"the request {id} is settled, and its outcome is {outcome}; there is nothing left to answer"
    return AlreadyAnswered(detail, {"outcome": outcome})


def nobody_asked(id: str) -> ServerProblem:
    """Return the error for an answer to a request that is not open."""
    detail = (
        f"no open request of this kind has the id {id}: it was withdrawn, its agent's process has ended, "
        "or it belongs to another session"
    )
    return ServerProblem(NobodyAsked.slug, NobodyAsked.title, 404, detail)


def _check_answer(answer: object) -> Answer | None:
    if answer is None:
        return None
    if isinstance(answer, Answer):
        msgspec.json.encode(answer.result)  # A result that cannot be encoded would never reach the agent.
        return answer
    raise TypeError(f"a handler must return an answer of its request, such as request.reject(), not {answer!r:.100}")


def _unread(method: str) -> Object:
    """Return the result for a request that this client cannot parse. No handler gets such a request."""
    match method:
        case methods.REQUEST_PERMISSION:
            return {"outcome": {"outcome": "cancelled"}}
        case methods.REQUEST_QUESTION:
            return {"status": "rejected"}
        case _:
            raise RequestError(METHOD_NOT_FOUND, "Method not found", {"method": method})


def rejection(request: Request) -> Answer:
    """Return the answer that declines a request."""
    match request:
        case PermissionRequest() | QuestionRequest():
            return request.reject()
        case ElicitationRequest():
            return request.decline()


def _request(method: str, params: Object, id: str) -> Request | None:
    """Parse an agent's request. Return None if this client cannot parse it."""
    try:
        return read_request(method, params, id)
    except ValidationError:
        logger.exception("a request cannot be read method=%s session=%s", method, text_at(params, "sessionId"))
        return None


def read_request(method: str, params: Object, id: str, asked_at: datetime | None = None) -> Request | None:
    """Parse an agent's request. Return None for a method by which agents ask people nothing.

    Raises msgspec.ValidationError if it cannot be parsed.
    """
    session_id = text_at(params, "sessionId")
    match method:
        case methods.REQUEST_PERMISSION:
            tool_call = read(params.get("toolCall"), ToolCallUpdate)
            return PermissionRequest(id, session_id or "", tool_call, _options(params), asked_at)
        case methods.REQUEST_QUESTION:
            name, prompt = text_at(params, "questionId"), text_at(params, "prompt") or ""
            return QuestionRequest(id, session_id or "", prompt, _questions(params), name, asked_at)
        case methods.ELICITATION:
            mode, message = _mode(params), text_at(params, "message") or ""
            schema, url = object_at(params, "requestedSchema"), text_at(params, "url")
            return ElicitationRequest(id, session_id, message, mode, schema, url, asked_at)
        case _:
            return None


def read_pending(entry: Object) -> Request | None:
    """Parse an entry of the server's list of pending requests. Return None if this client cannot parse it."""
    method, params = text_at(entry, "envelope", "method") or "", object_at(entry, "envelope", "params")
    try:
        return read_request(method, params, text_at(entry, "id") or "", read_time(text_at(entry, "askedAt") or ""))
    except ValidationError:
        return None


def read_time(at: str) -> datetime | None:
    """Parse a time of the server. Return None if it is none."""
    try:
        return datetime.fromisoformat(at)
    except ValueError:
        return None


def _mode(params: Object) -> Literal["form", "url"]:
    return "url" if params.get("mode") == "url" else "form"


def _options(params: Object) -> list[PermissionOption]:
    options: list[PermissionOption] = []
    for option in objects_at(params, "options"):
        try:
            options.append(read(option, PermissionOption))
        except ValidationError:
            # The option is from a newer protocol: this client cannot know what it allows.
            logger.warning("an option of a permission cannot be read kind=%s", option.get("kind"))
    return options


def _questions(params: Object) -> list[Question]:
    asked = objects_at(params, "questions")
    if not asked:
        options = [
            Choice(id, label)
            for pair in list_at(params, "options")
            for id, label in [msgspec.convert(pair, tuple[str, str])]
        ]
        return [Question(text_at(params, "prompt") or "", None, options, multi_select=False)]
    return [
        Question(
            text_at(each, "question") or "",
            text_at(each, "header"),
            [
                Choice(text_at(option, "id") or "", text_at(option, "label") or "", text_at(option, "description"))
                for option in objects_at(each, "options")
            ],
            multi_select=each.get("multiSelect") is True,
        )
        for each in asked
    ]
