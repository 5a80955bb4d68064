"""Envelopes: whatever bytes come, they are refused by name or kept as they are."""

import json
import re
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import msgspec
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from sandboxagent.protocol.envelope import (
    MIN_DEEP_BYTES,
    Kind,
    address,
    find_replaceable,
    has_prompt,
    one_line,
    param,
    parse,
    parse_large,
    same_id,
    with_id,
    with_param,
)
from sandboxagent.protocol.errors import NotAnEnvelope
from sandboxagent.protocol.json_bounds import MAX_DEPTH, MAX_STEP_BYTES
from sandboxagent.server.sessions.sanitize import needs_check, strip_server_fields

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])

SPACE = st.text(" \t", max_size=2)
BREAKING_SPACE = st.text(" \t\r\n", max_size=3)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.sampled_from(["0", "-0", "1", "-7", "1.0", "1e2", "1E+400", "-1.50", "12345678901234567890123", "0.1e-9"])


@st.composite
def strings(draw: st.DrawFn, of: st.SearchStrategy[str] = WORDS) -> str:
    """The text of a JSON string: characters as they are, or escaped."""
    text = draw(of)
    plain = json.dumps(text, ensure_ascii=False)
    escaped = '"' + "".join(f"\\u{unit:04x}" for unit in _units(text)) + '"'
    return draw(st.sampled_from([plain, json.dumps(text), escaped]))


def _units(text: str) -> list[int]:
    data = text.encode("utf-16-be")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


