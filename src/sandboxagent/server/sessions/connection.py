"""Keep each client's connection, and decide what that client sees of an event.

All that are open are found by id, by the agents that they have met, and by the sessions that they are attached to. No
method here awaits. No I/O of its own, no clock, no event loop. Knows nothing of what sessions do.
"""

import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import count
from operator import itemgetter
from typing import Protocol

import msgspec
from msgspec import Struct, field

from sandboxagent.fleet.messages import AttachmentChange
from sandboxagent.protocol.envelope import LARGE, META, Envelope, Object, object_at, text_at, with_id
from sandboxagent.protocol.errors import AlreadyAnswered, NobodyAsked, UnknownConnection
from sandboxagent.server.log.event import (
    Chunk,
    Direction,
    agent_channel,
    attachment_channel,
    connection_channel,
    frames,
    session_channel,
)
from sandboxagent.server.log.log import Log
from sandboxagent.server.sessions.pending import (
    Outcome,
    PendingRequest,
    PendingRequests,
    RequestFormat,
    Settled,
    leaves_open,
    render,
    takes_back,
)
from sandboxagent.server.sessions.session import Session

MAX_NAME = 200
"""Longest name that a client or a user may have."""
REMEMBERED_WINDOWS = 10_000
"""How many of its windows that are over a connection remembers, about; what was in older ones is a gap."""
LEAST_WINDOWS = 64
"""Up to so many, nothing is gained by forgetting some."""
REMEMBERED_RECEIPTS = 1_000
"""How many of its notifications and answers a connection remembers by their keys, so that each is taken once."""


class StreamSink(Protocol):
    """The live stream of a connection."""

    def push(self, chunk: Chunk) -> None: ...
    def resync(self) -> None: ...
    def close(self, reason: str) -> None: ...
    async def wait_sent(self, position: int) -> None: ...
    def has_sent(self, position: int) -> bool: ...
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
    request_format: RequestFormat = field(default_factory=RequestFormat)
    """The ways in which it can be asked."""
    who: Object = field(default_factory=dict[str, object])
    """How its client names itself, and the user it speaks for."""
    agents: dict[str, int] = field(default_factory=dict[str, int])
    """Agents it has spoken to, and since which position: it receives what they say outside any session."""
    windows: dict[str, list[Window]] = field(default_factory=dict[str, list[Window]])
    """Session id → when it was attached, as far as something of it is kept."""
    past: dict[str | None, int] = field(default_factory=dict[str | None, int])
    """The last position in windows that are forgotten: of all, and of each session with a stream of its own."""
    stream: StreamSink | None = None
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
    is_remote: bool = False
    """Its client is at a gateway, and has no stream here: what is for it alone goes there, as it should read it."""
    pending: PendingRequests | None = None
    """What agents have asked; None where the nodes of a fleet know that."""
    acknowledgements: OrderedDict[str, bytes] = field(default_factory=OrderedDict[str, bytes])
    """What became of the newest notifications and answers that came with a key."""
    _over: int = 0
    """How many windows are over."""
    _most_over: int = LEAST_WINDOWS
    """How many may be before it is seen which of them can be forgotten: seldom enough to cost nothing."""

    def introduce(self, params: Object) -> None:
        """Take in what `initialize` says of the client."""
        meta = object_at(params, "_meta")
        self.capabilities = object_at(params, "clientCapabilities")
        self.request_format = RequestFormat.of(self.capabilities, meta)
        names = {"client": text_at(params, "clientInfo", "name"), "user": text_at(meta, META, "user")}
        self.who = {kind: name[:MAX_NAME] for kind, name in names.items() if name}

    def remember_acknowledgement(self, key: str, receipt: bytes) -> None:
        self.acknowledgements[key] = receipt
        if len(self.acknowledgements) > REMEMBERED_RECEIPTS:
            self.acknowledgements.popitem(last=False)

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
            self._over -= 1
        else:
            windows.append(Window(after))

    def detach(self, session_id: str, at: int) -> None:
        self.windows[session_id][-1].end = at
        self._over += 1

    def forget_windows(self, trims: Mapping[str, int], reach: int, most: int = REMEMBERED_WINDOWS) -> None:
        """Forget windows of which nothing is kept any more and, when more than `most` are over, the oldest ones.

        Those stay of which memory may have something: it has everything after `reach`.
        """
        if self._over <= self._most_over:
            return
        over = [
            (window.end, session_id, window)
            for session_id, windows in self.windows.items()
            for window in windows
            if window.end is not None and window.end <= reach
        ]
        over.sort(key=itemgetter(0))
        forgotten: dict[str, list[tuple[Window, int]]] = {}
        kept: list[tuple[int, str, Window]] = []
        for end, session_id, window in over:
            through = trims.get(session_channel(session_id), 0)
            if end <= through:
                forgotten.setdefault(session_id, []).append((window, window.cut(through)))
            else:
                kept.append((end, session_id, window))
        excess = self._over - (len(over) - len(kept)) - most
        for end, session_id, window in kept[: max(excess, 0)]:
            forgotten.setdefault(session_id, []).append((window, end))
        for session_id, gone in forgotten.items():
            self._forget(session_id, gone)
        self._most_over = 2 * self._over + LEAST_WINDOWS

    def _forget(self, session_id: str, gone: list[tuple[Window, int]]) -> None:
        """Forget windows of a session, each with the last position that was lost with it."""
        names, lost = {id(window) for window, _ in gone}, max(last for _, last in gone)
        self._over -= len(gone)
        self.windows[session_id] = [window for window in self.windows[session_id] if id(window) not in names]
        if not self.windows[session_id]:
            del self.windows[session_id]
        for name in (None, session_id) if session_id in self.session_streams else (None,):
            self.past[name] = max(lost, self.past.get(name, 0))

    def appended(self, chunk: Chunk) -> None:
        """A new chunk on a channel it follows."""
        if chunk.exclude == self.tag:
            return
        self.last_event = chunk.last
        self.push(chunk)

    def push(self, chunk: Chunk) -> None:
        """Hand a chunk to its stream."""
        if self.stream is not None:
            try:
                self.stream.push(chunk)
            except Exception:
                logger.exception("stream failed connection=%s", self.tag)
                # What it has missed, it reads from the log.
                self.stream.resync()

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
        return session_id if self.session_streams or self.is_remote else None

    def lost(self, trims: dict[str, int], after: int, only: str | None = None) -> int:
        """The last position after `after` that it should have seen and that is no longer kept; 0 when there is none.

        `only` asks about one session.
        """
        ends = [trims.get(self.channel, 0), self.past.get(only, 0)]
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

    def request(self, id: bytes) -> PendingRequest:
        """The open request that its client answers; raises NobodyAsked or AlreadyAnswered."""
        known = self._find_known(id)
        if known is None:
            raise NobodyAsked(id.decode())
        if isinstance(known, Settled):
            raise AlreadyAnswered(id.decode(), known.outcome)
        if known.answering:
            raise AlreadyAnswered(id.decode(), Outcome.ANSWERED)
        return known

    def _find_known(self, id: bytes) -> PendingRequest | Settled | None:
        """What it was asked under an id; or what was settled meanwhile in a session that it is attached to."""
        known = None if self.pending is None else self.pending.find_known(id)
        if known is None or self.tag in known.asked:
            return known
        was_there = isinstance(known, Settled) and known.session_id is not None and self.attached(known.session_id)
        return known if was_there else None

    def repeats_answer(self, answer: Envelope) -> bool:
        """Whether an answer that comes too late changes nothing, so that its client gets no conflict.

        It repeats the answer that this client gave, or it says of a cancelled request that it is cancelled.
        """
        assert answer.id is not None
        known = self._find_known(answer.id)
        if known is None:
            return False
        if known.answered_with == (self.tag, answer.digest()) and known.outcome is not Outcome.CANCELLED:
            return True
        if len(answer.line) > LARGE:
            return False
        return takes_back(answer) or (known.outcome is Outcome.CANCELLED and leaves_open(answer))

    def session_of_request(self, id: bytes) -> str | None:
        """The session in which an agent asked this connection under an id; None when nothing is open there."""
        known = self._find_known(id)
        return known.session_id if isinstance(known, PendingRequest) else None

    def frames(self, chunk: Chunk) -> bytes:
        """A chunk as this client should read it, as server-sent events."""
        if chunk.request is not None:
            return frames(chunk.first, self.lines(chunk))
        return chunk.frames()

    def lines(self, chunk: Chunk) -> list[bytes]:
        """A chunk's envelopes as this client should read them."""
        if chunk.request is None or self.pending is None:
            return chunk.lines
        known = self.pending.find_asked(chunk.request)
        # What the oldest ones asked is forgotten: then it comes as the agent said it.
        asked = None if known is None else known.request
        line = chunk.lines[0] if asked is None else render(asked, self.request_format, chunk.request)
        return [with_id(line, self.pending.ids.make(chunk.request))]

    def render_request(self, pending: PendingRequest) -> bytes:
        """An agent's request in the form this client understands, under the id that all clients know."""
        return with_id(render(pending.request, self.request_format, pending.key), pending.id)


