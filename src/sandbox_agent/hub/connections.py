"""Connections: one client's logical channel each, and what that client gets to see of an event.

All that are open are found by id, by the agents that they have met, and by the sessions that they are attached to. No
method here awaits. No I/O of its own, no clock, no event loop. Knows nothing of what sessions do.
"""

import hashlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Protocol

import msgspec
from msgspec import Struct, field

from sandbox_agent.envelope import META, Envelope, Object, object_at, same_id, text_at, with_id
from sandbox_agent.errors import AlreadyAnswered, NobodyAsked, UnknownConnection
from sandbox_agent.hub.pending import Outcome, PendingRequest, Speech, leaves_open, render, takes_back
from sandbox_agent.hub.session import Session
from sandbox_agent.log.event import (
    Chunk,
    Direction,
    agent_channel,
    attachment_channel,
    connection_channel,
    frames,
    session_channel,
)
from sandbox_agent.log.log import Log
from sandbox_agent.wire.fleet import AttachmentChange

MAX_NAME = 200
"""Longest name that a client or a user may have."""
REMEMBERED_REQUESTS = 10_000
"""How many settled requests a connection remembers, to answer a late answer with what became of it."""
REMEMBERED_BYTES = 1 << 20
"""How much it remembers of what they asked, and how much their ids may take."""
REMEMBERED_RECEIPTS = 1_000
"""How many of its notifications and answers a connection remembers by their keys, so that each is taken once."""


class Downlink(Protocol):
    """The live stream of a connection."""

    def push(self, chunk: Chunk) -> None: ...
    def look_back(self) -> None: ...
    def close(self, reason: str) -> None: ...
    async def caught_up(self, position: int) -> None: ...
    def has_handed(self, position: int) -> bool: ...
    def apply_backpressure(self, resume: Callable[[], None]) -> bool: ...


class Window(Struct):
    """A connection follows a session after `start`, up to `end`."""

    start: int
    end: int | None = None

    def covers(self, position: int) -> bool:
        return position > self.start and (self.end is None or position <= self.end)

    def cut(self, through: int) -> int:
        """The last position in it that is gone when everything up to `through` is; 0 when none is."""
        if self.start >= through:
            return 0
        return through if self.end is None else min(through, self.end)


class Settled(Struct):
    """What is left of a request: whose id it had, and what became of it."""

    key: int
    outcome: Outcome
    asked: Envelope | None
    """As it was asked, for a client that reads it again; forgotten first."""
    answered_with: tuple[str, bytes] | None


