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
    Uploaded,
    UploadParams,
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
"""Default number of events of a page of the log."""

# --- sent by clients --------------------------------------------------------------------------------------------------


class Nothing(Struct):
    """An empty object."""


class SessionParams(Struct, rename="camel"):
    """The session that a request is about."""

    session_id: str
    """The session's id or alias."""


class AttachResult(Struct):
    """The attached session, with the position from which the stream has its events."""

    session: SessionView
    """The session as it is at this moment."""
    pending: list[PendingView]
    """The requests of the session's agent that wait for an answer. The stream delivers them too."""
    position: int
    """The session's events after this position come on the stream."""


class SessionResult(Struct):
    """The result of a request for one session."""

    session: SessionView
    """The session."""


class PageParams(Struct, rename="camel"):
    """The selection of sessions to list, and the page of that list."""

    cursor: str | UnsetType = UNSET
    """The `nextCursor` of the previous page. Without it, the list starts at the newest session."""
    cwd: str | UnsetType = UNSET
    """Only sessions with this directory."""
    changed_after: str | UnsetType = UNSET
    """The `changes` of an earlier list. The answer then has only the sessions that have changed since, if the server
    still has a record of that moment."""


class ChangesParams(Struct):
    """The moment after which to look for changes, and how long to wait for one."""

    after: str
    """The `changes` of a list of sessions, or of the previous answer."""
    wait: Annotated[float, Meta(ge=0)] = 25.0
    """Maximum time to wait for a change, in seconds, at most 60. After that time the answer comes without a change."""


class ChangesResult(Struct):
    """The moment up to which the server has reported changes."""

    changes: str
    """The newest moment. If it differs from `after`, a session has changed: get the changed sessions with
    `changedAfter`."""


class EventsRange(Struct):
    """A range of a session's log, and the size of a page."""

    after: Annotated[int, Meta(ge=0)] = 0
    """The position after which the page starts. The event at this position is not included."""
    before: int | None = None
    """The position before which the page ends. The event at this position is not included."""
    limit: Annotated[int, Meta(ge=1)] = PAGE
    """Maximum number of events of the page, at most 5,000. The page may have fewer, even if more events follow."""


class EventsParams(EventsRange, rename="camel", kw_only=True):
    """A session, a range of its log, and the size of a page."""

    session_id: str
    """The session's id or alias."""


class Gap(Struct, rename="camel"):
    """A range of events that were deleted from the log."""

    after: int
    """The position of the last event before the deleted ones."""
    resumes_at: int
    """The position of the first event after the deleted ones."""


class LogEvent(Struct, rename="camel"):
    """An envelope in a session's log."""

    id: int
    """The event's position in the log. It is also the event's `id` on every stream."""
    at: str
    """The time when the server stored the event: UTC, ISO 8601 with milliseconds."""
    direction: Literal["fromClient", "fromAgent", "fromServer"]
    """The sender of the envelope: a client, the agent or the server."""
    envelope: Object
    """The envelope itself."""
    request_id: str | UnsetType = UNSET
    """The id by which clients answer the event, while it is an agent's request that this client may answer. Absent from
    any other event."""


class EventsResult(Struct):
    """A page of a session's log."""

    events: list[LogEvent]
    """The events of the page, oldest first."""
    next: int | None
    """The `after` of the next page; `null` at the end of the range."""
    gap: Gap | UnsetType = UNSET
    """The deleted part of the requested range. Absent if no event of the range was deleted."""


class PendingParams(Struct, rename="camel"):
    """The selection of pending requests to list."""

    session_id: str | UnsetType = UNSET
    """Only the requests of this session, by its id or alias. Without it, the requests of all sessions."""


class PendingResult(Struct):
    """The requests that wait for an answer."""

    pending: list[PendingView]
    """The pending requests, each in the format that this client supports."""


class ModelsParams(Struct, rename="camel"):
    """The session or the agent whose models to list. Without both, the connection's own agent."""

    session_id: str | UnsetType = UNSET
    """The id or alias of a session, to list that session's models."""
    agent: str | UnsetType = UNSET
    """The id of an agent, to list its models as in `GET /v1/agents/{agent}`. The default is the connection's own
    agent."""


class Model(Struct, rename="camel"):
    """A model that an agent offers."""

    model_id: str
    """The model's id, for `session/set_model` and the `model` of `session/new`."""
    name: str
    """The model's name for people."""
    description: str | UnsetType | None = UNSET
    """A description of the model for people."""


class ModelsResult(Struct, rename="camel"):
    """The models that an agent offers, and the model in use."""

    available_models: list[Model]
    """All offered models. Empty until the agent has sent a list."""
    current_model_id: str | None
    """The id of the model in use; `null` if the agent has not named one."""


