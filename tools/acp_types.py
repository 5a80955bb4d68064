"""Writes src/sandbox_agent/wire/acp.py: the types of ACP that we read and write, as msgspec structs.

Run `.venv/bin/python -m tools.acp_types` after you have locked another release of agent-client-protocol. It reads the
models of that package, which are made from ACP's official schema, and takes those that ROOTS lead to.

datamodel-code-generator makes msgspec structs, too, but not these: it names a tag by its attribute and not by its
member, cannot tell structs without a tag apart, puts UNSET where the models have None, and cannot be lenient where ACP
wants that.
"""

import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import acp.schema
from annotated_types import Ge
from pydantic import BaseModel, RootModel
from pydantic.fields import FieldInfo

ROOTS = (acp.schema.SessionNotification, acp.schema.RequestPermissionRequest, acp.schema.PromptResponse)
TARGET = Path(__file__).parents[1] / "src" / "sandbox_agent" / "wire" / "acp.py"

BY_HAND = {
    ("EmbeddedResourceContentBlock", "resource"): "ResourceContents",
    ("SessionConfigOptionSelect", "options"): "SelectOptions",
}
"""Members that are one of several structs without a tag: HEAD has a type for each."""

HEAD = '''\
"""The types of ACP, as msgspec structs. Written by `python -m tools.acp_types`; do not edit.

Attributes are named as in the package `acp`. Read them with `sandbox_agent.wire.reading`, which is lenient where ACP
wants that.
"""

from abc import ABC
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct, field

from sandbox_agent.envelope import Object


class Acp(Struct, rename="camel", frozen=True, omit_defaults=True, kw_only=True):
    """A type of ACP. Members that it does not know are passed over when it is read."""

    DEFAULTED: ClassVar[frozenset[str]] = frozenset()
    """Attributes that are left at their default when what came for them cannot be read."""
    FILTERED: ClassVar[frozenset[str]] = frozenset()
    """Lists from which items that cannot be read are left out."""

    field_meta: Object | None = field(default=None, name="_meta")
    """Extension data, under vendor keys."""


class UntaggedResource(ABC):  # noqa: B024 - it is only asked what is one
    """A text, or bytes. msgspec leaves a type that it does not know to a hook, which `wire.reading` has."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return issubclass(other, Acp)


class UntaggedOptions(list[object]):
    """Options, or groups of them; likewise."""


if TYPE_CHECKING:
    ResourceContents: TypeAlias = "TextResourceContents | BlobResourceContents"
    SelectOptions: TypeAlias = "list[SessionConfigSelectOption] | list[SessionConfigSelectGroup]"
else:
    ResourceContents = UntaggedResource
    SelectOptions = UntaggedOptions
'''


def main() -> int:
    """Write the module."""
    TARGET.write_text(render())
    return 0


def render() -> str:
    """The module's source, formatted."""
    updates = get_args(acp.schema.SessionNotification.model_fields["update"].annotation)
    blocks = get_args(acp.schema.ContentChunk.model_fields["content"].annotation)
    aliases = {"ContentBlock": blocks, "SessionUpdate": updates}
    parts = [HEAD, *(_struct(model) for model in _ordered())]
    parts += [f"{name}: TypeAlias = {' | '.join(each.__name__ for each in of)}\n" for name, of in aliases.items()]
    source = "\n\n".join(parts)
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout


def _ordered() -> list[type[BaseModel]]:
    """Every model that the roots lead to, each after those that it needs."""
    found: dict[type[BaseModel], None] = {}

    def add(model: type[BaseModel]) -> None:
        needed = [each for field in model.model_fields.values() for each in _models(field.annotation)]
        for each in [*needed, *(base for base in model.__bases__ if base is acp.schema.ToolCallUpdate)]:
            add(each)
        if not issubclass(model, RootModel):
            found[model] = None

    for root in ROOTS:
        add(root)
    return list(found)


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _struct(model: type[BaseModel]) -> str:
    derived = acp.schema.ToolCallUpdate in model.__bases__
    options = f"{'ToolCallUpdate' if derived else 'Acp'}, frozen=True, kw_only=True"
    lines: list[str] = []
    for name, field in model.model_fields.items():
        tag = get_args(field.annotation)
        if get_origin(field.annotation) is Literal and len(tag) == 1:
            options += f', tag_field="{field.alias or name}", tag="{tag[0]}"'
            lines.append(f'{name}: ClassVar[Literal["{tag[0]}"]] = "{tag[0]}"')
        elif not derived and name != "field_meta":
            lines.append(_member(model, name, field))
    if not derived:
        lines += _lenient(model)
    return f"class {model.__name__}({options}):\n" + "".join(f"    {line}\n" for line in lines)


def _member(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    assert (field.alias or name) == _camel(name), name
    written = BY_HAND.get((model.__name__, name)) or _type(field.annotation, field.metadata)
    return f"{name}: {written}" if field.is_required() else f"{name}: {written} = {field.default!r}"


def _lenient(model: type[BaseModel]) -> Iterator[str]:
    """What upstream's validators of a model forgive."""
    validators = model.__pydantic_decorators__.field_validators
    for attribute, prefix in {"DEFAULTED": "_salvage_on_error", "FILTERED": "_skip_invalid_items"}.items():
        names = [name for key, each in validators.items() if key.startswith(prefix) for name in each.info.fields]
        if names:
            yield f"{attribute}: ClassVar[frozenset[str]] = frozenset({{{', '.join(repr(name) for name in names)}}})"


def _type(annotation: object, metadata: list[object]) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return "object"
    if origin is Annotated:
        return _type(arguments[0], metadata)
    if origin is Literal:
        return f"Literal[{', '.join(repr(each) for each in arguments)}]"
    if origin is list:
        return f"list[{_type(arguments[0], [])}]"
    if origin is dict:
        return "Object"
    if origin in (Union, types.UnionType):
        written = dict.fromkeys(_type(each, metadata) for each in arguments)
        return "object" if "object" in written else " | ".join(written)
    if annotation is types.NoneType:
        return "None"
    assert isinstance(annotation, type)
    if issubclass(annotation, RootModel):
        return _type(annotation.model_fields["root"].annotation, [])
    bounds = [each.ge for each in metadata if isinstance(each, Ge)]
    return f"Annotated[{annotation.__name__}, Meta(ge={bounds[0]})]" if bounds else str(annotation.__name__)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each.capitalize() for each in rest)


if __name__ == "__main__":
    sys.exit(main())
