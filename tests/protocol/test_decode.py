"""What is lenient when types of ACP are read, and what is not."""

import msgspec
import pytest

from sandboxagent.protocol.acp import (
    AgentMessageChunk,
    BlobResourceContents,
    EmbeddedResourceContentBlock,
    PermissionOption,
    SessionConfigOptionSelect,
    SessionConfigSelectGroup,
    SessionConfigSelectOption,
    SessionNotification,
    TextContentBlock,
    TextResourceContents,
    ToolCallStart,
    ToolCallUpdate,
)
from sandboxagent.protocol.decode import read, to_json


def test_a_kind_of_tool_call_that_is_new_does_not_cost_the_call() -> None:
    call = read({"toolCallId": "1", "title": "Teleport", "kind": "teleport", "status": "pending"}, ToolCallUpdate)

    assert (call.title, call.kind, call.status) == ("Teleport", None, "pending")


def test_items_that_cannot_be_read_are_left_out_of_a_list() -> None:
    members = {"toolCallId": "1", "title": "Look", "locations": [{"path": 1}, {"path": "/a", "line": "x"}]}
    update = read({"sessionId": "s", "update": {"sessionUpdate": "tool_call", **members}}, SessionNotification).update

    assert isinstance(update, ToolCallStart)
    assert [(place.path, place.line) for place in update.locations or []] == [("/a", None)]


def test_what_a_permission_allows_is_never_guessed() -> None:
    with pytest.raises(msgspec.ValidationError):
        read({"optionId": "1", "name": "Yes", "kind": "allow_everything"}, PermissionOption)


def test_resources_and_options_are_told_apart_by_what_they_have() -> None:
    text = read({"type": "resource", "resource": {"uri": "u", "text": "t"}}, EmbeddedResourceContentBlock)
    blob = read({"type": "resource", "resource": {"uri": "u", "blob": "b"}}, EmbeddedResourceContentBlock)
    option = {"value": "v", "name": "n"}
    facts = {"type": "select", "id": "m", "name": "M", "currentValue": "v"}
    flat = read({**facts, "options": [option]}, SessionConfigOptionSelect)
    grouped = read({**facts, "options": [{"group": "g", "name": "G", "options": [option]}]}, SessionConfigOptionSelect)

    assert isinstance(text.resource, TextResourceContents)
    assert isinstance(blob.resource, BlobResourceContents)
    assert [type(each) for each in flat.options] == [SessionConfigSelectOption]
    assert [type(each) for each in grouped.options] == [SessionConfigSelectGroup]


def test_a_block_is_written_with_its_tag_and_without_what_it_does_not_have() -> None:
    assert to_json(TextContentBlock(text="hi")) == {"type": "text", "text": "hi"}


def test_a_tag_is_an_attribute_too() -> None:
    chunk = AgentMessageChunk(content=TextContentBlock(text="hi"), field_meta={"a": 1})

    assert (chunk.session_update, chunk.content.type) == ("agent_message_chunk", "text")
    assert to_json(chunk)["_meta"] == {"a": 1}
