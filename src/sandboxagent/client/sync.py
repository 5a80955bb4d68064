"""Offer the SDK to scripts without async: a thread runs the event loop, and every call waits.

Methods have the names, arguments and errors of the async SDK, and its docstrings apply here too. An async iterator of
that SDK is a plain iterator here.
"""

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import PurePath
from typing import Generic, Literal, ParamSpec, TypeAlias, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from sandboxagent.client import agents as _agents
from sandboxagent.client import files as _files
from sandboxagent.client import following as _following
from sandboxagent.client import session as _session
from sandboxagent.client import sessions as _sessions
from sandboxagent.client import turn as _turn
from sandboxagent.client.api import Locate
from sandboxagent.client.client import MAX_BUFFER_BYTES, RECONNECT_TIMEOUT
from sandboxagent.client.client import SandboxAgent as AsyncSandboxAgent
from sandboxagent.client.errors import InvalidCall
from sandboxagent.client.events import SessionEvent
from sandboxagent.client.requests import (
    Answer,
    ElicitationRequest,
    PermissionRequest,
    QuestionRequest,
    Request,
)
from sandboxagent.client.transport import SILENCE_TIMEOUT
from sandboxagent.client.updates import PromptBlock, TurnEnded, TurnItem
from sandboxagent.client.view import SessionView

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
Q = TypeVar("Q", bound=Request)

Handler = Callable[[Q], Answer | None]
"""A handler of agents' requests. It runs in its own thread, so it may block, for example to ask a person. If it raises,
the request is rejected."""
PermissionHandler: TypeAlias = Handler[PermissionRequest]
QuestionHandler: TypeAlias = Handler[QuestionRequest]
ElicitationHandler: TypeAlias = Handler[ElicitationRequest]
Decided = TypeVar("Decided", bound=Answer | None)


class SandboxAgent:
    """A client of one server: `connect` to a running server, or `start` a private one."""

    def __init__(self, portal: BlockingPortal, client: AsyncSandboxAgent) -> None:
        self._client = client
        self.agents = Agents(portal, client.agents)
        self.sessions = Sessions(portal, client.sessions)
        self.files = Files(portal, client.files)
        self.health = _waiting(portal, client.health)
        self.nodes = _waiting(portal, client.nodes)
        self.reply_permission = _waiting(portal, client.reply_permission)
        self.reject_permission = _waiting(portal, client.reject_permission)
        self.reply_question = _waiting(portal, client.reply_question)
        self.reject_question = _waiting(portal, client.reject_question)
        self.reply_elicitation = _waiting(portal, client.reply_elicitation)
        self.reject_elicitation = _waiting(portal, client.reject_elicitation)
        self.pending = _waiting(portal, client.pending)
        self.requests = _there(portal, client.requests)
        self.request = _waiting(portal, client.request)
        self.notify = _waiting(portal, client.notify)
        self.tap = client.tap

    @property
    def url(self) -> str:
        return self._client.url

    @property
    def token(self) -> str | None:
        return self._client.token

    def on_permission(self, handler: Callable[[PermissionRequest], Decided]) -> Callable[[PermissionRequest], Decided]:
        """Set the handler that answers agents' requests for permission. It can be used as a decorator."""
        self._client.on_permission(_run_in_thread(handler))
        return handler

    def on_question(self, handler: Callable[[QuestionRequest], Decided]) -> Callable[[QuestionRequest], Decided]:
        """Set the handler that answers agents' questions. It can be used as a decorator."""
        self._client.on_question(_run_in_thread(handler))
        return handler

    def on_elicitation(
        self, handler: Callable[[ElicitationRequest], Decided]
    ) -> Callable[[ElicitationRequest], Decided]:
        """Set the handler that fills in agents' forms. The first one must be set before the first session."""
        self._client.on_elicitation(_run_in_thread(handler))
        return handler

    @staticmethod
    @contextmanager
    def connect(
        url: str,
        token: str | None = None,
        *,
        agent: str | None = None,
        on_permission: PermissionHandler | None = None,
        on_question: QuestionHandler | None = None,
        on_elicitation: ElicitationHandler | None = None,
        name: str | None = None,
        user: str | None = None,
        transport: Literal["http", "websocket"] = "http",
        reconnect_timeout: float = RECONNECT_TIMEOUT,
        silence_timeout: float = SILENCE_TIMEOUT,
        buffer: int = MAX_BUFFER_BYTES,
        locate: Locate | None = None,
    ) -> "Generator[SandboxAgent]":
        """Connect to a running server. Its sessions and turns continue after the block ends."""
        opened = AsyncSandboxAgent.connect(
            url,
            token,
            agent=agent,
            on_permission=on_permission and _run_in_thread(on_permission),
            on_question=on_question and _run_in_thread(on_question),
            on_elicitation=on_elicitation and _run_in_thread(on_elicitation),
            name=name,
            user=user,
            transport=transport,
            reconnect_timeout=reconnect_timeout,
            silence_timeout=silence_timeout,
            buffer=buffer,
            locate=locate,
        )
        with _opened(opened) as client:
            yield client

    @staticmethod
    @contextmanager
    def start(
        *,
        agent: str | None = None,
        on_permission: PermissionHandler | None = None,
        on_question: QuestionHandler | None = None,
        on_elicitation: ElicitationHandler | None = None,
        data_dir: str | PurePath | None = None,
        options: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        buffer: int = MAX_BUFFER_BYTES,
    ) -> "Generator[SandboxAgent]":
        """Start a private server on a free port, with its own token. It stops when the block or your process ends.

        Its sessions are deleted when it stops, unless `data_dir` names a directory that keeps them.
        """
        opened = AsyncSandboxAgent.start(
            agent=agent,
            on_permission=on_permission and _run_in_thread(on_permission),
            on_question=on_question and _run_in_thread(on_question),
            on_elicitation=on_elicitation and _run_in_thread(on_elicitation),
            data_dir=data_dir,
            options=options,
            env=env,
            buffer=buffer,
        )
        with _opened(opened) as client:
            yield client


