"""Keep one client's connection at a gateway: its events on the stream, and the nodes that know it.

Pure: it uses no event loop, no clock and no files.

The module also handles the records of nodes and gateways about the connection in the stream, in order.
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
from sandboxagent.fleet.messages import (
    Answered,
    Attaches,
    AttachmentChange,
    ConnectionRecord,
    Gone,
    SentTo,
    StreamOpened,
)
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

MAX_REMEMBERED_REQUESTS = 4096
"""Maximum number of requests of one client whose nodes are remembered."""
MAX_PENDING = 1024
"""Maximum number of pending requests of one node to one client. The same number of settled ones is remembered."""
MAX_ATTACHED = 4096
"""Maximum number of sessions of one node that a client can be attached to at the same time."""
Own = SentTo | StreamOpened | Answered | Attaches | Gone
"""Records of gateways about a connection in the stream."""
_ATTACHED = ("session", "sessionId")
_WITHDRAWS = methods.CANCEL_REQUEST.encode()
_NONE: Mapping[str, Never] = MappingProxyType({})
_NONE_BY_ID: Mapping[bytes, Never] = MappingProxyType({})
"""Empty tables, which all connections share that have no entries. `to_write` replaces them by a table of one
connection."""


class ResponsePromise(NamedTuple):
    """A promise of a response on the stream: by a run of a node, after a position."""

    node: str
    run: str
    after: int


class FleetConnection(Connection, eq=False):
    """A client's connection, as a gateway knows it."""

    initialize: bytes = b"{}"
    """The client's `initialize`."""
    home: str | None = None
    remotes: dict[str, str] = field(default_factory=dict[str, str])
    """Nodes that the connection was introduced to. The value is the nonce of the run that knows it, or empty if none
    does."""
    joining: frozenset[str] = frozenset()
    """Nodes that another gateway has introduced it to, and whose events so far are not known here yet."""
    gone: Mapping[str, list[tuple[int, int]]] = _NONE
    """Sessions that are not at their nodes any more. Each entry has the position when this was known, and the position
    at which gateways wrote it. There are several entries if ids were used again."""
    attached_again: Mapping[str, int] = _NONE
    """Sessions whose nodes have attached the connection once more, with the last position of that. They may be other
    sessions of the same ids, if gateways are about to write that the first ones are gone."""
    attached_by: dict[str, str] = field(default_factory=dict[str, str])
    """Sessions that it is attached to, with the nodes that attached it."""
    unattached: frozenset[str] = frozenset()
    """Nodes that know the connection, but not yet all sessions that it is attached to."""
    revision: int = 0
    """Revision of its record in the fleet's table."""
    kept_at: float = 0.0
    """Time when its record was last written, by the monotonic clock."""
    unanswered: Mapping[bytes, ResponsePromise] = _NONE_BY_ID
    """Requests whose responses come on the stream, by id. Some may have been answered before the connection came to
    this gateway."""
    announced: str = ""
    """Id under which its stream at this gateway was announced, until the announcement comes back on the stream."""
    attaching: dict[bytes, int] = field(default_factory=dict[bytes, int])
    """The newest requests to attach whose responses come on the stream, by id, with the position where they began."""
    asked: dict[bytes, tuple[str, ...]] = field(default_factory=dict[bytes, tuple[str, ...]])
    """The newest requests of the client, by id, with the nodes that got them, as far as gateways have written it."""

    requests: Mapping[str, dict[bytes, str | None]] = _NONE
    """Agents' requests that the client may still answer: sessions by request id, by node."""
    settled: Mapping[str, dict[bytes, None]] = _NONE
    """Ids of requests that the client can not answer any more, by node."""
    unread: frozenset[str] = frozenset()
    """Nodes whose agents' earlier requests are not known here yet."""

    def own_channels(self) -> list[str]:
        """Return the channels for this connection alone."""
        return [subjects.connection_events(self.tag, source) for source in (subjects.GATEWAY, *self.remotes)]

    def channels(self) -> list[str]:
        return [*self.own_channels(), *map(session_channel, self.windows)]

    def sees(self, chunk: Chunk) -> bool:
        if not chunk.channel:
            # The chunk is only in the session's history, not on streams.
            return False
        if chunk.request is not None or chunk.exclude == self.tag:
            # Each client gets a request separately, under an id that names its node.
            return False
        if chunk.session_id is None or chunk.channel != session_channel(chunk.session_id):
            return not self._is_forged(chunk)
        return any(window.covers(chunk.first) for window in self.windows.get(chunk.session_id, ()))

    def note_asked(self, id: bytes, node: str, promised_by: str | None = None, after: int = 0) -> None:
        """Note that a request goes to a node. If `promised_by` is a run of the node, the response comes on the stream.

        `after` is a position before the response.
        """
        name = same_id(id)
        before = self.asked.pop(name, ())
        self.asked[name] = before if node in before else (*before, node)
        drop_oldest(self.asked, MAX_REMEMBERED_REQUESTS)
        if promised_by is not None:
            self.forget_promises([name])
            self.note_promise(name, ResponsePromise(node, promised_by, after))

    def note_promise(self, id: bytes, promise: ResponsePromise) -> None:
        """Note that a response comes on the stream, unless this is known already."""
        self.unanswered = unanswered = to_write(self.unanswered)
        unanswered.setdefault(id, promise)
        drop_oldest(unanswered, MAX_REMEMBERED_REQUESTS)

    def forget_promises(self, ids: Iterable[bytes]) -> None:
        """Forget promises of responses that have come, or will never come."""
        if self.unanswered:
            unanswered = to_write(self.unanswered)
            for id in ids:
                unanswered.pop(id, None)

    def note_attaching(self, id: bytes, position: int) -> None:
        """Note a request to attach. Its response on the stream will have a position of the node."""
        self.attaching.pop(same_id(id), None)
        self.attaching[same_id(id)] = position
        drop_oldest(self.attaching, MAX_REMEMBERED_REQUESTS)

    def note_requests(self, asked: Mapping[bytes, str | None]) -> None:
        """Note requests that agents have sent to the client."""
        for id, session_id in asked.items():
            node = asker(id) or ""
            if id not in self.settled.get(node, ()):
                self.requests = requests = to_write(self.requests)
                pending = requests.setdefault(node, {})
                pending[id] = session_id
                drop_oldest(pending, MAX_PENDING)

    def note_settled(self, ids: Iterable[bytes]) -> None:
        """Note requests that the client has answered, or that were withdrawn."""
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
        """Return whether a node has attached the connection to the maximum number of sessions."""
        attached = self.attached_by
        return len(attached) >= MAX_ATTACHED and Counter(attached.values())[node] >= MAX_ATTACHED

    def note_attached(self, session_id: str, node: str, position: int) -> None:
        """Note that a node has attached the connection to a session, or says so once more."""
        if self.attached(session_id):
            self.attached_again = again = to_write(self.attached_again)
            again[session_id] = position
        else:
            self.attached_by[session_id] = node
            self.attach(session_id, position)

    def note_gone(self, session_id: str, known_at: int, position: int) -> None:
        """Note that a session has ended at its node, which may use the id again later."""
        self.gone = gone = to_write(self.gone)
        gone.setdefault(session_id, []).append((known_at, position))
        self.apply_gone(session_id, position)

    def apply_gone(self, session_id: str, through: int) -> None:
        """Detach the connection from a session that ended after it was attached.

        Only records up to the position `through` count.
        """
        for known_at, position in self.gone.get(session_id, ()):
            if position > through or not self.attached(session_id) or self.windows[session_id][-1].start > known_at:
                continue
            begun = to_write(self.attached_again).pop(session_id, 0)
            if begun > known_at:
                # The last attachment is to another session of this id, and stays.
                self.detach(session_id, begun)
                self.windows[session_id].append(Window(begun))
            else:
                self.end_attachment(session_id, position)

    def attached_since(self, session_id: str) -> int:
        """Return the last position at which a node attached the connection to a session; 0 if it is not attached."""
        if not self.attached(session_id):
            return 0
        return max(self.windows[session_id][-1].start, self.attached_again.get(session_id, 0))

    def end_attachment(self, session_id: str, position: int) -> None:
        """Detach the connection from a session, and let the node attach it to another one instead."""
        self.detach(session_id, position)
        to_write(self.attached_again).pop(session_id, None)
        self.attached_by.pop(session_id, None)

    def _is_forged(self, chunk: Chunk) -> bool:
        """Return whether a node answers a request that went to another node."""
        source = chunk.channel.rpartition(".")[2]
        if source == subjects.GATEWAY or len(self.remotes) < 2:
            return False
        return any(source not in self.asked.get(id, (source,)) for id in answered(chunk))

    def frames(self, chunk: Chunk) -> bytes:
        # A fast path for nearly all chunks, because this is called for each chunk and each reader.
        if not self.attaching or not subjects.is_own(chunk.channel):
            return chunk.frames()
        return frames(chunk.first, self.lines(chunk))

    def lines(self, chunk: Chunk) -> list[bytes]:
        if not self.attaching or not subjects.is_own(chunk.channel):
            return chunk.lines
        return [self._translate(line, position) for position, line in enumerate(chunk.lines, chunk.first)]

    def _translate(self, line: bytes, position: int) -> bytes:
        """Replace the position in a response to `attach` by a position of the client's stream.

        Other lines stay unchanged. Every gateway finds the same position, whenever it reads the line, because the node
        wrote the attachment before.
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
        """Return whether its stream at this gateway, if any, has passed a position."""
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
        """Return the connection's id at a node.

        It is a credential there, and opens nothing at another node or at a gateway.
        """
        digest = hashlib.sha256(f"guest\0{node}\0{self.connection_id}".encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def is_called(self, connection_id: str) -> bool:
        """Return whether this is the connection's id. The comparison takes the same time for every wrong id."""
        return hmac.compare_digest(self.connection_id.encode(), connection_id.encode())

    def record(self) -> bytes:
        """Return the connection's record for the fleet's table. It does not have the id, which would give access."""
        initialize, nodes = Raw(self.initialize), list(self.remotes)
        digest = _digest(self.connection_id)
        return msgspec.json.encode(ConnectionRecord(digest, self.opened_at, self.agent, initialize, self.home, nodes))


