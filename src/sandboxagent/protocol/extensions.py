"""Define the params and results of the `_sandboxagent/*` methods."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from sandboxagent.protocol.envelope import Object
from sandboxagent.protocol.files import (
    Content,
    DeleteParams,
    Done,
    EntriesPage,
    EntriesParams,
    FileView,
    Found,
    Moved,
    MoveParams,
    PathParams,
    ReadParams,
    SearchParams,
    StatParams,
    WriteParams,
    Written,
)
from sandboxagent.protocol.views import (
    AgentsView,
    AgentView,
    InstallRequest,
    InstallResult,
    PendingView,
    SessionsView,
    SessionView,
)

PAGE = 500
"""Events of a page of the log, unless another number is asked for."""

# --- what a client sends ----------------------------------------------------------------------------------------------


class Nothing(Struct):
    """An empty object."""


class SessionParams(Struct, rename="camel"):
    """Which session is meant."""

    session_id: str
    """Its id or alias."""


class AttachResult(Struct):
    """Where the stream begins, and what waits."""

    session: SessionView
    pending: list[PendingView]
    """What waits for an answer now. It is delivered on the stream too."""
    position: int
    """Events after it come on the stream."""


class SessionResult(Struct):
    """A session."""

    session: SessionView


class PageParams(Struct, rename="camel"):
    """Which sessions."""

    cursor: str | UnsetType = UNSET
    """`nextCursor` of the page before."""
    cwd: str | UnsetType = UNSET
    """Only sessions of this directory."""
    changed_after: str | UnsetType = UNSET
    """`changes` of an earlier list: only what has changed since, if the server still knows that."""


class ChangesParams(Struct):
    """Since when, and how long to wait."""

    after: str
    """`changes` of a list of sessions, or of the answer before."""
    wait: Annotated[float, Meta(ge=0)] = 25.0
    """Seconds, 60 at most; after that the answer comes without a change."""


class ChangesResult(Struct):
    """Where changes have come to."""

    changes: str
    """Another one than `after` says that a session has changed: get them with `changedAfter`."""


class EventsRange(Struct):
    """Which part of a session's log."""

    after: Annotated[int, Meta(ge=0)] = 0
    """The last event that is not wanted any more."""
    before: int | None = None
    """The first event that is not wanted yet."""
    limit: Annotated[int, Meta(ge=1)] = PAGE
    """Events of a page, 5,000 at most. A page may be shorter."""


class EventsParams(EventsRange, rename="camel", kw_only=True):
    """Which part of which session's log."""

    session_id: str
    """Its id or alias."""


class Gap(Struct, rename="camel"):
    """Events that are no longer kept."""

    after: int
    """The last event before them."""
    resumes_at: int
    """The first event after them."""


class LogEvent(Struct):
    """An envelope in a session's log."""

    id: int
    """Its position, which is its `id` on every stream that has it."""
    at: str
    """When it was kept: UTC, ISO 8601 with milliseconds."""
    direction: Literal["fromClient", "fromAgent", "fromServer"]
    envelope: Object


class EventsResult(Struct):
    """A page of the log."""

    events: list[LogEvent]
    next: int | None
    """The `after` of the next page, or `null` at the end."""
    gap: Gap | UnsetType = UNSET
    """There when a part of the range is no longer kept."""


class PendingParams(Struct, rename="camel"):
    """Whose requests."""

    session_id: str | UnsetType = UNSET
    """Those of one session; of all unless given."""


class PendingResult(Struct):
    """What waits."""

    pending: list[PendingView]


class ModelsParams(Struct, rename="camel"):
    """Whose models."""

    session_id: str | UnsetType = UNSET
    """Those of a session."""
    agent: str | UnsetType = UNSET
    """Those of an agent, as `GET /v1/agents/{agent}` has them; the connection's own agent by default."""


class Model(Struct, rename="camel"):
    """A model."""

    model_id: str
    name: str
    description: str | UnsetType | None = UNSET


class ModelsResult(Struct, rename="camel"):
    """What there is, and what is in use."""

    available_models: list[Model]
    """Empty until the agent has sent any."""
    current_model_id: str | None


class MetadataParams(Struct, rename="camel"):
    """What to keep with a session."""

    session_id: str
    """Its id or alias."""
    metadata: Object
    """Merged into what is there; `null` removes a key. A `title` also changes the session's title."""


class MetadataResult(Struct):
    """All that is kept now."""

    metadata: Object


class TerminateResult(Struct, rename="camel"):
    """How it ended."""

    terminated: bool
    reason: str
    terminated_by: str
    already_ended: bool | UnsetType = UNSET
    """There, and `true`, when it had ended before."""


class AgentsParams(Struct):
    """Which agents."""

    registry: bool = False
    """Also agents of the ACP registry that are not installed."""


class AgentParams(Struct):
    """Which agent."""

    agent: str | UnsetType = UNSET
    """Its id or slug; the connection's own agent unless given."""
    models: bool = False
    """`true`: ask the agent for its models and modes if they are not known, which starts it for a moment."""


class InstallParams(InstallRequest, rename="camel"):
    """What to install."""

    agent: str | UnsetType = UNSET
    """Its id or slug; the connection's own agent unless given."""


# --- what a client receives -------------------------------------------------------------------------------------------


class QuestionOption(Struct):
    """One of the answers that are offered."""

    id: str
    """What an answer says."""
    label: str
    description: str | UnsetType = UNSET


class Question(Struct, rename="camel"):
    """One of the questions of a request."""

    question: str
    options: list[QuestionOption]
    """Empty where only a free text is an answer."""
    multi_select: bool
    """Several may be chosen."""
    header: str | UnsetType = UNSET
    """A word for it."""


