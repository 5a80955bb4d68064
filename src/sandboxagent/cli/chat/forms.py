"""Turn the forms of agents into fields for typing, and parse the typed text.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sandboxagent.protocol.envelope import Object, list_at, object_at, objects_at, text_at

_YES, _NO = ("y", "yes", "true"), ("n", "no", "false")


class InvalidInput(ValueError):
    """A typed text that is invalid for its field. The message says which text is valid."""


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of a form."""

    name: str
    kind: str
    """`string`, `number`, `integer`, `boolean`, or `array` for several of the choices."""
    title: str
    description: str
    required: bool
    default: object
    choices: Sequence[tuple[object, str]]
    """Allowed values with their labels."""
    limits: Object

    @property
    def hint(self) -> str:
        """A description of valid text, such as `y or n`."""
        if self.kind == "array":
            return "numbers, such as 1,2" if self.choices else "texts, separated by commas"
        if self.choices:
            return "a number"
        match self.kind:
            case "boolean":
                return "y or n"
            case "number" | "integer":
                return " ".join(
                    ("a whole number" if self.kind == "integer" else "a number", *_range(self.limits))
                ).strip()
            case _:
                return text_at(self.limits, "format") or ""

    def value(self, typed: str) -> object:
        """Parse a typed text; None when it is empty and the field is optional. Raises Unfit."""
        if not typed:
            if self.required:
                raise InvalidInput("this one is required")
            return None
        if self.kind == "array":
            return self._several(typed)
        if self.choices:
            return self._choice(typed)
        match self.kind:
            case "boolean":
                if typed.lower() not in (*_YES, *_NO):
                    raise InvalidInput("y or n")
                return typed.lower() in _YES
            case "number" | "integer":
                return self._number(typed)
            case _:
                return self._text(typed)

    def _choice(self, typed: str) -> object:
        if typed.isdecimal() and 1 <= int(typed) <= len(self.choices):
            return self.choices[int(typed) - 1][0]
        named = [value for value, label in self.choices if typed in (value, label)]
        if not named:
            raise InvalidInput(f"a number from 1 to {len(self.choices)}")
        return named[0]

    def _several(self, typed: str) -> list[object]:
        parts = [part.strip() for part in typed.split(",") if part.strip()]
        return [self._choice(part) if self.choices else part for part in dict.fromkeys(parts)]

    def _number(self, typed: str) -> int | float:
        try:
            number = int(typed) if self.kind == "integer" or typed.lstrip("+-").isdecimal() else float(typed)
        except ValueError:
            raise InvalidInput(self.hint) from None
        least, most = self.limits.get("minimum"), self.limits.get("maximum")
        if (isinstance(least, int | float) and number < least) or (isinstance(most, int | float) and number > most):
            raise InvalidInput(self.hint)
        return number

    def _text(self, typed: str) -> str:
        least, most = self.limits.get("minLength"), self.limits.get("maxLength")
        if isinstance(least, int) and len(typed) < least:
            raise InvalidInput(f"at least {least} characters")
        if isinstance(most, int) and len(typed) > most:
            raise InvalidInput(f"at most {most} characters")
        return typed


def fields(schema: Object) -> list[FormField]:
    """Return the fields of a form, in their order."""
    required = list_at(schema, "required")
    return [_field(name, object_at(each), name in required) for name, each in object_at(schema, "properties").items()]


def _field(name: str, schema: Object, required: bool) -> FormField:
    kind = text_at(schema, "type") or "string"
    choices = _choices(object_at(schema, "items") if kind == "array" else schema)
    return FormField(
        name=name,
        kind=kind,
        title=text_at(schema, "title") or name,
        description=text_at(schema, "description") or "",
        required=required,
        default=schema.get("default"),
        choices=choices,
        limits=schema,
    )


def _choices(schema: Object) -> list[tuple[object, str]]:
    titled = objects_at(schema, "oneOf") or objects_at(schema, "anyOf")
    if titled:
        return [(each.get("const"), text_at(each, "title") or str(each.get("const"))) for each in titled]
    values, names = list_at(schema, "enum"), list_at(schema, "enumNames")
    labels = names if len(names) == len(values) else values
    return [(value, str(label)) for value, label in zip(values, labels, strict=True)]


def _range(limits: Object) -> list[str]:
    words = [("from", limits.get("minimum")), ("to", limits.get("maximum"))]
    return [f"{word} {limit:g}" for word, limit in words if isinstance(limit, int | float)]
