"""Parse one JSON-RPC object for the few facts needed to route it, and splice its bytes.

An envelope is never rebuilt from parsed values: ids, unknown fields and everything inside `params` and `result` travel
as the bytes they arrived in. Ids are kept as their own text, so `1`, `1.0` and `"1"` are three ids.
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
from sandboxagent.protocol.json_bounds import MAX_DEPTH, excess, excess_of_answer

META = "sandboxagent.dev"
"""Our key inside ACP's `_meta` objects."""


Object = dict[str, object]
"""A JSON object as Python values."""


class Kind(Enum):
    """What an envelope is."""

    REQUEST = auto()
    NOTIFICATION = auto()
    RESPONSE = auto()


REQUEST, NOTIFICATION, RESPONSE = Kind
"""By themselves, for what runs for every message: Python 3.11 takes long to look a member up in its enumeration."""


class Update(Struct, gc=False):
    """The part of a `session/update` that says what it is."""

    sessionUpdate: object = UNSET


class Params(Struct, gc=False):
    """The parts of `params` that decide where an envelope goes."""

    sessionId: object = UNSET
    update: Update | list[Raw] | str | float | bool | None = None


class Peek(Struct, gc=False):
    """What one look at an envelope shows; everything else in it is skipped, but checked to be JSON."""

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
    """A checked envelope: `line` is its bytes on one line, `id` its id's own text."""

    __slots__ = ("id", "kind", "line", "method", "peek", "session_id")

    def __init__(self, line: bytes, peek: Peek) -> None:
        """`peek` must have no fault."""
        self.line = line
        self.peek = peek
        self.id = None if peek.id is UNSET else bytes(peek.id)
        self.method = peek.method if isinstance(peek.method, str) else ""
        params = peek.params
        # Spelled out, and not a function: this runs for every message.
        self.session_id = params.sessionId if type(params) is Params and type(params.sessionId) is str else None
        if self.method:
            self.kind = NOTIFICATION if self.id is None else REQUEST
        else:
            self.kind = RESPONSE

    def params(self) -> Object:
        """`params` as Python values; empty when it is absent or not an object."""
        return _object(lambda: _decode(_params, self.line).params)

    def asked(self) -> Object:
        """Of `params` of a request to people, what says what an answer means; the rest may be large, and is skipped."""
        return _object(lambda: _read_asked(self.line))

    def result(self) -> Object:
        """`result` as Python values; empty when it is absent or not an object."""
        return {} if self.peek.result is UNSET else _object(lambda: _any.decode(cast(Raw, self.peek.result)))

    def error(self) -> Object:
        """`error` as Python values; empty when the response is a success."""
        return {} if self.peek.error is UNSET else _object(lambda: _any.decode(cast(Raw, self.peek.error)))

    @property
    def succeeded(self) -> bool:
        return self.peek.error is UNSET

    def digest(self) -> bytes:
        """What tells its text from another one."""
        return sha256(self.line).digest()

    def addressed(self, id: bytes | None, session_id: str | None) -> bytes:
        """The line under another id, and with another session id; None leaves what it has."""
        line = self.line if session_id is None else with_param(self.line, "sessionId", session_id)
        return line if id is None else with_id(line, id)


class Places(Struct, frozen=True):
    """Where the texts stand in a long line that are exchanged in it, each from its first byte to behind its last."""

    id: tuple[int, int] | None = None
    session_id: tuple[int, int] | None = None
    prompt: int | None = None
    """Behind the bracket with which the blocks of a prompt begin."""
    blocks: tuple[tuple[int, int], ...] = ()
    """These blocks."""


class LargeEnvelope(Envelope):
    """One of which a thread has found out what would take long: `parse_large` makes it."""

    __slots__ = ("_digest", "places")

    def __init__(self, line: bytes, peek: Peek, places: Places, digest: bytes) -> None:
        super().__init__(line, peek)
        self.places = places
        self._digest = digest

    def digest(self) -> bytes:
        return self._digest

    def addressed(self, id: bytes | None, session_id: str | None) -> bytes:
        return address(self.line, self.places, id, session_id)


