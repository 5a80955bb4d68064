"""A connection: one client's logical channel, and what that client gets to see of an event.

Pure: no I/O, no clock, no event loop.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, field

from sandbox_agent.envelope import META, Envelope, Object, object_at, same_id, text_at, with_id
from sandbox_agent.errors import AlreadyAnswered, NobodyAsked
from sandbox_agent.hub.pending import Outcome, PendingRequest, Speech, leaves_open, render, takes_back
from sandbox_agent.log.event import Chunk, agent_channel, connection_channel, frames, session_channel

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
