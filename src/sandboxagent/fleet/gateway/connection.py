"""Keep one client's connection at a gateway: what it reads of the stream, and the nodes that know it.

Pure.

What nodes and gateways say about it in the stream, in order, is taken in here, too.
"""

import base64
import hashlib
import hmac
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple, Never, Protocol, TypeVar

import msgspec
from msgspec import Raw, field

from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.messages import Answered, Attaches, AttachmentChange, Gone, SentTo, StreamOpened, Visit
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import Envelope, Kind, param, parse, parse_answer, same_id, text_at, with_result
from sandboxagent.protocol.errors import NotAnEnvelope
from sandboxagent.protocol.request_ids import asker
from sandboxagent.server.http.acp import MAX_SESSION_ID
from sandboxagent.server.log.event import Chunk, frames, session_channel
from sandboxagent.server.sessions.connection import Connection, Window

K = TypeVar("K")
T = TypeVar("T")

logger = logging.getLogger(__name__)

REMEMBERED_REQUESTS = 4096
"""Of one client: where they went."""
MAX_PENDING = 1024
"""Of what agents of one node ask one client; as many are remembered that were settled."""
MAX_ATTACHED = 4096
"""Sessions of one node to which a client can be attached at once."""
Own = SentTo | StreamOpened | Answered | Attaches | Gone
"""What gateways say about a connection in the stream."""
_ATTACHED = ("session", "sessionId")
_WITHDRAWS = methods.CANCEL_REQUEST.encode()
_NONE: Mapping[str, Never] = MappingProxyType({})
_NONE_BY_ID: Mapping[bytes, Never] = MappingProxyType({})
"""What most connections have of most things; all share it. See `to_write`."""


class Promise(NamedTuple):
    """A response that comes on the stream: of which node, of which of its runs, and after which position."""

    node: str
    run: str
    after: int


