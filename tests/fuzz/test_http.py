"""Hostile bytes, in every cut: the HTTP side of a server, without sockets. Contract, sections 3 and 10.

Whatever comes: no exception escapes, what waits is bounded, each request has one answer or its socket is closed, and
without the token, no request reaches what is behind it. `corpus/http/` keeps streams of bytes that once did harm or
came close; to keep another one, put its bytes into a file there.
"""

import asyncio
import base64
import itertools
import logging
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandboxagent.server.http.asgi import Receive, Response, Scope, Send, check_json, header, respond
from sandboxagent.server.http.framing import MAX_HEAD_BYTES
from sandboxagent.server.http.posts import Post
from tests.support.in_process import READ, PretendedSocket, Site, head
from tests.support.running import BOUND, TOKEN

CORPUS = sorted((Path(__file__).parent / "corpus" / "http").iterdir())
SECRET = TOKEN.encode()


@dataclass
class Outcome:
    """What became of a stream of bytes."""

    taken: list[tuple[str, str, bytes]] = field(default_factory=list)
    """Requests that got past the guard and came whole: method, path, body."""
    statuses: list[int] = field(default_factory=list)
    closed: bool = False


@contextmanager
def complaints() -> Generator[list[logging.LogRecord]]:
    """Everything that is reported as a bug."""
    records: list[logging.LogRecord] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keeping(logging.ERROR)
    logging.getLogger().addHandler(handler)
    try:
        yield records
    finally:
        logging.getLogger().removeHandler(handler)


def play(data: bytes, cuts: Iterable[int] = ()) -> Outcome:
    """Send a stream of bytes in these pieces, and see to it that all holds that always holds."""
    edges = [0, *sorted(cut for cut in set(cuts) if 0 < cut < len(data)), len(data)]
    pieces = [data[first:last] for first, last in itertools.pairwise(edges)]
    with complaints() as records:
        outcome = asyncio.run(_play(pieces))
    assert records == []
    if SECRET not in data:
        assert [path for _, path, _ in outcome.taken if path.startswith("/v1/")] == []
    return outcome


async def _play(pieces: Sequence[bytes]) -> Outcome:
    site = Site()
    socket = site.connect()
    for piece in pieces:
        await socket.send(piece)
        assert_bounded(socket)
    await site.until(lambda: not socket.protocol._backlog or socket.protocol.transport.is_closing())
    await site.settle()
    statuses = answers(socket.written, site.methods)
    closed = socket.protocol.transport.is_closing()
    if not closed and socket.protocol._framing.part.name == "HEAD" and not socket.protocol._begun:
        assert len(statuses) == len(site.methods), "every request has one answer"
    assert len(site.methods) - 1 <= len(statuses) <= len(site.methods) + 1, (
        "one may be under way, and one may be refused"
    )
    await socket.closes()
    assert not site.server.tasks, "nothing goes on for a client that has left"
    await asyncio.wait_for(site.sockets.closed(), BOUND)
    assert site.failures == []
    for scope in site.reached.scopes:
        if scope["path"].startswith("/v1/"):
            assert [value for name, value in scope["headers"] if name == b"authorization"] == [b"Bearer " + SECRET]
    whole = [
        (scope["method"], scope["path"], body)
        for scope, body in zip(site.reached.whole, site.reached.bodies, strict=True)
    ]
    return Outcome(whole, statuses, closed)


def assert_bounded(socket: PretendedSocket) -> None:
    protocol = socket.protocol
    assert len(protocol._backlog) <= 2 * READ
    assert protocol._framing.overhead <= MAX_HEAD_BYTES
    assert sum(len(name) + len(value) for name, value in protocol._headers) <= 2 * MAX_HEAD_BYTES


def answers(written: bytes, methods: Sequence[str]) -> list[int]:
    """The statuses of all answers, each of which must be whole; of what was asked with HEAD, without a body."""
    statuses: list[int] = []
    while written:
        first, end, rest = written.partition(b"\r\n\r\n")
        status = re.match(rb"HTTP/1\.1 (\d{3}) ", first)
        assert status is not None, written[:100]
        assert end
        if status[1] == b"100":
            written = rest
            continue
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", first)
        assert length is not None, first
        size = 0 if methods[len(statuses) : len(statuses) + 1] == ["HEAD"] else int(length[1])
        assert len(rest) >= size
        statuses.append(int(status[1]))
        written = rest[size:]
    return statuses


class Stream(bytes):
    """Bytes whose text is short although they may be many; the text gives them back."""

    def __repr__(self) -> str:
        if len(self) < 400:
            return bytes.__repr__(self)
        return f"unpacked({base64.b64encode(zlib.compress(self, 9)).decode()!r})"


