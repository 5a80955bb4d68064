"""Parse one JSON-RPC object for the few facts needed to route it, and splice its bytes.

An envelope is never rebuilt from parsed values. Ids, unknown fields and the contents of `params` and `result` keep the
bytes that they arrived with. Ids are compared as text, so `1`, `1.0` and `"1"` are three ids.
"""

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from enum import Enum, auto
from hashlib import sha256
from itertools import islice
from typing import TypeVar, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import asdict

from sandboxagent.protocol.errors import NotAnEnvelope, SandboxAgentError
from sandboxagent.protocol.json_bounds import MAX_DEPTH, MAX_STEP_BYTES, cut_between_escapes, excess, excess_of_answer

META = "sandboxagent.dev"
"""The server's key inside ACP's `_meta` objects."""


Object = dict[str, object]
"""A JSON object as Python values."""


class Kind(Enum):
    """The three kinds of envelopes."""

    REQUEST = auto()
    NOTIFICATION = auto()
    RESPONSE = auto()


REQUEST, NOTIFICATION, RESPONSE = Kind
"""The members of `Kind`, without the slow lookup of enumeration members in Python 3.11. Code that runs for every
message uses these."""


class Update(Struct, gc=False):
    """The member of a `session/update` that names its kind."""

    sessionUpdate: object = UNSET


class Params(Struct, gc=False):
    """The members of `params` that decide where an envelope goes."""

    sessionId: object = UNSET
    update: Update | list[Raw] | str | float | bool | None = None


class Peek(Struct, gc=False):
    """The top-level members of an envelope. Decoding skips everything else, but checks that it is JSON."""

    jsonrpc: object = UNSET
    id: Raw | UnsetType = UNSET
    method: object = UNSET
    params: Params | list[Raw] | str | float | bool | None = None
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET

    @property
    def session_id(self) -> str | None:
        if type(self.params) is Params and type(self.params.sessionId) is str:
            return self.params.sessionId
        return None

    @property
    def update_kind(self) -> str | None:
        if type(self.params) is Params and type(self.params.update) is Update:
            kind = self.params.update.sessionUpdate
            return kind if type(kind) is str else None
        return None


class Envelope:
    """A checked envelope: `line` has its bytes on one line, `id` the text of its id."""

    __slots__ = ("id", "kind", "line", "method", "peek", "session_id")

    def __init__(self, line: bytes, peek: Peek) -> None:
        """Take a `peek` for which `fault` found no reason to refuse it."""
        self.line = line
        self.peek = peek
        self.id = None if peek.id is UNSET else bytes(peek.id)
        self.method = peek.method if isinstance(peek.method, str) else ""
        params = peek.params
        # Repeats the property `session_id` of `Peek`, because this runs for every message.
        self.session_id = params.sessionId if type(params) is Params and type(params.sessionId) is str else None
        if self.method:
            self.kind = NOTIFICATION if self.id is None else REQUEST
        else:
            self.kind = RESPONSE

    def params(self) -> Object:
        """Return `params` as Python values; empty when it is absent or not an object."""
        return _object(lambda: _decode(_params, self.line).params)

    def asked(self) -> Object:
        """Return the members of a request to people that an answer refers to.

        Skips the other members of `params`, which may be large.
        """
        return _object(lambda: _read_asked(self.line))

    def result(self) -> Object:
        """Return `result` as Python values; empty when it is absent or not an object."""
        return {} if self.peek.result is UNSET else _object(lambda: _any.decode(cast(Raw, self.peek.result)))

    def error(self) -> Object:
        """Return `error` as Python values; empty when the response is a success."""
        return {} if self.peek.error is UNSET else _object(lambda: _any.decode(cast(Raw, self.peek.error)))

    @property
    def succeeded(self) -> bool:
        return self.peek.error is UNSET

    def digest(self) -> bytes:
        """Return a SHA-256 digest of the line."""
        return sha256(self.line).digest()

    def addressed(self, id: bytes | None, session_id: str | None) -> bytes:
        """Return the line with another id and another session id. None keeps the present one."""
        line = self.line if session_id is None else with_param(self.line, "sessionId", session_id)
        return line if id is None else with_id(line, id)


