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


class Annotations(Acp, frozen=True, kw_only=True):
    audience: list[str] | None = None
    last_modified: str | None = None
    priority: float | None = None
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"last_modified", "priority"})
    FILTERED: ClassVar[frozenset[str]] = frozenset({"audience"})


class TextContentBlock(Acp, frozen=True, kw_only=True, tag_field="type", tag="text"):
    annotations: Annotations | None = None
    text: str
    type: ClassVar[Literal["text"]] = "text"
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"annotations"})


class ImageContentBlock(Acp, frozen=True, kw_only=True, tag_field="type", tag="image"):
    annotations: Annotations | None = None
    data: str
    mime_type: str
    uri: str | None = None
    type: ClassVar[Literal["image"]] = "image"
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"annotations", "uri"})


class AudioContentBlock(Acp, frozen=True, kw_only=True, tag_field="type", tag="audio"):
    annotations: Annotations | None = None
    data: str
    mime_type: str
    type: ClassVar[Literal["audio"]] = "audio"
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"annotations"})


class ResourceContentBlock(Acp, frozen=True, kw_only=True, tag_field="type", tag="resource_link"):
    annotations: Annotations | None = None
    description: str | None = None
    mime_type: str | None = None
    name: str
    size: int | None = None
    title: str | None = None
    uri: str
    type: ClassVar[Literal["resource_link"]] = "resource_link"
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"annotations", "description", "mime_type", "size", "title"})


class TextResourceContents(Acp, frozen=True, kw_only=True):
    mime_type: str | None = None
    text: str
    uri: str
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"mime_type"})


class BlobResourceContents(Acp, frozen=True, kw_only=True):
    blob: str
    mime_type: str | None = None
    uri: str
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"mime_type"})


class EmbeddedResourceContentBlock(Acp, frozen=True, kw_only=True, tag_field="type", tag="resource"):
    annotations: Annotations | None = None
    resource: ResourceContents
    type: ClassVar[Literal["resource"]] = "resource"
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"annotations"})


class UserMessageChunk(Acp, frozen=True, kw_only=True, tag_field="sessionUpdate", tag="user_message_chunk"):
    content: (
        TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock
    )
    message_id: str | None = None
    session_update: ClassVar[Literal["user_message_chunk"]] = "user_message_chunk"
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"message_id"})


class AgentMessageChunk(Acp, frozen=True, kw_only=True, tag_field="sessionUpdate", tag="agent_message_chunk"):
    content: (
        TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock
    )
    message_id: str | None = None
    session_update: ClassVar[Literal["agent_message_chunk"]] = "agent_message_chunk"
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"message_id"})


class AgentThoughtChunk(Acp, frozen=True, kw_only=True, tag_field="sessionUpdate", tag="agent_thought_chunk"):
    content: (
        TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock
    )
    message_id: str | None = None
    session_update: ClassVar[Literal["agent_thought_chunk"]] = "agent_thought_chunk"
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"message_id"})


class ContentToolCallContent(Acp, frozen=True, kw_only=True, tag_field="type", tag="content"):
    content: (
        TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock
    )
    type: ClassVar[Literal["content"]] = "content"


class FileEditToolCallContent(Acp, frozen=True, kw_only=True, tag_field="type", tag="diff"):
    path: str
    old_text: str | None = None
    new_text: str
    type: ClassVar[Literal["diff"]] = "diff"
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"old_text"})


class TerminalToolCallContent(Acp, frozen=True, kw_only=True, tag_field="type", tag="terminal"):
    terminal_id: str
    type: ClassVar[Literal["terminal"]] = "terminal"


class ToolCallLocation(Acp, frozen=True, kw_only=True):
    path: str
    line: Annotated[int, Meta(ge=0)] | None = None
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"line"})


class ToolCallStart(Acp, frozen=True, kw_only=True, tag_field="sessionUpdate", tag="tool_call"):
    tool_call_id: str
    title: str
    kind: (
        Literal["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"] | None
    ) = None
    status: Literal["pending", "in_progress", "completed", "failed"] | None = None
    content: list[ContentToolCallContent | FileEditToolCallContent | TerminalToolCallContent] | None = None
    locations: list[ToolCallLocation] | None = None
    raw_input: object = None
    raw_output: object = None
    session_update: ClassVar[Literal["tool_call"]] = "tool_call"
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"kind", "raw_input", "raw_output", "status"})
    FILTERED: ClassVar[frozenset[str]] = frozenset({"content", "locations"})


