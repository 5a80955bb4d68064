"""Keep transcripts up to date with the log while programs read them, within a limit of memory.

A transcript is read from the log and then follows it. While no program has an event stream open, it falls behind, and
catches up from the log at the next request.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from sandboxagent.adapters.opencode.events import EventBus
from sandboxagent.adapters.opencode.messages import About, Event
from sandboxagent.adapters.opencode.session_ids import describe, id_of, normalize
from sandboxagent.adapters.opencode.transcript import Transcript
from sandboxagent.protocol.envelope import text_at
from sandboxagent.protocol.errors import LogUnavailable
from sandboxagent.server.log.event import Chunk
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.session import Session

logger = logging.getLogger(__name__)

PAGE = 1000
"""Maximum number of events that are read from the log at a time."""
AT_ONCE, BYTES_AT_ONCE = 100, 64 << 10
"""Maximum number and bytes of events that are applied before other tasks run."""
DEEPEST = 50
"""Maximum number of nested forks whose history is read."""
MAX_TRANSCRIPTS = 1000
"""Maximum number of transcripts in memory, for any size."""
SHARE = 4
"""One transcript may use at most the whole memory divided by this."""


@dataclass(slots=True, eq=False)
class TranscriptCursor:
    """One session's transcript, and its position in the log."""

    session_id: str
    transcript: Transcript
    directory: str
    newest: int
    """Position of the session's last known event."""
    told_after: int
    """Position after which readers get events. They request messages for earlier ones."""
    cursor: int = 0
    """Position of the last event in the transcript."""
    live: bool = False
    """Whether the transcript is up to date, and new events are applied at once."""
    catching_up: "asyncio.Task[None] | None" = None
    when_live: list[Callable[["TranscriptCursor"], None]] = field(
        default_factory=list[Callable[["TranscriptCursor"], None]]
    )


