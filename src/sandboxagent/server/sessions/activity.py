"""Summarize the activity of sessions for lists, and report which sessions have changed.

It keeps only the newest change of each session, in order, and at most `MAX_CHANGES` changes. A client that has missed
more reads all sessions again. Pure: no I/O, no clock, no event loop.
"""

import secrets
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET, Raw, Struct

from sandboxagent.protocol.envelope import Envelope, Object, object_at, text_at

MAX_LINES, MAX_LINE_BYTES = 16, 8 * 1024
"""Maximum number of updates kept of a running session, and the maximum bytes of one: 128 KiB together."""
MAX_SAID = 240
"""Maximum characters of `Activity.said`."""
_SPOKEN = {"agent_message_chunk": "message", "agent_thought_chunk": "thought"}
_TOOL = ("tool_call", "tool_call_update")

_Other = list[Raw] | str | float | bool | None
"""Any JSON value but an object."""


class _Content(msgspec.Struct, gc=False):
    text: object = None


class _Update(msgspec.Struct, gc=False):
    sessionUpdate: object = None
    title: object = None
    content: _Content | _Other = None


class _Params(msgspec.Struct, gc=False):
    update: _Update | _Other = None


class _Line(msgspec.Struct, gc=False):
    params: _Params | _Other = None


_line = msgspec.json.Decoder(_Line)
"""Reads only the parts of an update that people see."""


class Activity(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A summary of a session's newest activity, as stored on disk."""

    kind: str | None = None
    """Kind of the newest update: `message`, `thought` or `tool`."""
    said: str = ""
    """Last line of the newest text, or the title of the newest tool call."""
    tokens: int | None = None
    """Tokens of all turns, as far as the agent reports them."""
    context_used: int | None = None
    context_size: int | None = None
    cost_amount: float | None = None
    cost_currency: str | None = None

    def note_usage(self, update: Object) -> None:
        """Read the context size and the cost from a `usage_update`."""
        used, size, cost = update.get("used"), update.get("size"), object_at(update, "cost")
        if isinstance(used, int) and isinstance(size, int):
            self.context_used, self.context_size = used, size
        amount, currency = read_amount(cost.get("amount")), text_at(cost, "currency")
        if amount is not None and currency is not None:
            self.cost_amount, self.cost_currency = amount, currency

    def note_tokens(self, total: int | None) -> None:
        """Add the tokens of a turn."""
        if total is not None:
            self.tokens = (self.tokens or 0) + total


class _Usage(msgspec.Struct, gc=False):
    totalTokens: object = None


class _Result(msgspec.Struct, gc=False):
    stopReason: object = None
    usage: _Usage | _Other = None


_result = msgspec.json.Decoder(_Result)


def read_result(response: Envelope) -> tuple[str | None, int | None]:
    """Return a turn's stop reason and its tokens; None for each that the agent does not report."""
    raw = response.peek.result
    if raw is UNSET:
        return None, None
    try:
        result = _result.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, None
    total = result.usage.totalTokens if type(result.usage) is _Usage else None
    reason = result.stopReason
    return reason if isinstance(reason, str) else None, total if isinstance(total, int) else None


class Recent:
    """The newest updates of a session, unparsed: they are parsed only when a client lists sessions."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: deque[bytes] | tuple[()] = ()
        """The deque is created with the first update: an empty one takes more memory than the rest of a session."""

    def add(self, lines: Sequence[bytes]) -> None:
        kept = self._lines
        for line in lines[-MAX_LINES:]:
            if len(line) <= MAX_LINE_BYTES:
                if not kept:
                    kept = self._lines = deque[bytes](maxlen=MAX_LINES)
                kept.append(line)

    def clear(self) -> None:
        self._lines = ()

    def last_line(self) -> tuple[str, str] | None:
        """Return the kind of the newest update that people see, and its last line; None if there is no such update."""
        kind, pieces = None, list[str]()
        for line in reversed(self._lines):
            update = _update(line)
            said = None if update is None else _SPOKEN.get(_text(update.sessionUpdate))
            if update is None or (said is None and update.sessionUpdate not in _TOOL):
                continue
            if kind is None and said is None:
                if title := _text(update.title):
                    return "tool", _cut(title)
                continue
            if said is None or said != (kind or said):
                break
            kind = said
            pieces.append(_text(update.content.text) if isinstance(update.content, _Content) else "")
            if "\n" in pieces[-1].rstrip() and "".join(pieces).strip():
                break
        text = "".join(reversed(pieces)).strip()
        return None if kind is None or not text else (kind, _cut(text.splitlines()[-1]))


def read_amount(value: object) -> float | None:
    """Return an amount as a float; None if it is not a number or too large for a float."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _update(line: bytes) -> _Update | None:
    try:
        params = _line.decode(line).params
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return params.update if isinstance(params, _Params) and isinstance(params.update, _Update) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SAID else f"{text[: MAX_SAID - 1]}…"


MAX_CHANGES = 500
"""Maximum number of sessions whose newest change is kept."""


class Changed(Struct, frozen=True):
    """The sessions that have changed since a cursor, and those that were deleted."""

    sessions: list[str]
    gone: list[str]


class Changes:
    """The newest change of each session, ordered from the oldest change to the newest."""

    def __init__(self) -> None:
        self._boot = secrets.token_hex(4)
        self._number = 0
        self._forgotten = 0
        """Number of the newest dropped change. `after` cannot answer for a cursor below it."""
        self._newest: dict[str, tuple[int, bool]] = {}
        """For each session, oldest change first: the number of the change, and whether the session was deleted."""
        self._waiting: dict[int, Callable[[], None]] = {}
        self._callbacks = 0
        self._closed = False

    @property
    def cursor(self) -> str:
        """The current position among changes. It is valid until this server process ends."""
        return f"{self._boot}.{self._number}"

    def note(self, session_id: str, *, gone: bool = False) -> None:
        """Note that a session has changed, or with `gone`, that it was deleted."""
        self._number += 1
        self._newest.pop(session_id, None)
        self._newest[session_id] = (self._number, gone)
        if len(self._newest) > MAX_CHANGES:
            oldest = next(iter(self._newest))
            self._forgotten = self._newest.pop(oldest)[0]
        if self._waiting:
            self._wake()

    def after(self, cursor: str) -> Changed | None:
        """Return the changes after a cursor, newest first; None if the cursor is unknown or too old."""
        number = self._read(cursor)
        if number is None or number < self._forgotten:
            return None
        changed = Changed([], [])
        for session_id, (at, gone) in reversed(self._newest.items()):
            if at <= number:
                break
            (changed.gone if gone else changed.sessions).append(session_id)
        return changed

    def call_after(self, cursor: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once something has changed after the cursor, at once if it has already.

        Returns a function that cancels the callback.
        """
        if self._closed or self._read(cursor) != self._number:
            callback()
            return lambda: None
        self._callbacks += 1
        number = self._callbacks
        self._waiting[number] = callback
        return lambda: self._forget(number)

    def close(self) -> None:
        """Call all waiting callbacks, because the server is stopping."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for callback in waiting.values():
            callback()

    def _forget(self, number: int) -> None:
        self._waiting.pop(number, None)

    def _read(self, cursor: str) -> int | None:
        boot, _, number = cursor.partition(".")
        return int(number) if boot == self._boot and number.isdecimal() and len(number) < 20 else None
