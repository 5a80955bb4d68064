"""Serve `/event` and `/global/event`: first events that a program may have missed, then live events.

OpenCode's programs connect again between a second and half a minute after their stream broke. They do not send the
last event that they saw, and do not request messages again. An event that a program already has changes nothing.
"""

import logging
from dataclasses import dataclass
from functools import partial

from sandboxagent.adapters.opencode.events import EventBus, EventReader
from sandboxagent.adapters.opencode.pending import OpenRequests
from sandboxagent.adapters.opencode.session_ids import describe, id_of, is_busy
from sandboxagent.adapters.opencode.transcript import Transcript
from sandboxagent.adapters.opencode.transcripts import Transcripts
from sandboxagent.protocol.errors import LogUnavailable
from sandboxagent.server.http.asgi import Scope, Send, is_gone, transport
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.session import Session

logger = logging.getLogger(__name__)


RECENT_TIMEOUT = 120.0
"""Age in seconds up to which changes are sent again. A program waits at most thirty seconds before it tries again."""
MAX_CHECKED = 100
"""Maximum number of the newest sessions that are checked for recent changes."""
MAX_SESSIONS = 8
"""Maximum number of sessions whose newest messages a reader gets."""
MESSAGES = 4
"""Number of the newest messages of each session that a reader gets: its last two turns."""
MAX_BYTES = 256 << 10
"""Maximum bytes of a session's messages. A program reads the others when it opens the session again."""


class CatchUp:
    """Sends a reader the recent changes that it may have missed."""

    def __init__(self, hub: Hub, transcripts: Transcripts, bus: EventBus) -> None:
        self._hub = hub
        self._transcripts = transcripts
        self._bus = bus

    def tell(self, reader: EventReader) -> None:
        """Start to send the changes. Transcripts that are not in memory are first read from the log."""
        since = self._hub.clock() - RECENT_TIMEOUT
        try:
            newest = self._hub.store.page(None, reader.directory, MAX_CHECKED)
        except LogUnavailable as error:
            logger.warning("past not sent reason=%s", error.slug)
            return
        recent = [each for each in newest if each.facts.updated_at >= since]
        recent.sort(key=lambda each: each.facts.updated_at, reverse=True)
        for session in recent[:MAX_SESSIONS]:
            self._transcripts.after_all(session, partial(self._tell, reader, session))

    def _tell(self, reader: EventReader, session: Session, transcript: Transcript) -> None:
        directory, info = session.facts.cwd, describe(session, transcript)
        status: dict[str, object] = {"type": "busy" if is_busy(session) else "idle"}
        self._bus.send(reader, directory, "session.updated", {"sessionID": info.id, "info": info})
        self._bus.send(reader, directory, "session.status", {"sessionID": id_of(session), "status": status})
        room = MAX_BYTES
        for message in transcript.messages()[-MESSAGES:]:
            about = {"sessionID": info.id}
            room -= self._bus.send(reader, directory, "message.updated", {**about, "info": message.info}, room)
            for part in message.parts:
                told = {**about, "messageID": part.message_id, "part": part, "time": message.info.time.created}
                room -= self._bus.send(reader, directory, "message.part.updated", told, room)


_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class EventStreams:
    """Writes event streams."""

    bus: EventBus
    requests: OpenRequests
    missed: CatchUp

    async def write(self, scope: Scope, send: Send, *, wrapped: bool, directory: str | None) -> None:
        """Write a stream: all events, each with its directory (`wrapped`), or the plain events of one directory."""
        reader = self.bus.open(transport(scope), wrapped=wrapped, directory=directory)
        try:
            if wrapped:
                # Interactive programs read this stream, and connect again. Readers of the other one have just begun.
                self.missed.tell(reader)
            await self.requests.greet(reader)
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            while (data := await reader.next()) is not None:
                if not data:
                    self.bus.send(reader, None, "server.heartbeat", {})
                    continue
                await send({"type": "http.response.body", "body": data, "more_body": True})
                if is_gone(scope):
                    break
        finally:
            self.bus.forget(reader)
        await send({"type": "http.response.body", "body": b""})
