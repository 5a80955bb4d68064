"""Server-sent events, as the SDK reads them."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.client.api import read_events
from sandboxagent.client.errors import ForeignAnswer
from tests.support.client import run
from tests.support.sse import parse

Told = list[tuple[str, str, str]]


def told(data: bytes, size: int = 1 << 16, content_type: str = "text/event-stream; charset=utf-8") -> Told:
    class Pieces(httpx.AsyncByteStream):
        async def __aiter__(self):  # type: ignore[no-untyped-def]
            for start in range(0, len(data), size):
                yield data[start : start + size]

    async def main() -> Told:
        request = httpx.Request("GET", "http://127.0.0.1:1/v1/rpc")
        headers = {"content-type": content_type}
        response = httpx.Response(200, headers=headers, stream=Pieces(), request=request)
        return [(event.event, event.id, event.data) async for event in read_events(response)]

    return run(main())


def test_comments_are_passed_over_also_after_an_event() -> None:
    assert told(b": hello\n\nevent: a\nid: 5\ndata: x\n\n:\n\n: still here\n\nid: 6\ndata: y\n\n") == [
        ("a", "5", "x"),
        ("message", "6", "y"),
    ]


def test_an_event_that_breaks_off_is_not_told() -> None:
    assert told(b"id: 1\ndata: whole\n\nid: 2\ndata: half") == [("message", "1", "whole")]
    assert told(b"id: 1\ndata: whole\n\nid: 2\ndata: half\n") == [("message", "1", "whole")]


def test_a_line_ends_at_cr_and_lf_and_nowhere_else() -> None:
    assert told("data: a\u2028b\u0085c\x0cd\x1ce\r\n\r\n".encode()) == [("message", "", "a\u2028b\u0085c\x0cd\x1ce")]


def test_a_very_long_line_arrives() -> None:
    data = b"id: 1\ndata: " + "ä\U0001f600x".encode() * (1 << 20) + b"\n\n"

    ((_, _, text),) = told(data)

    assert len(text) == 3 << 20


FIELDS = st.sampled_from(
    ["data: x", "data:", "data: ä\u2028\U0001f600", "id: 7", "event: e", ": c", "", "data", "x: y"]
)
ENDS = st.sampled_from(["\n", "\r\n"])


@given(st.lists(st.tuples(FIELDS, ENDS)), st.integers(1, 9))
def test_events_are_the_same_in_pieces_of_any_size(lines: list[tuple[str, str]], size: int) -> None:
    data = "".join(line + end for line, end in lines).encode()
    frames, _ = parse(data)

    assert told(data, size) == [(frame.event, frame.id, frame.data) for frame in frames if frame.data]


@pytest.mark.parametrize("content_type", ["text/html", "application/json", ""])
def test_an_answer_of_another_type_is_not_the_servers(content_type: str) -> None:
    with pytest.raises(ForeignAnswer, match="does not answer like sandbox-agent"):
        told(b"data: x\n\n", content_type=content_type)
