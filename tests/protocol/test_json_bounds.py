"""How deep JSON may nest, and how many values it may have: measured in the text, as a parser would find it."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from sandboxagent.protocol.json_bounds import (
    MAX_DEPTH,
    MAX_DEPTH_OF_ANSWERS,
    MAX_STEP_BYTES,
    MAX_VALUES,
    _measure,
    check_depth,
    cut_between_escapes,
    excess,
    excess_of_answer,
    read,
    shallow,
)

PAIRS = [("[", "]"), ('{"a":', "}"), ('[{"[{": ', "}]")]
PADDING = '"' + "x" * 70_000 + '"'
"""Longer than a piece."""
# Text with all that could be taken for something else.
TEXT = st.text(st.sampled_from('[]{}",\\ aé😀\n'), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def values_of(value: Any) -> int:
    """Arrays, objects and commas."""
    if not isinstance(value, dict | list):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(len(inner) - 1, 0) + sum(map(values_of, inner))


def nested(depth: int, opening: str = "[", closing: str = "]", core: str = "1") -> bytes:
    return f"{opening * depth}{core}{closing * depth}".encode()


@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_depth_and_values_are_those_that_a_parser_finds(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    depth, values = depth_of(value), values_of(value)

    assert _measure(text, depth, values) is None
    assert depth == 0 or _measure(text, depth - 1, values) is not None
    assert values == 0 or _measure(text, depth, values - 1) is not None


@pytest.mark.parametrize("core", ["1", PADDING, '"\\"[[[\\\\"', f"{PADDING},{PADDING}"])
def test_the_limit_is_exact_wherever_the_brackets_stand(core: str) -> None:
    for opening, closing in PAIRS:
        levels = opening.count("[") + opening.count('{"')
        levels = 2 if opening.startswith("[{") else levels
        fitting = nested(MAX_DEPTH // levels, opening, closing, core if "," not in core else "1")
        assert excess(fitting) is None
        reason = excess(b"[" + fitting + b"]")
        assert reason is not None
        assert str(MAX_DEPTH) in reason


def test_brackets_in_texts_and_side_by_side_do_not_count() -> None:
    assert excess(json.dumps(["[" * 10_000, '\\"[{' * 10_000]).encode()) is None
    assert excess(b"[" + b"[]," * 100_000 + b"[]]") is None
    assert excess(b"[" + nested(100) + b"," + nested(100) + b"]") is None


def test_values_are_counted_outside_of_texts() -> None:
    assert excess(json.dumps("," * (MAX_VALUES + 10)).encode()) is None
    assert excess(b"[" + b"1," * (MAX_VALUES - 1) + b"1]") is None
    reason = excess(b"[" + b"1," * MAX_VALUES + b"1]")
    assert reason is not None
    assert str(MAX_VALUES) in reason


def test_what_a_server_shows_may_be_wrapped_and_long() -> None:
    assert excess_of_answer(b'{"a":' * 16 + nested(MAX_DEPTH) + b"}" * 16) is None
    assert excess_of_answer(nested(MAX_DEPTH_OF_ANSWERS + 1)) is not None
    assert excess_of_answer(b"[" + b"1," * MAX_VALUES + b"1]") is None


def test_what_is_out_of_bounds_is_not_read() -> None:
    assert read(b'{"a":[1]}', dict[str, list[int]]) == {"a": [1]}
    with pytest.raises(msgspec.DecodeError, match="nested deeper than 128 levels"):
        read(nested(MAX_DEPTH + 1), object)


def test_of_what_is_too_deep_the_rest_can_be_read_however_deep_it_is() -> None:
    kept = b'{"a":1,"deep":%b,"b":[2]}' % nested(900)

    assert shallow(kept, Raw, bytes) == ({"a": Raw(b"1"), "b": Raw(b"[2]")}, ["deep"])


def test_values_of_files_in_other_formats_have_the_same_limit() -> None:
    assert check_depth(json.loads(nested(MAX_DEPTH))) is None
    assert "128" in (check_depth(json.loads(nested(MAX_DEPTH + 1))) or "")
    assert check_depth({"a": [{"b": []}], "c": "x"}) is None


ESCAPES = st.lists(st.sampled_from(["\\\\", '\\"', "\\n", "x", "[", "\\u005b"]), max_size=12).map("".join)


@given(ESCAPES, st.integers(0, 30), st.sampled_from(["x", "\\\\"]))
def test_what_stands_where_two_steps_meet_counts_as_elsewhere(escapes: str, before: int, filler: str) -> None:
    size = (MAX_STEP_BYTES - before) // len(filler)
    texts = [f'["{filler * count}{escapes}",[1,2]]'.encode() for count in (1, size)]

    for text in texts:
        assert [_measure(text, depth, 10) is None for depth in (1, 2)] == [False, True]
        assert [_measure(text, 2, values) is None for values in (3, 4)] == [False, True]


@given(st.integers(0, 4), st.integers(0, 40), ESCAPES)
def test_steps_cover_a_text_and_do_not_cut_an_escape(odd: int, before: int, escapes: str) -> None:
    text = b"x" * (MAX_STEP_BYTES - before) + escapes.encode() + b"x" * odd + b"\\\\" * MAX_STEP_BYTES
    steps = list(cut_between_escapes(text))

    assert b"".join(text[start:end] for start, end in steps) == text
    assert all(0 < end - start <= MAX_STEP_BYTES for start, end in steps)
    for start, end in steps:
        piece = text[start:end]
        assert (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 0