def _object(decode: Callable[[], object]) -> "Object":
    """An object as Python values; empty for what Python cannot hold, such as a number that is out of range."""
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
"""Look at every line of a blob in one go; raises when any line is not JSON (then look at each by itself)."""
_members = msgspec.json.Decoder(dict[str, Raw])
_params = msgspec.json.Decoder(_WithParams)
_prompt = msgspec.json.Decoder(_WithPrompt)
_asked = msgspec.json.Decoder(_WithAsked)
_related = msgspec.json.Decoder(_WithRelated)
_any = msgspec.json.Decoder(object)
_items_of = msgspec.json.Decoder(list[Raw])
_HEX = rb"[0-9a-fA-F]{2}"
_HIGH, _LOW = rb"[89abAB]" + _HEX, rb"[c-fC-F]" + _HEX
# What it begins with is the same for all: that is found quickly.
_HALF = rb"\\u[dD](?:%b(?!\\u[dD]%b)|%b(?<!\\u[dD]%b\\u[dD]%b))" % (_HIGH, _LOW, _LOW, _HIGH, _LOW)
_STAND_IN = b"\\ufffd"
_PIECE = 64 << 10
LARGE = 1 << 20
"""Bytes from which on envelopes are read in a thread."""
MIN_DEEP = 2 * (MAX_DEPTH + 1) + len('"jsonrpc":"2.0","id":1,"error":')
"""Bytes below which no envelope nests too deep: its brackets and the shortest members of one take as many."""
MAX_NAME = 1024
"""Characters of a method, or of a session's id."""
MAX_HALVES = 10_000
"""Halves of surrogate pairs in one text."""
# Possessive: what can be taken back costs a hundred times its bytes.
_MEMBER = re.compile(rb'\s*+[{,]\s*+("(?:[^"\\]++|\\.)*+")\s*+:\s*+')
_BEFORE_ITEM = re.compile(rb"[\s,]*+")
_AFTER_MEMBER = re.compile(rb"\s*[,}]")
_END = re.compile(rb"\s*}\s*\Z")
_USUAL_HEAD = re.compile(rb'\{"jsonrpc": ?"2\.0", ?"id": ?("[^"\\]*"|-?[0-9.eE+-]+)(?=[,}])')
LINE_FEED, CARRIAGE_RETURN, BACKSLASH = b"\n\r\\"
"""As numbers: Python tries to look for a number in bytes first, and makes an exception of what is none."""
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
    """The text with no half of a surrogate pair in it, which JSON allows and programs that cut strings write.

    msgspec refuses it. What stands in for the half is as long as it was, so that offsets stay true. Of more halves than
    `MAX_HALVES` the rest stays.
    """
    if b"\\u" not in text:
        return text
    # Only for the search: behind a pair of backslashes nothing is an escape.
    halves = re.finditer(_HALF, text.replace(b"\\\\", b"  ") if b"\\\\" in text else text)
    whole: bytearray | None = None
    for half in islice(halves, MAX_HALVES):
        whole = bytearray(text) if whole is None else whole
        whole[half.start() : half.end()] = _STAND_IN
    return text if whole is None else bytes(whole)


def parse(body: bytes, measure: Callable[[bytes], str | None] = excess) -> Envelope:
    """Read one envelope from untrusted bytes; raises NotAnEnvelope with the first reason found."""
    size = len(body)
    if size >= MIN_DEEP and (reason := measure(body)) is not None:
        raise NotAnEnvelope(reason)
    try:
        if not body.isascii():
            check_utf8(body)
        # Spelled out, and not `_decode`: this runs for every message.
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
    """The same of a long text, for a thread: what comes later need not look through it again."""
    envelope = parse(body)
    digest = envelope.digest()
    line, places = lay_out(envelope.line)
    return LargeEnvelope(line, envelope.peek, places, digest)


def parse_envelope(body: bytes) -> Envelope:
    """What `parse_large` reads of a long text, and `parse` of any other."""
    return parse(body) if len(body) <= LARGE else parse_large(body)


