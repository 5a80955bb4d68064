"""Represent what happens in a session as typed values: ACP's updates and the server's own.

Every item has a `session_update` that says what it is, as on the wire.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import msgspec
from msgspec import ValidationError

from sandboxagent.protocol import methods
from sandboxagent.protocol.acp import (
    Acp,
    AgentMessageChunk,
    AgentPlanContentUpdate,
    AgentPlanRemovedUpdate,
    AgentPlanUpdate,
    AgentThoughtChunk,
    AudioContentBlock,
    AvailableCommandsUpdate,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    PromptResponse,
    ResourceContentBlock,
    SessionInfoUpdate,
    SessionNotification,
    TextContentBlock,
    ToolCallProgress,
    ToolCallStart,
    UsageUpdate,
    UserMessageChunk,
)
from sandboxagent.protocol.decode import read, to_json
from sandboxagent.protocol.envelope import Object, at, object_at, text_at


class UpstreamBlock(Protocol):
    """A content block of the package `acp`."""

    def model_dump(self, *, mode: str, by_alias: bool, exclude_none: bool) -> Mapping[str, object]: ...


ContentBlock: TypeAlias = (
    TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock
)
"""A piece of a message: a text, a picture, a file."""
PromptBlock: TypeAlias = ContentBlock | UpstreamBlock | Mapping[str, object]
"""What a prompt is made of: content blocks of ours or of the package `acp`, or JSON as it goes on the wire."""


FINAL = frozenset({"terminated", "deleted"})
"""Reasons of an end for good; a session that has ended otherwise may be brought back."""


@dataclass(frozen=True, slots=True)
class UnknownUpdate:
    """An update that this release of the SDK does not know; `raw` is all of it."""

    session_update: str
    raw: Object


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """A turn has started, of this client or of another one."""

    turn_id: str
    prompt_id: str | None = None
    session_update: Literal["turn_started"] = "turn_started"


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """A turn has ended: with a stop reason, or with an error of its agent.

    `response` is what the agent answered; only the client that sent the prompt has it, and only if the SDK can read it.
    `turn_id` is None if you await a turn without iterating over it.
    """

    stop_reason: str | None
    turn_id: str | None = None
    error: Object | None = None
    response: PromptResponse | None = None
    session_update: Literal["turn_ended"] = "turn_ended"


@dataclass(frozen=True, slots=True)
class Decision:
    """How a request of the agent was decided, who or what decided it, and why. `raw` has everything."""

    kind: str
    """`permission`, `question` or `elicitation`."""
    outcome: str
    """`answered`, `rejected` or `cancelled`."""
    by: Object
    """`kind` is `rule`, `client`, `timeout`, `limit`, `cancel` or `agent`; the rest says which."""
    reason: str | None
    """A person's own words, or the server's."""
    raw: Object = field(repr=False)
    request_id: str = ""
    """Of the request: `request.id`, as its handler got it."""
    tool_call_id: str | None = None
    """Of a permission: what it was for."""
    option_id: str | None = None
    """Of a permission: the option that was chosen."""
    option_kind: str | None = None
    """Of a permission: the kind of that option, such as `allow_once`."""
    question_id: str | None = None
    """Of a question or a form: its id."""
    answers: list[list[str]] | None = None
    """Of a question: what was chosen or written, a list for each question."""
    content: Object | None = None
    """Of a form: what was filled in."""
    session_update: Literal["decision"] = "decision"


@dataclass(frozen=True, slots=True)
class MetadataUpdated:
    """All of the session's metadata, after a change."""

    metadata: Object
    session_update: Literal["metadata_update"] = "metadata_update"


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session has ended; a prompt may still resume it, if its agent can do that."""

    reason: str
    terminated_by: str
    message: str | None = None
    raw: Object = field(default_factory=dict[str, object], repr=False)
    session_update: Literal["session_ended"] = "session_ended"


@dataclass(frozen=True, slots=True)
class Gap:
    """What came after one event and before another is no longer kept."""

    after: int
    resumes_at: int
    session_update: Literal["gap"] = "gap"


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
    | UnknownUpdate
)
"""An update from an agent about a session."""

SessionItem: TypeAlias = SessionUpdate | TurnStarted | TurnEnded | Decision | MetadataUpdated | SessionEnded | Gap
"""Everything that `session.updates()` yields."""

TurnItem: TypeAlias = SessionUpdate | Decision | Gap | TurnEnded
"""Everything that a turn yields; the last item is TurnEnded."""


def read_item(method: str, params: Object) -> SessionItem | None:
    """A notification of a session as a typed value; None for what is not about a session."""
    match method:
        case methods.UPDATE:
            return _update(params)
        case methods.TURN:
            return _turn(params)
        case methods.DECISION:
            return _decision(params)
        case methods.METADATA_UPDATE:
            return MetadataUpdated(object_at(params, "metadata"))
        case methods.ENDED:
            reason, by = str(params.get("reason")), str(params.get("terminatedBy"))
            return SessionEnded(reason, by, text_at(params, "message"), params)
        case methods.GAP:
            return read_gap(params)
        case _:
            return None


def read_gap(params: Object) -> Gap:
    """A gap, as the stream and the log report it."""
    after, resumes_at = params.get("after"), params.get("resumesAt")
    return Gap(after if isinstance(after, int) else 0, resumes_at if isinstance(resumes_at, int) else 0)


def text_of(item: object) -> str:
    """The text of a piece of the agent's message; empty for everything else."""
    if isinstance(item, AgentMessageChunk) and isinstance(item.content, TextContentBlock):
        return item.content.text
    return ""


def blocks(prompt: str | Sequence[PromptBlock]) -> list[Object]:
    """A prompt's content as it goes on the wire."""
    if isinstance(prompt, str):
        return [{"type": "text", "text": prompt}]
    return [_block(block) for block in prompt]


def _block(block: PromptBlock) -> Object:
    if isinstance(block, Acp):
        return to_json(block)
    if isinstance(block, Mapping):
        return dict(block)
    return dict(block.model_dump(mode="json", by_alias=True, exclude_none=True))


def _update(params: Object) -> SessionUpdate:
    try:
        return read(params, SessionNotification).update
    except ValidationError:
        # Of a newer protocol, or of an agent's own making: it is the caller's to know.
        update = object_at(params, "update")
        return UnknownUpdate(str(update.get("sessionUpdate")), update)


def _decision(params: Object) -> Decision:
    content = params.get("content")
    return Decision(
        kind=str(params.get("kind")),
        outcome=str(params.get("outcome")),
        by=object_at(params, "by"),
        reason=text_at(params, "reason"),
        raw=params,
        request_id=str(params.get("requestId")),
        tool_call_id=text_at(params, "toolCallId"),
        option_id=text_at(params, "optionId"),
        option_kind=text_at(params, "optionKind"),
        question_id=text_at(params, "questionId"),
        answers=_answers(params.get("answers")),
        content=None if content is None else object_at(params, "content"),
    )


def _answers(given: object) -> list[list[str]] | None:
    try:
        return msgspec.convert(given, list[list[str]] | None)
    except ValidationError:  # Of a newer server; `raw` has it.
        return None


def _turn(params: Object) -> TurnStarted | TurnEnded:
    turn_id = str(params.get("turnId"))
    if params.get("state") == "started":
        return TurnStarted(turn_id, text_at(params, "promptId"))
    error = at(params, "error")
    failure = object_at(params, "error") if error is not None else None
    return TurnEnded(text_at(params, "stopReason"), turn_id, failure)
