"""Chunks of events, and their frames: what a reader of the standard's format gets out is what was put in."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.server.log.event import (
    LONG_LINE_BYTES,
    Chunk,
    Direction,
    agent_channel,
    connection_channel,
    frames,
    session_channel,
    split_lines,
)
from tests.support import sse

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=3,
)


@st.composite
def envelopes(draw: st.DrawFn) -> bytes:
    """A JSON object on one line, escaped or in plain UTF-8."""
    value = {"jsonrpc": "2.0", "method": draw(st.text()), "params": draw(JSON)}
    text = json.dumps(value, ensure_ascii=draw(st.booleans()))
    # A lone surrogate cannot be UTF-8, so it cannot be in a line either.
    return text.encode("utf-8", "replace")


LINES = st.lists(envelopes(), min_size=1, max_size=4)
POSITIONS = st.integers(1, 1 << 62)


def chunk(first: int, lines: list[bytes]) -> Chunk:
    return Chunk(first, lines, Direction.FROM_AGENT, "s", session_channel("s"), 0.0)


@given(POSITIONS, LINES)
def test_frames_give_back_every_line_under_its_id(first: int, lines: list[bytes]) -> None:
    read, comments = sse.parse(frames(first, lines))

    assert [frame.data.encode() for frame in read] == lines
    assert [frame.id for frame in read] == [str(first + index) for index in range(len(lines))]
    assert {frame.event for frame in read} == {"message"}
    assert comments == []


@given(POSITIONS, LINES)
def test_frames_of_many_lines_are_the_frames_of_each_one_after_another(first: int, lines: list[bytes]) -> None:
    assert frames(first, lines) == b"".join(frames(first + index, [line]) for index, line in enumerate(lines))


@given(POSITIONS, LINES)
def test_a_frame_is_event_id_data_and_a_blank_line(first: int, lines: list[bytes]) -> None:
    expected = [b"event: message", b"id: %d" % first, b"data: " + lines[0], b"", b""]

    assert frames(first, lines[:1]).split(b"\n") == expected


@pytest.mark.parametrize(
    "text", ["\u2028", "\u2029", "\u0085", "\x0b\x0c", "\x1c\x1d\x1e", "%d %s %b %%", "\ufeff", "\0"]
)
def test_characters_that_end_a_line_elsewhere_do_not_end_one_here(text: str) -> None:
    line = b'{"text":"' + text.encode() + b'"}'

    read, _ = sse.parse(frames(7, [line, line]))

    assert [(frame.id, frame.data.encode()) for frame in read] == [("7", line), ("8", line)]


@given(st.integers(1, 1000), LINES, st.data())
def test_the_part_after_a_position_has_exactly_the_later_events(
    first: int, lines: list[bytes], data: st.DataObject
) -> None:
    whole = chunk(first, lines)
    position = data.draw(st.integers(0, whole.last - 1))

    part = whole.after(position)

    numbered = dict(enumerate(lines, first))
    assert dict(enumerate(part.lines, part.first)) == {at: line for at, line in numbered.items() if at > position}
    assert part.last == whole.last
    assert part.frames() == b"".join(frames(at, [line]) for at, line in numbered.items() if at > position)


def test_the_part_after_a_position_keeps_everything_else() -> None:
    whole = Chunk(5, [b"{}", b"[]"], Direction.FROM_SERVER, "s", "connection:c1", 3.5, "c2", False, 5)

    part = whole.after(5)

    assert (part.direction, part.session_id, part.channel, part.at) == (
        Direction.FROM_SERVER,
        "s",
        "connection:c1",
        3.5,
    )
    assert (part.exclude, part.history, part.request) == ("c2", False, 5)


def test_frames_are_made_once_for_all_readers() -> None:
    shared = chunk(1, [b"{}", b"{}"])

    assert shared.frames() is shared.frames()


@given(LINES)
def test_the_size_of_a_chunk_covers_its_lines_and_its_frames(lines: list[bytes]) -> None:
    one = chunk(1 << 40, lines)

    assert one.size >= sum(map(len, lines)) + len(one.frames()) - 20 * len(lines)


def test_channels_of_different_kinds_never_meet() -> None:
    names = ["a", "session:a", "connection:a", "agent:a"]
    channels = [kind(name) for kind in (session_channel, connection_channel, agent_channel) for name in names]

    assert len(set(channels)) == len(channels)


@pytest.mark.parametrize("about", [1, 2, 3])
@pytest.mark.parametrize("length", [0, 10, LONG_LINE_BYTES, 5 * LONG_LINE_BYTES])
def test_lines_are_split_alike_whether_they_are_short_or_long(length: int, about: int) -> None:
    lines = [b"a" * length, b"", b"b" * length]
    assert split_lines(b"\n".join(lines), about) == lines
    assert split_lines(lines[0], about) == lines[:1]
    assert split_lines(lines[0] + b"\n", about) == [lines[0], b""]
