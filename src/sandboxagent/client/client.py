"""Connect to a running server or start a private one: the entry point of the SDK."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct

from sandboxagent.client.agents import Agents, Health, health
from sandboxagent.client.api import Api, Locate
from sandboxagent.client.connection import ClientConnection, ConnectionSettings, Tap
from sandboxagent.client.errors import ConnectionLost, InvalidCall
from sandboxagent.client.files import Files
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
)
from sandboxagent.client.session import SessionParts
from sandboxagent.client.sessions import Sessions
from sandboxagent.client.transport import SILENCE_TIMEOUT
from sandboxagent.client.websocket import require_websockets
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import Object, objects_at

if TYPE_CHECKING:
    from sandboxagent.client.embedded import EmbeddedServer

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

    async def reply_permission(self, id: str, option_id: str) -> None:
        """Answer a permission request that its handler left open by returning None.

        Args:
            id: id of the request (`request.id`).
            option_id: id of the chosen option of the request.

        Raises:
            ServerProblem: the request is settled (`already-answered`), or this client has no open request with this id
                (`nobody-asked`).
        """
        await self._reply(id, PermissionRequest, lambda request: request.select(option_id))

    async def reject_permission(self, id: str, *, reason: str | None = None) -> None:
        """Reject a permission request that its handler left open. The agent gets the reason."""
        await self._reply(id, PermissionRequest, lambda request: request.reject(reason=reason))

    async def reply_question(self, id: str, answers: Sequence[str | Sequence[str]]) -> None:
        """Answer a question request that its handler left open by returning None.

        Args:
            id: id of the request (`request.id`).
            answers: for each question, one answer or a list of answers.

        Raises:
            ServerProblem: the request is settled (`already-answered`), this client has no open request with this id
                (`nobody-asked`), or the answers do not fit (`wrong-answer`). After `wrong-answer` you can try again.
        """
        await self._reply(id, QuestionRequest, lambda request: request.answer(*answers))

    async def reject_question(self, id: str, *, reason: str | None = None) -> None:
        """Decline a question request that its handler left open. The agent gets the reason."""
        await self._reply(id, QuestionRequest, lambda request: request.reject(reason=reason))

    async def reply_elicitation(self, id: str, content: Object | None = None) -> None:
        """Submit a form that its handler left open, with `content` as the values of its fields."""
        await self._reply(id, ElicitationRequest, lambda request: request.accept(content))

    async def reject_elicitation(self, id: str, *, reason: str | None = None) -> None:
        """Decline a form that its handler left open. The agent gets the reason."""
        await self._reply(id, ElicitationRequest, lambda request: request.decline(reason=reason))

    def requests(self) -> list[Request]:
        """Return the requests that wait for an answer of this client, in all sessions that it is attached to."""
        return self._connection.asking.requests()

    async def pending(self, session_id: str | None = None) -> list[Object]:
        """Return agents' requests that wait for an answer, in one session or in all sessions of the server.

        Each is a JSON object, as `_sandboxagent/session/pending` returns it.
        """
        params: Object = {} if session_id is None else {"sessionId": session_id}
        return objects_at(await self.request(methods.PENDING, params), "pending")

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

    async def _reply(self, id: str, kind: type[R], answer: Callable[[R], Answer]) -> None:
        await self._connection.asking.reply(id, lambda request: answer(request) if isinstance(request, kind) else None)
