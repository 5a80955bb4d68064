"""Print a turn as JSON lines."""

import asyncio
import sys

import msgspec

from sandboxagent import Gap, LogEvent, SandboxAgent, Session, Turn, TurnEnded, TurnStarted
from sandboxagent.cli.chat.history import OwnPrompts, end_of_log
from sandboxagent.cli.failures import Failure, document
from sandboxagent.cli.output import write_json
from sandboxagent.client.updates import read_item, text_of
from sandboxagent.protocol import methods
from sandboxagent.protocol.decode import to_json
from sandboxagent.protocol.envelope import Object, object_at, text_at


class JsonLines:
    """The JSON lines of one turn."""

    def __init__(self, client: SandboxAgent, session: Session, own: OwnPrompts) -> None:
        self._client = client
        self._session = session
        self._own = own
        self._after = 0
        """The end of the log before the prompt."""
        self._turn_id: str | None = None
        self._text: list[str] = []

    async def begin(self) -> None:
        """Note the end of the log before the prompt."""
        self._after = await end_of_log(self._client, self._session)

    async def write(self, turn: Turn) -> TurnEnded:
        """Print the events of the turn until it ends."""
        following = self._session.log(self._after)
        ended = asyncio.ensure_future(_end(turn))
        ended.add_done_callback(lambda _: following.close())
        try:
            async for event in following:
                self._event(event)
            return await ended
        finally:
            ended.cancel()

    def end(self, end: TurnEnded) -> None:
        """Print the last line, with the turn's result."""
        told = {} if end.response is None else to_json(end.response)
        result = {**self._facts(), "text": "".join(self._text), "stopReason": end.stop_reason, **told}
        write_line({"result": result})

    def fail(self, failure: Failure) -> None:
        """Print the last line of a failed turn, with the error."""
        write_line({"error": {**document(failure), **self._facts()}})

    def _facts(self) -> Object:
        return {"sessionId": self._session.id, "agent": self._session.agent, "cwd": self._session.cwd}

    def _event(self, event: LogEvent | Gap) -> None:
        if isinstance(event, Gap):
            write_line(gap(event))
            return
        method = text_at(event.envelope, "method")
        if method is None or "id" in event.envelope or event.direction == "fromClient":
            return
        item = read_item(method, object_at(event.envelope, "params"))
        if isinstance(item, TurnStarted) and self._own.number(item.prompt_id) is not None:
            self._turn_id = item.turn_id
        if self._turn_id is None:
            return
        self._text.append(text_of(item))
        write_line(event.envelope)
        if isinstance(item, TurnEnded) and item.turn_id == self._turn_id:
            self._turn_id = None


def gap(item: Gap) -> Object:
    """Return the notification of a gap, as the stream has it."""
    return {"jsonrpc": "2.0", "method": methods.GAP, "params": {"after": item.after, "resumesAt": item.resumes_at}}


def write_line(document: Object) -> None:
    """Print one line and flush it."""
    write_json(msgspec.json.encode(document))
    sys.stdout.flush()


async def _end(turn: Turn) -> TurnEnded:
    return await turn
