"""Forms of agents as fields that can be typed."""

from typing import Any

import pytest

from sandboxagent.cli.chat.forms import FormField, InvalidInput, fields


def field(schema: dict[str, Any], *, required: bool = False) -> FormField:
    [found] = fields({"type": "object", "properties": {"x": schema}, "required": ["x"] if required else []})
    return found


def test_fields_come_in_their_order_with_what_is_known_of_them() -> None:
    found = fields(
        {
            "properties": {
                "name": {"type": "string", "title": "Name", "description": "Yours", "default": "Ada"},
                "size": {"type": "integer"},
            },
            "required": ["size"],
        }
    )

    assert [(each.name, each.title, each.description, each.default, each.required) for each in found] == [
        ("name", "Name", "Yours", "Ada", False),
        ("size", "size", "", None, True),
    ]


@pytest.mark.parametrize(
    ("schema", "typed", "value"),
    [
        ({"type": "string"}, "hello", "hello"),
        ({"type": "integer"}, "-3", -3),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "number"}, "2", 2),
        ({"type": "boolean"}, "Yes", True),
        ({"type": "boolean"}, "n", False),
        ({"type": "string", "enum": ["red", "blue"]}, "2", "blue"),
        ({"type": "string", "enum": ["red", "blue"]}, "red", "red"),
        ({"type": "string", "enum": ["r", "b"], "enumNames": ["Red", "Blue"]}, "Blue", "b"),
        ({"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "b", "title": "Blue"}]}, "1", "r"),
        ({"type": "array", "items": {"anyOf": [{"const": "r", "title": "Red"}, {"const": "b"}]}}, "2, 1,2", ["b", "r"]),
        ({"type": "array", "items": {"type": "string", "enum": ["r", "b"]}}, "1", ["r"]),
        ({"type": "string"}, "", None),
    ],
)
def test_a_text_means_what_its_field_wants(schema: dict[str, Any], typed: str, value: object) -> None:
    assert field(schema).value(typed) == value


@pytest.mark.parametrize(
    ("schema", "typed", "complaint"),
    [
        ({"type": "integer"}, "2.5", "a whole number"),
        ({"type": "integer", "minimum": 1, "maximum": 9}, "10", "a whole number from 1 to 9"),
        ({"type": "number", "minimum": 1}, "0", "a number from 1"),
        ({"type": "number"}, "much", "a number"),
        ({"type": "boolean"}, "perhaps", "y or n"),
        ({"type": "string", "enum": ["a", "b"]}, "3", "a number from 1 to 2"),
        ({"type": "string", "minLength": 3}, "ab", "at least 3 characters"),
        ({"type": "string", "maxLength": 1}, "ab", "at most 1 characters"),
    ],
)
def test_text_that_does_not_fit_its_field_is_refused_with_what_would(
    schema: dict[str, Any], typed: str, complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        field(schema).value(typed)


def test_what_is_required_cannot_be_left_out() -> None:
    with pytest.raises(InvalidInput):
        field({"type": "string"}, required=True).value("")


def test_a_form_of_nonsense_has_no_fields() -> None:
    assert fields({}) == []
    assert fields({"properties": [1, 2]}) == []
    assert [each.kind for each in fields({"properties": {"x": "what?"}})] == ["string"]
