"""A form that an agent wants filled in: its fields, and the check of what a client filled in.

Pure. Reads the part of JSON Schema that elicitation has, and lets everything else pass: the agent knows its own rules
best. Patterns are not checked: an agent could send one that keeps the server busy forever.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, cast

from sandbox_agent.envelope import Object, list_at, object_at, objects_at, text_at

Kind = Literal["text", "number", "integer", "boolean", "choice", "choices", "other"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the values a field may take."""

    value: str
    label: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form."""

    name: str
    kind: Kind
    title: str
    description: str
    required: bool
    choices: tuple[Choice, ...]
    schema: Object

    @property
    def values(self) -> list[str]:
        return [choice.value for choice in self.choices]


def fields(params: Object) -> list[Field]:
    """The fields of an `elicitation/create`, in their order."""
    schema = object_at(params, "requestedSchema")
    required = list_at(schema, "required")
    properties = object_at(schema, "properties")
    return [_field(name, object_at(properties, name), name in required) for name in properties]


def complaint(form: Sequence[Field], content: Object) -> str | None:
    """What is wrong with the content a client sent; None when it is valid."""
    for field in form:
        value = content.get(field.name)
        if value is None:
            if field.required:
                return f"{field.name} is required"
        elif (wrong := _wrong(field, value)) is not None:
            return f"{field.name} {wrong}"
    return None


def _field(name: str, schema: Object, required: bool) -> Field:
    items = object_at(schema, "items")
    choices = _choices(schema) or _choices(items)
    kind: Kind = "other"
    match schema.get("type"):
        case "string":
            kind = "choice" if choices else "text"
        case "number":
            kind = "number"
        case "integer":
            kind = "integer"
        case "boolean":
            kind = "boolean"
        case "array" if choices:
            kind = "choices"
        case _:
            pass
    title, description = text_at(schema, "title") or "", text_at(schema, "description") or ""
    return Field(name, kind, title, description, required, choices, schema)


def _choices(schema: Object) -> tuple[Choice, ...]:
    titled = objects_at(schema, "oneOf") or objects_at(schema, "anyOf")
    found = [
        Choice(const, text_at(each, "title") or const, text_at(each, "description") or "")
        for each in titled
        if (const := text_at(each, "const")) is not None
    ]
    if not found:
        values, labels = list_at(schema, "enum"), list_at(schema, "enumNames")
        pairs = zip_longest(values, labels[: len(values)])
        found = [
            Choice(value, label if isinstance(label, str) else value)
            for value, label in pairs
            if isinstance(value, str)
        ]
    return tuple(found)


def _wrong(field: Field, value: object) -> str | None:
    match field.kind:
        case "text":
            return _wrong_text(field, value)
        case "choice":
            return None if value in field.values else f"is none of {_listed(field)}"
        case "choices":
            return _wrong_choices(field, value)
        case "boolean":
            return None if isinstance(value, bool) else "is not true or false"
        case "number" | "integer":
            return _wrong_number(field, value)
        case "other":
            return None


def _wrong_text(field: Field, value: object) -> str | None:
    if not isinstance(value, str):
        return "is not a text"
    least, most = field.schema.get("minLength"), field.schema.get("maxLength")
    if isinstance(least, int) and len(value) < least:
        return f"is shorter than {least}"
    if isinstance(most, int) and len(value) > most:
        return f"is longer than {most}"
    return None


def _wrong_choices(field: Field, value: object) -> str | None:
    if not isinstance(value, list):
        return "is not a list"
    chosen = cast("list[object]", value)
    if any(each not in field.values for each in chosen):
        return f"has values that are none of {_listed(field)}"
    least, most = field.schema.get("minItems"), field.schema.get("maxItems")
    if isinstance(least, int) and len(chosen) < least:
        return f"has fewer than {least} values"
    if isinstance(most, int) and len(chosen) > most:
        return f"has more than {most} values"
    return None


def _wrong_number(field: Field, value: object) -> str | None:
    # In Python True is an int; in JSON it is not a number.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "is not a number"
    if field.kind == "integer" and value != int(value):
        return "is not a whole number"
    least, most = field.schema.get("minimum"), field.schema.get("maximum")
    if isinstance(least, int | float) and value < least:
        return f"is less than {least}"
    if isinstance(most, int | float) and value > most:
        return f"is more than {most}"
    return None


def _listed(field: Field) -> str:
    return ", ".join(field.values[:20])
