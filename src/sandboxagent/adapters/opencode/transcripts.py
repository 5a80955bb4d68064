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
from sandboxagent.core.cursor import Cursor, Page
from sandboxagent.protocol.envelope import text_at
from sandboxagent.protocol.errors import LogUnavailable
from sandboxagent.server.log.event import Chunk
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.session import Session

logger = logging.getLogger(__name__)

MAX_PAGE = 1000
"""Maximum number of events that are read from the log at a time."""
MAX_BATCH_EVENTS, MAX_BATCH_BYTES = 100, 64 << 10
"""Maximum number and bytes of events that are applied before other tasks run."""
MAX_DEPTH = 50
"""Maximum number of nested forks whose history is read."""
MAX_WAITING_BYTES = 1 << 20
"""Maximum bytes of new events that wait while older ones are applied. Those beyond it are read from the log."""
MAX_TRANSCRIPTS = 1000
"""Maximum number of transcripts in memory, for any size."""
SHARE = 4
"""One transcript may use at most the whole memory divided by this."""


class HistorySource:
    """The history of a session, after that of the sessions from which it was forked."""

    def __init__(self, hub: Hub, session_id: str) -> None:
        self._hub = hub
        self._session_id = session_id
        self._origins: list[tuple[str, int]] | None = None
        """Sessions from which this one was forked, oldest first, with the positions before which their history counts.
        None until the first page is read."""

    def in_memory(self, after: int) -> None:
        """Return None, because the log reads a session's history from disk."""

    async def page(self, after: int) -> Page[Chunk]:
        """Read the events after a position. Raises LogUnavailable."""
        if self._origins is None:
            self._origins = await self._find_origins()
        for session_id, before in self._origins:
            if after < before - 1:
                chunks = await self._hub.log.history(session_id, after, before, MAX_PAGE)
                return Page(chunks, chunks[-1].last if chunks else before - 1)
        end = self._hub.log.position
        chunks = await self._hub.log.history(self._session_id, after, end + 1, MAX_PAGE)
        upto = chunks[-1].last if chunks else max(after, end)
        return Page(chunks, upto, is_last=upto >= end)

    async def _find_origins(self) -> list[tuple[str, int]]:
        origins: list[tuple[str, int]] = []
        session = self._hub.find_session(self._session_id)
        while session is not None and len(origins) < MAX_DEPTH:
            origin = text_at(session.facts.metadata, "forkedFrom")
            first = await self._hub.log.history(session.id, 0, self._hub.log.position + 1, 1) if origin else []
            session = self._hub.find_session(origin)
            if session is not None and first:
                origins.append((session.id, first[0].first))
        return origins[::-1]


@dataclass(slots=True, eq=False)
class FollowedTranscript:
    """One session's transcript, and the cursor that brings it up to date with the log."""

    session_id: str
    transcript: Transcript
    directory: str
    cursor: Cursor[Chunk]
    told_after: int
    """Position after which readers get events. They request messages for earlier ones."""
    catching_up: "asyncio.Task[None] | None" = None
    when_live: list[Callable[["FollowedTranscript"], None]] = field(
        default_factory=list[Callable[["FollowedTranscript"], None]]
    )

    @property
    def is_live(self) -> bool:
        """Whether the transcript is up to date, and new events are applied at once."""
        return self.cursor.is_live and self.catching_up is None


