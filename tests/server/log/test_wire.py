"""Chunks as messages of a fleet's stream."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.fleet import records as wire
from sandboxagent.fleet.bus.interface import MAX_BODY_BYTES, StreamRecord
from sandboxagent.fleet.messages import OutgoingMessage
from sandboxagent.server.log.event import Chunk, Direction, agent_channel, connection_channel, session_channel

LINES = st.lists(st.binary(max_size=40).map(lambda raw: raw.translate(None, b"\r\n") or b"x"), min_size=1, max_size=30)


def chunk(lines: list[bytes], session_id: str = "s", channel: str | None = None) -> Chunk:
    return Chunk(7, lines, Direction.FROM_AGENT, session_id, session_channel("s") if channel is None else channel, 1.5)


def records(messages: list[OutgoingMessage], first: int = 1) -> list[StreamRecord]:
    found: list[StreamRecord] = []
    for place, message in enumerate(messages):
        headers = {wire.META: message.meta, wire.NODE: "n", wire.EPOCH: "1", wire.LAST: str(message.last)}
        if message.part:
            headers[wire.PART] = message.part
        wire.check_outgoing(message)
        found.append(StreamRecord(first + place, message.subject, message.body, headers, first + place - 1))
    return found


@given(LINES, st.text(max_size=20))
def test_a_chunk_comes_back_as_it_was(lines: list[bytes], session_id: str) -> None:
    sent = chunk(lines, session_id)
    [record] = records(list(wire.outgoing(sent, "ev.s.x")), 9)
    back = wire.ChunkAssembly(session_channel(session_id)).take(record)
    assert back is not None
    assert back.lines == sent.lines
    assert (back.session_id, back.direction, back.at) == (session_id, sent.direction, sent.at)
    assert back.first == 9 * 4096
    assert wire.sequence_of(back.last) == 9
    assert wire.end_of(9) > back.last


def test_many_lines_and_long_ones_become_messages_that_are_not_too_large() -> None:
    lines = [b"a", b"b" * (MAX_BODY_BYTES * 2 + 5), b"c"] + [b"d" * 1000] * 6000
    messages = list(wire.outgoing(chunk(lines), "ev.s.x"))
    assert all(len(message.body) <= MAX_BODY_BYTES for message in messages)
    assert [message.part for message in messages[:5]] == ["", "1/3", "2/3", "3/3", ""]
    assert messages[-1].last == 7 + len(lines) - 1
    assert [message.last for message in messages[:4]] == [7, 7, 7, 8]
    assembly = wire.ChunkAssembly(session_channel("s"))
    chunks = [each for each in map(assembly.take, records(messages)) if each]
    assert [line for each in chunks for line in each.lines] == lines
    positions = [place for each in chunks for place in range(each.first, each.last + 1)]
    assert positions == sorted(set(positions))


def test_a_line_begun_again_counts_once() -> None:
    long = b"x" * (MAX_BODY_BYTES + 1)
    messages = list(wire.outgoing(chunk([long]), "ev.s.x"))
    assembly = wire.ChunkAssembly(session_channel("s"))
    cut = records([messages[0], *messages])
    assert [each.lines for each in map(assembly.take, cut) if each] == [[long]]


def test_a_grant_is_no_event() -> None:
    record = StreamRecord(1, "ev.s.x", b"", {wire.GRANT: "1", wire.NODE: "n", wire.EPOCH: "1"}, 0)
    assert wire.ChunkAssembly("c").take(record) is None
    assert wire.ownership(record.headers) == wire.Ownership("n", 1, 0)


def test_what_one_connection_gets_stays_at_its_node() -> None:
    own = Chunk(1, [b"{}"], Direction.FROM_SERVER, None, connection_channel("c1"), 0.0)
    again = Chunk(1, [b"{}"], Direction.FROM_AGENT, "s", connection_channel("c1"), 0.0, history=False)
    said = Chunk(1, [b"{}"], Direction.FROM_AGENT, None, agent_channel("mock"), 0.0)
    assert wire.subject_of(own, "n") is None
    assert wire.subject_of(again, "n") is None
    assert wire.subject_of(said, "n") is None
    assert wire.subject_of(chunk([b"{}"]), "n") == "ev.s.cw"


def test_what_is_in_the_history_alone_reaches_no_stream() -> None:
    [record] = records(list(wire.outgoing(chunk([b"{}"], channel=""), "ev.s.x")))
    back = wire.ChunkAssembly(session_channel("s")).take(record)
    assert back is not None
    assert back.channel == ""


@pytest.mark.parametrize(
    "message",
    [
        OutgoingMessage("ev.s.x", "[]", 1, "", b"{}"),
        OutgoingMessage("ev.s.x", '["fromNobody","s",1,true]', 1, "", b"{}"),
        OutgoingMessage("ev.s.x", '["fromAgent","s",1,true]', 1, "2/1", b"{}"),
        OutgoingMessage("ev.s.x", '["fromAgent","s",1,true]', 1, "x", b"{}"),
        OutgoingMessage("ev.s.x", '["fromAgent","s",1,true]', 1, "", b""),
        OutgoingMessage("ev.s.x", '["fromAgent","s",1,true]', 1, "", b"\n" * 4096),
        OutgoingMessage("ev.s.x", '["fromAgent","s",1,true]', 1, "", b"x" * (MAX_BODY_BYTES + 1)),
    ],
)
def test_a_message_that_no_reader_could_read_is_refused(message: OutgoingMessage) -> None:
    with pytest.raises(wire.NotAChunk):
        wire.check_outgoing(message)


@pytest.mark.parametrize(("body", "part"), [(b'{"a":1}\rdata: {}', ""), (b"x\ny", "1/2"), (b"x\ry", "2/2")])
def test_a_line_break_inside_a_line_is_refused(body: bytes, part: str) -> None:
    [message] = wire.outgoing(chunk([b"{}"]), "ev.s.cw")
    message.body, message.part = body, part
    with pytest.raises(wire.NotAChunk, match="line break"):
        wire.check_outgoing(message)