class ReplaceableRanges(Struct, frozen=True):
    """Byte ranges in a long line that the server may replace. Each range has its start and its exclusive end."""

    id: tuple[int, int] | None = None
    session_id: tuple[int, int] | None = None
    prompt: int | None = None
    """The position behind the opening bracket of a prompt's list of blocks."""
    blocks: tuple[tuple[int, int], ...] = ()
    """The ranges of a prompt's blocks."""


class LargeEnvelope(Envelope):
    """A client's envelope with its digest and places already computed, by `parse_large` in a thread."""

    __slots__ = ("_digest", "places")

    def __init__(self, line: bytes, peek: Peek, places: ReplaceableRanges, digest: bytes) -> None:
        super().__init__(line, peek)
        self.places = places
        self._digest = digest

    def digest(self) -> bytes:
        return self._digest

    def addressed(self, id: bytes | None, session_id: str | None) -> bytes:
        return address(self.line, self.places, id, session_id)


class LargeResponse(Envelope):
    """An agent's long response, prepared in a thread for the client that waits.

    Its line already has the client's id. `result` and `error` have only the members that are short.
    """

    def addressed(self, id: bytes | None, session_id: str | None) -> bytes:
        return self.line


def prepare_response(line: bytes, peek: Peek, client_id: bytes) -> LargeResponse:
    """Prepare a long response of an agent for the client that waits, in a thread. Its `id` stays the agent's."""
    short = Peek(peek.jsonrpc, peek.id)
    if peek.result is not UNSET:
        short.result = _without_long_members(peek.result)
    if peek.error is not UNSET:
        short.error = _without_long_members(peek.error)
    return LargeResponse(with_id(line, client_id), short)


def _without_long_members(raw: Raw) -> Raw:
    """Return an object with the members that fit into `MAX_READ_BYTES`; null in place of any other long value."""
    if memoryview(raw).nbytes <= MAX_READ_BYTES:
        return raw
    if not is_object(raw):
        return Raw(b"null")
    room, kept = MAX_READ_BYTES, dict[str, Raw]()
    for name, value in _members.decode(raw).items():
        size = len(name) + memoryview(value).nbytes
        if size <= room:
            kept[name] = value
            room -= size
    return Raw(with_members(kept))


def _object(decode: Callable[[], object]) -> "Object":
    """Return an object as Python values.

    Empty for values that Python cannot hold, such as a number that is out of range.
    """
    try:
        return object_at(decode())
    except (msgspec.DecodeError, RecursionError):
        return {}


class _WithParams(Struct):
    params: object = None


class _Prompt(Struct, gc=False):
    prompt: Raw | UnsetType = UNSET


class _WithPrompt(Struct, gc=False):
    params: _Prompt | list[Raw] | str | float | bool | None = None


class _Related(Struct, gc=False):
    requestId: Raw | UnsetType = UNSET


class _ToolCall(Struct, gc=False):
    toolCallId: object = None
    title: object = None


class _Asked(Struct, gc=False):
    toolCall: _ToolCall | list[Raw] | str | float | bool | None = None
    toolCallId: object = None
    options: object = None
    questionId: object = None
    prompt: object = None
    message: object = None


class _WithAsked(Struct, gc=False):
    params: _Asked | list[Raw] | str | float | bool | None = None


class _WithRelated(Struct, gc=False):
    params: _Related | list[Raw] | str | float | bool | None = None


