"""Turn chunks into messages of a fleet's stream, and back.

Pure.

A position there is `sequence · 4096 + place`: one number that rises over all sessions, the same at every gateway.
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

PLACES = 4096
"""Events in one message."""
NODE, EPOCH, LAST, META, PART = "Sa-Node", "Sa-Epoch", "Sa-Last", "Sa-Meta", "Sa-Part"
GRANT = "Sa-Grant"
"""Marks the record that gives a session to a node; its body is empty."""
AFTER = "Sa-After"
"""Of the first record after all others of its session were dropped: the sequence up to which these had come."""
MAX_META = 64 << 10
"""Bytes of what the events of one message have in common; it holds the session's id."""
MAX_PARTS = 4096
"""Of one line: 2 GiB, more than any envelope may have."""


class Meta(Struct, omit_defaults=True, array_like=True):
    """What the events of one message have in common."""

    direction: str
    session_id: str | None
    at: float
    public: bool
    """Every client that follows the subject sees it; else it is in the history alone."""
    exclude: str = ""
    is_request: bool = False
    history: bool = True
    """Part of the session's history; False for what only repeats it to clients in another form."""


class NotAChunk(Exception):
    """The message is none that a node sends."""


def position_of(sequence: int, place: int = 0) -> int:
    """The position of an event."""
    return sequence * PLACES + place


def sequence_of(position: int) -> int:
    """The message that has the event at a position."""
    return position // PLACES


def end_of(sequence: int) -> int:
    """The last position that a message may have: everything up to a sequence is at or before it."""
    return position_of(sequence + 1) - 1


def subject_of(chunk: Chunk, node: str) -> str | None:
    """Where a chunk is published; None for what is of no use outside its node: deliveries to its own clients."""
    if chunk.session_id is not None and (chunk.history or chunk.channel == session_channel(chunk.session_id)):
        return subjects.session_events(chunk.session_id)
    _, _, tag = chunk.channel.partition(":")
    if not subjects.is_tag(tag):
        return None
    if chunk.channel == connection_channel(tag):
        return subjects.connection_events(tag, node)
    return subjects.attachments(tag, node) if chunk.channel == attachment_channel(tag) else None


def _is_public(chunk: Chunk, subject: str) -> bool:
    """Whether clients that follow the subject see it."""
    return not subjects.is_session(subject) or chunk.channel == session_channel(chunk.session_id or "")


def outgoing(chunk: Chunk, subject: str) -> Iterator[OutgoingMessage]:
    """A chunk as messages, none of them too large: by lines, and a line that is too long by itself in parts."""
    meta = Meta(
        chunk.direction.value,
        chunk.session_id,
        chunk.at,
        _is_public(chunk, subject),
        chunk.exclude,
        chunk.request is not None,
        chunk.history,
    )
    # Headers are ASCII, so that no server and no library has to agree on more.
    text = json.dumps(msgspec.to_builtins(meta), separators=(",", ":"))
    lines: list[bytes] = []
    size = 0
    for place, line in enumerate(chunk.lines, chunk.first):
        if lines and (len(lines) == PLACES or size + len(line) + 1 > MAX_BODY_BYTES):
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
    """Raises NotAChunk, so that nothing gets into the stream that a reader could not read."""
    if len(message.meta) > MAX_META:
        raise NotAChunk(f"the session's id is too long: at most {MAX_META} bytes describe a message")
    read_meta(message.meta)
    if len(message.body) > MAX_BODY_BYTES or not message.body:
        raise NotAChunk(f"a message has 1 to {MAX_BODY_BYTES} bytes")
    if b"\r" in message.body or (message.part and b"\n" in message.body):
        # It would end the line early in a client's SSE frame, and what follows could pass for another event.
        raise NotAChunk("a line has a line break in it")
    if message.part:
        read_part(message.part)
    elif message.body.count(b"\n") >= PLACES:
        raise NotAChunk(f"a message has at most {PLACES} events")


def read_meta(text: str) -> Meta:
    """Raises NotAChunk."""
    try:
        meta = msgspec.json.decode(text, type=Meta)
        Direction(meta.direction)
    except (msgspec.DecodeError, ValueError) as error:
        raise NotAChunk(f"meta: {error}") from error
    return meta


def read_part(text: str) -> tuple[int, int]:
    """Which part of a line it is, and of how many. Raises NotAChunk."""
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
    """Of a record that a gateway appended."""
    return Ownership(headers.get(NODE, ""), int(headers.get(EPOCH, 0)), int(headers.get(LAST, 0)))


def comes_after(record: StreamRecord) -> int:
    """The sequence of the record before it on its subject, also when that one was dropped with all before it."""
    return record.predecessor or int(record.headers.get(AFTER, 0))


@dataclass(slots=True)
class ChunkAssembly:
    """Records of one subject, in order, as chunks: parts of a line come together."""

    channel: str
    parts: list[bytes] | tuple[()] = ()
    """Those of a line that is not complete. A gateway has many of these, and nearly none has any."""

    def take(self, record: StreamRecord) -> Chunk | None:
        """The chunk that is complete with this record; None for a grant, or while parts are missing."""
        if GRANT in record.headers or META not in record.headers:
            return None
        meta = read_meta(record.headers[META])
        lines = record.body.split(b"\n")
        if part := record.headers.get(PART):
            number, of = read_part(part)
            # A first part after some others: their node began again.
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
