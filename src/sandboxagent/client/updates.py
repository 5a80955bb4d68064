"""Represent the events of a session as typed values: ACP's updates and the server's own.

Every item has a `session_update` that names its kind, as on the wire.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, cast

import msgspec
from msgspec import ValidationError

from sandboxagent.client.requests import Request
from sandboxagent.client.view import AttachedFile
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
"""A part of a message: a text, an image, audio, a link or an embedded file."""
PromptBlock: TypeAlias = ContentBlock | UpstreamBlock | Mapping[str, object]
"""A part of a prompt: a content block of this SDK or of the package `acp`, or the block's JSON."""


FINAL = frozenset({"terminated", "deleted"})
"""Reasons for which a session ends for good. A session that ended for another reason may be resumed."""


@dataclass(frozen=True, slots=True)
class UnknownUpdate:
    """An update that this release of the SDK does not know."""

    session_update: str
    """Kind of the update, as on the wire."""
    raw: Object
    """The whole update as JSON."""


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The start of a turn, of this or another client."""

    turn_id: str
    """Id of the turn."""
    prompt_id: str | None = None
    """Id that the client gave to the prompt, if it gave one."""
    session_update: Literal["turn_started"] = "turn_started"
    """Kind of the item."""


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The end of a turn, with a stop reason or with an error of its agent."""

    stop_reason: str | None
    """Why the agent stopped, such as `end_turn` or `cancelled`; None if the turn failed."""
    turn_id: str | None = None
    """Id of the turn. None if you await a turn without iterating over it."""
    error: Object | None = None
    """The error of a turn that failed, with `code` and `message`."""
    response: PromptResponse | None = None
    """The agent's answer to the prompt. Only the client that sent the prompt has it, and only if the SDK can parse
    it."""
    session_update: Literal["turn_ended"] = "turn_ended"
    """Kind of the item."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a request of the agent: its outcome, who or which rule decided, and why."""

    kind: Literal["permission", "question", "elicitation"]
    """Kind of the request: `permission`, `question` or `elicitation`."""
    outcome: Literal["answered", "rejected", "cancelled"]
    """Outcome of the request: `answered`, `rejected` or `cancelled`."""
    by: Object
    """Who or what decided. Its `kind` is `rule`, `client`, `timeout`, `limit`, `cancel` or `agent`; other members give
    details."""
    reason: str | None
    """Reason that a person or the server gave."""
    raw: Object = field(repr=False)
    """The whole decision as JSON."""
    request_id: str = ""
    """Id of the request (`request.id` in its handler)."""
    tool_call_id: str | None = None
    """For a permission: id of the tool call that needed it."""
    option_id: str | None = None
    """For a permission: id of the chosen option."""
    option_kind: str | None = None
    """For a permission: kind of the chosen option, such as `allow_once`."""
    question_id: str | None = None
    """For a question or a form: the agent's own id of it."""
    answers: list[list[str]] | None = None
    """For a question: a list for each question, with the ids of the choices or with free texts."""
    content: Object | None = None
    """For a form: the values of its fields."""
    session_update: Literal["decision"] = "decision"
    """Kind of the item."""


@dataclass(frozen=True, slots=True)
class MetadataUpdated:
    """A change of the session's metadata."""

    metadata: Object
    """All of the session's metadata, after the change."""
    session_update: Literal["metadata_update"] = "metadata_update"
    """Kind of the item."""


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The end of a session. A prompt may still resume the session if its agent supports this."""

    reason: Literal["error", "closed", "deleted", "terminated"]
    """Why the session ended: `error`, `closed`, `deleted` or `terminated`. The last two are final."""
    terminated_by: Literal["agent", "client", "daemon"]
    """Who ended the session: `agent`, `client` or `daemon` (the server)."""
    message: str | None = None
    """Explanation for people."""
    raw: Object = field(default_factory=dict[str, object], repr=False)
    """The whole notification as JSON, with details such as `exitCode` and `stderr`."""
    session_update: Literal["session_ended"] = "session_ended"
    """Kind of the item."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that were deleted from the log before they could be read."""

    after: int
    """Position of the last event before the gap."""
    resumes_at: int
    """Position of the first event after the gap."""
    session_update: Literal["gap"] = "gap"
    """Kind of the item."""


