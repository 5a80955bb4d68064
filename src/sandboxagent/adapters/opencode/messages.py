"""Keep messages and parts in memory, with their ids, their sizes and the events about them.

Pure.
"""

from dataclasses import dataclass, field

from msgspec import UNSET
from msgspec.structs import replace

from sandboxagent.adapters.opencode.ids import Ticks, make_id
from sandboxagent.adapters.opencode.objects import (
    AssistantMessage,
    Info,
    Message,
    Part,
    PartTime,
    ReasoningPart,
    TextPart,
)

MAX_TEXT = 256 << 10
"""Maximum characters of a part. A longer text continues in another part."""
OBJECT_COST_BYTES = 500
"""Bytes that a message or a part takes in addition to its text."""


@dataclass(frozen=True, slots=True)
class About:
    """The session of a transcript."""

    session_id: str
    """OpenCode's id of the session."""
    provider_id: str
    directory: str


@dataclass(frozen=True, slots=True)
class Event:
    """An event of OpenCode's. A `session.*` event without properties gets the session's current state when sent."""

    type: str
    properties: object = None


@dataclass(slots=True, eq=False)
class MessageEntry:
    """A message and its parts, in their order."""

    info: Info
    parts: dict[str, Part] = field(default_factory=dict[str, Part])
    size: int = 0
    """Approximate bytes that the message takes in memory."""


@dataclass(slots=True)
class Text:
    """A text that the agent is streaming."""

    entry: MessageEntry
    part: TextPart | ReasoningPart
    name: str | None
    """The agent's own id of the message."""
    pieces: list[str] = field(default_factory=list[str])
    size: int = 0

    def takes(self, entry: MessageEntry, kind: type[TextPart | ReasoningPart], name: str | None) -> bool:
        """Return whether more text of a message belongs into this part."""
        if self.entry is not entry or type(self.part) is not kind or self.size > MAX_TEXT:
            return False
        return name is None or self.name in (None, name)

    def join(self) -> None:
        self.part.text = "".join(self.pieces)
        self.pieces = [self.part.text]


class Entries:
    """The messages of one session; only the newest ones if all would take too much memory."""

    def __init__(self, about: About, limit: int) -> None:
        """`limit` is in bytes."""
        self.about = about
        self.size = 0
        self.now = 0
        """Time of the event that is being applied, in milliseconds."""
        self.text: Text | None = None
        """The text that the agent is streaming; None if there is none."""
        self._limit = limit
        self._entries: dict[str, MessageEntry] = {}
        self._ticks = Ticks()
        self._happened: list[Event] = []

    def take_events(self) -> list[Event]:
        """Return the events since the last call."""
        happened, self._happened = self._happened, []
        return happened

    def all(self) -> list[Message]:
        """Return all messages, oldest first."""
        self._join()
        return [_message(entry) for entry in self._entries.values()]

    def find(self, message_id: str) -> Message | None:
        self._join()
        entry = self._entries.get(message_id)
        return None if entry is None else _message(entry)

    def has(self, message_id: str) -> bool:
        return message_id in self._entries

    def _join(self) -> None:
        if self.text is not None:
            self.text.join()

    def begin_text(self, entry: MessageEntry, part: TextPart | ReasoningPart, name: str | None) -> Text:
        self.text = Text(entry, part, name)
        self.put(entry, part, 0)
        return self.text

    def go_on(self, text: Text, said: str) -> None:
        """Append to a text, and make an event about that."""
        ids = {"sessionID": self.about.session_id, "messageID": text.entry.info.id, "partID": text.part.id}
        self.tell("message.part.delta", {**ids, "field": "text", "delta": said})
        text.pieces.append(said)
        text.size += len(said)
        text.entry.size += len(said)
        self.size += len(said)

    def end_text(self, ms: int) -> None:
        text, self.text = self.text, None
        if text is None:
            return
        text.join()
        assert text.part.time is not UNSET
        text.part.time = PartTime(start=text.part.time.start, end=ms)
        self.show_part(text.part)

    def note_id(self, id: str) -> None:
        """Make later ids follow an id that a client made."""
        self._ticks.note(id)

    def add(self, info: Info) -> MessageEntry:
        entry = self._entries[info.id] = MessageEntry(info, size=OBJECT_COST_BYTES)
        self.size += OBJECT_COST_BYTES
        self.show(entry)
        return entry

    def put(self, entry: MessageEntry, part: Part, size: int) -> None:
        size += 0 if part.id in entry.parts else OBJECT_COST_BYTES
        is_back = part.id not in entry.parts and part.id < next(reversed(entry.parts), "")
        entry.parts[part.id] = part
        if is_back and isinstance(entry.info, AssistantMessage):
            # The part was forgotten, and its tool call continues. Put it back at its place.
            entry.parts = dict(sorted(entry.parts.items()))
        entry.size += size
        self.size += size
        self.show_part(part)

    def show(self, entry: MessageEntry) -> None:
        self.tell("message.updated", {"sessionID": self.about.session_id, "info": replace(entry.info)})

    def show_part(self, part: Part) -> None:
        ids = {"sessionID": self.about.session_id, "messageID": part.message_id}
        self.tell("message.part.updated", {**ids, "part": replace(part), "time": self.now})

    def tell(self, type: str, properties: object = None) -> None:
        self._happened.append(Event(type, properties))

    def make_message_id(self, position: int, ms: int) -> str:
        return make_id("msg", self._ticks.next(ms), self.about.session_id, position)

    def make_part_id(self, position: int, ms: int, number: int = 0) -> str:
        return make_id("prt", self._ticks.next(ms), self.about.session_id, position, number)

    def trim(self, current: MessageEntry | None) -> bool:
        """Forget the oldest messages if all take too much memory; return whether any were forgotten.

        The log still has them.
        """
        if self.size <= self._limit:
            return False
        while self.size > self._limit and len(self._entries) > 1:
            oldest = next(iter(self._entries.values()))
            if oldest is current:
                break
            del self._entries[oldest.info.id]
            self.size -= oldest.size
        if self.size > self._limit:
            self._trim_last()
        return True

    def _trim_last(self) -> None:
        """Keep only the newest parts of the last message, which alone takes too much memory."""
        entry = next(reversed(self._entries.values()))
        kept = set[str]() if self.text is None else {self.text.part.id}
        for id in [id for id in entry.parts if id not in kept][:-1]:
            del entry.parts[id]
        size = self.text.size if self.text else 0
        self.size, entry.size = self.size - entry.size + size, size


def _message(entry: MessageEntry) -> Message:
    return Message(info=replace(entry.info), parts=[replace(part) for part in entry.parts.values()])