def answered(chunk: Chunk) -> Iterator[bytes]:
    """Yield the ids of requests that a chunk has responses to."""
    for envelope in _envelopes(chunk):
        if envelope.kind is Kind.RESPONSE and envelope.id is not None:
            yield same_id(envelope.id)


def requested(chunk: Chunk) -> dict[bytes, str | None]:
    """Return the ids of requests in a chunk, with their sessions."""
    envelopes = (one for one in _envelopes(chunk) if one.kind is Kind.REQUEST)
    return {same_id(one.id): one.session_id for one in envelopes if one.id is not None}


def withdrawn(chunk: Chunk) -> Iterator[bytes]:
    """Yield the ids of requests that a chunk withdraws."""
    for line in chunk.lines:
        if _WITHDRAWS in line:
            with suppress(NotAnEnvelope):
                envelope = parse(line)
                id = param(line, "requestId") if envelope.method == methods.CANCEL_REQUEST else None
                if id is not None:
                    yield same_id(id)


def to_write(table: Mapping[K, T]) -> dict[K, T]:
    """Return a connection's own table, which may be changed; a new one in place of the shared empty table."""
    return table if isinstance(table, dict) else {}


def drop_oldest(table: dict[bytes, T], most: int) -> None:
    """Delete the oldest entries, so that at most `most` are left."""
    while len(table) > most:
        del table[next(iter(table))]


