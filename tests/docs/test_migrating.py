"""docs/migrating.md: every part of the old schema of the other product, and what it has become here."""

import json
import re
from functools import cache
from typing import Any

import acp.schema
import msgspec
from pydantic import TypeAdapter

from sandboxagent.protocol.acp import SessionNotification
from tests.docs.pages import DOCS
from tests.docs.test_methods import METHODS, MODELS

PAGE = DOCS / "migrating.md"
EVENTS = {
    *("session.started", "session.ended", "turn.started", "turn.ended", "item.started", "item.delta", "item.completed"),
    *("permission.requested", "permission.resolved", "question.requested", "question.resolved"),
    *("error", "agent.unparsed"),
}
FIELDS = {
    *("event_id", "sequence", "time", "session_id", "native_session_id", "source", "synthetic", "type", "data", "raw"),
    *("terminated_by", "message", "exit_code", "stderr", "permission_id", "action"),
    *("accept", "accept_for_session", "reject", "question_id", "prompt", "options", "response"),
}
ITEMS = {
    *("item_id", "native_item_id", "parent_id", "name", "arguments", "call_id", "output", "path", "action", "diff"),
    *("mime", "visibility", "label", "detail"),
    *(f"kind {kind}" for kind in ("message", "tool_call", "tool_result", "system", "status", "unknown")),
    *(f"role {role}" for role in ("user", "assistant", "system", "tool")),
    *(f"status {status}" for status in ("in_progress", "completed", "failed")),
    *(f"part {part}" for part in ("text", "json", "tool_call", "tool_result", "file_ref", "image", "reasoning")),
    "part status",
}
"""What the old schema has, by the enumerations and fields that its description lists."""

SPAN = re.compile(r"`([^`]+)`")


def rows(first: str) -> list[list[str]]:
    """The rows of the table whose first column has this title."""
    lines = PAGE.read_text().split(f"| {first} | here | difference |\n|---|---|---|\n")[1].splitlines()
    table = lines[: next(number for number, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def left(cell: str) -> set[str]:
    """What a cell of the first column names, with the kind of name that stands before it."""
    names: set[str] = set()
    kind = ""
    for word, span in re.findall(r"(kind|role|status|part)? ?`([^`]+)`", cell):
        kind = word or ("" if ":" in cell.partition(f"`{span}`")[0] else kind)
        names.add(f"{kind} {span}".strip())
    return names


@cache
def types() -> dict[str, frozenset[str]]:
    """What each method and each update has: the names of members, and the values of those that are closed."""
    update = schema(SessionNotification)
    known = {"session/update": words(update)}
    for definition in update["$defs"].values():
        for tag in definition["properties"].get("sessionUpdate", {}).get("enum", ()):
            known[tag] = words([definition, [update["$defs"][name] for name in reached(update, definition)]])
    for name, method in METHODS.items():
        ours = [type for type in (method.takes, method.gives) if type is not None]
        models = [getattr(acp.schema, model) for model in MODELS.get(name, ()) if model is not None]
        schemas = [schema(type) for type in ours] + [TypeAdapter(model).json_schema() for model in models]
        known[name] = known.get(name, frozenset()) | words(schemas)
    # JSON-RPC's own: an answer may be an error.
    known["session/prompt"] |= {"error"}
    return known


def schema(type: type[msgspec.Struct]) -> dict[str, Any]:
    return msgspec.json.schema(type, schema_hook=lambda _any: {"title": "any value"})


def reached(whole: dict[str, Any], part: object) -> set[str]:
    """The definitions to which a part of a schema leads."""
    found: set[str] = set()
    ahead = [part]
    while ahead:
        for name in re.findall(r'"#/\$defs/([^"]+)"', json.dumps(ahead.pop())):
            if name not in found:
                found.add(name)
                ahead.append(whole["$defs"][name])
    return found


def words(part: object) -> frozenset[str]:
    """The names of members, and the closed values, in a JSON schema."""
    match part:
        case dict():
            properties = part.get("properties")
            here = set(properties) if isinstance(properties, dict) else set[str]()
            here |= {each for each in (*part.get("enum", ()), part.get("const")) if isinstance(each, str)}
            return frozenset(here).union(*map(words, part.values()))
        case list():
            return frozenset[str]().union(*map(words, part))
        case _:
            return frozenset()


def test_every_event_and_field_of_the_old_schema_has_a_row() -> None:
    told = set[str]().union(*(left(row[0]) for row in rows("there, an event")))

    assert told == EVENTS | FIELDS


def test_every_kind_and_part_of_an_item_has_a_row() -> None:
    told = set[str]().union(*(left(row[0]) for row in rows("there, an item or a part of one")))

    assert told == ITEMS


def test_what_an_old_event_has_become_exists_in_the_contract() -> None:
    wrong: list[tuple[str, str]] = []
    for there, here, *_ in (*rows("there, an event"), *rows("there, an item or a part of one")):
        spans = SPAN.findall(here)
        named = [span for span in spans if span in types()]
        known = frozenset[str](named).union(*(types()[name] for name in named))
        if here != "–" and not named:
            wrong.append((there, "names no method and no update"))
        wrong += [(there, span) for span in spans if span not in known]

    assert wrong == []


def test_the_names_in_the_differences_exist_in_the_contract() -> None:
    theirs = {name.rpartition(" ")[2] for name in EVENTS | FIELDS | ITEMS}
    ours = frozenset(types()).union(*types().values()) | theirs
    differences = [row[2] for row in (*rows("there, an event"), *rows("there, an item or a part of one"))]

    assert [span for cell in differences for span in SPAN.findall(cell) if span not in ours] == []