class ToolCallUpdate(Acp, frozen=True, kw_only=True):
    tool_call_id: str
    kind: (
        Literal["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"] | None
    ) = None
    status: Literal["pending", "in_progress", "completed", "failed"] | None = None
    title: str | None = None
    content: list[ContentToolCallContent | FileEditToolCallContent | TerminalToolCallContent] | None = None
    locations: list[ToolCallLocation] | None = None
    raw_input: object = None
    raw_output: object = None
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"kind", "raw_input", "raw_output", "status", "title"})
    FILTERED: ClassVar[frozenset[str]] = frozenset({"content", "locations"})


class ToolCallProgress(ToolCallUpdate, frozen=True, kw_only=True, tag_field="sessionUpdate", tag="tool_call_update"):
    session_update: ClassVar[Literal["tool_call_update"]] = "tool_call_update"


class PlanEntry(Acp, frozen=True, kw_only=True):
    content: str
    priority: Literal["high", "medium", "low"]
    status: Literal["pending", "in_progress", "completed"]


class AgentPlanUpdate(Acp, frozen=True, kw_only=True, tag_field="sessionUpdate", tag="plan"):
    entries: list[PlanEntry]
    session_update: ClassVar[Literal["plan"]] = "plan"
    FILTERED: ClassVar[frozenset[str]] = frozenset({"entries"})


class PlanUpdateItems(Acp, frozen=True, kw_only=True, tag_field="type", tag="items"):
    plan_id: str
    entries: list[PlanEntry]
    type: ClassVar[Literal["items"]] = "items"
    FILTERED: ClassVar[frozenset[str]] = frozenset({"entries"})


class PlanUpdateFile(Acp, frozen=True, kw_only=True, tag_field="type", tag="file"):
    plan_id: str
    uri: str
    type: ClassVar[Literal["file"]] = "file"


class PlanUpdateMarkdown(Acp, frozen=True, kw_only=True, tag_field="type", tag="markdown"):
    plan_id: str
    content: str
    type: ClassVar[Literal["markdown"]] = "markdown"


class AgentPlanContentUpdate(Acp, frozen=True, kw_only=True, tag_field="sessionUpdate", tag="plan_update"):
    plan: PlanUpdateItems | PlanUpdateFile | PlanUpdateMarkdown
    session_update: ClassVar[Literal["plan_update"]] = "plan_update"


class AgentPlanRemovedUpdate(Acp, frozen=True, kw_only=True, tag_field="sessionUpdate", tag="plan_removed"):
    plan_id: str
    session_update: ClassVar[Literal["plan_removed"]] = "plan_removed"


class UnstructuredCommandInput(Acp, frozen=True, kw_only=True):
    hint: str


class AvailableCommand(Acp, frozen=True, kw_only=True):
    name: str
    description: str
    input: UnstructuredCommandInput | None = None
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"input"})


class AvailableCommandsUpdate(
    Acp, frozen=True, kw_only=True, tag_field="sessionUpdate", tag="available_commands_update"
):
    available_commands: list[AvailableCommand]
    session_update: ClassVar[Literal["available_commands_update"]] = "available_commands_update"
    FILTERED: ClassVar[frozenset[str]] = frozenset({"available_commands"})


class CurrentModeUpdate(Acp, frozen=True, kw_only=True, tag_field="sessionUpdate", tag="current_mode_update"):
    current_mode_id: str
    session_update: ClassVar[Literal["current_mode_update"]] = "current_mode_update"


class SessionConfigSelectOption(Acp, frozen=True, kw_only=True):
    value: str
    name: str
    description: str | None = None
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"description"})


class SessionConfigSelectGroup(Acp, frozen=True, kw_only=True):
    group: str
    name: str
    options: list[SessionConfigSelectOption]
    FILTERED: ClassVar[frozenset[str]] = frozenset({"options"})


