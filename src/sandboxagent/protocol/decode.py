"""Read decoded JSON as types of ACP, as leniently as ACP asks for.

ACP's schema marks members that must not make a message unreadable. Such a member gets its default when it cannot be
read, and such a list loses only the items that cannot be read. So a tool call of an unknown kind is still a tool call.
"""

import types
from typing import TYPE_CHECKING, Annotated, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import ValidationError, structs

from sandboxagent.protocol.acp import (
    Acp,
    BlobResourceContents,
    SessionConfigSelectGroup,
    SessionConfigSelectOption,
    TextResourceContents,
    UntaggedOptions,
    UntaggedResource,
)
from sandboxagent.protocol.envelope import Object

if TYPE_CHECKING:
    from pydantic import BaseModel

T = TypeVar("T")


def read(value: object, type: type[T]) -> T:
    """Read decoded JSON as a type of ACP. Raises msgspec.ValidationError if it cannot be read even leniently."""
    try:
        return _convert(value, type)
    except ValidationError:
        return _convert(_mend(value, type), type)


def to_json(value: Acp) -> Object:
    """Convert a value of an ACP type to the JSON object for the wire."""
    return cast("Object", msgspec.to_builtins(value))


def to_upstream(value: Acp) -> "BaseModel":
    """Convert a value to the model of the package `acp` with the same name. That import takes most of a second."""
    import acp.schema

    model: type[BaseModel] = getattr(acp.schema, type(value).__name__)
    return model.model_validate(to_json(value))


def _convert(value: object, type: type[T]) -> T:
    return msgspec.convert(value, type, dec_hook=_tell_apart)


def _tell_apart(type: type, value: object) -> object:
    """Decode a union of structs without a tag as the first struct that fits.

    Values of type `object` stay as they are.
    """
    if type is object:
        return value
    if type is UntaggedResource:
        try:
            return read(value, TextResourceContents)
        except ValidationError:
            return read(value, BlobResourceContents)
    assert type is UntaggedOptions
    try:
        return UntaggedOptions(read(value, list[SessionConfigSelectOption]))
    except ValidationError:
        return UntaggedOptions(read(value, list[SessionConfigSelectGroup]))


def _mend(value: object, hint: object) -> object:
    """Return a value without the unreadable parts that its type can do without."""
    struct = _struct_for(value, hint)
    if struct is not None:
        return _mend_members(cast("Object", value), struct)
    item = _item_type(hint)
    if item is not None and isinstance(value, list):
        return [_mend(each, item) for each in cast("list[object]", value)]
    # JSON does not distinguish 2.0 from 2.
    if isinstance(value, float) and value.is_integer() and _takes_whole_numbers_only(hint):
        return int(value)
    return value


def _mend_members(value: Object, struct: type[Acp]) -> Object:
    mended = dict(value)
    for field in structs.fields(struct):
        if field.encode_name not in value:
            continue
        member = _mend(value[field.encode_name], field.type)
        if field.name in struct.FILTERED and isinstance(member, list):
            member = [each for each in cast("list[object]", member) if _fits(each, _item_type(field.type))]
        mended[field.encode_name] = member
        lenient = field.name == "field_meta" or field.name in struct.DEFAULTED
        if lenient and not _fits(member, field.type):
            del mended[field.encode_name]
    return mended


def _alternatives(hint: object) -> tuple[object, ...]:
    if get_origin(hint) is Annotated:
        return _alternatives(get_args(hint)[0])
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _struct_for(value: object, hint: object) -> type[Acp] | None:
    """Return the struct that matches an object, by its tag if the struct has one."""
    if not isinstance(value, dict):
        return None
    for each in _alternatives(hint):
        if isinstance(each, type) and issubclass(each, Acp):
            config = each.__struct_config__
            if config.tag_field is None or cast("Object", value).get(config.tag_field) == config.tag:
                return each
    return None


def _item_type(hint: object) -> object:
    """Return the type of a list's items; None if the type is no list."""
    return next((get_args(each)[0] for each in _alternatives(hint) if get_origin(each) is list), None)


def _takes_whole_numbers_only(hint: object) -> bool:
    plain = {get_args(each)[0] if get_origin(each) is Annotated else each for each in _alternatives(hint)}
    return int in plain and float not in plain


def _fits(value: object, hint: object) -> bool:
    try:
        _convert(value, cast("type[object]", hint))
    except ValidationError:
        return False
    return True