class MetadataParams(Struct, rename="camel"):
    """Metadata to store with a session."""

    session_id: str
    """The session's id or alias."""
    metadata: Object
    """The keys to change. They are merged into the stored metadata, and `null` removes a key. A `title` also changes
    the session's title."""


class MetadataResult(Struct):
    """A session's metadata after a change."""

    metadata: Object
    """All metadata of the session."""


class TerminateResult(Struct, rename="camel"):
    """The end of a session that a client has terminated."""

    terminated: bool
    """Whether the session is terminated. It is always `true`."""
    reason: str
    """The reason why the session has ended, as in `_sandboxagent/session/ended`."""
    terminated_by: str
    """Who ended the session, as in `_sandboxagent/session/ended`; `daemon` is the server."""
    already_ended: bool | UnsetType = UNSET
    """`true` if the session had already ended before this request; absent otherwise."""


class AgentsParams(Struct):
    """The selection of agents to list."""

    registry: bool = False
    """Whether the list also has the agents of the ACP registry that are not installed."""


class AgentParams(Struct):
    """The agent that a request is about."""

    agent: str | UnsetType = UNSET
    """The agent's id, or its slug in the ACP registry. The default is the connection's own agent."""
    models: bool = False
    """Whether the server asks the agent for its models and modes if it does not know them. It starts the agent briefly
    to ask."""


class InstallParams(InstallRequest, rename="camel"):
    """The agent and the versions to install."""

    agent: str | UnsetType = UNSET
    """The agent's id, or its slug in the ACP registry. The default is the connection's own agent."""


# --- received by clients ----------------------------------------------------------------------------------------------


class QuestionOption(Struct):
    """One of the offered answers to a question."""

    id: str
    """The option's id, which an answer repeats to choose this option."""
    label: str
    """The option's name for people."""
    description: str | UnsetType = UNSET
    """A description of the option for people."""


class Question(Struct, rename="camel"):
    """One of the questions of a request."""

    question: str
    """The text of the question."""
    options: list[QuestionOption]
    """The offered answers. Empty if the question only takes free text."""
    multi_select: bool
    """Whether a person may choose several options."""
    header: str | UnsetType = UNSET
    """A heading of a word or two for the question."""


class QuestionParams(Struct, rename="camel"):
    """A request of an agent for answers from a person."""

    session_id: str
    """The session whose agent asks."""
    question_id: str
    """The id of the request's questions, the same for every client."""
    prompt: str
    """All questions as one text."""
    options: list[tuple[str, str]]
    """The id and label of each option of the first question, for clients that show only one question."""
    questions: list[Question] | UnsetType = UNSET
    """All questions. Absent if the request has only `prompt` and `options`."""
    tool_call_id: str | UnsetType = UNSET
    """The id of the tool call that asks."""


class QuestionAnswer(Struct):
    """A client's answer to the questions of an agent."""

    status: Literal["answered", "rejected"]
    """`answered`, or `rejected` if the person does not want to answer."""
    answers: list[list[str]] | UnsetType = UNSET
    """For each question a list of the chosen option ids, or a free text as its only item. An empty list leaves a
    question open."""


class TurnError(Struct):
    """The error of a failed turn."""

    code: int
    """The JSON-RPC error code."""
    message: str
    """The error message."""


class TurnParams(Struct, rename="camel"):
    """The start or the end of a turn."""

    session_id: str
    """The session of the turn."""
    turn_id: str
    """The id of the turn: `turn-` and the `id` of its prompt's event in the session's log, as
    `_sandboxagent/session/events` has it."""
    state: Literal["started", "ended"]
    """Whether the turn has started or ended."""
    prompt_id: str | UnsetType = UNSET
    """The `promptId` of the turn's prompt. It is present even if the server stopped during the turn and reports its end
    after the next start."""
    stop_reason: str | UnsetType = UNSET
    """At the end of a turn: the stop reason that the agent gave."""
    error: TurnError | UnsetType = UNSET
    """At the end of a failed turn: its error, in place of `stopReason`."""


class Stderr(Struct, rename="camel"):
    """The first and the last lines that an agent process wrote to stderr."""

    head: list[str]
    """The first 20 lines."""
    tail: list[str]
    """The last 50 lines, without lines that are in `head`."""
    truncated: bool
    """Whether lines are missing between `head` and `tail`, or a line was cut."""
    total_lines: int
    """The number of all lines that the process wrote."""