class Transcripts:
    """All transcripts in memory."""

    def __init__(self, hub: Hub, bus: EventBus, memory: int) -> None:
        """`memory` is the maximum number of bytes of all transcripts."""
        self._hub = hub
        self._bus = bus
        self._memory = memory
        self._followed: dict[str, FollowedTranscript] = {}
        """By session id, the least recently used first."""
        self._applied = 0
        """Bytes of the events that were applied in this turn of the event loop."""

    # Reading

    async def get(self, session: Session) -> Transcript:
        """Return a session's transcript, up to date. Raises LogUnavailable."""
        followed = self._follow(session, self._hub.log.position)
        if not followed.is_live:
            # Readers do not get events since it fell behind from here: they get them elsewhere, or not at all.
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
        if followed.is_live:
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
        cursor = followed.cursor
        if followed.catching_up is not None:
            cursor.push(chunk)
        elif not self._bus.read:
            cursor.fall_behind()
        elif cursor.is_live:
            cursor.push(chunk)
            if self._fits(chunk):
                for each in cursor.take(chunk.size):
                    for position, line in enumerate(each.lines, each.first):
                        self._apply(followed, each, position, line)
            else:
                self._catch_up(followed)
        else:
            followed.told_after = chunk.first - 1
            self._catch_up(followed)

    def _fits(self, chunk: Chunk) -> bool:
        """Return whether a new chunk may be applied in this turn of the event loop; count it if so."""
        if self._applied + chunk.size > MAX_BATCH_BYTES:
            return False
        if not self._applied:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._applied += chunk.size
        return True

    def _begin_turn(self) -> None:
        self._applied = 0

    def _follow(self, session: Session, told_after: int) -> FollowedTranscript:
        followed = self._followed.pop(session.id, None)
        if followed is None:
            about = About(id_of(session), session.facts.agent, session.facts.cwd)
            transcript = Transcript(about, self._memory // SHARE)
            directory = normalize(session.facts.cwd)
            cursor = Cursor(HistorySource(self._hub, session.id), 0, MAX_WAITING_BYTES)
            followed = FollowedTranscript(session.id, transcript, directory, cursor, told_after)
        elif not followed.is_live and followed.catching_up is None:
            followed.told_after = told_after
        self._followed[session.id] = followed
        return followed

    def _catch_up(self, followed: FollowedTranscript) -> "asyncio.Task[None]":
        # Not a `Shared`: callbacks ask the transcript itself whether it catches up.
        if followed.catching_up is None:
            task = asyncio.create_task(self._read(followed), name=f"transcript of {followed.session_id}")
            followed.catching_up = task
            task.add_done_callback(lambda done: self._caught_up(followed, done))
        return followed.catching_up

    def _caught_up(self, followed: FollowedTranscript, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("session not read session=%s reason=%s", followed.session_id, type(error).__name__)

    async def _read(self, followed: FollowedTranscript) -> None:
        try:
            await self._apply_missed(followed)
            # There is no await between the last check for events and this, so no event is missed.
            followed.catching_up = None
            waiting, followed.when_live = followed.when_live, []
            for then in waiting:
                then(followed)
        except LogUnavailable:
            raise
        except Exception:
            self._followed.pop(followed.session_id, None)
            raise
        finally:
            followed.catching_up = None

    async def _apply_missed(self, followed: FollowedTranscript) -> None:
        """Apply the events from the log, and those that came meanwhile."""
        cursor = followed.cursor
        taken = size = 0
        while cursor.queue or not cursor.is_live:
            for chunk in cursor.take(MAX_BATCH_BYTES) or await cursor.catch_up():
                assert isinstance(chunk, Chunk), "the history tells of no gap"
                for position, line in enumerate(chunk.lines, chunk.first):
                    self._apply(followed, chunk, position, line)
                    taken, size = taken + 1, size + len(line)
                    if taken > MAX_BATCH_EVENTS or size > MAX_BATCH_BYTES:
                        taken = size = 0
                        await asyncio.sleep(0)

    def _apply(self, followed: FollowedTranscript, chunk: Chunk, position: int, line: bytes) -> None:
        happened = followed.transcript.apply(position, chunk.at, chunk.direction, line)
        if position > followed.told_after and self._bus.read:
            for each in happened:
                self._tell(followed, each)

    def _tell(self, followed: FollowedTranscript, event: Event) -> None:
        if event.properties is not None:
            self._bus.publish(followed.directory, event.type, event.properties)
            if event.type == "session.idle":
                self._make_room(followed)
            return
        session = self._hub.find_session(followed.session_id)
        if session is not None:
            self.publish_session(session, event.type)

    def _make_room(self, needed: FollowedTranscript) -> None:
        size = sum(each.transcript.size for each in self._followed.values())
        for each in list(self._followed.values()):
            if size <= self._memory and len(self._followed) <= MAX_TRANSCRIPTS:
                return
            if each is not needed and each.catching_up is None and not each.transcript.running:
                size -= each.transcript.size
                del self._followed[each.session_id]
