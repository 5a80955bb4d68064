"""Read what peers send as types of ACP, as leniently as ACP wants it.

ACP's schema marks members that are not worth failing for: one that cannot be read is left at its default, and a list
goes without the items that cannot be read. A newer agent's kind of tool call is no reason to lose the call.
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
    """Decoded JSON as a type of ACP; raises msgspec.ValidationError when it cannot be read, however leniently."""
    try:
        return _convert(value, type)
    except ValidationError:
        return _convert(_mend(value, type), type)


def to_json(value: Acp) -> Object:
    """A type of ACP as the JSON object that goes on the wire."""
    return cast("Object", msgspec.to_builtins(value))


def to_upstream(value: Acp) -> "BaseModel":
    """The same as a model of the package `acp`, for code that wants those. Importing them takes most of a second."""
    import acp.schema

    model: type[BaseModel] = getattr(acp.schema, type(value).__name__)
    return model.model_validate(to_json(value))


def _convert(value: object, type: type[T]) -> T:
    return msgspec.convert(value, type, dec_hook=_tell_apart)


def _tell_apart(type: type, value: object) -> object:
    """Structs without a tag: the first that fits. What may be anything comes here, too."""
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
    """A value without the parts that cannot be read and that its type can do without."""
    struct = _struct_for(value, hint)
    if struct is not None:
        return _mend_members(cast("Object", value), struct)
    item = _item_type(hint)
    if item is not None and isinstance(value, list):
        return [_mend(each, item) for each in cast("list[object]", value)]
    # To JSON, 2.0 is a whole number.
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
    """The struct that an object is, by its tag where there is one."""
    if not isinstance(value, dict):
        return None
    for each in _alternatives(hint):
        if isinstance(each, type) and issubclass(each, Acp):
            config = each.__struct_config__
            if config.tag_field is None or cast("Object", value).get(config.tag_field) == config.tag:
                return each
    return None


def _item_type(hint: object) -> object:
    """The type of a list's items; None when there is no list."""
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
