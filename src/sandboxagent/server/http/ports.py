"""Define the interfaces that the transports need: to the hub on a server, to the nodes on a gateway."""

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec import Struct, field

from sandboxagent.core.tasks import Tasks
from sandboxagent.protocol.envelope import Envelope
from sandboxagent.protocol.errors import (
    LogUnavailable,
)
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.reply import Answer, Reply

logger = logging.getLogger(__name__)


class Clients(Protocol):
    """The connections, and the envelopes that are sent to them."""

    @property
    def stopping(self) -> bool: ...

    @property
    def position(self) -> int:
        """Last position that was given out, as far as this server knows."""
        ...

    def monotonic(self) -> float: ...

    def make_id(self) -> str:
        """Make an id for a new connection."""
        ...

    async def has_sent(self, position: int) -> bool:
        """Whether a client can have read up to a position."""
        ...

    async def find(self, connection_id: str) -> Connection | None: ...

    def look_up(self, connection_id: str) -> Connection | None:
        """Find a connection at once. Return None if other servers must be asked. Raises UnknownConnection."""
        ...

    async def close(self, connection: Connection, reason: str) -> None: ...

    async def committed(self, position: int) -> None:
        """Wait until everything up to a position is on disk. Raises LogUnavailable."""
        ...

    def when_committed(self, position: int, callback: Callable[[Exception | None], None]) -> None:
        """Call back when everything up to a position is on disk, or with LogUnavailable."""
        ...

    def when_safe(self, connection: Connection, position: int, callback: Callable[[Exception | None], None]) -> None:
        """Call back when the connection's client can rely on everything up to a position, or with LogUnavailable."""
        ...

    def tell(self, connection: Connection, line: bytes, session_id: str | None = None) -> None:
        """Send an envelope to one connection alone."""
        ...

    def find_session(self, name: str) -> str | None:
        """Return the id of a session, by its id or its alias; None when it is not known. Raises LogUnavailable."""
        ...


class RequestHandler(Protocol):
    """The handler of all envelopes that a client can send."""

    async def open(
        self, envelope: Envelope, agent: str | None = None, connection_id: str | None = None
    ) -> tuple[Connection, Answer]:
        """Open a connection for an `initialize` that came without one."""
        ...

    def submit(
        self, connection: Connection, envelope: Envelope, key: str | None = None, *, on_stream: bool = False
    ) -> Reply:
        """Take a request. Does not raise.

        With `on_stream`, another server may put the response on the client's stream. The reply then has NO_RESPONSE.
        """
        ...

    def notify(self, connection: Connection, envelope: Envelope) -> Reply:
        """Take a notification. Does not raise. The reply has NO_RESPONSE, or an unforeseen failure."""
        ...

    def answer(self, connection: Connection, envelope: Envelope) -> Reply:
        """Take an answer to an agent's request. Does not raise. The reply has NO_RESPONSE, or the refusal."""
        ...


class HubClients(Struct, frozen=True):
    """The clients of a server, on its hub."""

    hub: Hub
    tasks: Tasks = field(default_factory=Tasks)

    @property
    def stopping(self) -> bool:
        return self.hub.stopping

    @property
    def position(self) -> int:
        return self.hub.log.position

    def monotonic(self) -> float:
        return self.hub.monotonic()

    def make_id(self) -> str:
        return secrets.token_urlsafe(24)

    async def has_sent(self, position: int) -> bool:
        return position <= self.hub.log.position

    async def find(self, connection_id: str) -> Connection | None:
        return self.hub.connections.find(connection_id)

    def look_up(self, connection_id: str) -> Connection:
        return self.hub.connections.get(connection_id)

    async def close(self, connection: Connection, reason: str) -> None:
        self.hub.close_connection(connection, reason)

    async def committed(self, position: int) -> None:
        await self.hub.log.committed(position)

    def when_committed(self, position: int, callback: Callable[[Exception | None], None]) -> None:
        self.hub.log.when_committed(position, callback)

    def when_safe(self, connection: Connection, position: int, callback: Callable[[Exception | None], None]) -> None:
        if connection.is_remote:
            # The client reads at a gateway, and must find all events there that this answer refers to.
            published = self.hub.log.published(max(position, connection.last_event))
            self.tasks.run(_call_back(published, callback), "keep an answer")
        else:
            self.hub.log.when_committed(position, callback)

    def tell(self, connection: Connection, line: bytes, session_id: str | None = None) -> None:
        self.hub.tell_connection(connection, line, session_id)

    def find_session(self, name: str) -> str | None:
        session = self.hub.find_session(name)
        return None if session is None else session.id


async def _call_back(work: Awaitable[None], callback: Callable[[Exception | None], None]) -> None:
    try:
        await work
    except LogUnavailable as error:
        callback(error)
    else:
        callback(None)