def values(space: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """The text of any JSON value."""
    leaves = st.one_of(st.sampled_from(["null", "true", "false", "{}", "[]"]), NUMBERS, strings())

    def containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        array = st.lists(inner, max_size=3).flatmap(lambda items: joined("[", items, "]", space))
        members = st.lists(st.tuples(strings(), inner), max_size=3)
        return array | members.flatmap(lambda pairs: joined("{", [f"{k}:{v}" for k, v in pairs], "}", space))

    return st.recursive(leaves, containers, max_leaves=6)


@st.composite
def joined(draw: st.DrawFn, start: str, items: list[str], end: str, space: st.SearchStrategy[str]) -> str:
    return start + ",".join(draw(space) + item + draw(space) for item in items) + end


@st.composite
def ids(draw: st.DrawFn) -> str:
    return draw(NUMBERS | strings())


@st.composite
def envelopes(draw: st.DrawFn, space: st.SearchStrategy[str] = SPACE) -> tuple[str, str, str]:
    """An envelope in three parts: what comes before its id, the id, and what comes after."""
    names = strings(WORDS.filter(lambda word: word not in KEYS))
    others = draw(st.lists(st.tuples(names, values(space)), max_size=3, unique_by=lambda pair: json.loads(pair[0])))
    members = [('"jsonrpc"', '"2.0"'), *others]
    shape = draw(st.sampled_from(["request", "success", "failure"]))
    if shape == "request":
        members += [('"method"', '"session/prompt"'), ('"params"', f'{{"inner":{draw(values(space))}}}')]
    else:
        members += [('"result"' if shape == "success" else '"error"', draw(values(space)))]
    key = draw(st.sampled_from(['"id"', '"\\u0069d"', '"i\\u0064"']))
    members = draw(st.permutations([*members, (key, MARK)]))
    texts = [f"{draw(space)}{key}{draw(space)}:{draw(space)}{value}{draw(space)}" for key, value in members]
    before, after = ("{" + ",".join(texts) + "}").split(MARK)
    return before, draw(ids()), after


MARK = "<the id>"
KEYS = {"jsonrpc", "id", "method", "params", "result", "error"}


@QUICK
@given(envelopes(), ids())
def test_another_id_changes_the_id_and_no_other_byte(parts: tuple[str, str, str], id: str) -> None:
    before, old, after = parts

    assert with_id(f"{before}{old}{after}".encode(), id.encode()) == f"{before}{id}{after}".encode()


@QUICK
@given(envelopes(), ids())
def test_another_id_is_put_into_a_long_line_as_into_any_other(parts: tuple[str, str, str], id: str) -> None:
    line = "".join(parts).encode()

    assert parse_large(line).addressed(id.encode(), None) == with_id(one_line(line), id.encode())


@QUICK
@given(st.lists(values(SPACE), max_size=3), values(SPACE), ids(), WORDS, st.permutations(range(3)), st.booleans())
def test_a_long_prompt_gets_what_is_exchanged_in_it_and_keeps_the_rest(
    blocks: list[str], other: str, id: str, session: str, order: list[int], remarked: bool
) -> None:
    params = ['"sessionId" : "s"', f'"prompt":[ {" , ".join(blocks)} ]', f'"other": {other}']
    inner = ",".join(params[place] for place in order)
    line = f'{{"method":"session/prompt", "params":{{ {inner} }},"jsonrpc":"2.0","id":1}}'.encode()
    said, places = find_replaceable(line)
    changed = address(said, places, id.encode(), session, b'"remark"' if remarked else b"")
    expected, found = (json.loads(each, parse_int=str, parse_float=str)["params"] for each in (line, changed))
    expected["sessionId"] = session
    expected["prompt"][:0] = ["remark"] if remarked else []

    assert said == line
    assert [line[start:end] for start, end in places.blocks] == [each.strip().encode() for each in blocks]
    assert parse(changed).id == id.encode()
    assert found == expected


@QUICK
@given(envelopes(), ids())
def test_an_id_comes_back_byte_for_byte_after_it_was_replaced(parts: tuple[str, str, str], id: str) -> None:
    line = "".join(parts).encode()
    original = parse(line).id
    assert original is not None

    assert with_id(with_id(line, id.encode()), original) == line


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"x","id":1}',
        b'{"jsonrpc":"2.0","id":12,"method":"x","id":1}',
        b'{"jsonrpc":"2.0","id":1,"method":"x","id":12}',
        b'{"id":{"id":1},"jsonrpc":"2.0","method":"x","id":1}',
        b'{"jsonrpc":"2.0","id":1,"method":"x","\\u0069d":1}',
        b'{"method":"y","jsonrpc":"2.0","id":1,"method":"x"}',
        b'{"params":{"id":5},"jsonrpc":"2.0","id":1,"method":"x","params":{"id":5}}',
    ],
)
def test_an_envelope_with_a_repeated_key_leaves_under_one_new_id(line: bytes) -> None:
    pairs: list[tuple[str, Any]] = json.loads(with_id(line, b'"new"'), object_pairs_hook=list)

    # A reader of the first of two and a reader of the last must both see the new id.
    assert {value for key, value in pairs if key == "id"} == {"new"}
    assert dict(pairs)["method"] == "x"


@QUICK
@given(envelopes(), st.permutations(["1", "12", '"1"']), st.data())
def test_repeated_ids_never_survive_as_the_id(
    parts: tuple[str, str, str], repeated: list[str], data: st.DataObject
) -> None:
    before, _, after = parts
    extra = data.draw(st.sampled_from(['"id"', '"\\u0069d"']))
    line = f"{before}{repeated[0]}{after[:-1]},{extra}:{repeated[1]}}}".encode()

    assert json.loads(with_id(line, b"99"))["id"] == 99


@pytest.mark.parametrize(
    "params",
    [
        '{"sessionId":"a","sessionId":"b"}',
        '{"sessionId":"b"},"params":{"sessionId":"b"}',
        '{"sessionId":"b"},"id":2',
    ],
)
def test_repeated_members_of_a_long_line_are_there_once(params: str) -> None:
    large = parse_large(f'{{"jsonrpc":"2.0","method":"x","id":1,"params":{params}}}'.encode())

    assert large.session_id == "b"
    changed = large.addressed(b"7", "c")
    assert changed == b'{"jsonrpc":"2.0","method":"x","id":7,"params":{"sessionId":"c"}}'


