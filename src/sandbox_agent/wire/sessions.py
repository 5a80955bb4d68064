"""Sessions as clients see them, the same over HTTP and ACP."""

from msgspec import UNSET, Raw, Struct, UnsetType

from sandbox_agent.envelope import Object


class ContextView(Struct):
    """How full an agent's context is, in tokens."""

    used: int
    size: int


class CostView(Struct):
    """What something has cost."""

    amount: float
    currency: str
    """ISO 4217, such as `USD`."""


class ActivityView(Struct, rename="camel", kw_only=True):
    """What a session is doing, for lists of many sessions."""

    kind: str | None
    """What its agent did last: `message`, `thought` or `tool`."""
    said: str
    """The last line of that, or the title of the tool call; at most 240 characters."""
    turn_started_at: str | None
    """When the turn that runs was started: UTC, ISO 8601 with milliseconds."""
    tokens: int | None
    """Tokens of all its turns, if its agent counts them."""
    context: ContextView | None
    """As its agent reported it last."""
    cost: CostView | None
    """As its agent reported it last."""


class SessionView(Struct, rename="camel", kw_only=True, omit_defaults=False):
    """A session, as `GET /v1/sessions` shows it."""

    session_id: str
    """The agent's own id of it, unless two agents chose the same."""
    agent: str
    cwd: str
    """Its directory, on the server's machine."""
    title: str | None
    """As the agent gave it, else as it was asked for."""
    created_at: str
    """UTC, ISO 8601 with milliseconds."""
    updated_at: str
    """When the last event of it was kept."""
    ended: bool
    """No process holds it; see `terminationInfo`."""
    resumable: bool
    """A prompt takes it up again when it has ended."""
    running: bool
    """A turn runs now."""
    event_count: int
    """Events in its log."""
    pending: int
    """How many permissions, questions and elicitations wait for an answer."""
    model: str | None
    """The model in use, as far as the agent says."""
    mode: str | None
    """The mode in use, as far as the agent says."""
    termination_info: Object | None
    """How it ended, as in `_sandboxagent/session/ended`."""
    metadata: Object
    """What `session/new` and `_sandboxagent/session/set_metadata` gave, as it was asked for."""
    activity: ActivityView
    """What its agent did last, and what it has used."""
    alias: str | UnsetType = UNSET
    """Its `requestedSessionId`, accepted wherever an id is."""


class PendingView(Struct, rename="camel"):
    """A pending request, as clients list it."""

    id: Raw
    """Under which this connection may answer."""
    kind: str
    """`permission`, `question`, `elicitation`, or `request` for anything else."""
    session_id: str
    asked_at: str
    """UTC, ISO 8601 with milliseconds."""
    envelope: Raw
    """The request, in the form that this client knows."""


class SessionsView(Struct, rename="camel"):
    """A page of sessions, newest first."""

    sessions: list[SessionView]
    next_cursor: str | UnsetType = UNSET
    """The `cursor` of the next page; absent on the last."""
    changes: str | UnsetType = UNSET
    """The moment of this list: give it as `changedAfter` to get what has changed since."""
    gone: list[str] | UnsetType = UNSET
    """Sessions that were deleted. With it, `sessions` are only those that have changed since `changedAfter`; without it
    they are all."""
