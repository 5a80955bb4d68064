"""What the transports stand on: clients' connections, and the way in for what they send.

A server has the hub behind both, a gateway the nodes of its fleet.
"""

import secrets
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from sandbox_agent.envelope import Envelope, parse, text_at
from sandbox_agent.hub.calls import Accepted, Answer, Waiter
from sandbox_agent.hub.connections import Connection
from sandbox_agent.hub.hub import Hub


def session_named(line: bytes) -> str:
    """The new session in a response; empty when it has none."""
    return text_at(parse(line).result(), "sessionId") or ""


class Clients(Protocol):
    """Connections, and what is sent to them."""

    @property
    def stopping(self) -> bool: ...

    @property
    def position(self) -> int:
        """The last position that was given out, as far as it is known here."""
        ...

    def monotonic(self) -> float: ...

    def make_id(self) -> str:
        """For a connection that is to be opened."""
        ...

    async def has_sent(self, position: int) -> bool:
        """Whether a client can have read up to a position."""
        ...

    async def find(self, connection_id: str) -> Connection | None: ...

    def get(self, connection_id: str) -> Connection:
        """One that was found before, at once. Raises UnknownConnection."""
        ...

    async def close(self, connection: Connection, reason: str) -> None: ...

    async def committed(self, position: int) -> None:
        """Wait until everything up to a position is on disk. Raises LogUnavailable."""
        ...

    def when_committed(self, position: int, callback: Callable[[Exception | None], None]) -> None:
        """Call back when everything up to a position is on disk, or with LogUnavailable."""
        ...

    async def kept(self, connection: Connection, position: int) -> None:
        """Wait until everything up to a position is safe, so that its client may rely on it. Raises LogUnavailable."""
        ...

    def tell(self, connection: Connection, line: bytes, session_id: str | None = None) -> None:
        """Send something to one connection alone."""
        ...

    def note_opened(self, connection: Connection, line: bytes) -> None:
        """A response that names a new session has gone out: from now on its client gets updates of that session."""
        ...

    def find_session(self, name: str) -> str | None:
        """The id of a session, by its id or its alias; None when it is not known. Raises LogUnavailable."""
        ...


class Intake(Protocol):
    """Everything that a client can send."""

    async def open(
        self, envelope: Envelope, agent: str | None = None, connection_id: str | None = None
    ) -> tuple[Connection, Answer]:
        """`initialize` without a connection."""
        ...

    async def accept(self, connection: Connection, envelope: Envelope, key: str | None = None) -> Accepted: ...

    def pass_on(
        self,
        connection: Connection,
        envelope: Envelope,
        key: str | None,
        waiter: Waiter,
        on_accepted: Callable[[int], None] | None = None,
    ) -> bool:
        """Take a request whose answer goes to `waiter`; False for one that has to be accepted.

        `on_accepted` learns which position has to be on disk before the client may learn that it was accepted.
        """
        ...

    async def notify(self, connection: Connection, envelope: Envelope) -> None: ...

    async def answer(self, connection: Connection, envelope: Envelope) -> None: ...


class HubClients(Struct, frozen=True):
    """Those of a server."""

    hub: Hub

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

    def get(self, connection_id: str) -> Connection:
        return self.hub.connections.get(connection_id)

    async def close(self, connection: Connection, reason: str) -> None:
        self.hub.close_connection(connection, reason)

    async def committed(self, position: int) -> None:
        await self.hub.log.committed(position)

    def when_committed(self, position: int, callback: Callable[[Exception | None], None]) -> None:
        self.hub.log.when_committed(position, callback)

    async def kept(self, connection: Connection, position: int) -> None:
        if connection.is_guest:
            # Its client is elsewhere, and must find there what this answer speaks of.
            await self.hub.log.published(max(position, connection.last_event))
        else:
            await self.hub.log.committed(position)

    def tell(self, connection: Connection, line: bytes, session_id: str | None = None) -> None:
        self.hub.tell_connection(connection, line, session_id)

    def note_opened(self, connection: Connection, line: bytes) -> None:
        self.hub.let_out(session_named(line))

    def find_session(self, name: str) -> str | None:
        session = self.hub.find_session(name)
        return None if session is None else session.id
