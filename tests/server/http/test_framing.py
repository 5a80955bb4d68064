"""Where requests end in the bytes of a socket. Contract, section 3."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.protocol.errors import HeadersTooLarge
from sandboxagent.server.http.framing import MAX_HEAD_BYTES, Framing, RequestPart

HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def pieces(framing: Framing, data: bytes, cuts: Iterable[int] = ()) -> list[bytes]:
    """What the parser is given of a head or a chunked body that comes in parts."""
    found: list[bytes] = []
    edges = [0, *sorted(cut for cut in set(cuts) if 0 < cut < len(data)), len(data)]
    for first, last in itertools.pairwise(edges):
        read, start = data[first:last], 0
        while start < len(read):
            end = framing.end_of_piece(read, start)
            assert end > start
            framing.advance(read, start, end)
            found.append(read[start:end])
            start = end
    return found


@given(cuts=st.lists(st.integers(0, 60)), after=st.sampled_from([b"", b"x", HEAD, b"\r\n", HEAD * 3]))
def test_no_piece_goes_beyond_the_end_of_a_head_however_it_is_cut(cuts: list[int], after: bytes) -> None:
    given = pieces(Framing(), HEAD + after, cuts)

    assert b"".join(given) == HEAD + after
    ends = [len(b"".join(given[: number + 1])) for number in range(len(given))]
    assert len(HEAD) in ends


def test_body_with_a_length_is_one_piece_and_ends_at_that_length() -> None:
    framing = Framing()
    framing.expect_body(10)
    data = b"\r\n\r\n45678"
    assert framing.end_of_piece(data, 0) == 9
    framing.advance(data, 0, 9)
    assert framing.end_of_piece(b"9" + HEAD, 0) == 1


@pytest.mark.requirement("3.large-headers-431")
@given(cuts=st.lists(st.integers(0, MAX_HEAD_BYTES), max_size=5))
def test_a_head_may_have_64_kib_to_the_byte(cuts: list[int]) -> None:
    framing = Framing()
    pieces(framing, b"x" * (MAX_HEAD_BYTES - 1), cuts)
    framing.check()
    framing.advance(b"x", 0, 1)
    with pytest.raises(HeadersTooLarge):
        framing.check()


@pytest.mark.requirement("3.trailers")
def test_trailers_and_extensions_of_chunks_are_bounded() -> None:
    framing = Framing()
    framing.expect_body(None)
    line = b"x" * 1000
    for _ in range(MAX_HEAD_BYTES // 1000):
        framing.advance(line, 0, len(line))
        framing.check()
    framing.advance(line, 0, len(line))
    with pytest.raises(HeadersTooLarge):
        framing.check()


@given(sizes=st.lists(st.integers(1, 100_000), min_size=1, max_size=300), extension=st.integers(0, 90))
def test_an_honest_body_in_chunks_is_never_too_long(sizes: list[int], extension: int) -> None:
    framing = Framing()
    framing.expect_body(None)
    for size in sizes:
        extended = b";" * min(extension, size)
        chunk = b"%x%b\r\n%b\r\n" % (size, extended, b"x" * size)
        framing.count_chunk()
        start = 0
        while start < len(chunk):
            end = framing.end_of_piece(chunk, start)
            framing.advance(chunk, start, end)
            framing.count_body(chunk[start:end].count(b"x"))
            framing.check()
            start = end
    assert framing.part is RequestPart.CHUNKED_BODY


def test_blank_lines_before_a_request_are_one_piece_and_bounded() -> None:
    data = b"\r\n" * 1000 + b"GET / HTTP/1.1\r\n\r\n"
    assert Framing().end_of_piece(data, 0, has_begun=False) == 2000
    assert Framing().end_of_piece(b"\r\n" * MAX_HEAD_BYTES, 0, has_begun=False) == MAX_HEAD_BYTES
