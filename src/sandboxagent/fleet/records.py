"""Turn chunks into messages of a fleet's stream, and back.

Pure: it uses no event loop, no clock and no files.

A position in the stream is `sequence · 4096 + place`. It rises over all sessions, and is the same at every gateway.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import MAX_BODY_BYTES, StreamRecord
from sandboxagent.fleet.messages import OutgoingMessage
from sandboxagent.server.log.event import Chunk, Direction, attachment_channel, connection_channel, session_channel

MAX_EVENTS = 4096
"""Maximum number of events in one message."""
NODE, EPOCH, LAST, META, PART = "Sa-Node", "Sa-Epoch", "Sa-Last", "Sa-Meta", "Sa-Part"
GRANT = "Sa-Grant"
"""Header of the record that grants a session to a node. The record's body is empty."""
AFTER = "Sa-After"
"""Header of the first record after all others of its session were dropped. It has the sequence of the last dropped
one."""
MAX_META_BYTES = 64 << 10
"""Maximum number of bytes that describe the events of one message. They include the session's id."""
MAX_PARTS = 4096
"""Maximum number of parts of one line. They have 2 GiB, more than any envelope may have."""


class Meta(Struct, omit_defaults=True, array_like=True):
    """The properties that all events of one message share."""

    direction: str
    session_id: str | None
    at: float
    public: bool
    """Whether every client that follows the subject sees the events. Otherwise they are only in the history."""
    exclude: str = ""
    is_request: bool = False
    history: bool = True
    """Whether the events are part of the session's history. False for events that repeat others to clients in another
    form."""


class NotAChunk(Exception):
    """The message is not valid: no node sends such a message."""


def position_of(sequence: int, place: int = 0) -> int:
    """Return the position of an event."""
    return sequence * MAX_EVENTS + place


def sequence_of(position: int) -> int:
    """Return the sequence of the message that has the event at a position."""
    return position // MAX_EVENTS


def end_of(sequence: int) -> int:
    """Return the last position that a message may have. All events up to a sequence are at or before it."""
    return position_of(sequence + 1) - 1


def subject_of(chunk: Chunk, node: str) -> str | None:
    """Return the subject on which a chunk is published.

    Return None for a delivery to the node's own clients, which nobody else needs.
    """
    if chunk.session_id is not None and (chunk.history or chunk.channel == session_channel(chunk.session_id)):
        return subjects.session_events(chunk.session_id)
    _, _, tag = chunk.channel.partition(":")
    if not subjects.is_tag(tag):
        return None
    if chunk.channel == connection_channel(tag):
        return subjects.connection_events(tag, node)
    return subjects.attachments(tag, node) if chunk.channel == attachment_channel(tag) else None


def _is_public(chunk: Chunk, subject: str) -> bool:
    """Return whether clients that follow the subject see the chunk."""
    return not subjects.is_session(subject) or chunk.channel == session_channel(chunk.session_id or "")


def outgoing(chunk: Chunk, subject: str) -> Iterator[OutgoingMessage]:
    """Split a chunk into messages that are not too large: by lines, and a line that is too long into parts."""
    meta = Meta(
        chunk.direction.value,
        chunk.session_id,
        chunk.at,
        _is_public(chunk, subject),
        chunk.exclude,
        chunk.request is not None,
        chunk.history,
    )
    # ASCII is the only encoding of headers that all servers and libraries agree on.
    text = json.dumps(msgspec.to_builtins(meta), separators=(",", ":"))
    lines: list[bytes] = []
    size = 0
    for place, line in enumerate(chunk.lines, chunk.first):
        if lines and (len(lines) == MAX_EVENTS or size + len(line) + 1 > MAX_BODY_BYTES):
            yield OutgoingMessage(subject, text, place - 1, "", b"\n".join(lines))
            lines, size = [], 0
        if len(line) > MAX_BODY_BYTES:
            pieces = range(0, len(line), MAX_BODY_BYTES)
            for number, start in enumerate(pieces, 1):
                last = place if number == len(pieces) else place - 1
                piece = line[start : start + MAX_BODY_BYTES]
                yield OutgoingMessage(subject, text, last, f"{number}/{len(pieces)}", piece)
            continue
        lines.append(line)
        size += len(line) + 1
    if lines:
        yield OutgoingMessage(subject, text, chunk.last, "", b"\n".join(lines))


def check_outgoing(message: OutgoingMessage) -> None:
    """Raise NotAChunk for a message that a reader of the stream could not parse."""
    if len(message.meta) > MAX_META_BYTES:
        raise NotAChunk(f"the session's id is too long: at most {MAX_META_BYTES} bytes describe a message")
    read_meta(message.meta)
    if len(message.body) > MAX_BODY_BYTES or not message.body:
        raise NotAChunk(f"a message has 1 to {MAX_BODY_BYTES} bytes")
    if b"\r" in message.body or (message.part and b"\n" in message.body):
        # A line break would end the line early in a client's SSE frame. The rest could pass for another event.
        raise NotAChunk("a line has a line break in it")
    if message.part:
        read_part(message.part)
    elif message.body.count(b"\n") >= MAX_EVENTS:
        raise NotAChunk(f"a message has at most {MAX_EVENTS} events")


def read_meta(text: str) -> Meta:
    """Parse the shared properties of a message's events. Raises NotAChunk."""
    try:
        meta = msgspec.json.decode(text, type=Meta)
        Direction(meta.direction)
    except (msgspec.DecodeError, ValueError) as error:
        raise NotAChunk(f"meta: {error}") from error
    return meta


def read_part(text: str) -> tuple[int, int]:
    """Parse the number of a line's part, and the number of all parts. Raises NotAChunk."""
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 0 < int(number) <= int(of) <= MAX_PARTS):
        raise NotAChunk(f"part {text!r}")
    return int(number), int(of)


@dataclass(frozen=True, slots=True)
class Ownership:
    """The node that wrote a record."""

    node: str
    epoch: int
    last: int


def ownership(headers: Mapping[str, str]) -> Ownership:
    """Return the node that wrote a record which a gateway appended."""
    return Ownership(headers.get(NODE, ""), int(headers.get(EPOCH, 0)), int(headers.get(LAST, 0)))


def comes_after(record: StreamRecord) -> int:
    """Return the sequence of the previous record on this record's subject, even if that record was dropped."""
    return record.predecessor or int(record.headers.get(AFTER, 0))


@dataclass(slots=True)
class ChunkAssembly:
    """Assembles the records of one subject, in order, into chunks. It joins the parts of long lines."""

    channel: str
    parts: list[bytes] | tuple[()] = ()
    """Parts of an incomplete line. The type without a list saves memory: a gateway has many assemblies, mostly without
    parts."""

    def take(self, record: StreamRecord) -> Chunk | None:
        """Return the chunk that this record completes. Return None for a grant, and while parts are missing."""
        if GRANT in record.headers or META not in record.headers:
            return None
        meta = read_meta(record.headers[META])
        lines = record.body.split(b"\n")
        if part := record.headers.get(PART):
            number, of = read_part(part)
            # Parts with this or a higher number are replaced, because their node has started again.
            self.parts = [*self.parts[: number - 1], record.body]
            if number < of or len(self.parts) < of:
                return None
            lines = [b"".join(self.parts)]
        self.parts = ()
        return Chunk(
            position_of(record.sequence),
            lines,
            Direction(meta.direction),
            meta.session_id,
            self.channel if meta.public else "",
            meta.at,
            meta.exclude,
            meta.history,
            request=position_of(record.sequence) if meta.is_request else None,
        )