@QUICK
@given(st.binary(max_size=60))
@example(b"")
@example(b"{}")
@example(b"\xff")
@example(b"\xef\xbb\xbf{}")
@example(b'{"jsonrpc":"2.0","id":1,"method":"x"}{}')
@example(b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + b"[" * 100_000)
@example(b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
@example(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)
def test_any_bytes_are_an_envelope_or_refused_by_name(body: bytes) -> None:
    try:
        envelope = parse(body)
    except NotAnEnvelope:
        return
    assert json.loads(envelope.line)["jsonrpc"] == "2.0"


@QUICK
@given(envelopes(BREAKING_SPACE), st.data())
def test_a_damaged_envelope_is_refused_by_name_or_still_json(parts: tuple[str, str, str], data: st.DataObject) -> None:
    body = bytearray("".join(parts).encode())
    at = data.draw(st.integers(0, len(body) - 1))
    body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))

    try:
        envelope = parse(bytes(body))
    except NotAnEnvelope:
        return
    assert json.loads(envelope.line) == json.loads(body)
    assert b"\n" not in envelope.line
    assert b"\r" not in envelope.line


@QUICK
@given(envelopes(BREAKING_SPACE))
def test_an_envelope_is_put_on_one_line_and_stays_the_same_json(parts: tuple[str, str, str]) -> None:
    body = "".join(parts).encode()
    line = one_line(body)

    assert b"\n" not in line
    assert b"\r" not in line
    assert _numbers_as_text(line) == _numbers_as_text(body)


def _numbers_as_text(body: bytes) -> object:
    """Decoded, but with numbers as they were written: `1.0` is not `1`."""
    return json.loads(body, parse_int=str, parse_float=str)


@QUICK
@given(envelopes())
def test_an_envelope_that_is_on_one_line_keeps_its_bytes(parts: tuple[str, str, str]) -> None:
    line = "".join(parts).encode()

    assert parse(line).line == line.strip()


@QUICK
@given(envelopes(BREAKING_SPACE))
def test_the_id_is_read_as_its_own_text(parts: tuple[str, str, str]) -> None:
    before, id, after = parts

    assert parse(f"{before}{id}{after}".encode()).id == id.encode()


@QUICK
@given(values(SPACE))
def test_only_numbers_and_strings_are_ids(value: str) -> None:
    body = f'{{"jsonrpc":"2.0","id":{value},"method":"x"}}'.encode()
    if isinstance(json.loads(value), str) or _is_number(value):
        assert parse(body).kind is Kind.REQUEST
    else:
        with pytest.raises(NotAnEnvelope, match="id"):
            parse(body)


def _is_number(value: str) -> bool:
    return isinstance(json.loads(value), int | float) and value not in ("true", "false")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b'{"jsonrpc":"2.0"', "not JSON"),
        (b"[]", "batches"),
        (b' [{"jsonrpc":"2.0","method":"x"}]', "batches"),
        (b'"text"', "not an envelope"),
        (b"1", "not an envelope"),
        (b"null", "not an envelope"),
        (b'{"id":1,"method":"x"}', '"jsonrpc"'),
        (b'{"jsonrpc":"1.0","id":1,"method":"x"}', '"jsonrpc"'),
        (b'{"jsonrpc":2.0,"id":1,"method":"x"}', '"jsonrpc"'),
        (b'{"jsonrpc":"2.0","id":1}', "neither"),
        (b'{"jsonrpc":"2.0","id":1,"method":""}', '"method"'),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', '"method"'),
        (b'{"jsonrpc":"2.0","id":1,"method":null}', '"method"'),
        (b'{"jsonrpc":"2.0","result":{}}', '"id" is missing'),
        (b'{"jsonrpc":"2.0","id":null,"method":"x"}', '"id"'),
        (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', "not UTF-8"),
        (b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"\xc3("}}', "not UTF-8"),
        (b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + b"[" * 5000 + b"]" * 5000 + b"}", "nested"),
    ],
)
def test_what_is_no_envelope_is_refused_with_the_reason(body: bytes, reason: str) -> None:
    with pytest.raises(NotAnEnvelope, match=reason):
        parse(body)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"jsonrpc":"2.0","id":0,"method":"x"}', Kind.REQUEST),
        (b'{"jsonrpc":"2.0","method":"x"}', Kind.NOTIFICATION),
        (b'{"jsonrpc":"2.0","id":"","result":null}', Kind.RESPONSE),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}', Kind.RESPONSE),
    ],
)
def test_the_kind_follows_from_the_members(body: bytes, kind: Kind) -> None:
    assert parse(body).kind is kind


