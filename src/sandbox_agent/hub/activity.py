"""What a session is doing, in a line, for lists of many sessions. Pure: no I/O, no clock, no event loop."""

from collections import deque
from collections.abc import Sequence

import msgspec

from sandbox_agent.envelope import Object, object_at, text_at

MOST_LINES, LONGEST_LINE = 16, 8 * 1024
"""Updates that are kept of a session that runs, and how long one may be: 128 KiB at most."""
LONGEST_SAID = 240
"""Characters of what was said last."""
_SPOKEN = {"agent_message_chunk": "message", "agent_thought_chunk": "thought"}


class Activity(msgspec.Struct, kw_only=True):
    """What is kept of it on disk."""

    kind: str | None = None
    """What came last: `message`, `thought` or `tool`."""
    said: str = ""
    """Its last line."""
    tokens: int | None = None
    """Of all turns, as far as its agent counts them."""
    context_used: int | None = None
    context_size: int | None = None
    cost_amount: float | None = None
    cost_currency: str | None = None

    def note_usage(self, update: Object) -> None:
        """Learn from a `usage_update`."""
        used, size, cost = update.get("used"), update.get("size"), object_at(update, "cost")
        if isinstance(used, int) and isinstance(size, int):
            self.context_used, self.context_size = used, size
        amount, currency = cost.get("amount"), text_at(cost, "currency")
        if isinstance(amount, int | float) and currency is not None:
            self.cost_amount, self.cost_currency = float(amount), currency

    def note_result(self, result: Object) -> None:
        """Learn from the result of a turn."""
        total = object_at(result, "usage").get("totalTokens")
        if isinstance(total, int):
            self.tokens = (self.tokens or 0) + total


class Recent:
    """The newest updates of a session, as they came: they are read only when someone looks at the list."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=MOST_LINES)

    def add(self, lines: Sequence[bytes]) -> None:
        self._lines.extend(line for line in lines[-MOST_LINES:] if len(line) <= LONGEST_LINE)

    def clear(self) -> None:
        self._lines.clear()

    def last_line(self) -> tuple[str, str] | None:
        """What came last, and its last line; None when none of it is for people."""
        kind, pieces = None, list[str]()
        for line in reversed(self._lines):
            update = _update(line)
            said = _SPOKEN.get(text_at(update, "sessionUpdate") or "")
            if said is None and not _is_tool(update):
                continue
            if kind is None and said is None:
                title = text_at(update, "title")
                if title:
                    return "tool", _cut(title)
                continue
            if said is None or said != (kind or said):
                break
            kind = said
            pieces.append(text_at(object_at(update, "content"), "text") or "")
            if "\n" in pieces[-1].rstrip() and "".join(pieces).strip():
                break
        text = "".join(reversed(pieces)).strip()
        return None if kind is None or not text else (kind, _cut(text.splitlines()[-1]))


def _update(line: bytes) -> Object:
    try:
        return object_at(object_at(object_at(msgspec.json.decode(line)), "params"), "update")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _is_tool(update: Object) -> bool:
    return text_at(update, "sessionUpdate") in ("tool_call", "tool_call_update")


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_SAID else f"{text[: LONGEST_SAID - 1]}…"