def parse_answer(body: bytes) -> Envelope:
    """The same of what a server says."""
    return parse(body, excess_of_answer)


def check_utf8(text: bytes) -> None:
    """Raises UnicodeDecodeError. In pieces: as text of Python's, all of it may take four times its bytes."""
    if len(text) <= _PIECE:
        text.decode()
        return
    decoder = getincrementaldecoder("utf-8")()
    for start in range(0, len(text), _PIECE):
        kept = len(decoder.getstate()[0])
        try:
            decoder.decode(text[start : start + _PIECE], start + _PIECE >= len(text))
        except UnicodeDecodeError as error:
            error.start += start - kept
            raise


def fault(peek: Peek) -> str | None:
    """Why this is JSON but not an envelope; None when it is one."""
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
    """Why an envelope names something at a length that no program means; None when it does not."""
    for name, value in (("method", peek.method), ("sessionId", peek.session_id)):
        if isinstance(value, str) and len(value) > MAX_NAME:
            return f'"{name}" has more than {MAX_NAME} characters'
    return None


def one_line(body: bytes) -> bytes:
    """The same JSON on one line: a line break would end it early on stdio and in an SSE frame."""
    if LINE_FEED in body or CARRIAGE_RETURN in body:
        # In JSON they can only stand between tokens: inside a string they are escaped.
        body = body.translate(_LINE_BREAKS)
    return body.strip()


def with_id(line: bytes, id: bytes) -> bytes:
    """The same envelope under another id; all other bytes stay."""
    # The common case without a parse: the id comes second, and nothing else in the line can be a member called id.
    usual = _USUAL_HEAD.match(line)
    if usual is not None and line.count(b'"id"') == 1 and (BACKSLASH not in line or b"\\u" not in line):
        start, end = usual.span(1)
        return line[:start] + id + line[end:]
    members, whole = _split(line)
    spans = _spans(whole, members)
    if spans is None or "id" not in spans:
        # The receiver may take another one of two ids than we do, so that such a line must not keep its bytes.
        return msgspec.json.encode(members | {"id": Raw(id)})
    start, end = spans["id"]
    return line[:start] + id + line[end:]


def lay_out(line: bytes) -> tuple[bytes, Places]:
    """The same envelope, and where its texts stand. It keeps its bytes unless a member is repeated."""
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
        return lay_out(msgspec.json.encode(members))
    start = spans["params"][0] if inside else 0
    moved = {name: (start + first, start + end) for name, (first, end) in inside.items() if name in _MOVED}
    blocks: tuple[tuple[int, int], ...] = ()
    prompt = None
    if "prompt" in moved and line[moved["prompt"][0]] == _FIRST_OF_A_LIST:
        prompt = moved["prompt"][0] + 1
        blocks = tuple(_items(line, prompt, _items_of.decode(inner["prompt"])))
    return line, Places(spans.get("id"), moved.get("sessionId"), prompt, blocks)


def _items(line: bytes, at: int, items: list[Raw]) -> Iterator[tuple[int, int]]:
    """Where the items of an array stand whose text begins there."""
    for item in items:
        before = _BEFORE_ITEM.match(line, at)
        assert before is not None
        at = before.end() + memoryview(item).nbytes
        yield before.end(), at


def address(line: bytes, places: Places, id: bytes | None, session_id: str | None, remark: bytes = b"") -> bytes:
    """A long line under another id, with another session id, and with a block before those of its prompt.

    None leaves what it has. It is copied once.
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
    """The members of an object, and the text in which they stand: as long as this one, and readable."""
    try:
        return _members.decode(text), text
    except msgspec.DecodeError:
        whole = _whole(text)
        return _members.decode(whole), whole


def _spans(text: bytes, members: dict[str, Raw]) -> dict[str, tuple[int, int]] | None:
    """Where the value of each member stands; None when the text is not exactly these members.

    It is not with a repeated key.
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
    """The members of an object as their texts, and whether one of them is repeated: then the last one counts.

    Raises msgspec.DecodeError or RecursionError for what is no object.
    """
    members, whole = _split(text)
    return members, _spans(whole, members) is None


