"""JSON Schema in words, as far as our types need it: what kind a value is, and a table of members."""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from sandbox_agent.cli.markdown import heading_link, row


class Schema(
    Struct,
    rename={
        "ref": "$ref",
        "any_of": "anyOf",
        "min_length": "minLength",
        "additional": "additionalProperties",
    },
):
    """As much of a schema as is told."""

    type: str = ""
    description: str = ""
    ref: str = ""
    any_of: list["Schema"] = []
    enum: list[object] = []
    const: object = UNSET
    items: "Schema | None" = None
    properties: dict[str, "Schema"] = {}
    required: list[str] = []
    default: object = UNSET
    minimum: int | UnsetType = UNSET
    maximum: int | UnsetType = UNSET
    min_length: int | UnsetType = UNSET
    additional: "Schema | bool" = True


def kind(schema: Schema, page: str = "") -> str:
    """What a value is: `string`, `list of` something, a link to the type on a page."""
    match schema:
        case Schema(ref=ref) if ref:
            name = ref.rpartition("/")[2]
            return f"[{name}]({page}{heading_link(name)})"
        case Schema(any_of=several) if several:
            return " or ".join(dict.fromkeys(kind(each, page) for each in several))
        case Schema(enum=values) if values:
            return ", ".join(f"`{_written(value)}`" for value in values)
        case Schema(const=value) if value is not UNSET:
            return f"`{_written(value)}`"
        case Schema(type="array", items=items) if items is not None:
            return f"list of {kind(items, page)}"
        case Schema(type=""):
            return "any"
        case _:
            return schema.type + _bounds(schema)


def table(schema: Schema, page: str = "") -> Iterable[str]:
    """Its members, a row each."""
    yield row("member", "type", "what it means") + "|---|---|---|\n"
    for name, each in schema.properties.items():
        yield row(f"`{name}`{'' if name in schema.required else '?'}", kind(each, page), _text(each))


def problem_links(slugs: Sequence[str]) -> str:
    """Slugs, as links to what is said of them."""
    return ", ".join(f"[`{slug}`](../errors.md#problems)" for slug in slugs)


def _text(schema: Schema) -> str:
    default = "" if schema.default in (UNSET, None) else f" Default: `{_written(schema.default)}`."
    return (schema.description + default).strip()


def _bounds(schema: Schema) -> str:
    if schema.minimum is not UNSET and schema.maximum is not UNSET:
        return f", {schema.minimum} to {schema.maximum}"
    return "" if schema.minimum is UNSET else f", {schema.minimum} or more"


def _written(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
