"""Permission rules: how they are written, and what is wrong with one. Amp's `PermissionRule` is understood as well."""

import shlex
from collections.abc import Callable
from typing import Annotated, Literal, cast

import msgspec
from msgspec import Meta, Struct, structs
from msgspec.structs import replace

from sandbox_agent.permissions.conditions import (
    ArgumentIs,
    CommandIs,
    CommandPattern,
    Condition,
    FactIs,
    FolderIs,
    Line,
    PathIs,
    Unknowable,
    Where,
    Words,
)
from sandbox_agent.permissions.patterns import FlatPathGlob, Glob, PathGlob, Regex, compile_pattern
from sandbox_agent.permissions.request import ToolRequest
from sandbox_agent.settings.files import did_you_mean

Action = Literal["allow", "ask", "reject"]
Source = Literal["server", "session"]

MOST_RULES = 500
KINDS = ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other")
"""Of ACP."""

Text = Annotated[str, Meta(min_length=1, max_length=4096)]
Texts = Text | Annotated[tuple[Text, ...], Meta(min_length=1)]


class RuleTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule as it is written."""

    action: Literal["allow", "reject", "ask", "delegate"]
    tool: Texts | None = None
    kind: Texts | None = None
    path: Texts | None = None
    command: Texts | None = None
    cwd: Texts | None = None
    agent: Texts | None = None
    matches: dict[str, object] | None = None
    context: Literal["thread", "subagent"] | None = None
    to: Text | None = None
    reason: Text | None = None
    message: Text | None = None
    name: Text | None = None
    remember: bool = False


KEYS = {
    "action": '"allow", "reject", "ask" or "delegate", which asks',
    "tool": "a glob, or a list of some",
    "kind": f"one of {', '.join(KINDS)}, a glob, or a list of some",
    "path": "a glob of paths, or a list of some",
    "command": "the words of a command, or a list of such",
    "cwd": 'a glob of the folder that a command runs in, "*" for any, or a list of some',
    "agent": "the id of an agent or a glob, or a list of some",
    "matches": "a table of arguments and what they are (as Amp has it)",
    "context": '"thread" or "subagent" (as Amp has it)',
    "to": "a program (as Amp has it, for delegate; it is not run)",
    "reason": "a text",
    "message": "a text (as Amp has it: the reason)",
    "name": "a text",
    "remember": "true or false",
}
"""The keys of a rule, and what is expected there."""
_CONDITIONS = ("tool", "kind", "path", "command", "cwd", "agent", "matches")


class Mistake(Exception):
    """What is wrong with a rule: which (from 0), at which key, and why."""

    def __init__(self, index: int | None, key: str | None, complaint: str) -> None:
        super().__init__(complaint)
        self.index = index
        self.key = key


class Rule(Struct, frozen=True):
    """A rule that can be applied."""

    number: int
    """From 1, in its list."""
    action: Action
    conditions: tuple[Condition, ...]
    source: Source
    name: str | None
    reason: str | None
    remember: bool
    """Whether to allow is to allow for good, where the agent offers that."""


def read_rules(raw: object, source: Source) -> tuple[Rule, ...]:
    """The rules in decoded TOML or JSON; raises Mistake."""
    if not isinstance(raw, list):
        raise Mistake(None, None, "expected a list of rules")
    tables = cast(list[object], raw)
    if len(tables) > MOST_RULES:
        raise Mistake(None, None, f"more than {MOST_RULES} rules")
    return tuple(_rule(index, table, source) for index, table in enumerate(tables))


def _rule(index: int, raw: object, source: Source) -> Rule:
    written = _table(index, raw)
    conditions: list[Condition] = []
    for key in (*_CONDITIONS, "context"):
        value = cast(object, getattr(written, key))
        if value is not None:
            try:
                conditions += _MAKERS[key](value)
            except ValueError as problem:
                raise Mistake(index, key, f"{key} {problem}") from None
    if all(isinstance(condition, FolderIs) for condition in conditions):
        raise Mistake(index, None, 'it has no condition; tool = "*" says that everything is meant')
    where = next((condition.where for condition in conditions if isinstance(condition, FolderIs)), Where())
    conditions = [replace(each, where=where) if isinstance(each, CommandIs) else each for each in conditions]
    action = "ask" if written.action == "delegate" else written.action
    reason = written.reason or written.message
    return Rule(index + 1, action, tuple(conditions), source, written.name, reason, written.remember)


def _table(index: int, raw: object) -> RuleTable:
    if not isinstance(raw, dict):
        raise Mistake(index, None, "expected a table")
    table = cast("dict[str, object]", raw)
    types = {info.name: cast("type", info.type) for info in structs.fields(RuleTable)}
    for key, value in table.items():
        if key not in KEYS:
            raise Mistake(index, key, f"unknown key {key} (known: {', '.join(KEYS)}){did_you_mean(key, KEYS)}")
        try:
            msgspec.convert(value, types[key])
        except msgspec.ValidationError:
            raise Mistake(index, key, f"{key}: expected {KEYS[key]}, got {value!r:.100}") from None
    if "action" not in table:
        raise Mistake(index, None, f"it has no action, which is {KEYS['action']}")
    written = msgspec.convert(table, RuleTable)
    if written.remember and written.action != "allow":
        raise Mistake(index, "remember", "remember is for rules that allow")
    return written


# Conditions


def _texts(value: object) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else cast("tuple[str, ...]", value)


def _fact(fact: Callable[[ToolRequest], str | None], value: object) -> list[Condition]:
    texts = _texts(value)
    everything = any(set(text) == {"*"} for text in texts)
    return [FactIs(tuple(compile_pattern(text) for text in texts), fact, everything)]


def _tool(value: object) -> list[Condition]:
    folded = tuple(text.casefold() for text in _texts(value))
    return _fact(lambda request: request.tool.casefold() if request.tool else None, folded)


def _agent(value: object) -> list[Condition]:
    return _fact(lambda request: request.agent, value)


def _kind(value: object) -> list[Condition]:
    for text in _texts(value):
        if not any(map(Glob(text).is_all_of, KINDS)):
            raise ValueError(f"{text!r} is not known in ACP{did_you_mean(text, KINDS)}; it has {', '.join(KINDS)}")
    return _fact(lambda request: request.kind, value)


def _path(value: object) -> list[Condition]:
    return [PathIs(_path_globs(_texts(value)))]


def _cwd(value: object) -> list[Condition]:
    texts = _texts(value)
    if any(set(text) == {"*"} for text in texts):
        return [FolderIs(Where(anywhere=True))]
    # What is beneath a folder counts anyway, and the folder itself, too.
    return [FolderIs(Where(_path_globs(tuple(text.removesuffix("/**") or "/" for text in texts))))]


def _path_globs(texts: tuple[str, ...]) -> tuple[PathGlob, ...]:
    for text in texts:
        if ".." in text.split("/"):
            raise ValueError(f"{text!r} goes up with ..; write where it leads")
        if text.startswith("~") and text[1:2] not in ("", "/"):
            raise ValueError(f"{text!r} is another user's home; write its absolute path")
    return tuple(map(PathGlob, texts))


def _command(value: object) -> list[Condition]:
    return [CommandIs(tuple(_command_pattern(text) for text in _texts(value)))]


def _command_pattern(text: str) -> CommandPattern:
    if len(text) > 2 and text[0] == text[-1] == "/" and "/" not in text[1:-1].replace("\\/", ""):
        return Line(Regex(text[1:-1]))
    if set(text) & set(";&|<>()$`\n"):
        raise ValueError(f"{text!r} is more than one plain command; a rule judges each part of a command by itself")
    try:
        words = tuple(shlex.split(text))
    except ValueError as problem:
        raise ValueError(f"{text!r} cannot be read: {problem}") from None
    if not words:
        raise ValueError("is empty")
    # A star at the end opens what follows, and is no word itself.
    is_open = set(words[-1]) == {"*"}
    return Words(tuple(map(Glob, words[:-1] if is_open and len(words) > 1 else words)), is_open)


# Amp's


def _matches(value: object) -> list[Condition]:
    table = cast("dict[str, object]", value)
    return [condition for key, expected in table.items() for condition in _argument(key, expected)]


def _argument(key: str, expected: object) -> list[Condition]:
    flat = key.replace("_", "").lower()
    if flat in ("cmd", "command"):
        return [CommandIs(tuple(Line(compile_pattern(text)) for text in _patterns(key, expected)))]
    if flat in ("path", "filepath"):
        return [PathIs(tuple(FlatPathGlob(text) for text in _patterns(key, expected)))]
    return [ArgumentIs(key, _expected(key, expected, 0))]


def _patterns(key: str, expected: object) -> tuple[str, ...]:
    try:
        return _texts(msgspec.convert(expected, Texts))
    except msgspec.ValidationError:
        raise ValueError(f"{key}: expected a glob or a list of some, got {expected!r:.100}") from None


def _expected(key: str, expected: object, depth: int) -> object:
    if depth > 10:
        raise ValueError(f"{key}: is nested too deeply")
    match expected:
        case str():
            return compile_pattern(expected)
        case list():
            return tuple(_expected(key, each, depth + 1) for each in cast(list[object], expected))
        case dict():
            table = cast("dict[str, object]", expected)
            return {name: _expected(name, each, depth + 1) for name, each in table.items()}
        case bool() | int() | float() | None:
            return expected
        case _:
            raise ValueError(f"{key}: expected a glob, a list, a table or a plain value")


def _context(value: object) -> list[Condition]:
    # Agents do not tell whether they themselves or a helper of theirs asks.
    return [Unknowable()]


_MAKERS: dict[str, Callable[[object], list[Condition]]] = {
    "tool": _tool,
    "kind": _kind,
    "path": _path,
    "command": _command,
    "cwd": _cwd,
    "agent": _agent,
    "matches": _matches,
    "context": _context,
}