T = TypeVar("T")
_peek = msgspec.json.Decoder(Peek)
peek_lines = _peek.decode_lines
"""Peek at every line of a blob in one call. Raises if any line is not JSON; then peek at each line separately."""
_members = msgspec.json.Decoder(dict[str, Raw])
_params = msgspec.json.Decoder(_WithParams)
_prompt = msgspec.json.Decoder(_WithPrompt)
_asked = msgspec.json.Decoder(_WithAsked)
_related = msgspec.json.Decoder(_WithRelated)
_any = msgspec.json.Decoder(object)
_items_of = msgspec.json.Decoder(list[Raw])
_HEX = rb"[0-9a-fA-F]{2}"
_HIGH, _LOW = rb"[89abAB]" + _HEX, rb"[c-fC-F]" + _HEX
# All alternatives share one prefix, so that the search is fast.
_HALF = rb"\\u[dD](?:%b(?!\\u[dD]%b)|%b(?<!\\u[dD]%b\\u[dD]%b))" % (_HIGH, _LOW, _LOW, _HIGH, _LOW)
_STAND_IN = b"\\ufffd"
_PAIR_BYTES = 2 * len(_STAND_IN)
"""The bytes of two escapes, which may be the halves of one character."""
_PIECE_BYTES = 64 << 10
LARGE_BYTES = 1 << 20
"""The size in bytes above which a thread reads an envelope."""
MIN_DEEP_BYTES = 2 * (MAX_DEPTH + 1) + len('"jsonrpc":"2.0","id":1,"error":')
"""The size in bytes below which no envelope can be nested too deep. Its brackets and the shortest members that an
envelope may have need that many bytes."""
MAX_READ_BYTES = 64 << 10
"""Maximum bytes of the members of a long response that the server itself reads."""
MAX_NAME = 1024
"""Maximum number of characters of a method, and of a session's id."""
MAX_HALVES = 10_000
"""Maximum number of lone surrogates that are replaced in one text."""
# Possessive quantifiers: backtracking state would take a hundred times the bytes of the text.
_MEMBER = re.compile(rb'\s*+[{,]\s*+("(?:[^"\\]++|\\.)*+")\s*+:\s*+')
_BEFORE_ITEM = re.compile(rb"[\s,]*+")
_AFTER_MEMBER = re.compile(rb"\s*[,}]")
_END = re.compile(rb"\s*}\s*\Z")
_USUAL_HEAD = re.compile(rb'\{"jsonrpc": ?"2\.0", ?"id": ?("[^"\\]*"|-?[0-9.eE+-]+)(?=[,}])')
LINE_FEED, CARRIAGE_RETURN, BACKSLASH = b"\n\r\\"
"""The bytes as numbers, for a search with `in`. Python first tries to take the operand as a number, and makes an
exception of any other operand."""
_FIRST_BYTES_OF_AN_ID = frozenset(b'"-0123456789')
_FIRST_OF_A_LIST = ord("[")
_MOVED = ("sessionId", "prompt")
_LINE_BREAKS = bytes.maketrans(b"\n\r", b"  ")


def _decode(decoder: "msgspec.json.Decoder[T]", text: bytes) -> T:
    try:
        return decoder.decode(text)
    except msgspec.DecodeError:
        return decoder.decode(_whole(text))


def _whole(text: bytes) -> bytes:
    """Replace lone surrogate escapes, which JSON allows and programs that cut strings write.

    msgspec refuses them. The replacement has the same length, so offsets stay valid. Surrogates beyond the first
    `MAX_HALVES` stay.
    """
    if b"\\u" not in text:
        return text
    pieces: list[bytes | memoryview] = []
    view, at = memoryview(text), 0
    for half in islice(_find_halves(text), MAX_HALVES):
        pieces += (view[at:half], _STAND_IN)
        at = half + len(_STAND_IN)
    return b"".join((*pieces, view[at:])) if pieces else text


def _find_halves(text: bytes) -> Iterator[int]:
    """Yield the position of each lone surrogate escape.

    Searches in steps: one search of a long text would hold up all other threads.
    """
    before = b""
    for start, end in cut_between_escapes(text):
        # A surrogate's other half may be in the step before or behind. Pairs of backslashes are ignored, because the
        # second one does not start an escape.
        step = text[start : end + _PAIR_BYTES].replace(b"\\\\", b"  ")
        shift = start - len(before)
        for half in re.finditer(_HALF, before + step):
            if start <= half.start() + shift < end:
                yield half.start() + shift
        before = step[: end - start][-_PAIR_BYTES:]


def parse(body: bytes, measure: Callable[[bytes], str | None] = excess) -> Envelope:
    """Parse one envelope from untrusted bytes. Raises NotAnEnvelope with the first reason found."""
    size = len(body)
    if size >= MIN_DEEP_BYTES and (reason := measure(body)) is not None:
        raise NotAnEnvelope(reason)
    try:
        if not body.isascii():
            check_utf8(body)
        # Repeats `_decode`, because this runs for every message.
        try:
            peek = _peek.decode(body)
        except msgspec.DecodeError:
            peek = _peek.decode(_whole(body))
    except UnicodeDecodeError as error:
        raise NotAnEnvelope(f"not UTF-8: byte {error.start} cannot be decoded") from None
    except msgspec.DecodeError as error:
        raise NotAnEnvelope(_why_not_an_object(body, error)) from None
    reason = fault(peek) or (long_name(peek) if size > MAX_NAME else None)
    if reason:
        raise NotAnEnvelope(reason)
    return Envelope(one_line(body), peek)