@pytest.mark.parametrize("params", ["5", "true", "null", '"text"', "[1,2]", '{"sessionId":5}', '{"sessionId":{}}'])
def test_params_that_name_no_session_are_passed_on_as_they_are(params: str) -> None:
    envelope = parse(f'{{"jsonrpc":"2.0","id":1,"method":"x","params":{params}}}'.encode())

    assert envelope.session_id is None
    assert params.encode() in envelope.line


@QUICK
@given(st.sampled_from(["prompt", "other", "pro\\u006dpt"]), values(SPACE))
@example("prompt", "null")
def test_a_prompt_is_found_where_a_member_of_params_has_that_name(name: str, value: str) -> None:
    line = f'{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"{name}":{value}}},"prompt":1}}'.encode()

    assert has_prompt(line) == (param(line, "prompt") is not None)
    assert has_prompt(line) == (name != "other")


@pytest.mark.parametrize("params", ["1", "null", '"prompt"', '["prompt"]', "{}"])
def test_params_that_are_no_object_or_an_empty_one_have_no_prompt(params: str) -> None:
    assert not has_prompt(f'{{"jsonrpc":"2.0","id":1,"method":"x","params":{params}}}'.encode())


@QUICK
@given(values(SPACE), values(SPACE), WORDS)
def test_a_changed_member_of_params_leaves_the_others_as_they_are(one: str, two: str, text: str) -> None:
    assume(text != "one")
    line = f'{{"jsonrpc":"2.0","id":1.0,"method":"x","params":{{"one":{one},"two":{two}}},"more":{two}}}'.encode()
    changed = with_param(line, "two", text)

    assert param(changed, "one") == one.encode()
    assert json.loads(changed)["params"]["two"] == text
    assert json.loads(changed)["more"] == json.loads(two)
    assert parse(changed).id == b"1.0"


HALVES = st.lists(
    st.sampled_from(["\\ud83d", "\\ude00", "\\ud83d\\ude00", "\\\\", "\\n", "x", "\\u0041"]), max_size=8
).map("".join)


@QUICK
@given(HALVES, st.integers(0, 60), st.sampled_from(["x", "\\\\"]))
def test_half_a_pair_is_found_also_where_two_steps_meet(halves: str, before: int, filler: str) -> None:
    count = (MAX_STEP_BYTES - len('{"jsonrpc":"2.0","id":1,"result":"') - before) // len(filler)
    short, long = (
        bytes(cast(Raw, parse(f'{{"jsonrpc":"2.0","id":1,"result":"{filler * times}{halves}"}}'.encode()).peek.result))
        for times in (1, count)
    )

    assert long == b'"' + filler.encode() * (count - 1) + short[1:]
    assert json.loads(short) == re.sub("[\ud800-\udfff]", "\ufffd", json.loads(f'"{filler}{halves}"'))


# What envelopes take

SIZE = 6 << 20
TIMES = 6
"""What one step may take besides the text itself, in its size: with the text, and a copy that goes on, it is eight."""


MANY_VALUES = 32 << 20
"""What the values of a small one may take, of which there may be a quarter of a million."""


