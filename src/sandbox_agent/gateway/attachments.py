"""What is said about a connection in the fleet's stream, in order: by a node, or by gateways. Pure."""

import logging
from typing import Protocol

import msgspec

from sandbox_agent.bus import subjects
from sandbox_agent.errors import NotAnEnvelope
from sandbox_agent.gateway.connection import FleetConnection
from sandbox_agent.http.acp import MAX_SESSION_ID
from sandbox_agent.log.event import Chunk
from sandbox_agent.wire.fleet import Answered, Attaches, AttachmentChange, Gone, SentTo, StreamOpened

logger = logging.getLogger(__name__)

Own = SentTo | StreamOpened | Answered | Attaches | Gone
"""What gateways say."""


class Taker(Protocol):
    """What follows from it."""

    def take_attachment(
        self, connection: FleetConnection, node: str, said: AttachmentChange, position: int
    ) -> None: ...
    def take_stream(self, connection: FleetConnection, said: StreamOpened, position: int) -> None: ...


class AttachmentLog:
    """What one node says about attachments of a connection, or gateways about its stream and its requests; in order."""

    __slots__ = ("_connection", "_early", "_source", "_taker")

    def __init__(self, taker: Taker, connection: FleetConnection, source: str) -> None:
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
            self._taker.take_stream(self._connection, said, position)