class Agents:
    """The agents of a server."""

    def __init__(self, portal: BlockingPortal, agents: _agents.Agents) -> None:
        self._portal = portal
        self._agents = agents
        self.list = _waiting(portal, agents.list)
        self.get = _waiting(portal, agents.get)
        self.models = _waiting(portal, agents.models)
        self.stderr = _waiting(portal, agents.stderr)
        self.install = _iterating(portal, agents.install)

    def of_node(self, node: str) -> "Agents":
        """Return the agents of one node of a fleet. A gateway with several nodes needs to know which node you mean."""
        return Agents(self._portal, self._agents.of_node(node))


class Sessions:
    """All sessions of a server, of all agents and clients."""

    def __init__(self, portal: BlockingPortal, sessions: _sessions.Sessions) -> None:
        session = functools.partial(Session, portal)
        self.create = _waiting(portal, sessions.create, session)
        self.attach = _waiting(portal, sessions.attach, session)
        self.resume = _waiting(portal, sessions.resume, session)
        self.fork = _waiting(portal, sessions.fork, session)
        self.list = _iterating(portal, sessions.list)
        self.watch = _iterating(portal, sessions.watch)
        self.get = _waiting(portal, sessions.get)
        self.terminate = _waiting(portal, sessions.terminate)
        self.delete = _waiting(portal, sessions.delete)