class EndedParams(Struct, rename="camel"):
    """The end of a session."""

    session_id: str
    """The session that has ended."""
    reason: Literal["error", "closed", "deleted", "terminated"]
    """The reason why the session has ended."""
    terminated_by: Literal["agent", "daemon", "client"]
    """Who ended the session; `daemon` is the server."""
    message: str | UnsetType = UNSET
    """An explanation for people."""
    exit_code: int | UnsetType = UNSET
    """The exit code of the agent's process, if the process exited."""
    signal: str | UnsetType = UNSET
    """The signal that ended the agent's process, in place of `exitCode`."""
    stderr: Stderr | UnsetType = UNSET
    """The beginning and the end of the process's output to stderr."""


class MetadataUpdate(Struct, rename="camel"):
    """A session's metadata after a change."""

    session_id: str
    """The session whose metadata has changed."""
    metadata: Object
    """All metadata of the session, after the change."""


class ShellParams(Struct, rename="camel"):
    """A command that a person runs beside the agent."""

    session_id: str
    """The session in which the command runs."""
    shell_id: str
    """The id of the command, the same in the notifications of its start and its end."""
    command: str
    """The command as a line for the shell."""
    agent: str | UnsetType = UNSET
    """The mode that was selected in the client that ran the command."""
    message_id: str | UnsetType = UNSET
    """The id of the message in which the client shows the command."""
    output: str | UnsetType = UNSET
    """At the end of the command: the latest part of its output."""
    exit_code: int | UnsetType = UNSET
    """At the end of the command: its exit code. Absent if a signal ended the command."""


class Decider(Struct):
    """The cause of a decision: a rule, a client, or the server for one of the other reasons."""

    kind: Literal["rule", "client", "timeout", "cancel", "agent", "limit"]
    """`rule`, `client`, `timeout` (no answer came in time), `limit` (a limit of the server was reached), `cancel` (the
    turn was cancelled) or `agent` (the agent withdrew the request, or its process died)."""
    rule: int | UnsetType = UNSET
    """The number of the rule that decided, from 1."""
    source: Literal["server", "session"] | UnsetType = UNSET
    """Whether the rule that decided is one of the server or one of the session."""
    name: str | UnsetType = UNSET
    """The name of the rule that decided, or the tag of the connection that answered."""
    client: str | UnsetType = UNSET
    """The `clientInfo.name` of the client that answered."""
    user: str | UnsetType = UNSET
    """The `user` that the client that answered named in its `initialize`."""


class DecisionParams(Struct, rename="camel"):
    """The outcome of an agent's request."""

    session_id: str
    """The session whose agent asked."""
    request_id: str
    """The request's id, the same for all clients."""
    agent_request_id: object
    """The agent's own id of the request, as in the session's log."""
    kind: Literal["permission", "question", "elicitation"]
    """The kind of the request; `elicitation` is a form."""
    outcome: Literal["answered", "rejected", "cancelled"]
    """`answered`, `rejected`, or `cancelled` if the request was withdrawn."""
    by: Decider
    """Who or what decided."""
    tool_call_id: str | UnsetType = UNSET
    """The id of the tool call that the request is about."""
    option_id: str | UnsetType = UNSET
    """For a permission: the id of the chosen option."""
    option_kind: str | UnsetType = UNSET
    """For a permission: the kind of the chosen option, such as `allow_once`."""
    question_id: str | UnsetType = UNSET
    """For a question or a form: its id, as clients that support questions see it."""
    answers: list[list[str]] | UnsetType = UNSET
    """For a question: the answers, one list for each question."""
    content: Object | UnsetType = UNSET
    """For a form: the values of its fields."""
    reason: str | UnsetType = UNSET
    """The reason, written by the person who answered, by the author of the rule, or by the server."""


class UnparsedParams(Struct):
    """A line of an agent process's stdout that the server skipped."""

    agent: str
    """The id of the agent."""
    reason: str
    """The reason why the server skipped the line."""
    line: str
    """The first 4,096 bytes of the line."""
    truncated: bool
    """Whether the line is longer than `line`."""


TYPES: dict[str, type[Struct]] = {
    each.__name__: each
    for each in (
        *(SessionParams, Nothing, AttachResult, SessionResult, PageParams, SessionsView, ChangesParams, ChangesResult),
        *(ModelsParams, ModelsResult),
        *(MetadataParams, MetadataResult, TerminateResult, EventsParams, EventsResult, PendingParams, PendingResult),
        *(AgentsParams, AgentsView, AgentParams, AgentView, InstallParams, InstallResult),
        *(PathParams, ReadParams, WriteParams, EntriesParams, StatParams, MoveParams, DeleteParams, SearchParams),
        UploadParams,
        *(Content, Written, EntriesPage, FileView, Done, Moved, Found, Uploaded),
        *(QuestionParams, QuestionAnswer, TurnParams, DecisionParams, MetadataUpdate, EndedParams, Gap, UnparsedParams),
        ShellParams,
    )
}
"""Every params and result type of the methods, by its name."""