def parse_large(body: bytes) -> LargeEnvelope:
    """Parse a long text in a thread, like `parse`, and also compute its digest and places for later use."""
    envelope = parse(body)
    digest = envelope.digest()
    line, places = find_replaceable(envelope.line)
    return LargeEnvelope(line, envelope.peek, places, digest)


def parse_envelope(body: bytes) -> Envelope:
    """Parse an envelope with `parse_large` if it is long, else with `parse`."""
    return parse(body) if len(body) <= LARGE_BYTES else parse_large(body)


def parse_answer(body: bytes) -> Envelope:
    """Parse an envelope from a server, like `parse` but with the looser limits for answers of a server."""
    return parse(body, excess_of_answer)


def check_utf8(text: bytes) -> None:
    """Check that bytes are UTF-8. Raises UnicodeDecodeError.

    Decodes in pieces, because a whole text may take four times its bytes as a Python string.
    """
    if len(text) <= _PIECE_BYTES:
        text.decode()
        return
    decoder = getincrementaldecoder("utf-8")()
    for start in range(0, len(text), _PIECE_BYTES):
        kept = len(decoder.getstate()[0])
        try:
            decoder.decode(text[start : start + _PIECE_BYTES], start + _PIECE_BYTES >= len(text))
        except UnicodeDecodeError as error:
            error.start += start - kept
            raise


def fault(peek: Peek) -> str | None:
    """Return why a JSON object is not an envelope; None if it is one."""
    if peek.jsonrpc != "2.0":
        return '"jsonrpc" must be "2.0"'
    if peek.id is not UNSET and bytes(peek.id)[0] not in _FIRST_BYTES_OF_AN_ID:
        return '"id" must be a number or a string'
    if peek.method is not UNSET:
        return None if isinstance(peek.method, str) and peek.method else '"method" must be a non-empty string'
    if peek.result is UNSET and peek.error is UNSET:
        return 'neither a "method" nor a "result" or an "error"'
    return '"id" is missing in a response' if peek.id is UNSET else None


def long_name(peek: Peek) -> str | None:
    """Return why the method or the session id of an envelope is too long; None if neither is."""
    for name, value in (("method", peek.method), ("sessionId", peek.session_id)):
        if isinstance(value, str) and len(value) > MAX_NAME:
            return f'"{name}" has more than {MAX_NAME} characters'
    return None


def one_line(body: bytes) -> bytes:
    """Put JSON on one line, because a line break would end the message early on stdio and in an SSE frame."""
    if LINE_FEED in body or CARRIAGE_RETURN in body:
        # JSON allows raw line breaks only between tokens; inside a string they are escaped.
        if len(body) > MAX_STEP_BYTES:
            body = b"".join(
                body[at : at + MAX_STEP_BYTES].translate(_LINE_BREAKS) for at in range(0, len(body), MAX_STEP_BYTES)
            )
        else:
            body = body.translate(_LINE_BREAKS)
    return body.strip()


def with_id(line: bytes, id: bytes) -> bytes:
    """Return the envelope with another id. All other bytes stay."""
    # The common case needs no parse: the id comes second, and no other text in the line can be a member `id`.
    usual = _USUAL_HEAD.match(line)
    if usual is not None and line.count(b'"id"') == 1 and (BACKSLASH not in line or b"\\u" not in line):
        start, end = usual.span(1)
        return line[:start] + id + line[end:]
    members, whole = _split(line)
    spans = _spans(whole, members)
    if spans is None or "id" not in spans:
        # A receiver may read the other one of two ids, so the line with both must not be forwarded.
        return msgspec.json.encode(members | {"id": Raw(id)})
    start, end = spans["id"]
    return line[:start] + id + line[end:]