def valued(value: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":"\\u0041","method":"x","params":{"sessionId":"s","a":%b}}' % value


HUGE = {
    "a text": valued(b'"%b"' % (b"x" * SIZE)),
    "a text with one emoji": valued(b'"\xf0\x9f\x98\x80%b"' % (b"x" * SIZE)),
    "escapes": valued(b'"%b"' % (b"\\n" * (SIZE // 2))),
    "escapes and half a pair": valued(b'"\\ud800%b"' % (b"\\n" * (SIZE // 2))),
    "halves of pairs": valued(b'"%b"' % (b"\\ud800" * (SIZE // 6))),
    "pairs and half a one": valued(b'"%b\\ud800"' % (b"\\ud83d\\ude00" * (SIZE // 12))),
    "escaped letters": valued(b'"%b"' % (b"\\u0061" * (SIZE // 6))),
    "escaped accents": valued(b'"%b"' % (b"\\u00e9" * (SIZE // 6))),
    "line breaks": valued(b"\n" * SIZE + b"1"),
    "spaces": b"{" + b" " * SIZE + valued(b"1")[1:],
    "a name": b'{"%b":1,' % (b"x" * SIZE) + valued(b"1")[1:],
    "a name of escapes": b'{"%b":1,' % (b"\\n" * (SIZE // 2)) + valued(b"1")[1:],
    "an id of escapes": valued(b"1").replace(b"\\u0041", b"\\n" * (SIZE // 2)),
    "a method": valued(b"1").replace(b'"x"', b'"\xf0\x9f\x98\x80%b"' % (b"x" * SIZE)),
    "a session": valued(b"1").replace(b'"s"', b'"\xf0\x9f\x98\x80%b"' % (b"x" * SIZE)),
    "what is no UTF-8": valued(b'"%b\xff"' % (b"x" * SIZE)),
    "very many arrays": valued(b"[%b[]]" % (b"[]," * 120_000)),
    "very many members": valued(b"{%b}" % b",".join(b'"%d":1' % number for number in range(240_000))),
}
STEPS: dict[str, Callable[[bytes], object]] = {
    "parse": parse,
    "parse a long one": lambda line: parse_large(line).addressed(b"7", "t"),
    "another id": lambda line: with_id(line, b"7"),
    "a param": lambda line: param(line, "b"),
    "with a param": lambda line: with_param(line, "sessionId", "t"),
    "forgery": lambda line: needs_check(line, 1),
    "what is forged": strip_server_fields,
    "params": lambda line: parse(line).params(),
    "an id": lambda line: same_id(parse(line).id or b""),
}


def peak(work: Callable[[], object]) -> int:
    """Bytes that it took at once, refused or not."""
    tracemalloc.start()
    try:
        with suppress(NotAnEnvelope, msgspec.DecodeError):
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.requirement("12.memory")
def test_no_envelope_takes_many_times_its_size() -> None:
    found = {
        (huge, step): (peak(lambda work=work, line=line: work(line)), len(line))
        for huge, line in HUGE.items()
        for step, work in STEPS.items()
        # All else is done with what was let in.
        if step in ("parse", "params", "an id") or _let_in(line)
    }
    too_much = {which: took / size for which, (took, size) in found.items() if took > max(TIMES * size, MANY_VALUES)}
    assert too_much == {}


def _let_in(line: bytes) -> bool:
    with suppress(NotAnEnvelope):
        parse(line)
        return True
    return False


def test_ids_that_no_parser_takes_stay_apart() -> None:
    one, other = rb'"\ud800\u0041"', rb'"\ud801\u0041"'
    assert same_id(one) != same_id(other)
    assert same_id(one) == same_id(one)


@pytest.mark.requirement("3.deep-nesting-400")
def test_shortest_envelope_that_nests_too_deep_is_refused() -> None:
    head = b'{"jsonrpc":"2.0","id":1,"error":'
    shortest = head + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}"
    fitting = head + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"

    assert len(shortest) == MIN_DEEP_BYTES
    with pytest.raises(NotAnEnvelope, match=f"deeper than {MAX_DEPTH} levels"):
        parse(shortest)
    parse(fitting)


@pytest.mark.parametrize("which", ['"method":"NAME"', '"method":"x","params":{"sessionId":"NAME"}'])
def test_a_name_that_is_longer_than_any_real_one_is_refused(which: str) -> None:
    def named(length: int) -> bytes:
        return f'{{"jsonrpc":"2.0",{which.replace("NAME", "a" * length)}}}'.encode()

    assert parse(named(1024)).method
    with pytest.raises(NotAnEnvelope, match="more than 1024 characters"):
        parse(named(1025))