@dataclass(frozen=True, slots=True)
class PromptSent:
    """A prompt that a client sent. Only `history` and `follow` have it; `updates` has its blocks as updates."""

    turn_id: str
    """Id of its turn."""
    prompt_id: str | None
    """Id that the client gave to the prompt, if it gave one."""
    prompt: list[ContentBlock]
    """The prompt's content, without blocks that the SDK cannot parse."""
    attachments: list[AttachedFile]
    """Files that the prompt names."""
    raw: Object = field(default_factory=dict[str, object], repr=False)
    """The params of the request as JSON."""
    session_update: Literal["prompt"] = "prompt"
    """Kind of the item."""


@dataclass(frozen=True, slots=True)
class RequestOpened:
    """A request of the agent to a person. Only `history` and `follow` have it."""

    request: Request
    """The request. Its `id` is empty if it can no longer be answered."""
    session_update: Literal["request"] = "request"
    """Kind of the item."""


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The session was created, loaded, resumed or forked. Only `history` and `follow` have it."""

    agent: str | None
    """Id of its agent, if the request names it."""
    cwd: str | None
    """Its directory, on the server's machine."""
    title: str | None
    """The title with which it was created."""
    session_update: Literal["session_opened"] = "session_opened"
    """Kind of the item."""


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
"""An update that an agent sends about its session."""

SessionItem: TypeAlias = (
    SessionUpdate
    | TurnStarted
    | TurnEnded
    | Decision
    | MetadataUpdated
    | SessionEnded
    | PromptSent
    | RequestOpened
    | SessionOpened
    | Gap
)
"""Any item of `session.updates()`, `session.history()` and `session.follow()`."""

TurnItem: TypeAlias = SessionUpdate | Decision | Gap | TurnEnded
"""Any item of a turn. The last one is TurnEnded."""


def read_item(method: str, params: Object) -> SessionItem | None:
    """Parse a notification of a session. Return None if the notification is not about a session."""
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
            reason = cast('Literal["error", "closed", "deleted", "terminated"]', str(params.get("reason")))
            by = cast('Literal["agent", "client", "daemon"]', str(params.get("terminatedBy")))
            return SessionEnded(reason, by, text_at(params, "message"), params)
        case methods.GAP:
            return read_gap(params)
        case _:
            return None


def read_gap(params: Object) -> Gap:
    """Parse a gap, as the stream and the log report it."""
    after, resumes_at = params.get("after"), params.get("resumesAt")
    return Gap(after if isinstance(after, int) else 0, resumes_at if isinstance(resumes_at, int) else 0)


def text_of(item: object) -> str:
    """Return the text of an `AgentMessageChunk`. For every other item, return an empty string."""
    if isinstance(item, AgentMessageChunk) and isinstance(item.content, TextContentBlock):
        return item.content.text
    return ""


def blocks(prompt: str | Sequence[PromptBlock]) -> list[Object]:
    """Return the content of a prompt as JSON for the wire."""
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
        # The update is from a newer protocol, or an agent's own. The caller may understand it.
        update = object_at(params, "update")
        return UnknownUpdate(str(update.get("sessionUpdate")), update)


def _decision(params: Object) -> Decision:
    content = params.get("content")
    return Decision(
        kind=cast('Literal["permission", "question", "elicitation"]', str(params.get("kind"))),
        outcome=cast('Literal["answered", "rejected", "cancelled"]', str(params.get("outcome"))),
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
    except ValidationError:  # A newer server may send another form; `raw` has it.
        return None


def _turn(params: Object) -> TurnStarted | TurnEnded:
    turn_id = str(params.get("turnId"))
    if params.get("state") == "started":
        return TurnStarted(turn_id, text_at(params, "promptId"))
    error = at(params, "error")
    failure = object_at(params, "error") if error is not None else None
    return TurnEnded(text_at(params, "stopReason"), turn_id, failure)