class QuestionParams(Struct, rename="camel"):
    """What an agent wants to know."""

    session_id: str
    question_id: str
    """Identifies the question for every client."""
    prompt: str
    """All of it as a text."""
    options: list[tuple[str, str]]
    """Id and label of the first question's options, for clients that show one question."""
    questions: list[Question] | UnsetType = UNSET
    """Every question; absent where there is only `prompt` and `options`."""
    tool_call_id: str | UnsetType = UNSET
    """The tool call that asks."""


class QuestionAnswer(Struct):
    """A client's answer."""

    status: Literal["answered", "rejected"]
    answers: list[list[str]] | UnsetType = UNSET
    """For each question the ids that were chosen, or a free text; an empty list leaves one open."""


class TurnError(Struct):
    """How a turn failed."""

    code: int
    message: str


class TurnParams(Struct, rename="camel"):
    """A turn."""

    session_id: str
    turn_id: str
    """`turn-` and the `id` of its prompt's event in the session's log, where `_sandboxagent/session/events` has it."""
    state: Literal["started", "ended"]
    prompt_id: str | UnsetType = UNSET
    """The `promptId` of its prompt, even if the server stopped during the turn and the next start reports its end."""
    stop_reason: str | UnsetType = UNSET
    """At the end: as the agent answered."""
    error: TurnError | UnsetType = UNSET
    """At the end: in place of `stopReason`."""


class Stderr(Struct, rename="camel"):
    """What an agent wrote to stderr."""

    head: list[str]
    """Its first 20 lines."""
    tail: list[str]
    """Its last 50 lines, as far as they are not among the first."""
    truncated: bool
    total_lines: int


class EndedParams(Struct, rename="camel"):
    """How a session ended."""

    session_id: str
    reason: Literal["error", "closed", "deleted", "terminated"]
    terminated_by: Literal["agent", "daemon", "client"]
    message: str | UnsetType = UNSET
    exit_code: int | UnsetType = UNSET
    signal: str | UnsetType = UNSET
    """In place of `exitCode` when a signal ended the process."""
    stderr: Stderr | UnsetType = UNSET


class MetadataUpdate(Struct, rename="camel"):
    """What is kept with a session."""

    session_id: str
    metadata: Object
    """All of it, after the change."""


class ShellParams(Struct, rename="camel"):
    """A command that a person runs."""

    session_id: str
    shell_id: str
    """The same in both notifications of a command."""
    command: str
    """A line for the shell."""
    agent: str | UnsetType = UNSET
    """The mode that was chosen where it was typed."""
    message_id: str | UnsetType = UNSET
    """What its client calls the message that it shows."""
    output: str | UnsetType = UNSET
    """At the end: the newest of what it wrote."""
    exit_code: int | UnsetType = UNSET
    """At the end; absent when a signal ended it."""


class Decider(Struct):
    """Who decided."""

    kind: Literal["rule", "client", "timeout", "cancel", "agent", "limit"]
    rule: int | UnsetType = UNSET
    """Of a rule: its number, from 1."""
    source: Literal["server", "session"] | UnsetType = UNSET
    """Of a rule: whose it is."""
    name: str | UnsetType = UNSET
    """Of a rule, its name; of a client, the tag of its connection."""
    client: str | UnsetType = UNSET
    """Of a client: its `clientInfo.name`."""
    user: str | UnsetType = UNSET
    """Of a client: the `user` of its `initialize`."""


class DecisionParams(Struct, rename="camel"):
    """What became of a request."""

    session_id: str
    request_id: str
    """Its id, as all clients know it."""
    agent_request_id: object
    """The agent's own id of it, as the request itself has it in the log."""
    kind: Literal["permission", "question", "elicitation"]
    outcome: Literal["answered", "rejected", "cancelled"]
    by: Decider
    tool_call_id: str | UnsetType = UNSET
    option_id: str | UnsetType = UNSET
    """Of a permission: the option that was chosen."""
    option_kind: str | UnsetType = UNSET
    """Of a permission: its kind, such as `allow_once`."""
    question_id: str | UnsetType = UNSET
    """Of a question or form: its id, as clients that know questions see it."""
    answers: list[list[str]] | UnsetType = UNSET
    """Of a question: what was chosen or written, a list for each question."""
    content: Object | UnsetType = UNSET
    """Of a form: what was filled in."""
    reason: str | UnsetType = UNSET
    """Why: a person's own words, or the server's."""


class UnparsedParams(Struct):
    """A line of an agent that was set aside."""

    agent: str
    reason: str
    line: str
    """Its first 4,096 bytes."""
    truncated: bool


TYPES: dict[str, type[Struct]] = {
    each.__name__: each
    for each in (
        *(SessionParams, Nothing, AttachResult, SessionResult, PageParams, SessionsView, ChangesParams, ChangesResult),
        *(ModelsParams, ModelsResult),
        *(MetadataParams, MetadataResult, TerminateResult, EventsParams, EventsResult, PendingParams, PendingResult),
        *(AgentsParams, AgentsView, AgentParams, AgentView, InstallParams, InstallResult),
        *(PathParams, ReadParams, WriteParams, EntriesParams, StatParams, MoveParams, DeleteParams, SearchParams),
        *(Content, Written, EntriesPage, FileView, Done, Moved, Found),
        *(QuestionParams, QuestionAnswer, TurnParams, DecisionParams, MetadataUpdate, EndedParams, Gap, UnparsedParams),
        ShellParams,
    )
}
"""By name."""