class Session:
    """One conversation with one agent. It continues without this client. Return to it by its id."""

    def __init__(self, portal: BlockingPortal, session: _session.Session) -> None:
        self._portal = portal
        self._session = session
        self.id = session.id
        self.agent = session.agent
        self.cwd = session.cwd
        self.warnings = session.warnings
        self.files = Files(portal, session.files)
        self.cancel = _waiting(portal, session.cancel)
        self.updates = _iterating(portal, session.updates)
        self.history = _iterating(portal, session.history)
        self.log = _iterating(portal, session.log)
        self.pending = _waiting(portal, session.pending)
        self.requests = _there(portal, session.requests)
        self.models = _waiting(portal, session.models)
        self.set_model = _waiting(portal, session.set_model)
        self.modes = _waiting(portal, session.modes)
        self.set_mode = _waiting(portal, session.set_mode)
        self.set_config_option = _waiting(portal, session.set_config_option)
        self.set_metadata = _waiting(portal, session.set_metadata)
        self.info = _waiting(portal, session.info)
        self.fork = _waiting(portal, session.fork, functools.partial(Session, portal))
        self.close = _waiting(portal, session.close)
        self.terminate = _waiting(portal, session.terminate)
        self.detach = _waiting(portal, session.detach)

    def on_permission(self, handler: Callable[[PermissionRequest], Decided]) -> Callable[[PermissionRequest], Decided]:
        """Set the handler that answers this session's requests for permission, in place of the client's handler."""
        self._session.on_permission(_run_in_thread(handler))
        return handler

    def on_question(self, handler: Callable[[QuestionRequest], Decided]) -> Callable[[QuestionRequest], Decided]:
        """Set the handler that answers this session's questions, in place of the client's handler."""
        self._session.on_question(_run_in_thread(handler))
        return handler

    def on_elicitation(
        self, handler: Callable[[ElicitationRequest], Decided]
    ) -> Callable[[ElicitationRequest], Decided]:
        """Set the handler that fills in this session's forms. Without one of the client, forms come as questions."""
        self._session.on_elicitation(_run_in_thread(handler))
        return handler

    def follow(self, after: int = 0, *, view: SessionView | None = None) -> "Following":
        """Return the session's past as typed events, and then each new event as it comes, with the session's state."""
        return Following(self._portal, _there(self._portal, self._session.follow)(after, view=view))

    @property
    def config_options(self) -> list[_session.ConfigOption]:
        """Options that the session's agent offered when this object was created, or in the last `set_config_option`."""
        return self._session.config_options

    def prompt(
        self,
        prompt: str | Sequence[PromptBlock],
        attachments: Sequence[str | PurePath | _session.Attachment] = (),
        meta: Mapping[str, object] | None = None,
    ) -> "Turn":
        """Send a prompt and return its turn. Iterate over the turn, or call its `result` or `text`."""
        return Turn(self._portal, _there(self._portal, self._session.prompt)(prompt, attachments, meta))


class Following(Iterator[SessionEvent]):
    """The past and present of a session as typed events, with its state."""

    def __init__(self, portal: BlockingPortal, following: _following.Following) -> None:
        self._items = _Items(portal, following)
        self._following = following

    def __next__(self) -> SessionEvent:
        return next(self._items)

    @property
    def view(self) -> SessionView:
        """The session after the last event."""
        return self._following.view

    @property
    def is_live(self) -> bool:
        """Whether the past is read: the next event is a new one."""
        return self._following.is_live


class Turn(Iterator[TurnItem]):
    """A turn of a session: iterate over its updates, of which the last is `TurnEnded`."""

    def __init__(self, portal: BlockingPortal, turn: _turn.Turn) -> None:
        self._items = _Items(portal, turn)
        self.text = _waiting(portal, turn.text)
        self.cancel = _waiting(portal, turn.cancel)
        self._portal = portal
        self._turn = turn

    def __next__(self) -> TurnItem:
        return next(self._items)

    def result(self) -> TurnEnded:
        """Wait until the turn ends, and return its end."""
        return _wait(self._portal, functools.partial(_end, self._turn))


class Files:
    """Files on the server's machine. With the files of a session, paths are relative to the session's directory."""

    def __init__(self, portal: BlockingPortal, files: _files.Files) -> None:
        self._portal = portal
        self._files = files
        self.read = _waiting(portal, files.read)
        self.read_text = _waiting(portal, files.read_text)
        self.stream = _iterating(portal, files.stream)
        self.write = _waiting(portal, files.write)
        self.list = _iterating(portal, files.list)
        self.stat = _waiting(portal, files.stat)
        self.mkdir = _waiting(portal, files.mkdir)
        self.move = _waiting(portal, files.move)
        self.delete = _waiting(portal, files.delete)
        self.upload = _waiting(portal, files.upload)
        self.download = _waiting(portal, files.download)
        self.upload_archive = _waiting(portal, files.upload_archive)
        self.download_archive = _iterating(portal, files.download_archive)
        self.search = _iterating(portal, files.search)
        self.watch = _iterating(portal, files.watch)

    def of_node(self, node: str) -> "Files":
        """Return the files of one node of a fleet. A gateway with several nodes needs to know which node you mean."""
        return Files(self._portal, self._files.of_node(node))


