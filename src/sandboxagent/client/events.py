"""Read the events of a session's log as typed items."""

from dataclasses import dataclass
from datetime import datetime

from msgspec import ValidationError

from sandboxagent.client.incoming import LogEvent
from sandboxagent.client.items import BEGINNINGS, ours, read_attachments
from sandboxagent.client.requests import read_request, read_time
from sandboxagent.client.updates import (
    ContentBlock,
    Gap,
    PromptSent,
    RequestOpened,
    SessionItem,
    SessionOpened,
    read_item,
)
from sandboxagent.protocol import methods
from sandboxagent.protocol.acp import UserMessageChunk
from sandboxagent.protocol.decode import read
from sandboxagent.protocol.envelope import Object, object_at, objects_at, text_at


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """An item of a session's past or present, with its position in the log."""

    position: int
    """Position of the event in the log. For a gap, the last position in it: the next event comes after it."""
    at: datetime | None
    """The time when the event was stored; None for a gap."""
    item: SessionItem
    """The item."""


def read_event(event: LogEvent | Gap) -> SessionEvent | None:
    """Read an event of the log. Return None if it means nothing to an app, such as an answer to `fs/read_text_file`."""
    if isinstance(event, Gap):
        return SessionEvent(event.resumes_at - 1, None, event)
    item = _read_item(event)
    return None if item is None else SessionEvent(event.id, read_time(event.at), item)


def _read_item(event: LogEvent) -> SessionItem | None:
    method, params = text_at(event.envelope, "method"), object_at(event.envelope, "params")
    if method is None:
        return None
    is_request = "id" in event.envelope
    if event.direction == "fromClient":
        return _read_sent(event.id, method, params) if is_request else None
    if is_request:
        return _read_request(event, method, params) if event.direction == "fromAgent" else None
    if method == methods.UPDATE:
        return read_item(method, params) if text_at(params, "update", "sessionUpdate") else None
    return read_item(method, params) if event.direction == "fromServer" else None


def _read_sent(position: int, method: str, params: Object) -> SessionItem | None:
    facts = ours(params)
    if method == methods.PROMPT:
        prompt, attachments = _read_blocks(params), list(read_attachments(facts))
        return PromptSent(f"turn-{position}", text_at(facts, "promptId"), prompt, attachments, params)
    if method in BEGINNINGS:
        return SessionOpened(text_at(facts, "agent"), text_at(params, "cwd"), text_at(facts, "title"))
    return None


def _read_blocks(params: Object) -> list[ContentBlock]:
    blocks: list[ContentBlock] = []
    for block in objects_at(params, "prompt"):
        try:
            chunk = {"sessionUpdate": "user_message_chunk", "content": block}
            blocks.append(read(chunk, UserMessageChunk).content)
        except ValidationError:  # It is from a newer protocol. `raw` has it.
            continue
    return blocks


def _read_request(event: LogEvent, method: str, params: Object) -> RequestOpened | None:
    try:
        request = read_request(method, params, event.request_id or "", read_time(event.at))
    except ValidationError:  # The reducer has its parts that can be read.
        return None
    return None if request is None else RequestOpened(request)