def unpacked(text: str) -> bytes:
    """The bytes of such a text."""
    return zlib.decompress(base64.b64decode(text))


# --- requests as they should be, in every cut -------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """A request, its bytes, and whether it may pass."""

    method: str
    path: str
    body: bytes
    token: bool
    data: bytes


SMUGGLED = head("DELETE /v1/smuggled")
BODIES = st.one_of(st.just(b""), st.binary(max_size=40), st.just(SMUGGLED), st.just(b"\r\n\r\n" * 5))


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    method = draw(st.sampled_from(["POST", "GET", "PUT", "OPTIONS"]))
    path = draw(st.sampled_from(["/v1/rpc", "/v1/x", "/v1/x/y"]))
    token, body = draw(st.booleans()), draw(BODIES)
    headers = draw(st.lists(st.sampled_from(["X-A: b", "Accept: */*", "X-Long: " + "x" * 300]), max_size=3))
    if draw(st.booleans()):
        headers += ["Connection: keep-alive, Upgrade", draw(st.sampled_from(["Upgrade: h2c", "Upgrade: websocket"]))]
    way = draw(st.sampled_from(["counted", "chunked"]) if body else st.sampled_from(["counted", "chunked", "none"]))
    if way == "chunked":
        headers.append("Transfer-Encoding: chunked")
        size = draw(st.integers(1, 50))
        extension = draw(st.sampled_from([b"", b";a=b", b";token=" + SECRET]))
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        trailers = draw(st.sampled_from([b"", b"A: b\r\n", b"Authorization: Bearer " + SECRET + b"\r\n"]))
        framed = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
        framed += b"0\r\n" + trailers + b"\r\n"
    else:
        framed = body
        headers += [f"Content-Length: {len(body)}"] if way == "counted" else []
    return Asked(method, path, body, token, head(f"{method} {path}", *headers, token=token) + framed)


@pytest.mark.requirement("3.pipelining", "10.bearer-everywhere")
@settings(deadline=None)
@given(requests=st.lists(asked(), min_size=1, max_size=6), cuts=st.lists(st.integers(0, 3000), max_size=12))
def test_requests_are_read_as_they_were_meant_however_they_are_cut(requests: list[Asked], cuts: list[int]) -> None:
    outcome = play(b"".join(each.data for each in requests), cuts)

    wanted = [(each.method, each.path, each.body) for each in requests if each.token]
    assert outcome.taken == wanted[: len(outcome.taken)]
    expected = [200 if each.token else 401 for each in requests]
    assert outcome.statuses == expected[: len(outcome.statuses)]
    # Only one that was refused before its body was whole may end it early.
    assert outcome.closed or len(outcome.statuses) == len(requests)
    assert not outcome.closed or outcome.statuses[-1] == 401


# --- and as they should not be ----------------------------------------------------------------------------------------

