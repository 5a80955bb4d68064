"""Connect to a running server or start a private one: the entry point of the SDK."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct

from sandboxagent.client.agents import Agents, Health, health
from sandboxagent.client.api import Api
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
BUFFER_BYTES = 4 * 1024 * 1024
"""Bytes that an iterator keeps for a slow consumer; what is more is read from the log later."""


class FleetNode(Struct, rename="camel", kw_only=True, frozen=True):
    """A server behind a gateway, while it is there."""

    node: str
    """Its name."""
    version: str = ""
    """Of sandbox-agent."""
    labels: dict[str, str] = {}
    agents: list[str] = []
    """Ids of the agents that are installed there."""
    running: int = 0
    """Turns that run there."""
    sessions: int = 0
    """How many sessions belong to it."""
    since: str = ""
    """When it was started, by its own clock: UTC, ISO 8601 with milliseconds."""
    draining: bool = False
    """It gets no new sessions."""
    pinned: bool = False
    """`labels` are an operator's word, and so is which agents it may have. Otherwise both are the node's own word."""
    limited: str = ""
    """What the fleet did not take of it lately, and why."""
    set_aside: str = ""
    """Why no gateway hears it for a while: it floods."""


class _Nodes(Struct):
    nodes: list[FleetNode]


class SandboxAgent:
    """A client of one server: `connect` to a running one, or `start` a private one."""

    def __init__(
        self, api: Api, connection: ClientConnection, token: str | None, agent: str | None, cwd: Path | None
    ) -> None:
        self.url = api.url
        """Where the server is."""
        self.token = token
        """The token the server requires; a private server has a generated one."""
        self._api = api
        self._connection = connection
        self.agents = Agents(api)
        """The agents that the server knows, and installing them."""
        self.sessions = Sessions(SessionParts(api, connection), agent, cwd)
        """All sessions of the server."""
        self.files = Files(api)
        """Files of the server's machine."""

    def __repr__(self) -> str:
        return f"SandboxAgent({self.url!r})"

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
        buffer: int = BUFFER_BYTES,
    ) -> AsyncGenerator["SandboxAgent"]:
        """A client of a server that runs; its sessions and turns go on when the block ends.

        Args:
            url: where the server is, such as `http://127.0.0.1:2468`.
            token: the token the server requires.
            agent: the agent of sessions that name none.
            on_permission: answers what agents want to be allowed; without one, that is left to other clients.
            on_question: answers agents' questions, likewise.
            on_elicitation: fills in agents' forms, likewise; without one, forms come as questions.
            name: the name other clients see on this client's answers.
            user: who sits in front of it, likewise.
            transport: "websocket" is one socket for everything (needs `sandboxagent[websocket]`); where none gets
                through, HTTP does the work.
            reconnect_timeout: seconds that a request waits for a server that cannot be reached.
            silence_timeout: seconds without a sign of life after which a socket is given up for another.
            buffer: bytes that an iterator keeps for a slow consumer; what is more is read from the log later.

        Raises:
            ConnectionLost: there is no server.
            ServerProblem: it refuses the token.
            InvalidCall: the package for WebSockets is missing.
        """
        if transport == "websocket":
            require_websockets()
        handlers = Handlers(on_permission, on_question, on_elicitation)
        by_socket = transport == "websocket"
        settings = ConnectionSettings(
            agent, name, user, reconnect_timeout, buffer, silence_timeout, by_socket, alone=False
        )
        async with cls._opened(url, token, settings, handlers, None) as client:
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
        buffer: int = BUFFER_BYTES,
    ) -> AsyncGenerator["SandboxAgent"]:
        """Start a private server on a free port, with its own token; it stops when the block or your process ends.

        Its sessions are in a temporary directory, and are deleted when it stops. With `data_dir` they stay there: start
        with the same directory again, and `sessions.attach` continues them. One server can use a directory at a time.

        Args:
            agent: the agent of sessions that name none.
            on_permission: answers what agents want to be allowed; without one, nothing is.
            on_question: answers agents' questions; without one, they are rejected.
            on_elicitation: fills in agents' forms; without one, forms come as questions.
            data_dir: the directory that keeps the sessions.
            options: flags of `sandbox-agent server`, such as `{"fs_root": ["/srv"], "log_level": "debug"}`.
            env: variables for the server, beyond our own.
            buffer: as in `connect`.

        Raises:
            StartFailed: with what the server said.
        """
        from sandboxagent.client.embedded import EmbeddedServer

        handlers = Handlers(on_permission, on_question, on_elicitation)
        settings = ConnectionSettings(
            agent, None, None, RECONNECT_TIMEOUT, buffer, SILENCE_TIMEOUT, websocket=False, alone=True
        )
        directory = None if data_dir is None else Path(data_dir)
        async with (
            await EmbeddedServer.start(data_dir=directory, options=options or {}, env=env or {}) as server,
            cls._opened(server.url, server.token, settings, handlers, Path.cwd()) as client,
        ):
            watching = asyncio.create_task(client._watch(server), name="sandbox-agent server")
            try:
                yield client
            finally:
                watching.cancel()

    @classmethod
    @asynccontextmanager
    async def _opened(
        cls, url: str, token: str | None, settings: ConnectionSettings, handlers: Handlers, cwd: Path | None
    ) -> AsyncGenerator["SandboxAgent"]:
        api = Api(url, token)
        connection = ClientConnection(api, settings, handlers)
        client = cls(api, connection, token, settings.agent, cwd)
        try:
            await client.health()
            yield client
        finally:
            try:
                await connection.close()
            finally:
                await api.close()

    async def health(self) -> Health:
        """The server's health, and which agents are installed and running."""
        return await health(self._api)

    async def nodes(self) -> list[FleetNode]:
        """The nodes of a fleet, when the server is a gateway."""
        return (await self._api.json("GET", "/v1/nodes", type=_Nodes)).nodes

    # Answering agents

    def on_permission(self, handler: Callable[[PermissionRequest], Decided]) -> Callable[[PermissionRequest], Decided]:
        """Let this handler answer what agents want to be allowed; may be used as a decorator."""
        self._connection.asking.handlers.permission = handler
        return handler

    def on_question(self, handler: Callable[[QuestionRequest], Decided]) -> Callable[[QuestionRequest], Decided]:
        """Let this handler answer agents' questions; may be used as a decorator."""
        self._connection.asking.handlers.question = handler
        return handler

    def on_elicitation(
        self, handler: Callable[[ElicitationRequest], Decided]
    ) -> Callable[[ElicitationRequest], Decided]:
        """Let this handler fill in agents' forms; the server must know of it before the first session."""
        if self._connection.is_open and self._connection.asking.handlers.elicitation is None:
            raise InvalidCall("on_elicitation comes too late: give it to connect() or start(), or before any session")
        self._connection.asking.handlers.elicitation = handler
        return handler

    async def reply_permission(self, id: str, option_id: str) -> None:
        """Answer a permission that its handler has left open.

        Raises:
            ServerProblem: it is settled (`already-answered`), or does not wait here (`nobody-asked`).
        """
        await self._reply(id, PermissionRequest, lambda request: request.select(option_id))

    async def reject_permission(self, id: str, *, reason: str | None = None) -> None:
        """Reject a permission that its handler has left open."""
        await self._reply(id, PermissionRequest, lambda request: request.reject(reason=reason))

    async def reply_question(self, id: str, answers: Sequence[str | Sequence[str]]) -> None:
        """Answer a question that its handler has left open: one answer, or a list of them, for each question.

        Raises:
            ServerProblem: it is settled (`already-answered`), does not wait here (`nobody-asked`), or the answers do
                not fit (`wrong-answer`): try again.
        """
        await self._reply(id, QuestionRequest, lambda request: request.answer(*answers))

    async def reject_question(self, id: str, *, reason: str | None = None) -> None:
        """Decline to answer a question."""
        await self._reply(id, QuestionRequest, lambda request: request.reject(reason=reason))

    async def reply_elicitation(self, id: str, content: Object | None = None) -> None:
        """Hand in a form that its handler has left open."""
        await self._reply(id, ElicitationRequest, lambda request: request.accept(content))

    async def reject_elicitation(self, id: str, *, reason: str | None = None) -> None:
        """Decline a form."""
        await self._reply(id, ElicitationRequest, lambda request: request.decline(reason=reason))

    def requests(self) -> list[Request]:
        """This client's open requests, in all sessions it is attached to."""
        return self._connection.asking.requests()

    async def pending(self, session_id: str | None = None) -> list[Object]:
        """Open requests from agents, in one session or in all sessions of the server."""
        params: Object = {} if session_id is None else {"sessionId": session_id}
        return objects_at(await self.request(methods.PENDING, params), "pending")

    # The protocol itself

    async def request(self, method: str, params: Object | None = None) -> Object:
        """The result of any request of ACP or of ours. Raises RequestError, ServerProblem or ConnectionLost."""
        return await self._connection.request(method, params)

    async def notify(self, method: str, params: Object | None = None) -> None:
        """Send any notification."""
        await self._connection.notify(method, params)

    def tap(self, callback: Tap) -> Callable[[], None]:
        """See every envelope that is sent and received; gives what ends it.

        `callback` gets "sent" or "received", the envelope, and its id on the stream if it came from there. It is
        called where the envelopes pass, so it must be quick.
        """
        taps = self._connection.taps
        taps.append(callback)
        return lambda: taps.remove(callback) if callback in taps else None

    async def _watch(self, server: "EmbeddedServer") -> None:
        how = await server.ended()
        self._connection.fail(ConnectionLost(f"the private server {how}\n{server.stderr}".rstrip()))

    async def _reply(self, id: str, kind: type[R], answer: Callable[[R], Answer]) -> None:
        await self._connection.asking.reply(id, lambda request: answer(request) if isinstance(request, kind) else None)
