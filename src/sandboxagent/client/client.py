"""Connect to a running server or start a private one: the entry point of the SDK."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct

from sandboxagent.client.agents import Agents, Health, health
from sandboxagent.client.api import Api, Locate
from sandboxagent.client.connection import BUNDLED_AGENT, ClientConnection, ConnectionSettings, Tap
from sandboxagent.client.errors import AlreadyAnswered, ClientError, ConnectionLost, InvalidCall, ServerProblem
from sandboxagent.client.files import Files
from sandboxagent.client.following import read_history
from sandboxagent.client.requests import (
    Answer,
    Decided,
    ElicitationHandler,
    ElicitationRequest,
    Handlers,
    PermissionHandler,
    PermissionRequest,
    QuestionHandler,
    QuestionRequest,
    Request,
    nobody_asked,
    read_pending,
)
from sandboxagent.client.session import SessionParts
from sandboxagent.client.sessions import Sessions
from sandboxagent.client.transport import SILENCE_TIMEOUT
from sandboxagent.client.updates import Decision
from sandboxagent.client.websocket import require_websockets
from sandboxagent.protocol import errors, methods
from sandboxagent.protocol.envelope import Object, objects_at

if TYPE_CHECKING:
    from sandboxagent.client.embedded import EmbeddedServer

logger = logging.getLogger(__name__)
R = TypeVar("R", PermissionRequest, QuestionRequest, ElicitationRequest)

RECONNECT_TIMEOUT = 30.0
"""Seconds that a request waits for a server that cannot be reached."""
MAX_BUFFER_BYTES = 4 * 1024 * 1024
"""Maximum number of bytes that an iterator buffers for a slow consumer. The consumer reads the rest from the log
later."""


class FleetNode(Struct, rename="camel", kw_only=True, frozen=True):
    """A node of a fleet: a server that a gateway can reach at the moment."""

    node: str
    """The name of the node."""
    version: str = ""
    """The version of sandbox-agent on the node."""
    labels: dict[str, str] = {}
    """Labels of the node, by name."""
    agents: list[str] = []
    """Ids of the agents that are installed on the node."""
    running: int = 0
    """Number of turns that run on the node."""
    sessions: int = 0
    """Number of sessions that belong to the node."""
    since: str = ""
    """The time when the node was started, by its own clock: UTC, ISO 8601 with milliseconds."""
    draining: bool = False
    """Whether the node gets no new sessions."""
    pinned: bool = False
    """Whether an operator has set `labels` and limited which agents the node may have. Otherwise the node itself
    reports both."""
    limited: str = ""
    """Which facts, sessions or events of the node gateways have refused lately, and why; empty if none."""
    set_aside: str = ""
    """Why gateways ignore the node for a while: it sends too many or invalid messages. Empty if they do not ignore
    it."""


class _Nodes(Struct):
    nodes: list[FleetNode]


class SandboxAgent:
    """A client of one server: `connect` to a running server, or `start` a private one."""

    def __init__(self, api: Api, connection: ClientConnection, agent: str | None, cwd: Path | None) -> None:
        self._api = api
        self._connection = connection
        self._agent = agent
        self.agents = Agents(api)
        """The agents that the server knows, with a method to install them."""
        self.sessions = Sessions(SessionParts(api, connection), agent, cwd)
        """All sessions of the server."""
        self.files = Files(api)
        """Files on the server's machine."""

    def __repr__(self) -> str:
        return f"SandboxAgent({self.url!r})"

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._api.url

    @property
    def token(self) -> str | None:
        """The token that the server requires. A private server has a generated one."""
        return self._api.token

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
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
    ) -> AsyncGenerator["SandboxAgent"]:
        """Connect to a running server. Its sessions and turns continue after the block ends.

        Args:
            url: address of the server, such as `http://127.0.0.1:2468`.
            token: the token that the server requires.
            agent: agent of the sessions that are created without `agent`.
            on_permission: handler that answers agents' requests for permission; without it, other clients have to
                answer.
            on_question: handler that answers agents' questions; without it, other clients have to answer.
            on_elicitation: handler that fills in agents' forms; without it, this client gets forms as questions.
            name: name of this client, which other clients see with its answers.
            user: name of the person who uses this client, which other clients see with its answers.
            transport: "http", or "websocket" for one WebSocket that carries everything (needs
                `sandboxagent[websocket]`). If no WebSocket can be opened, the client uses HTTP.
            reconnect_timeout: seconds that a request waits for a server that cannot be reached.
            silence_timeout: seconds without any data from the server after which the client replaces the socket.
            buffer: maximum number of bytes that an iterator buffers for a slow consumer; it reads the rest from the log
                later.
            locate: function for a server that may come back at another address. It returns that address with the token,
                or None while the server is not running. The client calls it after the server could not be reached.

        Raises:
            ConnectionLost: the server cannot be reached.
            ServerProblem: the server refuses the token.
            InvalidCall: the package `websockets` is not installed.
        """
        if transport == "websocket":
            require_websockets()
        handlers = Handlers(on_permission, on_question, on_elicitation)
        by_socket = transport == "websocket"
        settings = ConnectionSettings(
            agent, name, user, reconnect_timeout, buffer, silence_timeout, by_socket, alone=False
        )
        async with cls._opened(Api(url, token, locate), settings, handlers, None) as client:
            yield client

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        *,
        agent: str | None = None,
        on_permission: PermissionHandler | None = None,
        on_question: QuestionHandler | None = None,
        on_elicitation: ElicitationHandler | None = None,
        data_dir: str | PurePath | None = None,
        options: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        buffer: int = MAX_BUFFER_BYTES,
    ) -> AsyncGenerator["SandboxAgent"]:
        """Start a private server on a free port, with its own token. It stops when the block or your process ends.

        Its sessions are in a temporary directory, and are deleted when it stops. With `data_dir` they are kept: start
        with the same directory again, and continue them with `sessions.attach`. Only one server can use a directory at
        a time.

        Args:
            agent: agent of the sessions that are created without `agent`.
            on_permission: handler that answers agents' requests for permission; without it, they are rejected.
            on_question: handler that answers agents' questions; without it, they are rejected.
            on_elicitation: handler that fills in agents' forms; without it, forms come as questions.
            data_dir: directory that keeps the sessions.
            options: flags of `sandbox-agent server`, such as `{"fs_root": ["/srv"], "log_level": "debug"}`.
            env: environment variables of the server, in addition to those of your process.
            buffer: maximum number of bytes that an iterator buffers for a slow consumer; it reads the rest from the log
                later.

        Raises:
            StartFailed: the server did not start; the error has its last output.
        """
        from sandboxagent.client.embedded import EmbeddedServer

        handlers = Handlers(on_permission, on_question, on_elicitation)
        settings = ConnectionSettings(
            agent, None, None, RECONNECT_TIMEOUT, buffer, SILENCE_TIMEOUT, websocket=False, alone=True
        )
        directory = None if data_dir is None else Path(data_dir)
        async with (
            await EmbeddedServer.start(data_dir=directory, options=options or {}, env=env or {}) as server,
            cls._opened(Api(server.url, server.token), settings, handlers, Path.cwd()) as client,
        ):
            watching = asyncio.create_task(client._watch(server), name="sandbox-agent server")
            try:
                yield client
            finally:
                watching.cancel()

    @classmethod
    @asynccontextmanager
    async def _opened(
        cls, api: Api, settings: ConnectionSettings, handlers: Handlers, cwd: Path | None
    ) -> AsyncGenerator["SandboxAgent"]:
        connection = ClientConnection(api, settings, handlers)
        client = cls(api, connection, settings.agent, cwd)
        try:
            await client.health()
            yield client
        finally:
            try:
                await connection.close()
            finally:
                await api.close()

    async def health(self) -> Health:
        """Return the server's health, with the agents that are installed and running."""
        return await health(self._api)

    async def nodes(self) -> list[FleetNode]:
        """Return the nodes of a fleet. The server must be a gateway."""
        return (await self._api.json("GET", "/v1/nodes", type=_Nodes)).nodes

    # Answering agents

    def on_permission(self, handler: Callable[[PermissionRequest], Decided]) -> Callable[[PermissionRequest], Decided]:
        """Set the handler that answers agents' requests for permission. It can be used as a decorator."""
        self._connection.asking.handlers.permission = handler
        return handler

    def on_question(self, handler: Callable[[QuestionRequest], Decided]) -> Callable[[QuestionRequest], Decided]:
        """Set the handler that answers agents' questions. It can be used as a decorator."""
        self._connection.asking.handlers.question = handler
        return handler

    def on_elicitation(
        self, handler: Callable[[ElicitationRequest], Decided]
    ) -> Callable[[ElicitationRequest], Decided]:
        """Set the handler that fills in agents' forms. It can be used as a decorator.

        The first such handler must be set before the first session, because the client announces it when it connects.

        Raises:
            InvalidCall: the client is already connected, and had no such handler then.
        """
        if self._connection.is_open and self._connection.asking.handlers.elicitation is None:
            raise InvalidCall("on_elicitation comes too late: give it to connect() or start(), or before any session")
        self._connection.asking.handlers.elicitation = handler
        return handler

    async def reply_permission(self, id: str, option_id: str, *, session_id: str | None = None) -> None:
        """Answer a permission request by its id: one that a handler left open, or one that was stored.

        Args:
            id: id of the request (`request.id`).
            option_id: id of the chosen option of the request.
            session_id: the request's session. In another process, this client attaches to it.

        Raises:
            AlreadyAnswered: the request is settled. The error says who decided.
            ServerProblem: no open request has this id (`nobody-asked`), or the answer does not fit (`wrong-answer`).
        """
        await self._reply(id, session_id, PermissionRequest, lambda request: request.select(option_id))

    async def reject_permission(self, id: str, *, reason: str | None = None, session_id: str | None = None) -> None:
        """Reject a permission request by its id. The agent gets the reason."""
        await self._reply(id, session_id, PermissionRequest, lambda request: request.reject(reason=reason))

    async def reply_question(
        self, id: str, answers: Sequence[str | Sequence[str]], *, session_id: str | None = None
    ) -> None:
        """Answer a question request by its id.

        Args:
            id: id of the request (`request.id`).
            answers: for each question, one answer or a list of answers.
            session_id: the request's session. In another process, this client attaches to it.

        Raises:
            AlreadyAnswered: the request is settled. The error says who decided.
            ServerProblem: no open request has this id (`nobody-asked`), or the answers do not fit (`wrong-answer`).
                After `wrong-answer` you can try again.
        """
        await self._reply(id, session_id, QuestionRequest, lambda request: request.answer(*answers))

    async def reject_question(self, id: str, *, reason: str | None = None, session_id: str | None = None) -> None:
        """Decline a question request by its id. The agent gets the reason."""
        await self._reply(id, session_id, QuestionRequest, lambda request: request.reject(reason=reason))

    async def reply_elicitation(self, id: str, content: Object | None = None, *, session_id: str | None = None) -> None:
        """Submit a form by the id of its request, with `content` as the values of its fields."""
        await self._reply(id, session_id, ElicitationRequest, lambda request: request.accept(content))

    async def reject_elicitation(self, id: str, *, reason: str | None = None, session_id: str | None = None) -> None:
        """Decline a form by the id of its request. The agent gets the reason."""
        await self._reply(id, session_id, ElicitationRequest, lambda request: request.decline(reason=reason))

    def requests(self) -> list[Request]:
        """Return the requests that wait for an answer of this client, in all sessions that it is attached to."""
        return self._connection.asking.requests()

    async def pending(self, session_id: str | None = None) -> list[Request]:
        """Return agents' requests that wait for an answer, in one session or in all sessions of the server."""
        params: Object = {} if session_id is None else {"sessionId": session_id}
        agent = None if session_id is None else (await self.sessions.get(session_id)).agent
        result = await self._connection.request(methods.PENDING, params, agent=agent or self._agent or BUNDLED_AGENT)
        found = map(read_pending, objects_at(result, "pending"))
        return [each for each in found if each is not None]

    # The protocol itself

    async def request(self, method: str, params: Object | None = None) -> Object:
        """Call any method of ACP or of sandbox-agent, and return its result.

        Raises:
            RequestError: the method failed.
            ServerProblem: the server refuses the request.
            ConnectionLost: the server did not answer.
        """
        return await self._connection.request(method, params)

    async def notify(self, method: str, params: Object | None = None) -> None:
        """Send any notification to the server."""
        await self._connection.notify(method, params)

    def tap(self, callback: Tap) -> Callable[[], None]:
        """Call a function with every envelope that is sent or received. Return a function that stops this.

        `callback` gets "sent" or "received", the envelope, and its id on the stream if it came from there. It runs
        between reading and handling an envelope, so it must be quick.
        """
        taps = self._connection.taps
        taps.append(callback)
        return lambda: taps.remove(callback) if callback in taps else None

    async def _watch(self, server: "EmbeddedServer") -> None:
        how = await server.ended()
        self._connection.fail(ConnectionLost(f"the private server {how}\n{server.stderr}".rstrip()))

    async def _reply(self, id: str, session_id: str | None, kind: type[R], answer: Callable[[R], Answer]) -> None:
        asking = self._connection.asking
        known = next((request.session_id for request in asking.requests() if request.id == id), None)
        place = session_id or known
        try:
            is_elsewhere = None not in (session_id, known) and session_id != known
            if is_elsewhere or not asking.knows(id):
                await self._reach(id, place)
            await asking.reply(id, lambda request: answer(request) if isinstance(request, kind) else None)
        except ServerProblem as problem:
            decision = None if place is None else await self._find_decision(problem, id, place)
            if decision is None:
                raise
            decider = " ".join(str(decision.by[name]) for name in ("kind", "user", "name") if decision.by.get(name))
            detail = f"the request {id} is settled: {decision.outcome}, by {decider}"
            raise AlreadyAnswered(detail, {"outcome": decision.outcome}, decision) from problem

    async def _reach(self, id: str, session_id: str | None) -> None:
        """Attach to the session of an open request, so that this client can answer it."""
        found = next((each for each in await self.pending(session_id) if each.id == id), None)
        if found is None or found.session_id is None:
            raise nobody_asked(id)
        await self.sessions.attach(found.session_id)
        await self._connection.asking.wait_for(id)

    async def _find_decision(self, problem: ServerProblem, id: str, session_id: str) -> Decision | None:
        """Return the decision that came before an answer, if the session's log has it."""
        if problem.slug not in (errors.AlreadyAnswered.slug, errors.NobodyAsked.slug):
            return None
        try:
            async for event in read_history(self._connection, session_id, 0, None):
                if isinstance(event.item, Decision) and event.item.request_id == id:
                    return event.item
        except ClientError as error:
            # A session that is gone has no log. The problem is still true.
            logger.info("the decision is not known request=%s reason=%s", id, error)
        return None