def find_replaceable(line: bytes) -> tuple[bytes, ReplaceableRanges]:
    """Find the texts in a line that the server may replace. The line keeps its bytes unless a member is repeated."""
    members, whole = _split(line)
    spans = _spans(whole, members)
    params, inner, inside = b"", {}, {}
    if "params" in members and is_object(members["params"]):
        params = bytes(members["params"])
        inner = _members.decode(params)
        inside = _spans(params, inner)
    if spans is None or inside is None:
        if inside is None:
            members["params"] = Raw(msgspec.json.encode(inner))
        return find_replaceable(msgspec.json.encode(members))
    start = spans["params"][0] if inside else 0
    moved = {name: (start + first, start + end) for name, (first, end) in inside.items() if name in _MOVED}
    blocks: tuple[tuple[int, int], ...] = ()
    prompt = None
    if "prompt" in moved and line[moved["prompt"][0]] == _FIRST_OF_A_LIST:
        prompt = moved["prompt"][0] + 1
        blocks = tuple(_items(line, prompt, _items_of.decode(inner["prompt"])))
    return line, ReplaceableRanges(spans.get("id"), moved.get("sessionId"), prompt, blocks)


def _items(line: bytes, at: int, items: list[Raw]) -> Iterator[tuple[int, int]]:
    """Yield the byte range of each item of an array whose first item begins at `at`."""
    for item in items:
        before = _BEFORE_ITEM.match(line, at)
        assert before is not None
        at = before.end() + memoryview(item).nbytes
        yield before.end(), at


def address(
    line: bytes, places: ReplaceableRanges, id: bytes | None, session_id: str | None, remark: bytes = b""
) -> bytes:
    """Return a long line with another id, another session id, and `remark` as an additional first block of its prompt.

    None keeps the present id. The line is copied once.
    """
    changes: list[tuple[int, int, bytes]] = []
    if id is not None and places.id is not None:
        changes.append((*places.id, id))
    if session_id is not None and places.session_id is not None:
        changes.append((*places.session_id, msgspec.json.encode(session_id)))
    if remark and places.prompt is not None:
        changes.append((places.prompt, places.prompt, remark + b"," if places.blocks else remark))
    if not changes:
        return line
    pieces: list[bytes | memoryview] = []
    at, view = 0, memoryview(line)
    for start, end, text in sorted(changes):
        pieces += (view[at:start], text)
        at = end
    return b"".join((*pieces, view[at:]))


def _split(text: bytes) -> tuple[dict[str, Raw], bytes]:
    """Return the members of an object, and its text without lone surrogates. That text is as long as the given one."""
    try:
        return _members.decode(text), text
    except msgspec.DecodeError:
        whole = _whole(text)
        return _members.decode(whole), whole


def _spans(text: bytes, members: dict[str, Raw]) -> dict[str, tuple[int, int]] | None:
    """Return the byte range of each member's value.

    None if the text has other members than these, as with a repeated key.
    """
    spans: dict[str, tuple[int, int]] = {}
    at = 0
    for key, value in members.items():
        match = _MEMBER.match(text, at)
        raw = bytes(value)
        if match is None or _any.decode(match[1]) != key or not text.startswith(raw, match.end()):
            return None
        at = match.end() + len(raw)
        if _AFTER_MEMBER.match(text, at) is None:
            return None
        spans[key] = match.end(), at
    return spans if not members or _END.match(text, at) is not None else None


def members_of(text: bytes) -> tuple[dict[str, Raw], bool]:
    """Return the members of an object as texts, and whether a key is repeated; the last one counts then.

    Raises msgspec.DecodeError or RecursionError if the text is no object.
    """
    members, whole = _split(text)
    return members, _spans(whole, members) is None


def with_members(members: dict[str, Raw]) -> bytes:
    """Encode an object from the texts of its members."""
    return msgspec.json.encode(members)


def same_id(id: bytes) -> bytes:
    """Return an id in its one canonical spelling.

    A client may escape a string's characters differently than the agent.
    """
    if BACKSLASH not in id:
        return id
    try:
        return msgspec.json.encode(_any.decode(id))
    except msgspec.DecodeError:
        # A lone surrogate has only one spelling.
        return id


def param(line: bytes, name: str) -> bytes | None:
    """Return the text of one member of `params`; None if it is absent."""
    params = _decode(_members, line).get("params")
    found = _members.decode(params).get(name) if params is not None and is_object(params) else None
    return None if found is None else bytes(found)


def has_prompt(line: bytes) -> bool:
    """Return whether `params` has a member `prompt`, without decoding the other members."""
    params = _decode(_prompt, line).params
    return isinstance(params, _Prompt) and params.prompt is not UNSET


