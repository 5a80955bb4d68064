"""Serve `/event` and `/global/event`: events as they happen, after what a program may have missed.

OpenCode's programs come back a second after their stream broke, or half a minute. They do not say what they saw last,
and do not ask for messages again. What they have already changes nothing when it comes twice.
"""

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sandboxagent.adapters.opencode.events import EventBus, EventReader
from sandboxagent.adapters.opencode.pending import OpenRequests
from sandboxagent.adapters.opencode.session_ids import describe, id_of, is_busy
from sandboxagent.adapters.opencode.transcript import Transcript
from sandboxagent.adapters.opencode.transcripts import Transcripts
from sandboxagent.protocol.errors import LogUnavailable
from sandboxagent.server.http.asgi import Scope, Send, is_gone, transport
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.session import Session

if TYPE_CHECKING:
    pass


logger = logging.getLogger(__name__)


RECENT_TIMEOUT = 120.0
"""Seconds. A program waits at most thirty before it tries again."""
LOOKED_AT = 100
SESSIONS = 8
"""Sessions whose newest messages a reader gets."""
MESSAGES = 4
"""The newest messages of each: its last two turns."""
MAX_BYTES = 256 << 10
"""Bytes for the messages of a session; what does not fit, a program reads when it opens the session again."""


class CatchUp:
    """Tells a reader of what has happened lately."""

    def __init__(self, hub: Hub, transcripts: Transcripts, bus: EventBus) -> None:
        self._hub = hub
        self._transcripts = transcripts
        self._bus = bus

    def tell(self, reader: EventReader) -> None:
        """Begin to; what is not in memory is read from the log first."""
        since = self._hub.clock() - RECENT_TIMEOUT
        try:
            newest = self._hub.store.page(None, reader.directory, LOOKED_AT)
        except LogUnavailable as error:
            logger.warning("past not sent reason=%s", error.slug)
            return
        recent = [each for each in newest if each.facts.updated_at >= since]
        recent.sort(key=lambda each: each.facts.updated_at, reverse=True)
        for session in recent[:SESSIONS]:
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
    """Writes them."""

    bus: EventBus
    requests: OpenRequests
    missed: CatchUp

    async def write(self, scope: Scope, send: Send, *, wrapped: bool, directory: str | None) -> None:
        """Events around which their directory stands (`wrapped`), or those of one directory."""
        reader = self.bus.open(transport(scope), wrapped=wrapped, directory=directory)
        try:
            if wrapped:
                # The programs that people look at read this stream; those that read the other one have just begun.
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