class Connection(Struct, eq=False):
    """One client, as the hub knows it."""

    connection_id: str
    """A credential: it goes to its client and nowhere else. Logs, events and errors use `tag`."""
    tag: str
    agent: str
    used_at: float
    opened_at: int = 0
    """Position of the log when it was opened: nothing before was meant for it."""
    capabilities: Object = field(default_factory=dict[str, object])
    """`clientCapabilities`, as its client declared them."""
    speech: Speech = field(default_factory=Speech)
    """The ways in which it can be asked."""
    who: Object = field(default_factory=dict[str, object])
    """How its client names itself, and the user it speaks for."""
    agents: dict[str, int] = field(default_factory=dict[str, int])
    """Agents it has spoken to, and since which position: it receives what they say outside any session."""
    windows: dict[str, list[Window]] = field(default_factory=dict[str, list[Window]])
    """Session id → when it was attached."""
    stream: Downlink | None = None
    session_streams: dict[str, int] = field(default_factory=dict[str, int])
    """Sessions that have a stream of their own (on `/acp`), by id, and after which position their events go there.

    That stays so while such a stream is cut: what its client has missed comes where it was missed, in order.
    """
    cursors: dict[str | None, int] = field(default_factory=dict[str | None, int])
    """Where the last stream of each kind ended: that of a session, or that of the connection (None)."""
    served: int = 0
    """Where the last stream of all events ended."""
    last_event: int = 0
    """Position of the last event meant for it."""
    closed: bool = False
    busy: int = 0
    """POSTs of its that wait for an answer."""
    delivering: int = 0
    """Requests of its whose answers come on the stream, and have not come."""
    opening: int = 0
    """Requests of its that make sessions, and whose transport says when the response has gone out."""
    prefix: str = ""
    """For a guest, whose client is at a gateway: what the ids of requests begin with, so that they lead back here."""
    receipts: OrderedDict[str, bytes] = field(default_factory=OrderedDict[str, bytes])
    """What became of the newest notifications and answers that came with a key."""
    _forgetful: bool = False
    """Requests have been forgotten, so it is not known any more which ids were never used."""
    _ids: dict[int, bytes] = field(default_factory=dict[int, bytes])
    _requests: dict[bytes, PendingRequest] = field(default_factory=dict[bytes, PendingRequest])
    """Those that are open, by the id that this client knows."""
    _settled: OrderedDict[bytes, Settled] = field(default_factory=OrderedDict[bytes, Settled])
    _legible: list[bytes] = field(default_factory=list[bytes])
    """Settled ones of which the question is still known, oldest first."""
    _asked_bytes: int = 0
    _id_bytes: int = 0

    def introduce(self, params: Object) -> None:
        """Take in what `initialize` says of the client."""
        meta = object_at(params, "_meta")
        self.capabilities = object_at(params, "clientCapabilities")
        self.speech = Speech.of(self.capabilities, meta)
        names = {"client": text_at(params, "clientInfo", "name"), "user": text_at(meta, META, "user")}
        self.who = {kind: name[:MAX_NAME] for kind, name in names.items() if name}

    def keep_receipt(self, key: str, receipt: bytes) -> None:
        self.receipts[key] = receipt
        if len(self.receipts) > REMEMBERED_RECEIPTS:
            self.receipts.popitem(last=False)

    @property
    def channel(self) -> str:
        return connection_channel(self.tag)

    def channels(self) -> list[str]:
        """Everything it has ever followed."""
        return [self.channel, *map(agent_channel, self.agents), *map(session_channel, self.windows)]

    def attached(self, session_id: str) -> bool:
        windows = self.windows.get(session_id)
        return bool(windows) and windows[-1].end is None

    def attach(self, session_id: str, after: int) -> None:
        windows = self.windows.setdefault(session_id, [])
        if windows and windows[-1].end == after:
            # Nothing has happened in between.
            windows[-1].end = None
        else:
            windows.append(Window(after))

    def detach(self, session_id: str, at: int) -> None:
        self.windows[session_id][-1].end = at

    def appended(self, chunk: Chunk) -> None:
        """A new chunk on a channel it follows."""
        if chunk.exclude == self.tag:
            return
        self.last_event = chunk.last
        if self.stream is not None:
            self.stream.push(chunk)

    def sees(self, chunk: Chunk) -> bool:
        """Whether a chunk read from the log was meant for it."""
        if chunk.exclude == self.tag:
            return False
        if chunk.channel == self.channel:
            return True
        if chunk.session_id is None:
            return any(chunk.channel == agent_channel(a) and chunk.first > met for a, met in self.agents.items())
        return any(window.covers(chunk.first) for window in self.windows.get(chunk.session_id, ()))

    def stream_of(self, chunk: Chunk) -> str | None:
        """The session whose own stream has a chunk; None for the connection's stream."""
        start = None if chunk.session_id is None else self.session_streams.get(chunk.session_id)
        return None if start is None or chunk.first <= start else chunk.session_id

    def own_stream_of(self, session_id: str | None) -> str | None:
        """The session whose own stream has the answers about it; None where one stream has everything.

        What is on a session's stream is deleted with the session.
        """
        return session_id if self.session_streams or self.is_guest else None

    def lost(self, trims: dict[str, int], after: int, only: str | None = None) -> int:
        """The last position after `after` that it should have seen and that is no longer kept; 0 when there is none.

        `only` asks about one session.
        """
        ends = [trims.get(self.channel, 0)]
        for agent, met in self.agents.items() if only is None else ():
            through = trims.get(agent_channel(agent), 0)
            ends.append(through if through > met else 0)
        for session_id, windows in self.windows.items():
            if only is not None and session_id != only:
                continue
            through = trims.get(session_channel(session_id), 0)
            ends += [window.cut(through) for window in windows]
        last = max(ends)
        return last if last > after else 0

    @property
    def is_guest(self) -> bool:
        """It has no stream here: what is for it alone goes to its gateways, as it should read it."""
        return bool(self.prefix)

    def open_request(self, pending: PendingRequest) -> bytes:
        """The id under which this client knows an agent's request: the agent's own while it was never used here.

        Never used, not just free now: a late answer to an old request must not settle a new one.
        """
        id = self._ids.get(pending.key)
        if id is None:
            taken = self.is_guest or self._forgetful or self._was_used(same_id(pending.agent_id))
            id = self._make_id(pending.key) if taken else pending.agent_id
            self._ids[pending.key] = id
            self._requests[same_id(id)] = pending
        return id

    def _make_id(self, key: int) -> bytes:
        id = b'"%b%d"' % (self.prefix.encode() or b"request-", key)
        while self._was_used(id):
            # An agent has thought of the same string.
            id = id[:-1] + b'+"'
        return id

    def _was_used(self, id: bytes) -> bool:
        return id in self._requests or id in self._settled

    def knows(self, pending: PendingRequest) -> bool:
        return pending.key in self._ids

    def request(self, id: bytes) -> PendingRequest:
        """The open request a client answers; raises NobodyAsked or AlreadyAnswered."""
        settled = self._settled.get(same_id(id))
        if settled is not None:
            raise AlreadyAnswered(id.decode(), settled.outcome)
        pending = self._requests.get(same_id(id))
        if pending is None:
            raise NobodyAsked(id.decode())
        if not pending.open or pending.answering:
            raise AlreadyAnswered(id.decode(), Outcome.ANSWERED if pending.open else pending.outcome)
        return pending

    def stands_by(self, answer: Envelope) -> bool:
        """Whether an answer that comes too late changes nothing, so that its client gets no conflict.

        It repeats the answer that this client gave, or it says of a cancelled request that it is cancelled.
        """
        assert answer.id is not None
        name = same_id(answer.id)
        settled, pending = self._settled.get(name), self._requests.get(name)
        kept = settled or pending
        if kept is None:
            return False
        if kept.answered_with == (self.tag, digest_of(answer)) and kept.outcome is not Outcome.CANCELLED:
            return True
        return takes_back(answer) or (kept.outcome is Outcome.CANCELLED and leaves_open(answer))

    def find_request(self, id: bytes) -> PendingRequest | None:
        """The open request under an id that this client knows."""
        return self._requests.get(same_id(id))

    def frames(self, chunk: Chunk) -> bytes:
        """A chunk as this client should read it, as server-sent events."""
        if chunk.request is not None:
            return frames(chunk.first, self.lines(chunk))
        return chunk.frames()

    def lines(self, chunk: Chunk) -> list[bytes]:
        """A chunk's envelopes as this client should read them."""
        id = None if chunk.request is None else self._ids.get(chunk.request)
        if id is None or chunk.request is None:
            # The oldest requests are forgotten, and with them what their ids were.
            return chunk.lines
        pending, settled = self._requests.get(same_id(id)), self._settled.get(same_id(id))
        asked = pending.request if pending is not None else settled.asked if settled is not None else None
        line = chunk.lines[0] if asked is None else render(asked, self.speech, chunk.request)
        return [with_id(line, id)]

    def render_request(self, pending: PendingRequest) -> bytes:
        """An agent's request in the form this client understands, under the id that it may answer."""
        return with_id(render(pending.request, self.speech, pending.key), self.open_request(pending))

    def settle(self, pending: PendingRequest) -> None:
        """A request has its outcome: of what this client knows of it, only as much stays as is bounded."""
        id = self._ids.get(pending.key)
        if id is None:
            return
        name, asked = same_id(id), pending.request
        self._requests.pop(name, None)
        self._settled[name] = Settled(pending.key, pending.outcome, asked, pending.answered_with)
        self._legible.append(name)
        self._asked_bytes += len(asked.line)
        self._id_bytes += len(id)
        while self._asked_bytes > REMEMBERED_BYTES:
            self._forget_question(self._settled[self._legible[0]])
        while len(self._settled) > REMEMBERED_REQUESTS or self._id_bytes > REMEMBERED_BYTES:
            self._forget_oldest()

    def _forget_question(self, settled: Settled) -> None:
        """Of the oldest one of which it is known."""
        if settled.asked is not None:
            del self._legible[0]
            self._asked_bytes -= len(settled.asked.line)
            settled.asked = None

    def _forget_oldest(self) -> None:
        self._forgetful = True
        _, settled = self._settled.popitem(last=False)
        self._forget_question(settled)
        self._id_bytes -= len(self._ids.pop(settled.key))


def digest_of(answer: Envelope) -> bytes:
    """What tells one answer from another."""
    return hashlib.sha256(answer.line).digest()


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