PIECES = [
    b"GET / HTTP/1.1\r\n",
    b"POST /v1/rpc HTTP/1.1\r\n",
    b"CONNECT / HTTP/1.1\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\n",
    b"TRACE /v1/rpc HTTP/1.0\r\n",
    b"GET http://127.0.0.1/v1/x HTTP/1.1\r\n",
    b"Host: 127.0.0.1\r\n",
    b"Host: evil.example\r\n",
    b"Authorization: Bearer " + SECRET + b"\r\n",
    b"Content-Length: 3\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Connection: Upgrade\r\n",
    b"Connection: close\r\n",
    b"Upgrade: h2c\r\n",
    b"Expect: 100-continue\r\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b"0\r\n\r\n",
    b"3\r\nabc\r\n",
    b"ffffffffffffffff\r\n",
    b"-1\r\n",
    b"1;" + b"x" * 70_000 + b"\r\n",
    b"X: " + b"y" * 70_000 + b"\r\n",
    b"X: y\r\n" * 250,
    b"\x00",
    b"\xff" * 10,
]
NONSENSE = st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=8)), max_size=12).map(
    lambda parts: Stream(b"".join(parts))
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Good requests, or those of the corpus, with bytes changed, taken out, put in and repeated."""
    good = st.lists(asked(), min_size=1, max_size=3).map(lambda all: b"".join(each.data for each in all))
    data = bytearray(draw(st.one_of(good, st.sampled_from(CORPUS).map(Path.read_bytes))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        to = min(len(data), at + draw(st.integers(0, 20)))
        match draw(st.sampled_from(["change", "remove", "insert", "repeat"])):
            case "change":
                data[at:to] = draw(st.binary(min_size=to - at, max_size=to - at))
            case "remove":
                del data[at:to]
            case "insert":
                data[at:at] = draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=5)))
            case _:
                data[at:at] = data[at:to] * draw(st.integers(1, 5))
    return Stream(data)


@pytest.mark.requirement("3.ambiguous-http-400", "10.bearer-everywhere")
@settings(deadline=None)
@given(data=st.one_of(NONSENSE, mutated()), cuts=st.lists(st.integers(0, 2000), max_size=12))
@example(data=b"CONNECT / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", cuts=[])
def test_nonsense_does_no_harm_and_means_the_same_however_it_is_cut(data: bytes, cuts: list[int]) -> None:
    at_once, in_pieces = play(data), play(data, cuts)

    # One that is answered before its body is whole may end the socket: then less is read, and never anything else.
    common = min(len(at_once.taken), len(in_pieces.taken))
    assert at_once.taken[:common] == in_pieces.taken[:common]
    if not at_once.closed and not in_pieces.closed:
        assert at_once == in_pieces


@pytest.mark.requirement("3.ambiguous-http-400", "10.bearer-everywhere")
@pytest.mark.parametrize("size", [1, 3, 1000], ids=lambda size: f"by {size}")
@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_what_once_did_harm_does_none(file: Path, size: int) -> None:
    data = file.read_bytes()
    play(data, range(0, min(len(data), 300 * size), size))


# --- heads that are known ---------------------------------------------------------------------------------------------

MOST = 200
KNOWN_LINES = ["Host: 127.0.0.1", f"Authorization: Bearer {TOKEN}", "Content-Type: application/json"]
ADDED = [
    "Content-Length: 3",
    "Content-Length: 0",
    "content-length:5",
    "Content-Length: +3",
    "Content-Length: 3, 3",
    "Content-Length: 2000",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding:\tchunked",
    "Idempotency-Key: other",
    "Idempotency-Key: two words",
    "Idempotency-Key:",
    "idempotency-key:k2",
    "Expect: 100-continue",
    "Connection: close",
    "Connection: Upgrade\r\nUpgrade: websocket",
    "Connection: Upgrade\r\nUpgrade: h2c",
    "Authorization: Bearer wrong",
    "Origin: https://evil.example",
    "Origin: http://127.0.0.1",
    "X-A: b\r\n Content-Length: 7",
    " folded",
    "\tContent-Length: 3",
    "X-A: b\nContent-Length: 4",
    "Host: evil.example",
]


class Echo:
    """Takes envelopes: answers with what it was given, some at once and some in a later turn."""

    max_body = MOST

    def __init__(self) -> None:
        self.taken: list[tuple[bytes | None, bytes, bytes]] = []

    def read_post(self, scope: Scope) -> Callable[[Post], None]:
        said = b"%b %b" % (scope["raw_path"], header(scope, b"prefer") or b"")
        check_json(header(scope, b"content-type"))
        return partial(self._take, said)

    def _take(self, said: bytes, post: Post) -> None:
        self.taken.append((post.key, post.body, said))
        body = b"%b|%b|%b" % (post.key or b"", said, post.body)
        reply = Response(200, [(b"content-length", b"%d" % len(body))], body)
        if len(post.body) % 2:
            asyncio.get_running_loop().call_soon(post.reply, reply)
        else:
            post.reply(reply)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, [(b"content-length", b"0")])


def post_of(lines: Sequence[str], key: str | None, body: bytes, *, key_first: bool = False, path: str = "") -> bytes:
    values = [f"Content-Length: {len(body)}"]
    if key is not None:
        values.insert(0 if key_first else 1, f"Idempotency-Key: {key}")
    text = "".join(f"{line}\r\n" for line in (f"POST /v1/rpc{path} HTTP/1.1", *lines, *values))
    return f"{text}\r\n".encode() + body


@st.composite
def heads_like_a_known_one(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A POST, and one like it: another value, another line, bytes changed, more behind it."""
    key_first, has_key = draw(st.booleans()), draw(st.booleans())
    base = post_of(KNOWN_LINES, "k1" if has_key else None, b'{"a":1}', key_first=key_first)
    lines = list(KNOWN_LINES)
    match draw(st.sampled_from(["values", "line", "case", "drop", "token", "path"])):
        case "line":
            lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(ADDED)))
        case "case":
            at = draw(st.integers(0, len(lines) - 1))
            lines[at] = draw(st.sampled_from([lines[at].lower(), lines[at].upper(), lines[at].replace(": ", ":")]))
        case "drop":
            del lines[draw(st.integers(0, len(lines) - 1))]
        case "token":
            lines[1] = lines[1][:-1] + "X"
        case _:
            pass
    key = draw(st.sampled_from(["k2", "k" * 256, "k" * 257, "\x7f", "a b", ""])) if has_key else None
    body = draw(st.one_of(BODIES, st.integers(190, 210).map(lambda size: b"x" * size)))
    path = draw(st.sampled_from(["", "", "?a=b", "/x", "%20"]))
    data = bytearray(post_of(lines, key, body, key_first=key_first, path=path))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(data)))
        to = min(len(data), at + draw(st.integers(0, 2)))
        data[at:to] = draw(
            st.one_of(st.binary(max_size=3), st.sampled_from([b"\r\n", b"\n", b"\r", b" ", b"\t", b":"]))
        )
    behind = draw(st.sampled_from([b"", b"", SMUGGLED, base, b"\r\n", b"0\r\n\r\n"]))
    return base, bytes(data) + behind


