"""Lines out of pieces: contract, section 5 (a line may be 64 MiB; stderr is kept as head and tail)."""

import itertools
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxagent.server.agents.lines import OVERSIZED_HEAD_BYTES, LineSplitter, StderrTail

LINE = st.binary(max_size=40).map(lambda line: line.replace(b"\n", b""))


@st.composite
def pieces_of(draw: st.DrawFn, content: bytes) -> list[bytes]:
    cuts = sorted(draw(st.sets(st.integers(0, len(content)), max_size=20)))
    return [content[start:end] for start, end in itertools.pairwise([0, *cuts, len(content)])]


@settings(deadline=None)
@given(st.data(), st.lists(LINE), LINE)
def test_any_pieces_of_the_same_bytes_give_the_same_lines(data: st.DataObject, lines: list[bytes], rest: bytes) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter()

    blobs = [splitter.feed(piece) for piece in data.draw(pieces_of(whole + rest))]

    assert b"".join(blobs) == whole
    assert all(blob.endswith(b"\n") for blob in blobs if blob)
    assert splitter.rest() == rest
    assert splitter.take_oversized() == []


@settings(deadline=None)
@given(st.data(), st.lists(LINE), LINE, st.integers(0, 20))
def test_only_lines_over_the_limit_are_dropped(
    data: st.DataObject, lines: list[bytes], rest: bytes, limit: int
) -> None:
    content = b"".join(line + b"\n" for line in lines) + rest
    splitter = LineSplitter(max_line=limit)

    kept = b"".join(splitter.feed(piece) for piece in data.draw(pieces_of(content)))

    assert kept == b"".join(line + b"\n" for line in lines if len(line) <= limit)
    assert splitter.rest() == (rest if len(rest) <= limit else b"")
    # How much of a head was there when the line turned out too long depends on the pieces.
    heads = splitter.take_oversized()
    oversized = [line for line in [*lines, rest] if len(line) > limit]
    assert len(heads) == len(oversized)
    assert all(line.startswith(head) for head, line in zip(heads, oversized, strict=True))


def test_an_oversized_line_leaves_its_beginning() -> None:
    line = bytes(range(32, 127)) * 100
    for piece in (len(line), 1000, 1):
        splitter = LineSplitter(max_line=6000)
        content = line + b"\nnext\n"

        blob = b"".join(splitter.feed(content[at : at + piece]) for at in range(0, len(content), piece))

        assert blob == b"next\n"
        assert splitter.take_oversized() == [line[:OVERSIZED_HEAD_BYTES]]
        assert splitter.take_oversized() == []


def test_a_line_of_exactly_the_limit_passes() -> None:
    splitter = LineSplitter(max_line=4)

    assert splitter.feed(b"1234\n12345\n1234\n") == b"1234\n1234\n"
    assert splitter.feed(b"1234") == b""
    assert splitter.feed(b"\n") == b"1234\n"
    assert splitter.take_oversized() == [b"12345"]


def test_a_large_line_in_small_pieces_is_not_copied_again_with_each() -> None:
    splitter, piece = LineSplitter(), b"x" * 1024
    started = time.process_time()

    for _ in range(63 * 1024):
        splitter.feed(piece)

    assert len(splitter.feed(b"\n")) == (63 << 20) + 1
    # Copying what is there with each piece would be two terabytes.
    assert time.process_time() - started < 10


@settings(deadline=None)
@given(st.data(), st.lists(LINE), LINE, st.integers(1, 5), st.integers(1, 5))
def test_stderr_keeps_the_first_and_the_last_lines(
    data: st.DataObject, lines: list[bytes], rest: bytes, head: int, tail: int
) -> None:
    stderr = StderrTail(head=head, tail=tail)
    for piece in data.draw(pieces_of(b"".join(line + b"\n" for line in lines) + rest)):
        stderr.feed(piece)
    whole = [*lines, rest] if rest else lines
    written = [line.decode("utf-8", "replace").removesuffix("\r") for line in whole]

    kept = stderr.snapshot()

    assert kept.head == written[:head]
    assert kept.tail == written[head:][-tail:]
    assert kept.total_lines == len(written)
    assert kept.truncated == (len(written) > head + tail)


def test_stderr_replaces_what_is_not_utf_8() -> None:
    stderr = StderrTail()
    stderr.feed(b"caf\xc3\xa9 \xff\n")

    assert stderr.snapshot().head == ["café \ufffd"]


def test_stderr_cuts_long_lines_and_says_so() -> None:
    stderr = StderrTail(line_limit=4)
    for piece in (b"12", b"34", b"56", b"\nnext\n"):
        stderr.feed(piece)

    assert stderr.snapshot().head == ["1234", "next"]
    assert stderr.snapshot().truncated


def test_the_text_of_stderr_is_as_many_last_lines_as_fit() -> None:
    stderr = StderrTail(head=2, tail=2)
    stderr.feed(b"one\ntwo\nthree\n")

    assert stderr.text(100) == "one\ntwo\nthree"
    assert stderr.text(9) == "two\nthree"
    assert stderr.text(8) == "three"
    assert stderr.text(3) == "ree"


def test_the_text_of_stderr_does_not_join_lines_that_were_apart() -> None:
    stderr = StderrTail(head=1, tail=2)
    stderr.feed(b"one\ntwo\nthree\nfour\n")

    assert stderr.text(100) == "three\nfour"
