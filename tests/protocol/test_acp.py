"""Our types of ACP are upstream's: what its models read, ours read, with the same meaning."""

from typing import Annotated, Any, Literal, Union, get_args, get_origin

import acp.schema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, RootModel, ValidationError

from sandboxagent.protocol import acp as ours
from sandboxagent.protocol.acp import Acp
from sandboxagent.protocol.decode import read, to_json, to_upstream
from tools.acp_types import TARGET, render

STRUCTS = {
    name: value
    for name, value in vars(ours).items()
    if isinstance(value, type) and issubclass(value, Acp) and value is not Acp
}
ROOTS = [ours.SessionNotification, ours.RequestPermissionRequest, ours.PromptResponse]
JUNK = st.sampled_from([None, -1, 2.0, 2.5, "nobody_knows_this", [], {}, [1], {"type": "hologram"}])


def test_the_module_is_what_the_generator_makes_of_the_locked_release() -> None:
    assert TARGET.read_text() == render()


def test_each_type_has_the_attributes_that_upstream_has() -> None:
    models: dict[str, type[BaseModel]] = {name: getattr(acp.schema, name) for name in STRUCTS}
    fields = [(name, field) for name, model in models.items() for field in model.model_fields]

    assert [(name, field) for name, field in fields if not hasattr(STRUCTS[name], field)] == []


def upstream(struct: type[Acp]) -> type[BaseModel]:
    return getattr(acp.schema, struct.__name__)


def agree(value: object, struct: type[Acp]) -> None:
    """Both can read it, and it is the same to both; or neither can."""
    try:
        expected = upstream(struct).model_validate(value)
    except ValidationError:
        with pytest.raises(msgspec.ValidationError):
            read(value, struct)
        return
    found = read(value, struct)
    assert to_upstream(found) == expected
    assert to_json(found) == expected.model_dump(mode="json", by_alias=True, exclude_none=True)


def documents(annotation: Any) -> st.SearchStrategy[Any]:
    """JSON that fits one of upstream's types."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return documents(arguments[0])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is Union:
        return st.one_of([documents(each) for each in arguments])
    if origin is list:
        return st.lists(documents(arguments[0]), max_size=2)
    if annotation is Any or origin is dict:
        return st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3) | st.none(), max_size=2)
    if issubclass(annotation, RootModel):
        return documents(annotation.model_fields["root"].annotation)
    if issubclass(annotation, BaseModel):
        fields = {each.alias or name: each for name, each in annotation.model_fields.items()}
        members = {name: documents(each.annotation) for name, each in fields.items()}
        required = {name: each for name, each in members.items() if fields[name].is_required()}
        optional = {name: each for name, each in members.items() if name not in required}
        return st.fixed_dictionaries(required, optional={**optional, "nobody/knows/this": st.integers()})
    kinds: dict[type, st.SearchStrategy[Any]] = {
        str: st.text(max_size=5),
        int: st.integers(0, 2**53),
        float: st.floats(0, 1e9) | st.integers(0, 9),
        bool: st.booleans(),
        type(None): st.none(),
    }
    return kinds[annotation]


DOCUMENTS = {struct: documents(upstream(struct)) for struct in ROOTS}


def spoiled(data: st.DataObject, value: Any) -> Any:
    """The same JSON, with something else in one place."""
    if isinstance(value, dict) and value:
        name = data.draw(st.sampled_from(sorted(value)))
        deeper = isinstance(value[name], dict | list) and data.draw(st.booleans())
        return {**value, name: spoiled(data, value[name]) if deeper else data.draw(JUNK)}
    if isinstance(value, list) and value:
        index = data.draw(st.integers(0, len(value) - 1))
        return [*value[:index], spoiled(data, value[index]), *value[index + 1 :]]
    return data.draw(JUNK)


@pytest.mark.parametrize("struct", ROOTS, ids=lambda struct: struct.__name__)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_fits_the_schema_means_the_same_to_both(struct: type[Acp], data: st.DataObject) -> None:
    agree(data.draw(DOCUMENTS[struct]), struct)


@pytest.mark.parametrize("struct", ROOTS, ids=lambda struct: struct.__name__)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_what_does_not_fit_is_forgiven_or_refused_by_both(struct: type[Acp], data: st.DataObject) -> None:
    agree(spoiled(data, data.draw(DOCUMENTS[struct])), struct)
