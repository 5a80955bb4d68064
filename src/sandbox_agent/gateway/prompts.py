"""Prompts in the fleet's stream, by their positions in the log of their node: turns are named after those."""

from dataclasses import replace

from sandbox_agent.bus import subjects
from sandbox_agent.bus.ports import StreamRecord
from sandbox_agent.envelope import parse
from sandbox_agent.errors import NotAnEnvelope
from sandbox_agent.gateway.feed import Feed
from sandbox_agent.log.event import Chunk
from sandbox_agent.log.wire import PART, end_of, ownership, position_of, read_part
from sandbox_agent.wire import methods


def is_prompt(line: bytes) -> bool:
    """Whether an envelope begins a turn."""
    try:
        return parse(line).method == methods.PROMPT
    except NotAnEnvelope:
        return False


async def find_prompt(feed: Feed, session_id: str, position: int) -> Chunk | None:
    """The prompt at a position of its node's own, as a chunk of one event. Raises LogUnavailable."""
    record = await _find_record(feed, session_id, position)
    if record is None:
        return None
    last, first = ownership(record.headers).last, await _first_part(feed, record)
    chunks, _ = await feed.history(session_id, position_of(first) - 1, end_of(record.sequence) + 1, 1)
    for chunk in chunks:
        # The last line of a message has the position that the message names.
        place = len(chunk.lines) - 1 - (last - position)
        if chunk.first == position_of(record.sequence) and place >= 0 and is_prompt(chunk.lines[place]):
            return replace(chunk, first=chunk.first + place, lines=[chunk.lines[place]])
    return None


async def _find_record(feed: Feed, session_id: str, position: int) -> StreamRecord | None:
    """The first message of a session that reaches a position of its node's, by halves: each names its last one."""
    subject = subjects.session_events(session_id)
    found = await feed.last(subject)
    if found is None or ownership(found.headers).last < position:
        return None
    low, high = 0, found.sequence - 1
    while low < high:
        middle = (low + high) // 2
        record = await feed.next(subject, middle)
        if record is None:
            return None
        if ownership(record.headers).last >= position:
            found, high = record, middle
        else:
            low = record.sequence
    return found


async def _first_part(feed: Feed, record: StreamRecord) -> int:
    """The sequence at which the line of a message begins: a long one comes in parts."""
    part = record.headers.get(PART)
    number = read_part(part)[0] if part else 1
    while number > 1 and record.predecessor:
        before = await feed.next(record.subject, record.predecessor - 1)
        if before is None:
            break
        record, number = before, number - 1
    return record.sequence
