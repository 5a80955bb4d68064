"""What only the server says, taken out of agents' lines. Contract, section 5."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.server.sessions.sanitize import needs_check, strip_server_fields

META = "sandboxagent.dev"
FORGED: dict[str, Any] = {META: {"fromServer": True}}


def line(**params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode()


def first_wins(text: bytes) -> Any:
    """What a reader gets that takes the first of two members."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        return dict(reversed(found))

    return json.loads(text, object_pairs_hook=pairs)


@pytest.mark.parametrize(
    "forged",
    [
        line(sessionId="s", _meta=FORGED),
        line(sessionId="s", _meta=FORGED | {"vendor": 1}),
        line(sessionId="s", update={"sessionUpdate": "plan", "_meta": FORGED}),
        line(sessionId="s", toolCall={"_meta": FORGED}),
        line(sessionId="s", _meta=FORGED).replace(b"sandboxagent", b"sandbox\\u0061gent"),
        line(sessionId="s", _meta=FORGED).replace(b"sandboxagent.dev", b"\\u0073andboxagent\\u002edev"),
        line(sessionId="s", _meta=FORGED).replace(b"_meta", b"_m\\u0065ta"),
        line(sessionId="s", _meta=FORGED).replace(b'"_meta":', b'"_meta": {}, "_meta":'),
        line(sessionId="s", _meta=FORGED)[:-2] + b', "_meta": {}}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"_meta":{"sandboxagent.dev":{"warnings":["x"]}}}}',
    ],
)
def test_our_key_in_meta_does_not_get_through_however_it_is_spelled(forged: bytes) -> None:
    assert needs_check(forged, 1)
    for read in (json.loads, first_wins):
        assert META not in json.dumps(read(strip_server_fields(forged)))


@pytest.mark.parametrize(
    "repeated",
    [
        b'{"jsonrpc":"2.0","method":"_sandboxagent/session/ended","method":"session/update","params":{"sessionId":"s"}}',
        b'{"jsonrpc":"2.0","m\\u0065thod":"_s\\u0061ndboxagent/x","method":"x","params":{"sessionId":"s"}}',
        b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"theirs","sessionId":"s"}}',
        b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"theirs"},"params":{"sessionId":"s"}}',
        b'{"jsonrpc":"2.0","method":"session/update","params":{"s\\u0065ssionId":"theirs","sessionId":"s"}}',
    ],
)
def test_a_repeated_member_means_the_same_to_every_reader(repeated: bytes) -> None:
    assert needs_check(repeated, 1)
    clear = strip_server_fields(repeated)
    assert json.loads(clear) == first_wins(clear) == json.loads(repeated)


@pytest.mark.parametrize(
    "harmless",
    [
        line(sessionId="s", update={"content": {"type": "text", "text": 'git grep "sandboxagent.dev" "method"'}}),
        line(sessionId="s", update={"rawInput": {"method": "m", "sessionId": "t", "params": {}, META: 1}}),
        line(sessionId="s", update={"content": {"text": "\u001b[31m<\\u0061>"}}, _meta={"vendor": {META: 1}}),
        b'{"jsonrpc":"2.0", "method":"x/a", "params":["sandboxagent.dev"]}',
        b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","t":"\\ud800 sandboxagent"}}',
        b'{"jsonrpc":"2.0","id":1e3,"result":{"sandboxagent":{},"big":123456789012345678901234567890}}',
        b'{"jsonrpc":"2.0","id":1,"result":{}, "_sandboxagent":0}',
    ],
)
def test_a_harmless_line_keeps_its_bytes(harmless: bytes) -> None:
    assert strip_server_fields(harmless) is harmless


def test_an_ordinary_batch_needs_no_closer_look() -> None:
    text = {"content": {"text": 'say "method" and \u0022sessionId\u0022 <b> \x1b[0m'}}
    lines = [line(sessionId="s", update=text), line(sessionId="t", update={}), b'{"jsonrpc":"2.0","id":1,"result":{}}']
    assert not needs_check(b"\n".join(lines), len(lines))


_names = st.sampled_from(["_meta", META, "params", "update", "toolCall", "method", "sessionId", "x"])
_values = st.recursive(
    st.sampled_from(["session/update", "_sandboxagent/session/ended", "s", 1]),
    lambda inner: st.lists(st.tuples(_names, inner), max_size=4),
    max_leaves=12,
)


def _written(value: Any) -> str:
    if isinstance(value, list):
        return "{" + ",".join(f"{json.dumps(name)}:{_written(inner)}" for name, inner in value) + "}"
    return json.dumps(value)


@given(st.lists(st.tuples(_names, _values), max_size=5), st.booleans())
def test_stripped_line_has_one_session_and_method_for_all_readers(members: list[Any], escaped: bool) -> None:
    """None of the readers finds the server's signature in it."""
    text = '{"jsonrpc":"2.0"' + "".join(f",{json.dumps(name)}:{_written(value)}" for name, value in members) + "}"
    if escaped:
        text = text.replace("sandboxagent.dev", "s\\u0061ndboxagent.dev").replace('"method"', '"meth\\u006fd"')
    before = text.encode()
    after = strip_server_fields(before) if needs_check(before, 1) else before
    for read in (json.loads, first_wins):
        found = read(after)
        params: Any = found.get("params")
        for holder in (params, *([params.get("update"), params.get("toolCall")] if isinstance(params, dict) else [])):
            meta: Any = holder.get("_meta") if isinstance(holder, dict) else None
            assert not (isinstance(meta, dict) and META in meta)
    (ours, session), (also_ours, also_session) = _decisive(json.loads(after)), _decisive(first_wins(after))
    assert ours == also_ours
    # A line that repeats `params` may hide its session from a client, which gains an agent nothing.
    assert None in (session, also_session) or session == also_session


def _decisive(envelope: Any) -> tuple[Any, Any]:
    """What a client believes: a method of ours, and whose session it is."""
    method, params = envelope.get("method"), envelope.get("params")
    ours = method if isinstance(method, str) and method.startswith("_sandboxagent/") else None
    session = params.get("sessionId") if isinstance(params, dict) else None
    return ours, session if isinstance(session, str) else None


def test_a_line_whose_session_some_readers_cannot_see_needs_no_closer_look() -> None:
    """Found by the test above."""
    hidden = b'{"jsonrpc":"2.0","params":"s","params":{"sessionId":"s"}}'
    assert not needs_check(hidden, 1)


@given(st.binary(min_size=500, max_size=1200), st.binary(max_size=600))
def test_our_name_is_found_wherever_it_stands_in_a_long_batch(before: bytes, after: bytes) -> None:
    assert needs_check(before + b"sandboxagent" + after, 1000)
    assert needs_check(b"x" * 5000 + before + b"sandboxagent", 1000)


def test_a_name_that_lies_beyond_the_end_of_a_long_batch_is_not_found() -> None:
    assert not needs_check(b"sandboxagen" * 1000 + b"x\0sandboxagen", 1000)