class _Items(Iterator[T], Generic[T]):
    def __init__(self, portal: BlockingPortal, items: AsyncIterator[T]) -> None:
        self._portal = portal
        self._items = items

    def __next__(self) -> T:
        try:
            return _wait(self._portal, functools.partial(_step, self._items))
        except StopAsyncIteration:
            raise StopIteration from None


async def _step(items: AsyncIterator[T]) -> T:
    return await anext(items)


async def _end(turn: _turn.Turn) -> TurnEnded:
    return await turn


def _same(value: T) -> T:
    return value


def _wait(portal: BlockingPortal, call: Callable[[], Awaitable[T]]) -> T:
    """Run an async call in the thread of the event loop, and wait for its result."""
    with _usable():
        doing = portal.start_task_soon(call)
    try:
        return doing.result()
    except BaseException:
        # After Ctrl-C, the abandoned call must not continue and take items that are meant for other callers.
        doing.cancel()
        raise


@contextmanager
def _usable() -> Generator[None]:
    try:
        yield
    except RuntimeError as error:
        # The portal's own message does not help users of the SDK.
        raise InvalidCall("this client is closed, or called from one of its own callbacks") from error


def _waiting(
    portal: BlockingPortal, method: Callable[P, Awaitable[T]], then: Callable[[T], R] = _same
) -> Callable[P, R]:
    """Return a method that runs an async one and waits for its result, which `then` converts for the sync client."""

    async def called(*args: P.args, **kwargs: P.kwargs) -> T:
        return await method(*args, **kwargs)

    @functools.wraps(method)
    def wait(*args: P.args, **kwargs: P.kwargs) -> R:
        return then(_wait(portal, functools.partial(called, *args, **kwargs)))

    return wait


def _there(portal: BlockingPortal, method: Callable[P, T]) -> Callable[P, T]:
    """Return a method that runs a plain one in the thread of the event loop."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # The result is in a list, because a portal would await an awaitable result.
        with _usable():
            doing = portal.start_task_soon(lambda: [method(*args, **kwargs)])
        return doing.result()[0]

    return call


def _iterating(portal: BlockingPortal, method: Callable[P, AsyncIterator[T]]) -> Callable[P, Iterator[T]]:
    """Return a method that turns the async iterator of another one into a plain iterator."""
    begin = _there(portal, method)

    @functools.wraps(method)
    def iterate(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _Items(portal, begin(*args, **kwargs))

    return iterate


def _run_in_thread(handler: Handler[Q]) -> Callable[[Q], Awaitable[Answer | None]]:
    if inspect.iscoroutinefunction(handler):
        raise InvalidCall("a handler of the sync client is a plain function; async ones are for the async client")

    def decide(request: Q) -> Awaitable[Answer | None]:
        decision: Future[Answer | None] = Future()
        # A thread of its own, not of a pool: any number of handlers may wait for a person. As a daemon it does not keep
        # the script from exiting.
        threading.Thread(target=_decide, args=(handler, request, decision), daemon=True).start()
        return asyncio.wrap_future(decision)

    return decide


def _decide(handler: Handler[Q], request: Q, decision: "Future[Answer | None]") -> None:
    if not decision.set_running_or_notify_cancel():
        return
    try:
        decision.set_result(handler(request))
    except BaseException as error:
        failure = RuntimeError(f"the handler raised {error!r}")
        failure.__cause__ = error
        decision.set_exception(failure)


@contextmanager
def _opened(opened: AbstractAsyncContextManager[AsyncSandboxAgent]) -> Generator[SandboxAgent]:
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(opened) as client:
        yield SandboxAgent(portal, client)