def with_members(members: dict[str, Raw]) -> bytes:
    """An object of these members, each with its own text."""
    return msgspec.json.encode(members)


def same_id(id: bytes) -> bytes:
    """One spelling for all spellings of an id: a client may write a string's characters otherwise than the agent."""
    if BACKSLASH not in id:
        return id
    try:
        return msgspec.json.encode(_any.decode(id))
    except msgspec.DecodeError:
        # Half a surrogate pair has one spelling.
        return id


def param(line: bytes, name: str) -> bytes | None:
    """The text of one member of `params`; None when it is not there."""
    params = _decode(_members, line).get("params")
    found = _members.decode(params).get(name) if params is not None and is_object(params) else None
    return None if found is None else bytes(found)


def has_prompt(line: bytes) -> bool:
    """Whether `params` has a member called `prompt`: the same as `param` finds, without a look at the others."""
    params = _decode(_prompt, line).params
    return isinstance(params, _Prompt) and params.prompt is not UNSET


def related(line: bytes) -> bytes | None:
    """The text of `requestId` in `params`, which names another request: as `param` finds it, but without a copy."""
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
    """Whether a JSON text is an object."""
    return bytes(memoryview(raw)[:1]) == b"{"


def params_text(line: bytes) -> bytes:
    """The text of `params`; an empty object when there are none."""
    return bytes(_decode(_members, line).get("params", Raw(b"{}")))


def with_param(line: bytes, name: str, value: object) -> bytes:
    """The same envelope with one member of `params` set; the others keep their bytes."""
    return _with_member_of(line, "params", {name: Raw(msgspec.json.encode(value))})


def without_params(line: bytes, *path: str) -> bytes:
    """The same envelope without the member of `params` found under `path`."""
    members = _decode(_members, line)
    members["params"] = _without(members["params"], path)
    return msgspec.json.encode(members)


def with_result(line: bytes, name: str, value: object) -> bytes:
    """The same response with one member of `result` set; the others keep their bytes."""
    return _with_member_of(line, "result", {name: Raw(msgspec.json.encode(value))})


def with_error(line: bytes, **members: object) -> bytes:
    """The same response with members of `error` set; the others keep their bytes."""
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
    """A request of our own."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": Raw(id), "method": method, "params": params})


def notification(method: str, params: object) -> bytes:
    """A notification of our own."""
    return msgspec.json.encode({"jsonrpc": "2.0", "method": method, "params": params})


def success(id: bytes, result: object) -> bytes:
    """A response of our own."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": Raw(id), "result": result})


def failure(id: bytes, error: SandboxAgentError) -> bytes:
    """A named failure as the JSON-RPC error of a request."""
    data = {"type": error.slug, **error.fields}
    body = {"code": error.rpc_code, "message": str(error), "data": data}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": Raw(id), "error": body})


def at(value: object, *path: str) -> object:
    """What stands under a path of members in decoded JSON; None when something on the way is missing."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = cast(Object, value).get(name)
    return value


def text_at(value: object, *path: str) -> str | None:
    """The string under a path; None when there is none."""
    found = at(value, *path)
    return found if isinstance(found, str) else None


def object_at(value: object, *path: str) -> Object:
    """The object under a path; empty when there is none."""
    found = at(value, *path)
    return cast(Object, found) if isinstance(found, dict) else {}


def objects_at(value: object, *path: str) -> list[Object]:
    """The objects in the array under a path."""
    found = at(value, *path)
    items = cast(list[object], found) if isinstance(found, list) else []
    return [cast(Object, item) for item in items if isinstance(item, dict)]


def list_at(value: object, *path: str) -> list[object]:
    """The list at a path; empty when there is none."""
    found = at(value, *path)
    return cast("list[object]", found) if isinstance(found, list) else []


def _why_not_an_object(body: bytes, error: msgspec.DecodeError) -> str:
    if isinstance(error, msgspec.ValidationError):
        first = body.lstrip()[:1]
        return "batches are not supported; send one object per POST" if first == b"[" else f"not an envelope: {error}"
    return f"not JSON: {error}"
