"""Keep the table of open connections, and the channels that each follows.

The table finds connections by id, by the agents whose messages they receive, and by the sessions to which they are
attached. No method here awaits.
"""

import logging
import secrets
from collections.abc import Callable
from itertools import count

import msgspec

from sandboxagent.fleet.messages import AttachmentChange
from sandboxagent.protocol.envelope import Object
from sandboxagent.protocol.errors import UnknownConnection
from sandboxagent.server.log.event import (
    Direction,
    agent_channel,
    attachment_channel,
    session_channel,
)
from sandboxagent.server.log.log import Log
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.pending import PendingRequests
from sandboxagent.server.sessions.session import Session

logger = logging.getLogger(__name__)


class Connections:
    """The open connections. Each follows its own channel, those of its agents, and those of its sessions."""

    def __init__(self, log: Log, monotonic: Callable[[], float], pending: PendingRequests) -> None:
        self._log = log
        self._pending = pending
        self._monotonic = monotonic
        self._tags = count(1)
        self._by_id: dict[str, Connection] = {}
        self._by_agent: dict[str, set[Connection]] = {}
        self._by_session: dict[str, set[Connection]] = {}
        self._remote_channels: set[str] = set()
        """Channels of remote connections."""

    def open(
        self,
        agent: str,
        introduction: Object | None = None,
        connection_id: str | None = None,
        remote_tag: str | None = None,
    ) -> Connection:
        """Open a connection. `introduction` is the params of its client's `initialize`.

        `connection_id` is a new random id that the client knows already; without it, one is made. `remote_tag` is the
        tag of a gateway's client in the whole fleet.
        """
        connection = Connection(
            connection_id=connection_id or secrets.token_urlsafe(24),
            tag=f"c{next(self._tags)}" if remote_tag is None else remote_tag,
            agent=agent,
            used_at=self._monotonic(),
            opened_at=self._log.position,
            is_remote=remote_tag is not None,
            pending=self._pending,
        )
        connection.introduce(introduction or {})
        self._by_id[connection.connection_id] = connection
        if connection.is_remote:
            self._remote_channels.add(connection.channel)
        self._log.follow(connection.channel, connection)
        self.follow_agent(connection, agent)
        logger.info("connection opened connection=%s agent=%s", connection.tag, agent)
        return connection

    def get(self, connection_id: str) -> Connection:
        """Return an open connection by its id. Raises UnknownConnection."""
        connection = self._by_id.get(connection_id)
        if connection is None:
            raise UnknownConnection
        return connection

    def find(self, connection_id: str) -> Connection | None:
        return self._by_id.get(connection_id)

    def all(self) -> list[Connection]:
        return list(self._by_id.values())

    def is_remote_channel(self, channel: str) -> bool:
        return channel in self._remote_channels

    def of_agent(self, agent: str) -> list[Connection]:
        """Return the connections that receive an agent's messages outside any session."""
        return list(self._by_agent.get(agent, ()))

    def attached(self, session: Session) -> set[Connection]:
        """Return the connections that are attached to a session."""
        return self._by_session.get(session.id, set())

    def has_attached(self, session: Session) -> bool:
        return session.id in self._by_session

    def channels(self) -> set[str]:
        """Return all channels that an open connection has followed."""
        return {name for connection in self._by_id.values() for name in connection.channels()}

    def follow_agent(self, connection: Connection, agent: str) -> None:
        """Send the connection all later messages of this agent that belong to no session."""
        if agent not in connection.agents and not connection.closed:
            connection.agents[agent] = self._log.position
            self._by_agent.setdefault(agent, set()).add(connection)
            if not connection.is_remote:
                self._log.follow(agent_channel(agent), connection)

    def attach(self, connection: Connection, session: Session) -> None:
        """Send the connection all later events of the session."""
        connection.attach(session.id, self._log.position)
        self._tell_gateways(connection, AttachmentChange(session.id, attached=True))
        self._by_session.setdefault(session.id, set()).add(connection)
        self._log.follow(session.channel, connection)

    def detach(self, connection: Connection, session_id: str, *, deleted: bool = False) -> bool:
        """Detach a connection from a session, which may be deleted; return whether it was the last one there."""
        if not connection.attached(session_id):
            return False
        connection.detach(session_id, self._log.position)
        connection.forget_windows(self._log.trims, self._log.evicted)
        self._tell_gateways(connection, AttachmentChange(session_id, attached=False, deleted=deleted))
        self._log.unfollow(session_channel(session_id), connection)
        self._by_session[session_id].discard(connection)
        if self._by_session[session_id]:
            return False
        del self._by_session[session_id]
        return True

    def _tell_gateways(self, connection: Connection, said: AttachmentChange) -> None:
        """Tell a remote connection's gateways to read the session's events from here on, or up to here.

        A closed connection is not reported. This node only forgets it: its client is still attached, and a gateway
        introduces the connection again.
        """
        if connection.is_remote and not connection.closed:
            line = msgspec.json.encode(said)
            channel = attachment_channel(connection.tag)
            # Gateways must read this event before they pass on an answer that follows it.
            chunk = self._log.append([line], Direction.FROM_SERVER, None, channel, history=False)
            connection.last_event = chunk.last

    def close(self, connection: Connection, reason: str) -> list[str]:
        """Close an open connection and its stream; return the sessions to which no connection is attached any more."""
        del self._by_id[connection.connection_id]
        self._remote_channels.discard(connection.channel)
        connection.closed = True
        left = [session_id for session_id in list(connection.windows) if self.detach(connection, session_id)]
        for agent in connection.agents:
            self._by_agent[agent].discard(connection)
            self._log.unfollow(agent_channel(agent), connection)
        self._log.unfollow(connection.channel, connection)
        self._log.forget(connection.channel)
        if not connection.is_remote:
            self._pending.forget_connection(connection.tag)
        if connection.stream is not None:
            connection.stream.close(reason)
        logger.info("connection closed connection=%s reason=%s", connection.tag, reason)
        return left