class SessionConfigOptionSelect(Acp, frozen=True, kw_only=True, tag_field="type", tag="select"):
    current_value: str
    options: SelectOptions
    id: str
    name: str
    description: str | None = None
    category: (
        Literal["mode"] | Literal["model"] | Literal["model_config"] | Literal["thought_level"] | Object | None
    ) = None
    type: ClassVar[Literal["select"]] = "select"
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"category", "description"})


class SessionConfigOptionBoolean(Acp, frozen=True, kw_only=True, tag_field="type", tag="boolean"):
    current_value: bool
    id: str
    name: str
    description: str | None = None
    category: (
        Literal["mode"] | Literal["model"] | Literal["model_config"] | Literal["thought_level"] | Object | None
    ) = None
    type: ClassVar[Literal["boolean"]] = "boolean"
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"category", "description"})


class ConfigOptionUpdate(Acp, frozen=True, kw_only=True, tag_field="sessionUpdate", tag="config_option_update"):
    config_options: list[SessionConfigOptionSelect | SessionConfigOptionBoolean]
    session_update: ClassVar[Literal["config_option_update"]] = "config_option_update"
    FILTERED: ClassVar[frozenset[str]] = frozenset({"config_options"})


class SessionInfoUpdate(Acp, frozen=True, kw_only=True, tag_field="sessionUpdate", tag="session_info_update"):
    title: str | None = None
    updated_at: str | None = None
    session_update: ClassVar[Literal["session_info_update"]] = "session_info_update"
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"title", "updated_at"})


class Cost(Acp, frozen=True, kw_only=True):
    amount: float
    currency: str


class UsageUpdate(Acp, frozen=True, kw_only=True, tag_field="sessionUpdate", tag="usage_update"):
    used: Annotated[int, Meta(ge=0)]
    size: Annotated[int, Meta(ge=0)]
    cost: Cost | None = None
    session_update: ClassVar[Literal["usage_update"]] = "usage_update"
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"cost"})


class SessionNotification(Acp, frozen=True, kw_only=True):
    session_id: str
    update: (
        UserMessageChunk
        | AgentMessageChunk
        | AgentThoughtChunk
        | ToolCallStart
        | ToolCallProgress
        | AgentPlanUpdate
        | AgentPlanContentUpdate
        | AgentPlanRemovedUpdate
        | AvailableCommandsUpdate
        | CurrentModeUpdate
        | ConfigOptionUpdate
        | SessionInfoUpdate
        | UsageUpdate
    )


class PermissionOption(Acp, frozen=True, kw_only=True):
    option_id: str
    name: str
    kind: Literal["allow_once", "allow_always", "reject_once", "reject_always"]


class RequestPermissionRequest(Acp, frozen=True, kw_only=True):
    session_id: str
    tool_call: ToolCallUpdate
    options: list[PermissionOption]


class Usage(Acp, frozen=True, kw_only=True):
    total_tokens: Annotated[int, Meta(ge=0)]
    input_tokens: Annotated[int, Meta(ge=0)]
    output_tokens: Annotated[int, Meta(ge=0)]
    thought_tokens: Annotated[int, Meta(ge=0)] | None = None
    cached_read_tokens: Annotated[int, Meta(ge=0)] | None = None
    cached_write_tokens: Annotated[int, Meta(ge=0)] | None = None
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"cached_read_tokens", "cached_write_tokens", "thought_tokens"})


class PromptResponse(Acp, frozen=True, kw_only=True):
    stop_reason: Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]
    usage: Usage | None = None
    DEFAULTED: ClassVar[frozenset[str]] = frozenset({"usage"})


ContentBlock: TypeAlias = (
    TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock
)


SessionUpdate: TypeAlias = (
    UserMessageChunk
    | AgentMessageChunk
    | AgentThoughtChunk
    | ToolCallStart
    | ToolCallProgress
    | AgentPlanUpdate
    | AgentPlanContentUpdate
    | AgentPlanRemovedUpdate
    | AvailableCommandsUpdate
    | CurrentModeUpdate
    | ConfigOptionUpdate
    | SessionInfoUpdate
    | UsageUpdate
)
