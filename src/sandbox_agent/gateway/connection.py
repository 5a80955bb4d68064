"""A client's connection at a gateway: what it reads of the fleet's stream, and the nodes that know it. Pure."""

import base64
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from sandbox_agent.bus import subjects
from sandbox_agent.envelope import Kind, parse, same_id
from sandbox_agent.errors import NotAnEnvelope
from sandbox_agent.hub.connection import Connection
from sandbox_agent.log.event import Chunk, session_channel

REMEMBERED_REQUESTS = 4096
"""Of one client: where they went."""


class Promise(NamedTuple):
    """A response that comes on the stream: of which node, of which of its runs, and after which position."""

    node: str
    run: str
    after: int


@dataclass(eq=False)
class FleetConnection(Connection):
    """One client, as a gateway knows it."""

    initialize: bytes = b"{}"
    """What its client said of itself."""
    home: str | None = None
    guests: dict[str, str] = field(default_factory=dict[str, str])
    """Nodes to which it was introduced → the nonce of the node that is known to know it; empty for none."""
    joining: set[str] = field(default_factory=set[str])
    """Nodes to which another gateway has introduced it, while it is not known here what they have said so far."""
    opened: dict[str, str] = field(default_factory=dict[str, str])
    """Sessions that were made for its client, by id, while the response is on its way → their nodes."""
    revision: int = 0
    """Of its record in the fleet's table."""
    kept_at: float = 0.0
    """When that was written last, by the monotonic clock."""
    unanswered: OrderedDict[bytes, Promise] = field(default_factory=OrderedDict[bytes, Promise])
    """Requests whose responses come on the stream, by id; here may be some that were answered before it came here."""
    asked: OrderedDict[bytes, set[str]] = field(default_factory=OrderedDict[bytes, set[str]])
    """The newest requests of its client, by id → the nodes that they went to; as far as gateways have said so."""

    def own_channels(self) -> list[str]:
        """What is for this connection alone."""
        return [subjects.connection_events(self.tag, source) for source in (subjects.GATEWAY, *self.guests)]

    def channels(self) -> list[str]:
        return [*self.own_channels(), *map(session_channel, self.windows)]

    def sees(self, chunk: Chunk) -> bool:
        if not chunk.channel:
            # It is in the session's history alone, and no stream brings it.
            return False
        if chunk.request is not None or chunk.exclude == self.tag:
            # A request comes to each client by itself, under an id that leads to its node.
            return False
        if chunk.session_id is None or chunk.channel != session_channel(chunk.session_id):
            return not self._is_forged(chunk)
        return any(window.covers(chunk.first) for window in self.windows.get(chunk.session_id, ()))

    def note_asked(self, id: bytes, node: str, promised_by: str | None = None, after: int = 0) -> None:
        """A request goes to a node; its response is promised on the stream when a run of the node is named.

        `after` is a position before the response.
        """
        name = same_id(id)
        self.asked.setdefault(name, set()).add(node)
        self.asked.move_to_end(name)
        if promised_by is not None:
            self.unanswered[name] = Promise(node, promised_by, after)
            self.unanswered.move_to_end(name)
        for table in (self.asked, self.unanswered):
            while len(table) > REMEMBERED_REQUESTS:
                table.popitem(last=False)

    def _is_forged(self, chunk: Chunk) -> bool:
        """Whether a node answers what another one was asked."""
        source = chunk.channel.rpartition(".")[2]
        if source == subjects.GATEWAY or len(self.guests) < 2:
            return False
        return any(source not in self.asked.get(id, (source,)) for id in answered(chunk))

    def has_read(self, position: int) -> bool:
        """Whether its stream here, if there is one, has come past a position."""
        return self.stream is None or self.stream.has_handed(position)

    def appended(self, chunk: Chunk) -> None:
        if not self.sees(chunk):
            return
        self.last_event = max(self.last_event, chunk.last)
        if self.unanswered and chunk.channel != session_channel(chunk.session_id or ""):
            self._note_responses(chunk)
        if self.stream is not None:
            self.stream.push(chunk)

    def _note_responses(self, chunk: Chunk) -> None:
        for id in answered(chunk):
            self.unanswered.pop(id, None)

    def lost(self, trims: dict[str, int], after: int, only: str | None = None) -> int:
        ends = [trims.get(channel, 0) for channel in self.own_channels()] if only is None else []
        for session_id, windows in self.windows.items():
            if only is not None and session_id != only:
                continue
            through = trims.get(session_channel(session_id), 0)
            ends += [window.cut(through) for window in windows]
        last = max(ends, default=0)
        return last if last > after else 0

    def guest_id(self, node: str) -> str:
        """Its id at one node. A credential there, and of no use at another node or at a gateway."""
        digest = hashlib.sha256(f"guest\0{node}\0{self.connection_id}".encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def is_called(self, connection_id: str) -> bool:
        """Whether this is its id; takes the same time for every wrong one."""
        return hmac.compare_digest(self.connection_id.encode(), connection_id.encode())

    @property
    def digest(self) -> str:
        return digest_of_id(self.connection_id)


def answered(chunk: Chunk) -> Iterator[bytes]:
    """The ids of requests to which a chunk has responses."""
    for line in chunk.lines:
        with suppress(NotAnEnvelope):
            envelope = parse(line)
            if envelope.kind is Kind.RESPONSE and envelope.id is not None:
                yield same_id(envelope.id)


def digest_of_id(connection_id: str) -> str:
    """What the fleet's table knows of an id."""
    return hashlib.sha256(connection_id.encode()).hexdigest()
