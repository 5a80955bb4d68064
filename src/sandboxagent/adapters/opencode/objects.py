"""Define the objects that OpenCode's programs read and write.

The names in JSON are OpenCode's. A member that is UNSET is omitted.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from sandboxagent.protocol.envelope import Object


def spell(name: str) -> str:
    """Return the JSON name of a member: `session_id` becomes `sessionID`."""
    first, *others = name.split("_")
    return first + "".join("ID" if word == "id" else word.capitalize() for word in others)


class Shape(Struct, rename=spell, kw_only=True):
    """An object of OpenCode's API."""


# --- sessions ---------------------------------------------------------------------------------------------------------


class ModelRef(Shape):
    """A model, as sessions name it."""

    id: str
    provider_id: str
    variant: str | UnsetType = UNSET


class Cache(Shape):
    """Tokens that were read from the model's cache, and tokens that were written to it."""

    read: int = 0
    write: int = 0


class Tokens(Shape):
    """Numbers of used tokens."""

    cache: Cache
    input: int = 0
    output: int = 0
    reasoning: int = 0
    total: int | UnsetType = UNSET


def read_tokens(usage: Object) -> Tokens:
    """Convert a turn's `usage` of ACP."""
    names = ("inputTokens", "outputTokens", "thoughtTokens", "cachedReadTokens", "cachedWriteTokens", "totalTokens")
    spent, given, thought, read, write, total = (read_count(usage.get(name)) for name in names)
    cache = Cache(read=read, write=write)
    return Tokens(input=spent, output=given, reasoning=thought, cache=cache, total=total or UNSET)


def read_count(value: object) -> int:
    """Return a number of tokens; 0 for a value that is not a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


class SessionTime(Shape):
    """Times of a session, in milliseconds."""

    created: int
    updated: int
    archived: int | UnsetType = UNSET


class SessionInfo(Shape):
    """A session."""

    id: str
    slug: str
    project_id: str
    directory: str
    title: str
    version: str
    time: SessionTime
    parent_id: str | UnsetType = UNSET
    agent: str | UnsetType = UNSET
    model: ModelRef | UnsetType = UNSET
    cost: float | UnsetType = UNSET
    tokens: Tokens | UnsetType = UNSET
    permission: list[Object] | UnsetType = UNSET
    metadata: Object | UnsetType = UNSET


# --- messages ---------------------------------------------------------------------------------------------------------


class MessageModel(Shape):
    """A model, as messages name it."""

    provider_id: str
    model_id: str


class MessageTime(Shape):
    """Times of a message, in milliseconds."""

    created: int
    completed: int | UnsetType = UNSET


class Place(Shape):
    """The directory of a message's session."""

    cwd: str
    root: str


class UserMessage(Shape, tag_field="role", tag="user"):
    """A person's message."""

    id: str
    session_id: str
    time: MessageTime
    agent: str
    model: MessageModel


class AssistantMessage(Shape, tag_field="role", tag="assistant"):
    """An agent's message."""

    id: str
    session_id: str
    time: MessageTime
    parent_id: str
    model_id: str
    provider_id: str
    mode: str
    agent: str
    path: Place
    tokens: Tokens
    cost: float = 0
    finish: str | UnsetType = UNSET
    error: Object | UnsetType = UNSET
    summary: bool | UnsetType = UNSET


Info = UserMessage | AssistantMessage


class PartTime(Shape):
    """Times of a part, in milliseconds."""

    start: int
    end: int | UnsetType = UNSET


class AnyPart(Shape):
    """Members of all parts of messages."""

    id: str
    session_id: str
    message_id: str


class TextPart(AnyPart, tag_field="type", tag="text"):
    """A text."""

    text: str
    time: PartTime | UnsetType = UNSET
    synthetic: bool | UnsetType = UNSET


class ReasoningPart(AnyPart, tag_field="type", tag="reasoning"):
    """A thought."""

    text: str
    time: PartTime


class FilePart(AnyPart, tag_field="type", tag="file"):
    """A file, by its address or as data."""

    mime: str
    url: str
    filename: str | UnsetType = UNSET
    source: Object | UnsetType = UNSET


class AgentPart(AnyPart, tag_field="type", tag="agent"):
    """A mention of an agent."""

    name: str


class ToolPart(AnyPart, tag_field="type", tag="tool"):
    """A tool call."""

    call_id: str
    tool: str
    state: "ToolState"


