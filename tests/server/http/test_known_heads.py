"""Heads that a client repeats are known again, and no others are."""

import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandboxagent.server.http.head import MAX_MEMO_HEAD_BYTES, HeadMemo

BODY = b'{"jsonrpc":"2.0"}'


class Parsed:
    """What the parser makes of a head."""

    def __init__(self, head: bytes) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        httptools.HttpRequestParser(self).feed_data(head)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))


def head(*lines: str) -> bytes:
    return "".join(f"{line}\r\n" for line in ("POST /v1/rpc HTTP/1.1", "Host: here", *lines)).encode() + b"\r\n"


def learned(head: bytes):
    return HeadMemo.of(head, Parsed(head).headers)


ORDERS = [
    ("Authorization: Bearer x", "Content-Length: {length}"),
    ("Content-Length: {length}", "Idempotency-Key: {key}", "Accept: */*"),
    ("idempotency-key:{key}", "Accept: */*", "content-length:{length}"),
]


@pytest.mark.parametrize("lines", ORDERS, ids=["no key", "length first", "key first"])
def test_a_head_is_known_again_with_another_length_and_another_key(lines: tuple[str, ...]) -> None:
    known = learned(head(*(line.format(length=3, key="one") for line in lines)))
    again = head(*(line.format(length=len(BODY), key="another-key") for line in lines))

    assert known is not None
    key = b"another-key" if len(lines) > 2 or "{key}" in lines[0] else None
    assert known.read(again + BODY) == (len(again), len(again) + len(BODY), key)


@pytest.mark.parametrize(
    "other",
    [
        head("Authorization: Bearer y", "Content-Length: 3"),
        head("Authorization: Bearer x", "Content-Length: 3", "Expect: 100-continue"),
        head("Authorization: Bearer x", "Content-Length: +3"),
        head("Authorization: Bearer x", "Content-Length: 3, 3"),
        head("Authorization: Bearer x", "Content-Length: "),
        head("Authorization: Bearer x", "Content-Length: 3333333333333"),
        head("Authorization: Bearer x", "Content-Length: 3\nContent-Length: 4"),
        head("Authorization: Bearer x", "Content-Length: 3")[:-2],
        b"",
    ],
)
def test_another_head_is_not_known(other: bytes) -> None:
    known = learned(head("Authorization: Bearer x", "Content-Length: 3"))

    assert known is not None
    assert known.read(other + b"abc") is None


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("Transfer-Encoding: chunked",),
        ("Content-Length: 3", "Idempotency-Key: a", "Idempotency-Key: b"),
        ("Content-Length: 3", f"X-Much: {'x' * MAX_MEMO_HEAD_BYTES}"),
    ],
    ids=["no body", "chunks", "two keys", "long"],
)
def test_an_unusual_head_is_not_remembered(lines: tuple[str, ...]) -> None:
    assert learned(head(*lines)) is None


SEEN = head("Authorization: Bearer x", "Content-Length: 17", "Idempotency-Key: k-1", "Accept: application/json")


@given(st.integers(0, len(SEEN) - 1), st.binary(max_size=3))
@example(len(SEEN) - 1, b"\n\0")
def test_what_is_known_is_what_the_parser_would_read(at: int, change: bytes) -> None:
    known = learned(SEEN)
    changed = SEEN[:at] + change + SEEN[at + 1 :]

    assert known is not None
    read = known.read(changed + BODY)
    if read is not None:
        varying = (b"content-length", b"idempotency-key")
        found, first = dict(Parsed(changed).headers), dict(Parsed(SEEN).headers)
        assert {name: found[name] for name in found if name not in varying} == {
            name: first[name] for name in first if name not in varying
        }
        # What is put behind the blank line belongs to the body.
        end = changed.index(b"\r\n\r\n") + 4
        assert read == (end, end + int(found[b"content-length"]), found[b"idempotency-key"])