def _envelopes(chunk: Chunk) -> Iterator[Envelope]:
    for line in chunk.lines:
        with suppress(NotAnEnvelope):
            yield parse(line)


def restore(connection_id: str, record: bytes, revision: int, now: float) -> FleetConnection | None:
    """Restore a connection of another gateway from its record. Return None if the record belongs to another id."""
    visit = msgspec.json.decode(record, type=ConnectionRecord)
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


class FeedHandler(Protocol):
    """Handles attachments and opened streams."""

    def take_attachment(
        self, connection: FleetConnection, node: str, said: AttachmentChange, position: int
    ) -> None: ...
    def take_stream(self, connection: FleetConnection, said: StreamOpened) -> None: ...


class AttachmentLog:
    """The records of one source about a connection, in order.

    The source is a node, which writes attachments, or all gateways, which write about the stream and requests.
    """

    __slots__ = ("_connection", "_early", "_source", "_taker", "attachments", "own")

    def __init__(self, taker: FeedHandler, connection: FleetConnection, source: str) -> None:
        self.own = subjects.connection_events(connection.tag, source)
        """The channel of the source's events for the client."""
        self.attachments = subjects.attachments(connection.tag, source)
        """The channel of the source's records about the client."""
        self._taker = taker
        self._connection = connection
        self._source = source
        self._early: list[Chunk] | None = []
        """Chunks that came before all earlier records were known."""

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
                    # After an old deletion, there may be another session of this id.
                    said.deleted = said.deleted and not old
                    self._taker.take_attachment(self._connection, self._source, said, position)
            except (msgspec.DecodeError, UnicodeDecodeError, NotAnEnvelope) as error:
                logger.warning("attachment not read source=%s reason=%s", self._source, error)

    def _take_own(self, said: Own, position: int, *, old: bool) -> None:
        """Handle a gateway's record."""
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