class StepStartPart(AnyPart, tag_field="type", tag="step-start"):
    """The beginning of an agent's turn."""


class StepFinishPart(AnyPart, tag_field="type", tag="step-finish"):
    """The end of an agent's turn."""

    reason: str
    cost: float
    tokens: Tokens


class CompactionPart(AnyPart, tag_field="type", tag="compaction"):
    """A request to the agent to shorten its memory."""

    auto: bool = False


Part = TextPart | ReasoningPart | FilePart | AgentPart | ToolPart | StepStartPart | StepFinishPart | CompactionPart


class Pending(Shape, tag_field="status", tag="pending"):
    """A tool call that has not begun."""

    input: Object
    raw: str = ""


class Running(Shape, tag_field="status", tag="running"):
    """A tool call that runs."""

    input: Object
    title: str
    metadata: Object
    time: PartTime


class Completed(Shape, tag_field="status", tag="completed"):
    """A tool call that has succeeded."""

    input: Object
    output: str
    title: str
    metadata: Object
    time: PartTime


class Failed(Shape, tag_field="status", tag="error"):
    """A tool call that has failed."""

    input: Object
    error: str
    metadata: Object
    time: PartTime


ToolState = Pending | Running | Completed | Failed


class Message(Shape):
    """A message with its parts."""

    info: Info
    parts: list[Part]


class Todo(Shape):
    """An entry of a plan."""

    content: str
    status: str
    priority: str


# --- requests of agents -----------------------------------------------------------------------------------------------


class ToolRef(Shape):
    """The tool call that a request is about."""

    message_id: str
    call_id: str


class PermissionRequest(Shape):
    """An agent's request for permission."""

    id: str
    session_id: str
    permission: str
    patterns: list[str]
    metadata: Object
    always: list[str]
    tool: ToolRef | UnsetType = UNSET


class QuestionOption(Shape):
    """One of the offered answers."""

    label: str
    description: str


class QuestionInfo(Shape):
    """One question."""

    question: str
    header: str
    options: list[QuestionOption]
    multiple: bool
    custom: bool


class QuestionRequest(Shape):
    """An agent's request with questions."""

    id: str
    session_id: str
    questions: list[QuestionInfo]
    tool: ToolRef | UnsetType = UNSET


Reply = Literal["once", "always", "reject"]


# --- bodies of requests -----------------------------------------------------------------------------------------------


class NewSession(Shape):
    """The body of `POST /session`."""

    parent_id: str | UnsetType = UNSET
    title: str | UnsetType = UNSET
    agent: str | UnsetType = UNSET
    model: ModelRef | UnsetType = UNSET
    permission: list[Object] | UnsetType = UNSET
    metadata: Object | UnsetType = UNSET


class ChangedTime(Shape):
    """The time at which a session was archived; null unarchives it."""

    archived: int | float | UnsetType | None = UNSET


class SessionChange(Shape):
    """The body of `PATCH /session/{id}`."""

    title: str | UnsetType = UNSET
    permission: list[Object] | UnsetType = UNSET
    metadata: Object | UnsetType = UNSET
    time: ChangedTime | UnsetType = UNSET


class PromptBody(Shape):
    """The body of a prompt."""

    parts: list[Object]
    message_id: str | UnsetType = UNSET
    model: MessageModel | UnsetType = UNSET
    agent: str | UnsetType = UNSET
    no_reply: bool = False


class CommandBody(Shape):
    """The body of a slash command; `model` is a provider and a model with a slash between them."""

    command: str
    arguments: str = ""
    message_id: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    agent: str | UnsetType = UNSET
    parts: list[Object] = []


class ShellBody(Shape):
    """The body of a command for the host's shell."""

    command: str
    agent: str | UnsetType = UNSET
    model: MessageModel | UnsetType = UNSET
    message_id: str | UnsetType = UNSET


class InitBody(Shape):
    """The body of `POST /session/{id}/init`."""

    provider_id: str
    model_id: str
    message_id: str | UnsetType = UNSET


class ForkBody(Shape):
    """The body of `POST /session/{id}/fork`."""

    message_id: str | UnsetType = UNSET


class PermissionReply(Shape):
    """The reply to a request for permission."""

    reply: str
    message: str | UnsetType = UNSET


class PermissionResponse(Shape):
    """The reply to a request for permission, on the older route."""

    response: str


class QuestionReply(Shape):
    """The answers to questions: labels of options, or free texts."""

    answers: list[list[str]]
