"""All open connections: by id, by the agents that they have met, and by the sessions that they are attached to.

No method here awaits. Knows nothing of what sessions do.
"""

import logging
import secrets
from collections.abc import Callable
from itertools import count
from typing import Protocol

import msgspec
from msgspec import Struct

from sandbox_agent.envelope import Object
from sandbox_agent.errors import UnknownConnection
from sandbox_agent.hub.connection import Connection
from sandbox_agent.hub.session import Session
from sandbox_agent.log.event import Direction, agent_channel, attachment_channel, session_channel
from sandbox_agent.log.log import Log
from sandbox_agent.wire.fleet import AttachmentChange

logger = logging.getLogger(__name__)


class Guest(Struct, frozen=True):
    """A client of a gateway: its tag in the whole fleet, and the name of this node."""

    tag: str
    node: str
    run: str = ""
    """Of this node, by its nonce: what it asks is void when another run has taken its place."""


class Watcher(Protocol):
    """Is notified when a session or a connection ends. Its methods must not raise."""

    def session_over(self, session: Session) -> None:
        """No process holds it any more."""
        ...

    def connection_closed(self, connection: Connection) -> None: ...


class Connections:
    """The table. Every connection follows its own channel, those of its agents, and those of its sessions."""

    def __init__(self, log: Log, monotonic: Callable[[], float]) -> None:
        self._log = log
        self._monotonic = monotonic
        self._tags = count(1)
        self._by_id: dict[str, Connection] = {}
        self._by_agent: dict[str, set[Connection]] = {}
        self._by_session: dict[str, set[Connection]] = {}
        self._of_guests: set[str] = set()
        """Channels of guests."""

    def open(
        self,
        agent: str,
        introduction: Object | None = None,
        connection_id: str | None = None,
        guest: Guest | None = None,
    ) -> Connection:
        """A new one; `introduction` is what its client says of itself, the params of `initialize`.

        `connection_id` is a new random one that its client knows already.
        """
        connection = Connection(
            connection_id=connection_id or secrets.token_urlsafe(24),
            tag=f"c{next(self._tags)}" if guest is None else guest.tag,
            agent=agent,
            used_at=self._monotonic(),
            opened_at=self._log.position,
            # Never the same twice, also when this node has lost its disk and counts anew: no late answer to an old
            # request may settle a new one.
            prefix="" if guest is None else f"{guest.node}.{guest.run}.{secrets.token_hex(6)}.",
        )
        connection.introduce(introduction or {})
        self._by_id[connection.connection_id] = connection
        if connection.is_guest:
            self._of_guests.add(connection.channel)
        self._log.follow(connection.channel, connection)
        self.meet(connection, agent)
        logger.info("connection opened connection=%s agent=%s", connection.tag, agent)
        return connection

    def get(self, connection_id: str) -> Connection:
        """Raises UnknownConnection."""
        connection = self._by_id.get(connection_id)
        if connection is None:
            raise UnknownConnection
        return connection

    def find(self, connection_id: str) -> Connection | None:
        return self._by_id.get(connection_id)

    def all(self) -> list[Connection]:
        return list(self._by_id.values())

    def is_of_guest(self, channel: str) -> bool:
        return channel in self._of_guests

    def of_agent(self, agent: str) -> list[Connection]:
        """Those that have met an agent."""
        return list(self._by_agent.get(agent, ()))

    def attached(self, session: Session) -> set[Connection]:
        """Those that are attached to a session."""
        return self._by_session.get(session.id, set())

    def has_attached(self, session: Session) -> bool:
        return session.id in self._by_session

    def channels(self) -> set[str]:
        """All channels that a connection can ask for."""
        return {name for connection in self._by_id.values() for name in connection.channels()}

    def meet(self, connection: Connection, agent: str) -> None:
        """From now on the connection receives what this agent says outside any session."""
        if agent not in connection.agents and not connection.closed:
            connection.agents[agent] = self._log.position
            self._by_agent.setdefault(agent, set()).add(connection)
            if not connection.is_guest:
                self._log.follow(agent_channel(agent), connection)

    def attach(self, connection: Connection, session: Session) -> None:
        """From now on the connection receives what happens in the session."""
        connection.attach(session.id, self._log.position)
        self._tell_gateways(connection, AttachmentChange(session.id, attached=True))
        self._by_session.setdefault(session.id, set()).add(connection)
        self._log.follow(session_channel(session.id), connection)

    def detach(self, connection: Connection, session_id: str, *, deleted: bool = False) -> bool:
        """Detach a connection from a session, which may be deleted; returns whether it was the last one there."""
        if not connection.attached(session_id):
            return False
        connection.detach(session_id, self._log.position)
        self._tell_gateways(connection, AttachmentChange(session_id, attached=False, deleted=deleted))
        self._log.unfollow(session_channel(session_id), connection)
        self._by_session[session_id].discard(connection)
        if self._by_session[session_id]:
            return False
        del self._by_session[session_id]
        return True

    def _tell_gateways(self, connection: Connection, said: AttachmentChange) -> None:
        """A guest's gateways read the session's events from here on, or up to here.

        Nothing when this node only forgets it: its client is still attached, and a gateway introduces it again.
        """
        if connection.is_guest and not connection.closed:
            line = msgspec.json.encode(said)
            channel = attachment_channel(connection.tag)
            # Its gateways have to come to this one before they pass on an answer that follows it.
            chunk = self._log.append([line], Direction.FROM_SERVER, None, channel, history=False)
            connection.last_event = chunk.last

    def close(self, connection: Connection, reason: str) -> list[str]:
        """Close an open connection and its stream; returns the sessions to which no connection is attached any more."""
        del self._by_id[connection.connection_id]
        self._of_guests.discard(connection.channel)
        connection.closed = True
        left = [session_id for session_id in connection.windows if self.detach(connection, session_id)]
        for agent in connection.agents:
            self._by_agent[agent].discard(connection)
            self._log.unfollow(agent_channel(agent), connection)
        self._log.unfollow(connection.channel, connection)
        self._log.forget(connection.channel)
        if connection.stream is not None:
            connection.stream.close(reason)
        logger.info("connection closed connection=%s reason=%s", connection.tag, reason)
        return left
