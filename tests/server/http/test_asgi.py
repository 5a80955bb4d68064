"""The shapes of ASGI: how headers are read; Accept, Content-Type and Prefer (contract, sections 3, 4 and 12)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.protocol.errors import NotAcceptable, UnsupportedMediaType
from sandboxagent.server.http.asgi import EVENT_STREAM, JSON, check_accept, check_json, group_headers, wants_async


def accepts(accept: str | None, offered: str = JSON) -> bool:
    try:
        check_accept(None if accept is None else accept.encode("latin-1"), offered)
    except NotAcceptable:
        return False
    return True


def test_a_refusal_says_what_is_offered() -> None:
    with pytest.raises(NotAcceptable, match="application/json") as refused:
        check_accept(b"text/html", JSON)

    assert refused.value.fields == {"offered": JSON}


@pytest.mark.parametrize(
    "accept",
    [
        None,
        "",
        "*/*",
        "application/*",
        "application/json",
        "Application/JSON",
        "application/json;charset=utf-8",
        "application/json; q=0.001",
        "application/json ; q=1.0 ; x=y",
        "text/html, application/json",
        "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
        "application/json, */*;q=0",
        "*/*;q=0, application/json",
        "application/*;q=0, application/json;q=0.1",
        "text/event-stream, application/json",
        ",application/json,",
    ],
)
def test_what_leaves_room_for_json_accepts_it(accept: str | None) -> None:
    assert accepts(accept)


@pytest.mark.parametrize(
    "accept",
    [
        "text/html",
        "text/*",
        "text/event-stream",
        "application/json;q=0",
        "application/json;q=0.0",
        "application/json; q=0.000, text/html",
        "*/*;q=0",
        "*/*, application/json;q=0",
        "*/*, application/*;q=0",
        "application/jsonp",
        "application/json-seq",
        "application",
        "json",
        "application/json;q=high",
        "application/json;q=nan",
        "application/json;q=-1",
    ],
)
def test_what_leaves_no_room_for_json_excludes_it(accept: str) -> None:
    assert not accepts(accept)


@pytest.mark.parametrize("accept", ["text/event-stream", "text/*", "*/*", "text/event-stream;q=0.5, */*;q=0", None])
def test_a_stream_is_accepted_by_its_own_name_or_a_range(accept: str | None) -> None:
    assert accepts(accept, EVENT_STREAM)


@pytest.mark.parametrize("accept", ["application/json", "application/*", "text/html", "*/*, text/event-stream;q=0"])
def test_a_stream_is_excluded_by_anything_else(accept: str) -> None:
    assert not accepts(accept, EVENT_STREAM)


@given(accept=st.binary(max_size=60))
def test_no_bytes_make_it_stumble(accept: bytes) -> None:
    assert accepts(accept.decode("latin-1")) in (True, False)


@given(
    others=st.lists(st.sampled_from(["text/html", "*/*;q=0", "image/*;q=0.2", "application/*;q=0"])),
    at=st.integers(0, 5),
)
def test_the_most_specific_range_decides_wherever_it_stands(others: list[str], at: int) -> None:
    wanted, refused = list(others), list(others)
    wanted.insert(at, "application/json;q=0.5")
    refused.insert(at, "application/json;q=0")

    assert accepts(", ".join(wanted))
    assert not accepts(", ".join(refused))


# --- Content-Type -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content_type",
    [b"application/json", b"APPLICATION/json", b"application/json; charset=utf-8", b"application/json-rpc+json"],
)
def test_json_is_json_whatever_its_parameters(content_type: bytes) -> None:
    check_json(content_type)


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        b"",
        b"text/plain",
        b"text/json",
        b"application/x-www-form-urlencoded",
        b"multipart/form-data; boundary=application/json",
        b"application/jsonp",
        b"text/plain; application/json",
        b"application/json, text/plain",
        b"\xff\xfe",
    ],
)
def test_anything_else_is_refused_and_named(content_type: bytes | None) -> None:
    with pytest.raises(UnsupportedMediaType) as refused:
        check_json(content_type)

    assert refused.value.fields == {"contentType": (content_type or b"").decode("latin-1")}


# --- Prefer -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefer", [b"respond-async", b"Respond-Async", b"wait=10, respond-async", b"respond-async; x=1, return=minimal"]
)
def test_respond_async_is_found_among_others(prefer: bytes) -> None:
    assert wants_async(prefer)


@pytest.mark.parametrize("prefer", [None, b"", b"wait=10", b"respond-async-not", b"x=respond-async", b"respond async"])
def test_nothing_else_means_respond_async(prefer: bytes | None) -> None:
    assert not wants_async(prefer)


def test_a_header_that_is_there_twice_is_a_list_of_its_values() -> None:
    headers = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"a", b"1"), (b"c", b"")]

    assert group_headers(headers) == {b"a": b"1, 3, 1", b"b": b"2", b"c": b""}
    assert group_headers(headers[:2]) == {b"a": b"1", b"b": b"2"}