logger = logging.getLogger(__name__)


class Connections:
    """The table. Every connection follows its own channel, those of its agents, and those of its sessions."""

    def __init__(self, log: Log, monotonic: Callable[[], float], pending: PendingRequests) -> None:
        self._log = log
        self._pending = pending
        self._monotonic = monotonic
        self._tags = count(1)
        self._by_id: dict[str, Connection] = {}
        self._by_agent: dict[str, set[Connection]] = {}
        self._by_session: dict[str, set[Connection]] = {}
        self._remote_channels: set[str] = set()
        """Channels of guests."""

    def open(
        self,
        agent: str,
        introduction: Object | None = None,
        connection_id: str | None = None,
        remote_tag: str | None = None,
    ) -> Connection:
        """A new one; `introduction` is what its client says of itself, the params of `initialize`.

        `connection_id` is a new random one that its client knows already. `remote_tag` is the tag that a gateway's
        client has in the whole fleet.
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

    def is_remote_channel(self, channel: str) -> bool:
        return channel in self._remote_channels

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
            if not connection.is_remote:
                self._log.follow(agent_channel(agent), connection)

    def attach(self, connection: Connection, session: Session) -> None:
        """From now on the connection receives what happens in the session."""
        connection.attach(session.id, self._log.position)
        self._tell_gateways(connection, AttachmentChange(session.id, attached=True))
        self._by_session.setdefault(session.id, set()).add(connection)
        self._log.follow(session.channel, connection)

    def detach(self, connection: Connection, session_id: str, *, deleted: bool = False) -> bool:
        """Detach a connection from a session, which may be deleted; returns whether it was the last one there."""
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
        """A guest's gateways read the session's events from here on, or up to here.

        Nothing when this node only forgets it: its client is still attached, and a gateway introduces it again.
        """
        if connection.is_remote and not connection.closed:
            line = msgspec.json.encode(said)
            channel = attachment_channel(connection.tag)
            # Its gateways have to come to this one before they pass on an answer that follows it.
            chunk = self._log.append([line], Direction.FROM_SERVER, None, channel, history=False)
            connection.last_event = chunk.last

    def close(self, connection: Connection, reason: str) -> list[str]:
        """Close an open connection and its stream; returns the sessions to which no connection is attached any more."""
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