class Transcripts:
    """All transcripts in memory."""

    def __init__(self, hub: Hub, bus: EventBus, memory: int) -> None:
        """`memory` is the maximum number of bytes of all transcripts."""
        self._hub = hub
        self._bus = bus
        self._memory = memory
        self._followed: dict[str, TranscriptCursor] = {}
        """By session id, the least recently used first."""

    # Reading

    async def get(self, session: Session) -> Transcript:
        """Return a session's transcript, up to date. Raises LogUnavailable."""
        followed = self._follow(session, self._hub.log.position)
        if not followed.live:
            # Readers do not get events since it fell behind from here: they get them elsewhere, or not at all.
            followed.newest = max(followed.newest, self._hub.log.position)
            await asyncio.shield(self._catch_up(followed))
        self._make_room(followed)
        return followed.transcript

    def find(self, session: Session) -> Transcript | None:
        """Return a session's transcript if it is in memory, perhaps out of date; else None."""
        followed = self._followed.get(session.id)
        return None if followed is None else followed.transcript

    def publish(self, session: Session, type: str, properties: object) -> None:
        """Send readers an event of a session."""
        self._bus.publish(normalize(session.facts.cwd), type, properties)

    def publish_session(self, session: Session, type: str) -> None:
        """Send readers an event with the session's current state."""
        info = describe(session, self.find(session))
        self.publish(session, type, {"sessionID": info.id, "info": info})

    def after_all(self, session: Session, then: Callable[[Transcript], None]) -> None:
        """Call back once readers have all events so far; at once if they have them already."""
        if not self._bus.read:
            return
        followed = self._follow(session, self._hub.log.position)
        if followed.live:
            then(followed.transcript)
            return
        followed.when_live.append(lambda followed: then(followed.transcript))
        self._catch_up(followed)

    def forget(self, session_id: str) -> None:
        """Forget the transcript of a deleted session."""
        followed = self._followed.pop(session_id, None)
        if followed is not None and followed.catching_up is not None:
            followed.catching_up.cancel()

    # Callbacks of the log

    def appended(self, chunk: Chunk) -> None:
        """Apply a chunk that was added to a session's history."""
        try:
            self._take(chunk)
        except Exception:
            # Drop the transcript. It will be read again from the log.
            logger.exception("transcript failed session=%s", chunk.session_id)
            self._followed.pop(chunk.session_id or "", None)

    def _take(self, chunk: Chunk) -> None:
        assert chunk.session_id is not None
        followed = self._followed.get(chunk.session_id)
        if followed is None:
            if not self._bus.read:
                return
            session = self._hub.find_session(chunk.session_id)
            if session is None:
                return
            followed = self._follow(session, chunk.first - 1)
        followed.newest = max(followed.newest, chunk.last)
        if not self._bus.read:
            followed.live = False
        elif followed.live:
            self._apply(followed, chunk)
        else:
            if followed.catching_up is None:
                followed.told_after = chunk.first - 1
            self._catch_up(followed)

    def _follow(self, session: Session, told_after: int) -> TranscriptCursor:
        followed = self._followed.pop(session.id, None)
        if followed is None:
            about = About(id_of(session), session.facts.agent, session.facts.cwd)
            transcript = Transcript(about, self._memory // SHARE)
            directory = normalize(session.facts.cwd)
            followed = TranscriptCursor(session.id, transcript, directory, told_after, told_after)
        elif not followed.live and followed.catching_up is None:
            followed.told_after = told_after
        self._followed[session.id] = followed
        return followed

    def _catch_up(self, followed: TranscriptCursor) -> "asyncio.Task[None]":
        # Not a `Shared`: callbacks ask the transcript itself whether it catches up.
        if followed.catching_up is None:
            task = asyncio.create_task(self._read(followed), name=f"transcript of {followed.session_id}")
            followed.catching_up = task
            task.add_done_callback(lambda done: self._caught_up(followed, done))
        return followed.catching_up

    def _caught_up(self, followed: TranscriptCursor, task: "asyncio.Task[None]") -> None:
        followed.catching_up = None
        if task.cancelled() or (error := task.exception()) is None:
            return
        logger.warning("session not read session=%s reason=%s", followed.session_id, type(error).__name__)
        if not isinstance(error, LogUnavailable):
            self._followed.pop(followed.session_id, None)

    async def _read(self, followed: TranscriptCursor) -> None:
        if followed.cursor == 0:
            await self._read_past(followed)
        while followed.cursor < followed.newest:
            await self._read_part(followed, followed.session_id, followed.newest + 1)
        # There is no await between the check above and this, so no event is missed.
        followed.live = True
        waiting, followed.when_live = followed.when_live, []
        for then in waiting:
            then(followed)

    async def _read_part(self, followed: TranscriptCursor, session_id: str, before: int) -> None:
        """Read and apply a page of events before a position. Repeated calls apply all of them."""
        chunks = await self._hub.log.history(session_id, followed.cursor, before, PAGE)
        taken = size = 0
        for chunk in chunks:
            self._apply(followed, chunk, before)
            taken, size = taken + len(chunk.lines), size + chunk.size
            if taken > AT_ONCE or size > BYTES_AT_ONCE:
                taken = size = 0
                await asyncio.sleep(0)
        if not chunks:
            followed.cursor = before - 1

    async def _read_past(self, followed: TranscriptCursor) -> None:
        """Apply the history before a fork, from the sessions that it was forked from."""
        line: list[tuple[str, int]] = []
        session = self._hub.find_session(followed.session_id)
        while session is not None and len(line) < DEEPEST:
            source = text_at(session.facts.metadata, "forkedFrom")
            first = await self._hub.log.history(session.id, 0, self._hub.log.position + 1, 1) if source else []
            session = self._hub.find_session(source)
            if session is not None and first:
                line.append((session.id, first[0].first))
        for session_id, before in reversed(line):
            while followed.cursor < before - 1:
                await self._read_part(followed, session_id, before)

    def _apply(self, followed: TranscriptCursor, chunk: Chunk, before: int | None = None) -> None:
        for position, line in enumerate(chunk.lines, chunk.first):
            if position <= followed.cursor or (before is not None and position >= before):
                continue
            followed.cursor = position
            happened = followed.transcript.apply(position, chunk.at, chunk.direction, line)
            if position > followed.told_after and self._bus.read:
                for each in happened:
                    self._tell(followed, each)

    def _tell(self, followed: TranscriptCursor, event: Event) -> None:
        if event.properties is not None:
            self._bus.publish(followed.directory, event.type, event.properties)
            if event.type == "session.idle":
                self._make_room(followed)
            return
        session = self._hub.find_session(followed.session_id)
        if session is not None:
            self.publish_session(session, event.type)

    def _make_room(self, needed: TranscriptCursor) -> None:
        size = sum(each.transcript.size for each in self._followed.values())
        for each in list(self._followed.values()):
            if size <= self._memory and len(self._followed) <= MAX_TRANSCRIPTS:
                return
            if each is not needed and each.catching_up is None and not each.transcript.running:
                size -= each.transcript.size
                del self._followed[each.session_id]
