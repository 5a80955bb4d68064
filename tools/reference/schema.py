"""Describe JSON Schema in words: the kind of a value, and a table of members.

It knows the parts of JSON Schema that our types use.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from sandboxagent.protocol import errors
from sandboxagent.protocol.errors import RpcError, SandboxAgentError
from tools.reference.markdown import heading_link, row


def all_errors(above: type[SandboxAgentError] = SandboxAgentError) -> Iterator[type[SandboxAgentError]]:
    """Every error of the server that has a slug of its own, from the top of the tree down."""
    for error in above.__subclasses__():
        if error.__module__ == errors.__name__:
            if hasattr(error, "slug"):
                yield error
            yield from all_errors(error)


_TABLES = {each.slug: "json-rpc-errors" if issubclass(each, RpcError) else "problems" for each in all_errors()}
"""The section of errors.md for each slug."""


class Schema(Struct, rename={"ref": "$ref", "any_of": "anyOf", "parts": "prefixItems"}):
    """The members of a JSON Schema that the pages use."""

    type: str = ""
    description: str = ""
    ref: str = ""
    any_of: list["Schema"] = []
    enum: list[object] = []
    const: object = UNSET
    items: "Schema | bool" = False
    parts: list["Schema"] = []
    properties: dict[str, "Schema"] = {}
    required: list[str] = []
    default: object = UNSET
    minimum: int | UnsetType = UNSET
    maximum: int | UnsetType = UNSET


def kind(schema: Schema, elsewhere: Mapping[str, str] = {}) -> str:
    """Describe the kind of a value: `string`, `list of …`, or a link to a type. `elsewhere` has pages of types."""
    match schema:
        case Schema(ref=ref) if ref:
            name = ref.rpartition("/")[2]
            return f"[{name}]({elsewhere.get(name, '')}{heading_link(name)})"
        case Schema(any_of=several) if several:
            return " or ".join(dict.fromkeys(kind(each, elsewhere) for each in several))
        case Schema(enum=values) if values:
            return ", ".join(f"`{_written(value)}`" for value in values)
        case Schema(const=value) if value is not UNSET:
            return f"`{_written(value)}`"
        case Schema(type="array", parts=[_, *_]):
            return f"list: {', '.join(kind(each, elsewhere) for each in schema.parts)}"
        case Schema(type="array", items=Schema() as items):
            return f"list of {kind(items, elsewhere)}"
        case Schema(type=""):
            return "any"
        case _:
            return schema.type + _bounds(schema)


def refs(schema: Schema) -> Iterator[str]:
    """Yield the names of the types that a schema refers to."""
    if schema.ref:
        yield schema.ref.rpartition("/")[2]
    below = [*schema.any_of, *schema.parts, *([schema.items] if isinstance(schema.items, Schema) else [])]
    for each in below:
        yield from refs(each)


def table(schema: Schema, elsewhere: Mapping[str, str] = {}) -> Iterable[str]:
    """Yield a table of a schema's members, required ones first."""
    yield row("member", "type", "what it means") + "|---|---|---|\n"
    for name, each in sorted(schema.properties.items(), key=lambda item: item[0] not in schema.required):
        yield row(f"`{name}`{'' if name in schema.required else '?'}", kind(each, elsewhere), _text(each))


def error_links(slugs: Sequence[str]) -> str:
    """Format slugs as links to their descriptions."""
    return ", ".join(f"[`{slug}`](../errors.md#{_TABLES[slug]})" for slug in slugs)


def _text(schema: Schema) -> str:
    default = "" if schema.default in (UNSET, None) else f" Default: `{_written(schema.default)}`."
    return (schema.description + default).strip()


def _bounds(schema: Schema) -> str:
    if schema.minimum is not UNSET and schema.maximum is not UNSET:
        return f", {schema.minimum} to {schema.maximum}"
    return "" if schema.minimum is UNSET else f", {schema.minimum} or more"


def _written(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
