"""A connection: one client's logical channel, and what that client gets to see of an event.

Pure: no I/O, no clock, no event loop.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sandbox_agent.envelope import META, Object, object_at, same_id, text_at, with_id
from sandbox_agent.errors import AlreadyAnswered, NobodyAsked
from sandbox_agent.hub.asking import Speech, rendered
from sandbox_agent.hub.pending import Outcome, PendingRequest
from sandbox_agent.log.event import Chunk, agent_channel, connection_channel, frames, session_channel

MAX_NAME = 200
"""Longest name that a client or a user may have."""
REMEMBERED_REQUESTS = 10_000
"""How many settled requests a connection remembers, to answer a late answer with what became of it."""


class Downlink(Protocol):
    """The live stream of a connection."""

    def push(self, chunk: Chunk) -> None: ...
    def close(self, reason: str) -> None: ...
    def is_at(self, position: int) -> bool: ...
    async def caught_up(self, position: int) -> None: ...
    def hold_back(self, resume: Callable[[], None]) -> bool: ...


@dataclass(slots=True)
class Window:
    """A connection follows a session after `start`, up to `end`."""

    start: int
    end: int | None = None

    def covers(self, position: int) -> bool:
        return position > self.start and (self.end is None or position <= self.end)


@dataclass(slots=True, eq=False)
class Connection:
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
    """In which forms it can be asked."""
    who: Object = field(default_factory=dict[str, object])
    """How its client names itself, and the user it speaks for."""
    agents: dict[str, int] = field(default_factory=dict[str, int])
    """Agents it has spoken to, and since which position: it hears what they say outside any session."""
    windows: dict[str, list[Window]] = field(default_factory=dict[str, list[Window]])
    """Session id → when it was attached."""
    stream: Downlink | None = None
    last_event: int = 0
    """Position of the last event meant for it."""
    closed: bool = False
    busy: int = 0
    """POSTs of its that wait for an answer."""
    _forgetful: bool = False
    """Requests have been forgotten, so it is not known any more which ids were never used."""
    _ids: dict[int, bytes] = field(default_factory=dict[int, bytes])
    _requests: OrderedDict[bytes, PendingRequest] = field(default_factory=OrderedDict[bytes, PendingRequest])

    def introduce(self, params: Object) -> None:
        """Take in what `initialize` says of the client."""
        meta = object_at(params, "_meta")
        self.capabilities = object_at(params, "clientCapabilities")
        self.speech = Speech.of(self.capabilities, meta)
        names = {"client": text_at(params, "clientInfo", "name"), "user": text_at(meta, META, "user")}
        self.who = {kind: name[:MAX_NAME] for kind, name in names.items() if name}

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

    def lost(self, trims: dict[str, int], after: int) -> int:
        """The last position after `after` that it should have seen and that is no longer kept; 0 when there is none."""
        ends = [trims.get(self.channel, 0)]
        for agent, met in self.agents.items():
            through = trims.get(agent_channel(agent), 0)
            ends.append(through if through > met else 0)
        for session_id, windows in self.windows.items():
            through = trims.get(session_channel(session_id), 0)
            ends += [
                through if window.end is None else min(through, window.end)
                for window in windows
                if window.start < through
            ]
        last = max(ends)
        return last if last > after else 0

    def open_request(self, pending: PendingRequest) -> bytes:
        """The id under which this client knows an agent's request: the agent's own while it was never used here.

        Never used, not just free now: a late answer to an old request must not settle a new one.
        """
        id = self._ids.get(pending.key)
        if id is None:
            taken = self._forgetful or same_id(pending.agent_id) in self._requests
            id = self._own_id(pending.key) if taken else pending.agent_id
            self._ids[pending.key] = id
            self._requests[same_id(id)] = pending
            self._forget_old_requests()
        return id

    def _own_id(self, key: int) -> bytes:
        id = b'"request-%d"' % key
        while id in self._requests:
            # An agent has thought of the same string.
            id = id[:-1] + b'+"'
        return id

    def knows(self, pending: PendingRequest) -> bool:
        return pending.key in self._ids

    def request(self, id: bytes) -> PendingRequest:
        """The open request a client answers; raises NobodyAsked or AlreadyAnswered."""
        pending = self._requests.get(same_id(id))
        if pending is None:
            raise NobodyAsked(id.decode())
        if not pending.open or pending.answering:
            outcome = pending.outcome if not pending.open else Outcome.ANSWERED
            raise AlreadyAnswered(id.decode(), outcome)
        return pending

    def frames(self, chunk: Chunk) -> bytes:
        """A chunk as this client should read it."""
        if chunk.request is None:
            return chunk.frames()
        id = self._ids.get(chunk.request)
        # Not known any more: the oldest requests are forgotten, and with them what their ids were.
        return chunk.frames() if id is None else frames(chunk.first, [self.shown(self._requests[same_id(id)])])

    def shown(self, pending: PendingRequest) -> bytes:
        """An agent's request in the form this client understands, under the id that it may answer."""
        return with_id(rendered(pending.request, self.speech, pending.key), self.open_request(pending))

    def _forget_old_requests(self) -> None:
        excess = len(self._requests) - REMEMBERED_REQUESTS
        settled = [id for id, pending in self._requests.items() if not pending.open] if excess > 0 else []
        for id in settled[:excess]:
            self._forgetful = True
            del self._ids[self._requests.pop(id).key]
