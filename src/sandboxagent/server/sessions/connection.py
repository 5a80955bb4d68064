"""Keep each client's connection, and decide which events that client sees, and in which form.

No method here awaits. No I/O of its own, no clock, no event loop. This module does not know the rules of sessions.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Protocol

from msgspec import Struct, field

from sandboxagent.protocol.envelope import LARGE_BYTES, META, Envelope, Object, object_at, text_at, with_id
from sandboxagent.protocol.errors import AlreadyAnswered, NobodyAsked
from sandboxagent.server.log.event import (
    Chunk,
    agent_channel,
    connection_channel,
    frames,
    session_channel,
)
from sandboxagent.server.sessions.pending import (
    Outcome,
    PendingRequest,
    PendingRequests,
    RequestFormat,
    Settled,
    is_cancellation,
    leaves_open,
    render,
)

logger = logging.getLogger(__name__)

MAX_NAME = 200
"""Maximum characters of the name of a client or a user."""
REMEMBERED_WINDOWS = 10_000
"""Approximate maximum of closed windows that a connection remembers. Events of older windows become a gap."""
LEAST_WINDOWS = 64
"""Number of closed windows up to which none is forgotten, since that would save nothing."""
MAX_ACKNOWLEDGEMENTS = 1_000
"""Maximum number of keys that a connection remembers of its notifications and answers, so that each acts once."""


class StreamSink(Protocol):
    """The live stream of a connection."""

    def push(self, chunk: Chunk) -> None: ...
    def resync(self) -> None: ...
    def close(self, reason: str) -> None: ...
    async def wait_sent(self, position: int) -> None: ...
    def has_sent(self, position: int) -> bool: ...
    def apply_backpressure(self, resume: Callable[[], None]) -> bool: ...


class Window(Struct):
    """A range of positions in which a connection was attached to a session: after `start`, up to `end`."""

    start: int
    end: int | None = None

    def covers(self, position: int) -> bool:
        return position > self.start and (self.end is None or position <= self.end)

    def cut(self, through: int) -> int:
        """Return the last position of the window that was deleted if the log was deleted through `through`.

        0 if the whole window is kept.
        """
        if self.start >= through:
            return 0
        return through if self.end is None else min(through, self.end)


class Connection(Struct, eq=False):
    """A client's connection, as the hub knows it."""

    connection_id: str
    """The secret id. Only its own client may see it; logs, events and errors use `tag`."""
    tag: str
    agent: str
    used_at: float
    opened_at: int = 0
    """Position of the log when the connection was opened. No earlier event is meant for it."""
    capabilities: Object = field(default_factory=dict[str, object])
    """`clientCapabilities`, as the client declared them."""
    request_format: RequestFormat = field(default_factory=RequestFormat)
    """The forms of requests that the client understands."""
    who: Object = field(default_factory=dict[str, object])
    """The names of the client and of its user, as the client gave them."""
    agents: dict[str, int] = field(default_factory=dict[str, int])
    """Agents whose messages outside any session it receives, and the position from which on it receives them."""
    windows: dict[str, list[Window]] = field(default_factory=dict[str, list[Window]])
    """Session id → windows in which it was attached, as far as the log still keeps something of them."""
    past: dict[str | None, int] = field(default_factory=dict[str | None, int])
    """The last position in forgotten windows: of all sessions (None), and of each session with its own stream."""
    stream: StreamSink | None = None
    session_streams: dict[str, int] = field(default_factory=dict[str, int])
    """Sessions that have a stream of their own (on `/acp`): id → position after which their events go to that stream.

    An entry stays while its stream is cut, so that the client gets missed events on the same stream, in order.
    """
    cursors: dict[str | None, int] = field(default_factory=dict[str | None, int])
    """Positions at which the last streams ended: by session id, or None for the stream of the connection."""
    served: int = 0
    """Position at which the last stream of all events ended."""
    last_event: int = 0
    """Position of the last event for this connection."""
    closed: bool = False
    busy: int = 0
    """Number of its POST requests that wait for an answer."""
    delivering: int = 0
    """Number of its requests that are not answered yet and whose answers go to the stream."""
    is_remote: bool = False
    """Whether its client is at a gateway. Then it has no stream here.

    Envelopes for this client alone go to the gateway in the form that the client understands.
    """
    pending: PendingRequests | None = None
    """The agents' requests; None at a gateway, where only the nodes know them."""
    acknowledgements: OrderedDict[str, bytes] = field(default_factory=OrderedDict[str, bytes])
    """Acknowledgements of the newest notifications and answers that came with a key, by key."""
    _over: int = 0
    """Number of closed windows."""
    _most_over: int = LEAST_WINDOWS
    """Number of closed windows above which `forget_windows` runs. It doubles each time, so the cost stays low."""

    def introduce(self, params: Object) -> None:
        """Read the client's capabilities and names from the params of `initialize`."""
        meta = object_at(params, "_meta")
        self.capabilities = object_at(params, "clientCapabilities")
        self.request_format = RequestFormat.of(self.capabilities, meta)
        names = {"client": text_at(params, "clientInfo", "name"), "user": text_at(meta, META, "user")}
        self.who = {kind: name[:MAX_NAME] for kind, name in names.items() if name}

    def remember_acknowledgement(self, key: str, acknowledgement: bytes) -> None:
        self.acknowledgements[key] = acknowledgement
        if len(self.acknowledgements) > MAX_ACKNOWLEDGEMENTS:
            self.acknowledgements.popitem(last=False)

    @property
    def channel(self) -> str:
        return connection_channel(self.tag)

    def channels(self) -> list[str]:
        """Return its own channel, and those of all agents and sessions that it has followed."""
        return [self.channel, *map(agent_channel, self.agents), *map(session_channel, self.windows)]

    def attached(self, session_id: str) -> bool:
        windows = self.windows.get(session_id)
        return bool(windows) and windows[-1].end is None

    def attach(self, session_id: str, after: int) -> None:
        windows = self.windows.setdefault(session_id, [])
        if windows and windows[-1].end == after:
            # No event came in between, so the window goes on.
            windows[-1].end = None
            self._over -= 1
        else:
            windows.append(Window(after))

    def detach(self, session_id: str, at: int) -> None:
        self.windows[session_id][-1].end = at
        self._over += 1

    def forget_windows(self, trims: Mapping[str, int], reach: int, most: int = REMEMBERED_WINDOWS) -> None:
        """Forget closed windows whose events were deleted and, if more than `most` are left, the oldest ones.

        Windows that end after `reach` stay, because memory still has all events after it.
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
        """Forget windows of a session; each comes with the last position that is lost with it."""
        names, lost = {id(window) for window, _ in gone}, max(last for _, last in gone)
        self._over -= len(gone)
        self.windows[session_id] = [window for window in self.windows[session_id] if id(window) not in names]
        if not self.windows[session_id]:
            del self.windows[session_id]
        for name in (None, session_id) if session_id in self.session_streams else (None,):
            self.past[name] = max(lost, self.past.get(name, 0))

    def appended(self, chunk: Chunk) -> None:
        """Handle a new chunk on a channel that the connection follows."""
        if chunk.exclude == self.tag:
            return
        self.last_event = chunk.last
        self.push(chunk)

    def push(self, chunk: Chunk) -> None:
        """Send a chunk to its stream, if it has one."""
        if self.stream is not None:
            try:
                self.stream.push(chunk)
            except Exception:
                logger.exception("stream failed connection=%s", self.tag)
                # The stream reads the missed events from the log.
                self.stream.resync()

    def sees(self, chunk: Chunk) -> bool:
        """Return whether a chunk from the log is for this connection."""
        if chunk.exclude == self.tag:
            return False
        if chunk.channel == self.channel:
            return True
        if chunk.session_id is None:
            return any(chunk.channel == agent_channel(a) and chunk.first > met for a, met in self.agents.items())
        return any(window.covers(chunk.first) for window in self.windows.get(chunk.session_id, ()))

    def stream_of(self, chunk: Chunk) -> str | None:
        """Return the session on whose own stream a chunk goes; None for the connection's stream."""
        start = None if chunk.session_id is None else self.session_streams.get(chunk.session_id)
        return None if start is None or chunk.first <= start else chunk.session_id

    def own_stream_of(self, session_id: str | None) -> str | None:
        """Return the session on whose own stream answers about it go; None if one stream has everything.

        Events on a session's stream are deleted with the session.
        """
        return session_id if self.session_streams or self.is_remote else None

    def lost(self, trims: dict[str, int], after: int, only: str | None = None) -> int:
        """Return the last deleted position after `after` that this connection should have seen; 0 if there is none.

        `only` limits this to one session.
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
        """Return the open request that its client answers. Raises NobodyAsked or AlreadyAnswered."""
        known = self._find_known(id)
        if known is None:
            raise NobodyAsked(id.decode())
        if isinstance(known, Settled):
            raise AlreadyAnswered(id.decode(), known.outcome)
        if known.answering:
            raise AlreadyAnswered(id.decode(), Outcome.ANSWERED)
        return known

    def _find_known(self, id: bytes) -> PendingRequest | Settled | None:
        """Return the request that it was asked under an id, or one that was settled in a session it is attached to."""
        known = None if self.pending is None else self.pending.find_known(id)
        if known is None or self.tag in known.asked:
            return known
        was_there = isinstance(known, Settled) and known.session_id is not None and self.attached(known.session_id)
        return known if was_there else None

    def repeats_answer(self, answer: Envelope) -> bool:
        """Return whether a late answer changes nothing, so that its client gets no conflict.

        Such an answer repeats the one that this client gave, or cancels a request that is cancelled already.
        """
        assert answer.id is not None
        known = self._find_known(answer.id)
        if known is None:
            return False
        if known.answered_with == (self.tag, answer.digest()) and known.outcome is not Outcome.CANCELLED:
            return True
        if len(answer.line) > LARGE_BYTES:
            return False
        return is_cancellation(answer) or (known.outcome is Outcome.CANCELLED and leaves_open(answer))

    def session_of_request(self, id: bytes) -> str | None:
        """Return the id of the session of an open request that this connection was asked; None if none is open."""
        known = self._find_known(id)
        return known.session_id if isinstance(known, PendingRequest) else None

    def frames(self, chunk: Chunk) -> bytes:
        """Return a chunk as server-sent events, in the form that this client understands."""
        if chunk.request is not None:
            return frames(chunk.first, self.lines(chunk))
        return chunk.frames()

    def lines(self, chunk: Chunk) -> list[bytes]:
        """Return a chunk's envelopes in the form that this client understands."""
        if chunk.request is None or self.pending is None:
            return chunk.lines
        known = self.pending.find_asked(chunk.request)
        # The text of the oldest requests is forgotten. Then the client gets the agent's original.
        asked = None if known is None else known.request
        line = chunk.lines[0] if asked is None else render(asked, self.request_format, chunk.request)
        return [with_id(line, self.pending.ids.make(chunk.request))]

    def render_request(self, pending: PendingRequest) -> bytes:
        """Return an agent's request in the form that this client understands, under the id that all clients know."""
        return with_id(render(pending.request, self.request_format, pending.key), pending.id)