@dataclass
class Meant:
    """What became of a stream of bytes on a socket for envelopes."""

    taken: list[tuple[bytes | None, bytes, bytes]]
    written: bytes
    is_closed: bool


async def post_on(before: Sequence[bytes], data: bytes, cuts: Iterable[int]) -> Meant:
    site, echo = Site(), Echo()
    transport: Any = echo
    site.take_envelopes(transport)
    socket = site.connect()
    for each in before:
        await socket.send(each)
    assert len(echo.taken) == len(before)
    assert len(site.methods) <= 1, "the head is known"
    echo.taken.clear()
    socket.transport.written.clear()
    edges = [0, *sorted(cut for cut in set(cuts) if 0 < cut < len(data)), len(data)]
    for first, last in itertools.pairwise(edges):
        await socket.send(data[first:last])
    await site.until(lambda: not socket.protocol._backlog or socket.protocol.transport.is_closing())
    for _ in range(5):
        # An answer may come in a later turn.
        await asyncio.sleep(0)
    is_closed = socket.protocol.transport.is_closing()
    await socket.closes()
    assert site.failures == []
    return Meant(echo.taken, re.sub(rb"date: [^\r]+\r\n", b"", socket.written), is_closed)


@pytest.mark.requirement("3.ambiguous-http-400", "10.bearer-everywhere")
@settings(deadline=None)
@given(posts=heads_like_a_known_one(), cuts=st.lists(st.integers(0, 700), max_size=8))
def test_a_socket_that_knows_a_head_answers_like_a_fresh_one(posts: tuple[bytes, bytes], cuts: list[int]) -> None:
    base, data = posts

    async def both() -> None:
        with complaints() as records:
            assert await post_on([base, base], data, cuts) == await post_on([], data, cuts)
        assert records == []

    asyncio.run(both())


@pytest.mark.parametrize("key", [None, "k1"], ids=["no key", "key"])
def test_known_heads_are_answered_alike_wherever_the_bytes_are_cut(key: str | None) -> None:
    base = post_of(KNOWN_LINES, key, b'{"a":1}')
    data = post_of(KNOWN_LINES, key and "k2", b"four") + base

    async def every() -> None:
        for cut in range(1, len(data)):
            assert await post_on([base, base], data, [cut]) == await post_on([], data, [cut])

    asyncio.run(every())


async def differs(base: bytes, data: bytes, cut: int) -> bool:
    """Whether a socket that knows the head of `base` answers otherwise than one that knows none."""
    return await post_on([base, base], data, [cut]) != await post_on([], data, [cut])


@pytest.mark.requirement("3.ambiguous-http-400", "10.bearer-everywhere")
def test_heads_with_one_line_more_are_answered_alike_wherever_they_are_cut() -> None:
    base = post_of(KNOWN_LINES, "k1", b'{"a":1}')

    async def every() -> None:
        wrong: list[tuple[str, int]] = []
        for line in ADDED:
            data = post_of([KNOWN_LINES[0], line, *KNOWN_LINES[1:]], "k2", b"four")
            wrong += [(line, cut) for cut in range(1, len(data)) if await differs(base, data, cut)]
        assert wrong == []

    with complaints() as records:
        asyncio.run(every())
    assert records == []


@pytest.mark.requirement("3.ambiguous-http-400", "10.bearer-everywhere")
@pytest.mark.parametrize("key", [None, "k1"], ids=["no key", "key"])
def test_heads_with_one_other_byte_are_answered_alike(key: str | None) -> None:
    base = post_of(KNOWN_LINES, key, b'{"a":1}')

    async def every() -> None:
        wrong: list[tuple[int, bytes]] = []
        for at in range(len(base)):
            for other in (b"\r", b"\n", b" ", b"\t", b":", b"0", b"X", b"\x00", b"\xff", b""):
                data = base[:at] + other + base[at + 1 :]
                wrong += [(at, other)] if await differs(base, data, at) else []
        assert wrong == []

    with complaints() as records:
        asyncio.run(every())
    assert records == []