class FleetConnection(Connection, eq=False):
    """One client, as a gateway knows it."""

    initialize: bytes = b"{}"
    """What its client said of itself."""
    home: str | None = None
    remotes: dict[str, str] = field(default_factory=dict[str, str])
    """Nodes to which it was introduced → the nonce of the node that is known to know it; empty for none."""
    joining: frozenset[str] = frozenset()
    """Nodes to which another gateway has introduced it, while it is not known here what they have said so far."""
    gone: Mapping[str, list[tuple[int, int]]] = _NONE
    """Sessions that their node had no longer → when that was known, and the position at which gateways said so; more
    than once, when ids are used again."""
    attached_again: Mapping[str, int] = _NONE
    """Sessions to which it is attached, and their nodes have said so once more → where, last. They may be others of the
    same ids, when gateways are about to say that the first ones were gone."""
    attached_by: dict[str, str] = field(default_factory=dict[str, str])
    """Sessions to which it is attached → the nodes that have said so."""
    unattached: frozenset[str] = frozenset()
    """Nodes that have learnt of it, and not yet of all sessions that it is attached to."""
    revision: int = 0
    """Of its record in the fleet's table."""
    kept_at: float = 0.0
    """When that was written last, by the monotonic clock."""
    unanswered: Mapping[bytes, Promise] = _NONE_BY_ID
    """Requests whose responses come on the stream, by id; here may be some that were answered before it came here."""
    announced: str = ""
    """Its stream here was announced under this id, and that has not come by yet."""
    attaching: dict[bytes, int] = field(default_factory=dict[bytes, int])
    """The newest requests to be attached to a session whose responses come on the stream, by id → where they began."""
    asked: dict[bytes, tuple[str, ...]] = field(default_factory=dict[bytes, tuple[str, ...]])
    """The newest requests of its client, by id → the nodes that they went to; as far as gateways have said so."""

    requests: Mapping[str, dict[bytes, str | None]] = _NONE
    """What agents have asked its client, and it may still answer: by node, and by id → the session."""
    settled: Mapping[str, dict[bytes, None]] = _NONE
    """Ids of those that it can no longer answer, by node."""
    unread: frozenset[str] = frozenset()
    """Nodes of which it is not known here what their agents have asked so far."""

    def own_channels(self) -> list[str]:
        """What is for this connection alone."""
        return [subjects.connection_events(self.tag, source) for source in (subjects.GATEWAY, *self.remotes)]

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
        before = self.asked.pop(name, ())
        self.asked[name] = before if node in before else (*before, node)
        drop_oldest(self.asked, REMEMBERED_REQUESTS)
        if promised_by is not None:
            self.forget_promises([name])
            self.note_promise(name, Promise(node, promised_by, after))

    def note_promise(self, id: bytes, promise: Promise) -> None:
        """A response comes on the stream, if that is not known already."""
        self.unanswered = unanswered = to_write(self.unanswered)
        unanswered.setdefault(id, promise)
        drop_oldest(unanswered, REMEMBERED_REQUESTS)

    def forget_promises(self, ids: Iterable[bytes]) -> None:
        """They were answered, or never will be."""
        if self.unanswered:
            unanswered = to_write(self.unanswered)
            for id in ids:
                unanswered.pop(id, None)

    def note_attaching(self, id: bytes, position: int) -> None:
        """A request to be attached begins; the response that comes on the stream names a position of its node's."""
        self.attaching.pop(same_id(id), None)
        self.attaching[same_id(id)] = position
        drop_oldest(self.attaching, REMEMBERED_REQUESTS)

    def note_requests(self, asked: Mapping[bytes, str | None]) -> None:
        """Agents have asked its client."""
        for id, session_id in asked.items():
            node = asker(id) or ""
            if id not in self.settled.get(node, ()):
                self.requests = requests = to_write(self.requests)
                pending = requests.setdefault(node, {})
                pending[id] = session_id
                drop_oldest(pending, MAX_PENDING)

    def note_settled(self, ids: Iterable[bytes]) -> None:
        """Its client has answered these requests, or they were withdrawn."""
        for id in map(same_id, ids):
            node = asker(id) or ""
            self.settled = by_node = to_write(self.settled)
            settled = by_node.setdefault(node, {})
            settled[id] = None
            drop_oldest(settled, MAX_PENDING)
            self.requests.get(node, {}).pop(id, None)

    def session_of_request(self, id: bytes) -> str | None:
        name = same_id(id)
        return self.requests.get(asker(name) or "", {}).get(name)

    def is_full(self, node: str) -> bool:
        """Whether a node has attached it to as many sessions as it may."""
        attached = self.attached_by
        return len(attached) >= MAX_ATTACHED and Counter(attached.values())[node] >= MAX_ATTACHED

    def note_attached(self, session_id: str, node: str, position: int) -> None:
        """A node has attached it to a session, or says so once more."""
        if self.attached(session_id):
            self.attached_again = again = to_write(self.attached_again)
            again[session_id] = position
        else:
            self.attached_by[session_id] = node
            self.attach(session_id, position)

    def note_gone(self, session_id: str, known_at: int, position: int) -> None:
        """A session has ended at its node, which may use the id again later."""
        self.gone = gone = to_write(self.gone)
        gone.setdefault(session_id, []).append((known_at, position))
        self.apply_gone(session_id, position)

    def apply_gone(self, session_id: str, through: int) -> None:
        """Detach it from a session that was gone, as gateways have said up to a position, since it was attached."""
        for known_at, position in self.gone.get(session_id, ()):
            if position > through or not self.attached(session_id) or self.windows[session_id][-1].start > known_at:
                continue
            begun = to_write(self.attached_again).pop(session_id, 0)
            if begun > known_at:
                # To another one of this id: that stays.
                self.detach(session_id, begun)
                self.windows[session_id].append(Window(begun))
            else:
                self.end_attachment(session_id, position)

    def attached_since(self, session_id: str) -> int:
        """Where its node said last that it is attached to a session; 0 when it is not."""
        if not self.attached(session_id):
            return 0
        return max(self.windows[session_id][-1].start, self.attached_again.get(session_id, 0))

    def end_attachment(self, session_id: str, position: int) -> None:
        """Detach it, and let its node attach it to another session instead."""
        self.detach(session_id, position)
        to_write(self.attached_again).pop(session_id, None)
        self.attached_by.pop(session_id, None)

    def _is_forged(self, chunk: Chunk) -> bool:
        """Whether a node answers what another one was asked."""
        source = chunk.channel.rpartition(".")[2]
        if source == subjects.GATEWAY or len(self.remotes) < 2:
            return False
        return any(source not in self.asked.get(id, (source,)) for id in answered(chunk))

    def frames(self, chunk: Chunk) -> bytes:
        # Nearly all are of sessions: this is called for each of them, and for each reader.
        if not self.attaching or not subjects.is_own(chunk.channel):
            return chunk.frames()
        return frames(chunk.first, self.lines(chunk))

    def lines(self, chunk: Chunk) -> list[bytes]:
        if not self.attaching or not subjects.is_own(chunk.channel):
            return chunk.lines
        return [self._translate(line, position) for position, line in enumerate(chunk.lines, chunk.first)]

    def _translate(self, line: bytes, position: int) -> bytes:
        """A response to `attach` names where its client's stream begins, or is by now; all others stay as they are.

        Every gateway finds the same, whenever this is read: its node has said before where that is.
        """
        with suppress(NotAnEnvelope):
            response = parse_answer(line)
            if response.kind is Kind.RESPONSE and response.id is not None and response.succeeded:
                asked_at, session_id = self.attaching.get(same_id(response.id)), text_at(response.result(), *_ATTACHED)
                if asked_at is not None and session_id is not None:
                    starts = [window.start for window in self.windows.get(session_id, ())]
                    begun = [start for start in starts if asked_at < start < position]
                    return with_result(line, "position", begun[0] if begun else position)
        return line

    def has_read(self, position: int) -> bool:
        """Whether its stream here, if there is one, has come past a position."""
        return self.stream is None or self.stream.has_sent(position)

    def appended(self, chunk: Chunk) -> None:
        if not self.sees(chunk):
            return
        self.last_event = max(self.last_event, chunk.last)
        if chunk.channel != session_channel(chunk.session_id or ""):
            self._note_own(chunk)
        self.push(chunk)

    def _note_own(self, chunk: Chunk) -> None:
        if self.unanswered:
            self.forget_promises(answered(chunk))
        self.note_requests(requested(chunk))
        self.note_settled(withdrawn(chunk))

    def lost(self, trims: dict[str, int], after: int, only: str | None = None) -> int:
        ends = [trims.get(channel, 0) for channel in self.own_channels()] if only is None else []
        for session_id, windows in self.windows.items():
            if only is not None and session_id != only:
                continue
            through = trims.get(session_channel(session_id), 0)
            ends += [window.cut(through) for window in windows]
        last = max(ends, default=0)
        return last if last > after else 0

    def remote_id(self, node: str) -> str:
        """Its id at one node. A credential there, and of no use at another node or at a gateway."""
        digest = hashlib.sha256(f"guest\0{node}\0{self.connection_id}".encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def is_called(self, connection_id: str) -> bool:
        """Whether this is its id; takes the same time for every wrong one."""
        return hmac.compare_digest(self.connection_id.encode(), connection_id.encode())

    def record(self) -> bytes:
        """What the fleet's table knows of it, for every gateway: not its id, with which one could use it."""
        initialize, nodes = Raw(self.initialize), list(self.remotes)
        digest = _digest(self.connection_id)
        return msgspec.json.encode(Visit(digest, self.opened_at, self.agent, initialize, self.home, nodes))


def answered(chunk: Chunk) -> Iterator[bytes]:
    """The ids of requests to which a chunk has responses."""
    for envelope in _envelopes(chunk):
        if envelope.kind is Kind.RESPONSE and envelope.id is not None:
            yield same_id(envelope.id)


def requested(chunk: Chunk) -> dict[bytes, str | None]:
    """The ids of requests in a chunk → the sessions that they are about."""
    envelopes = (one for one in _envelopes(chunk) if one.kind is Kind.REQUEST)
    return {same_id(one.id): one.session_id for one in envelopes if one.id is not None}


def withdrawn(chunk: Chunk) -> Iterator[bytes]:
    """The ids of requests that a chunk withdraws."""
    for line in chunk.lines:
        if _WITHDRAWS in line:
            with suppress(NotAnEnvelope):
                envelope = parse(line)
                id = param(line, "requestId") if envelope.method == methods.CANCEL_REQUEST else None
                if id is not None:
                    yield same_id(id)


def to_write(table: Mapping[K, T]) -> dict[K, T]:
    """The table of one connection, which may be written; a new one in the place of what all share."""
    return table if isinstance(table, dict) else {}


def drop_oldest(table: dict[bytes, T], most: int) -> None:
    """Keep the newest entries."""
    while len(table) > most:
        del table[next(iter(table))]


def _envelopes(chunk: Chunk) -> Iterator[Envelope]:
    for line in chunk.lines:
        with suppress(NotAnEnvelope):
            yield parse(line)


def restore(connection_id: str, record: bytes, revision: int, now: float) -> FleetConnection | None:
    """A connection of another gateway, from its record; None when that is of another id."""
    visit = msgspec.json.decode(record, type=Visit)
    if not hmac.compare_digest(visit.digest, _digest(connection_id)):
        return None
    connection = FleetConnection(
        connection_id=connection_id,
        tag=connection_id.partition(".")[0],
        agent=visit.agent,
        used_at=now,
        opened_at=visit.opened_at,
        initialize=bytes(visit.initialize),
        home=visit.home,
        remotes=dict.fromkeys(visit.nodes, ""),
        unread=frozenset(visit.nodes),
        revision=revision,
    )
    connection.introduce(parse(connection.initialize).params())
    return connection


def _digest(connection_id: str) -> str:
    return hashlib.sha256(connection_id.encode()).hexdigest()


class Taker(Protocol):
    """What follows from it."""

    def take_attachment(
        self, connection: FleetConnection, node: str, said: AttachmentChange, position: int
    ) -> None: ...
    def take_stream(self, connection: FleetConnection, said: StreamOpened) -> None: ...


class AttachmentLog:
    """What one node says about attachments of a connection, or gateways about its stream and its requests; in order."""

    __slots__ = ("_connection", "_early", "_source", "_taker", "attachments", "own")

    def __init__(self, taker: Taker, connection: FleetConnection, source: str) -> None:
        self.own = subjects.connection_events(connection.tag, source)
        """The channel of what its source says to the client."""
        self.attachments = subjects.attachments(connection.tag, source)
        """That of what it says about the client."""
        self._taker = taker
        self._connection = connection
        self._source = source
        self._early: list[Chunk] | None = []
        """What came before it was known what was said before."""

    def appended(self, chunk: Chunk) -> None:
        if self._early is not None:
            self._early.append(chunk)
        else:
            self.take(chunk)

    def begin(self) -> None:
        early, self._early = self._early or [], None
        for chunk in early:
            self.take(chunk)

    def take(self, chunk: Chunk, *, old: bool = False) -> None:
        for position, line in enumerate(chunk.lines, chunk.first):
            try:
                if self._source == subjects.GATEWAY:
                    self._take_own(msgspec.json.decode(line, type=Own), position, old=old)
                else:
                    said = msgspec.json.decode(line, type=AttachmentChange)
                    if len(said.session_id) > MAX_SESSION_ID:
                        raise msgspec.ValidationError("no session has an id of this length")
                    # What was deleted before may be another session of this id by now.
                    said.deleted = said.deleted and not old
                    self._taker.take_attachment(self._connection, self._source, said, position)
            except (msgspec.DecodeError, UnicodeDecodeError, NotAnEnvelope) as error:
                logger.warning("attachment not read source=%s reason=%s", self._source, error)

    def _take_own(self, said: Own, position: int, *, old: bool) -> None:
        """What a gateway has said."""
        if isinstance(said, SentTo):
            self._connection.note_asked(said.id.encode(), said.node, said.promised_by, said.after)
        elif isinstance(said, Answered):
            self._connection.note_settled([said.id.encode()])
        elif isinstance(said, Attaches):
            self._connection.note_attaching(said.id.encode(), position)
        elif isinstance(said, Gone):
            self._connection.note_gone(said.session_id, said.known_at or position, position)
        elif not old:
            self._taker.take_stream(self._connection, said)