def related(line: bytes) -> bytes | None:
    """Return the text of `requestId` in `params`, which names another request. Like `param`, but without a copy."""
    if b'"requestId"' not in line and (BACKSLASH not in line or b"\\u00" not in line):
        return None
    params = _decode(_related, line).params
    return bytes(params.requestId) if isinstance(params, _Related) and params.requestId is not UNSET else None


def _read_asked(line: bytes) -> Object:
    asked = _decode(_asked, line).params
    if not isinstance(asked, _Asked):
        return {}
    call = asked.toolCall
    members: Object = asdict(asked)
    members["toolCall"] = asdict(call) if isinstance(call, _ToolCall) else None
    return members


def is_object(raw: Raw) -> bool:
    """Return whether a JSON text is an object."""
    return bytes(memoryview(raw)[:1]) == b"{"


def params_text(line: bytes) -> bytes:
    """Return the text of `params`; an empty object if it is absent."""
    return bytes(_decode(_members, line).get("params", Raw(b"{}")))


def with_param(line: bytes, name: str, value: object) -> bytes:
    """Return the envelope with one member of `params` set. The others keep their bytes."""
    return _with_member_of(line, "params", {name: Raw(msgspec.json.encode(value))})


def without_params(line: bytes, *path: str) -> bytes:
    """Return the envelope without the member of `params` at `path`."""
    members = _decode(_members, line)
    members["params"] = _without(members["params"], path)
    return msgspec.json.encode(members)


def with_result(line: bytes, name: str, value: object) -> bytes:
    """Return the response with one member of `result` set. The others keep their bytes."""
    return _with_member_of(line, "result", {name: Raw(msgspec.json.encode(value))})


def with_error(line: bytes, **members: object) -> bytes:
    """Return the response with members of `error` set. The others keep their bytes."""
    return _with_member_of(line, "error", {name: Raw(msgspec.json.encode(value)) for name, value in members.items()})


def _with_member_of(line: bytes, container: str, changed: dict[str, Raw]) -> bytes:
    members = _decode(_members, line)
    inner = _members.decode(members[container]) if container in members else {}
    members[container] = Raw(msgspec.json.encode(inner | changed))
    return msgspec.json.encode(members)


def _without(raw: Raw, path: tuple[str, ...]) -> Raw:
    inner = _members.decode(raw)
    if len(path) == 1:
        inner.pop(path[0], None)
    else:
        inner[path[0]] = _without(inner[path[0]], path[1:])
    return Raw(msgspec.json.encode(inner))


def request(id: bytes, method: str, params: object) -> bytes:
    """Encode a request of the server."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": Raw(id), "method": method, "params": params})


def notification(method: str, params: object) -> bytes:
    """Encode a notification of the server."""
    return msgspec.json.encode({"jsonrpc": "2.0", "method": method, "params": params})


def success(id: bytes, result: object) -> bytes:
    """Encode a successful response of the server."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": Raw(id), "result": result})


def failure(id: bytes, error: SandboxAgentError) -> bytes:
    """Encode a named failure as the JSON-RPC error response to a request."""
    data = {"type": error.slug, **error.fields}
    body = {"code": error.rpc_code, "message": str(error), "data": data}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": Raw(id), "error": body})


def at(value: object, *path: str) -> object:
    """Return the value at a path of members in decoded JSON; None if a member on the path is missing."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = cast(Object, value).get(name)
    return value


def text_at(value: object, *path: str) -> str | None:
    """Return the string at a path; None if there is none."""
    found = at(value, *path)
    return found if isinstance(found, str) else None


def object_at(value: object, *path: str) -> Object:
    """Return the object at a path; empty if there is none."""
    found = at(value, *path)
    return cast(Object, found) if isinstance(found, dict) else {}


def objects_at(value: object, *path: str) -> list[Object]:
    """Return the objects in the array at a path, without its other items."""
    found = at(value, *path)
    items = cast(list[object], found) if isinstance(found, list) else []
    return [cast(Object, item) for item in items if isinstance(item, dict)]


def list_at(value: object, *path: str) -> list[object]:
    """Return the list at a path; empty if there is none."""
    found = at(value, *path)
    return cast("list[object]", found) if isinstance(found, list) else []


def _why_not_an_object(body: bytes, error: msgspec.DecodeError) -> str:
    if isinstance(error, msgspec.ValidationError):
        first = body.lstrip()[:1]
        return "batches are not supported; send one object per POST" if first == b"[" else f"not an envelope: {error}"
    return f"not JSON: {error}"
