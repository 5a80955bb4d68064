"""Represent a session at one moment, as an app draws it.

`SessionReducer` makes it from the log. The values never change: a later moment is another view, which shares with this
one everything that is the same. So `is` tells whether a turn or an item has to be drawn again. The TypeScript SDK has
the same view, with the same JSON: a member without a value is not in it.

Times are texts as the server writes them: UTC, ISO 8601 with milliseconds. `datetime.fromisoformat` parses them.
"""

import json
from typing import Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field

from sandboxagent.client.errors import InvalidCall
from sandboxagent.protocol.envelope import Object

T = TypeVar("T")
Number: TypeAlias = int | float
SessionStatus: TypeAlias = Literal["running", "waiting", "idle", "ended"]
"""The state of a session. It is `waiting` if a request to a person is open."""


def _kept(value: T) -> T:
    """Return a default that stays in the JSON, unlike None."""
    return field(default_factory=lambda: value)


def _empty(of: type[T]) -> T:
    """Return an empty default that stays in the JSON, unlike the default of `dict` itself."""
    return field(default_factory=of)


class _Value(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of a view. Its members that are None are not in its JSON."""


class EventRange(_Value, frozen=True):
    """The events that something came from."""

    first: int = _kept(0)
    """Position of the first event; 0 if there is none."""
    last: int = _kept(0)
    """Position of the last event; 0 if there is none."""
    count: int = _kept(0)
    """Number of the events."""

    @classmethod
    def of(cls, first: int, *later: int) -> "EventRange":
        """Return the range of some positions, which must rise."""
        return cls(first=first, last=(first, *later)[-1], count=1 + len(later))

    def plus(self, position: int, count: int = 1) -> "EventRange":
        """Return this range and further events, of which the last is at `position`."""
        return EventRange(first=self.first if self.count else position, last=position, count=self.count + count)


class Context(_Value, frozen=True):
    """The fill level of an agent's context window, in tokens."""

    used: Number
    """Number of tokens that the context contains."""
    size: Number
    """Number of tokens that the context can contain."""


class Cost(_Value, frozen=True):
    """An amount of money that a session has cost."""

    amount: Number
    """The amount, in units of the currency."""
    currency: str
    """Currency in ISO 4217, such as `USD`."""


class TokenCounts(_Value, frozen=True):
    """Numbers of tokens."""

    total: Number
    """Number of all tokens."""
    input: Number
    """Number of tokens that the model read."""
    output: Number
    """Number of tokens that the model wrote."""
    thought: Number | None = None
    """Number of tokens that the model thought with."""
    cache_read: Number | None = None
    """Number of input tokens that came from a cache."""
    cache_write: Number | None = None
    """Number of input tokens that were put into a cache."""


class SessionUsage(_Value, frozen=True):
    """Tokens and cost of a session. Each is None if its agent does not report it."""

    context: Context | None = None
    """Tokens in the context now, and how many fit."""
    tokens: TokenCounts | None = None
    """The tokens of all turns."""
    cost: Cost | None = None
    """The cost of the session."""


class AttachedFile(_Value, frozen=True):
    """A file that a prompt names."""

    path: str
    """Path of the file, as the prompt has it."""
    mime: str | None = None
    """Media type of the file."""
    filename: str | None = None
    """Name to show for the file."""


class _Item(_Value, frozen=True, tag_field="type"):
    """The members of every item."""

    key: str
    """Unique in its session, and the same at every moment."""
    events: EventRange
    """The events that it came from."""
    at: str
    """The time when it began."""

    @property
    def type(self) -> str:
        """The type of the item, as in its JSON: `user`, `text`, `tool` and so on."""
        return str(self.__struct_config__.tag)


class UserItem(_Item, frozen=True, tag="user"):
    """A prompt, of a person or of a program."""

    blocks: tuple[Object, ...]
    """The prompt's content, as ACP's content blocks."""
    attachments: tuple[AttachedFile, ...]
    """Files that the prompt names."""


class TextItem(_Item, frozen=True, tag="text"):
    """A piece of the agent's message, as Markdown, as far as it has arrived."""

    text: str
    """The text."""
    message_id: str | None = None
    """The agent's id of the message, if it gives one."""


class ThoughtItem(_Item, frozen=True, tag="thought"):
    """A piece of the agent's thinking."""

    text: str
    """The text."""
    until: str
    """The time of its newest piece."""
    message_id: str | None = None
    """The agent's id of the message, if it gives one."""


class ContentItem(_Item, frozen=True, tag="content"):
    """Content of the agent's message that is no text: an image, a link, a resource."""

    block: Object
    """The content, as a content block of ACP."""


ToolCallKind: TypeAlias = Literal[
    "read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"
]
"""The kind of a tool call."""
ToolCallState: TypeAlias = Literal["pending", "in_progress", "completed", "failed"]
"""How far a tool call is."""


class ToolCallItem(_Item, frozen=True, tag="tool"):
    """An action of the agent."""

    tool_call_id: str
    """The agent's id of the action."""
    title: str
    """Description of the action, for people."""
    kind: ToolCallKind
    """The kind of the action. Choose an icon by it."""
    status: ToolCallState
    """How far it is. In a turn that has ended, `pending` and `in_progress` mean that it was stopped."""
    content: tuple[Object, ...]
    """Texts, pictures, diffs and terminals to show, as ACP has them."""
    locations: tuple[Object, ...]
    """Files that it works on, as ACP has them."""
    raw_input: object = None
    """The agent's own arguments."""
    raw_output: object = None
    """The agent's own result."""
    meta: Object | None = None
    """The members that the agent adds in `_meta`."""
    ended_at: str | None = None
    """The time when it was completed or failed, or when its turn ended before that."""
    request_key: str | None = None
    """Key of the permission request for it."""


class PlanItem(_Item, frozen=True, tag="plan"):
    """The plan after a change. Changes in a row are one item."""

    entries: tuple[Object, ...]
    """The steps of the plan, as ACP has them."""


class RequestDecision(_Value, frozen=True):
    """The outcome of a request."""

    outcome: str
    """`answered`, `rejected`, `cancelled`, or `unknown` if it can no longer be answered and the log does not say
    why."""
    at: str
    """The time of the decision."""
    option_id: str | None = None
    """For a permission: id of the chosen option."""
    option_kind: str | None = None
    """For a permission: kind of the chosen option, such as `allow_once`."""
    answers: tuple[object, ...] | None = None
    """For a question: a list for each question, with ids or texts."""
    content: Object | None = None
    """For a form: the values of its fields."""
    reason: str | None = None
    """Reason that a person or the server gave."""
    by: Object | None = None
    """Who or what decided, by `kind`. None between an answer and the server's decision about it."""


class RequestItem(_Item, frozen=True, tag="request"):
    """A request of the agent to a person. Its kind says which of the further members it has."""

    kind: Literal["permission", "question", "elicitation"]
    """The kind of the request; `elicitation` is a form or an address."""
    agent_request_id: str | Number
    """The agent's own id of it, under which the log has it. Another request may have the same."""
    turn_key: str
    """Key of its turn."""
    request_id: str | None = None
    """The id to answer it by (`client.reply_permission(id, …)`), while it can be answered."""
    decision: RequestDecision | None = None
    """Its outcome; None while it is open."""
    tool_call: Object | None = None
    """For a permission: the action that it asks for, as the request has it."""
    options: tuple[Object, ...] | None = None
    """For a permission: the answers to choose from, as ACP has them."""
    prompt: str | None = None
    """For a question: all of it as one text."""
    questions: tuple[Object, ...] | None = None
    """For a question: each question, with `question`, `options`, `multiSelect` and maybe `header`."""
    question_id: str | None = None
    """For a question: the agent's id of it."""
    tool_call_id: str | None = None
    """For a question: the tool call that asks, if the agent names it."""
    message: str | None = None
    """For a form: its purpose."""
    mode: str | None = None
    """For a form: `form` or `url`."""
    schema: Object | None = None
    """For a form: its JSON schema, a flat object."""
    url: str | None = None
    """For a form: the address to visit."""


class FailureItem(_Item, frozen=True, tag="failure"):
    """A turn failed, or the agent's process died."""

    message: str
    """Description of the failure, for people."""
    code: Number | None = None
    """The code of the error."""
    exit_code: Number | None = None
    """The exit code of the agent's process."""
    signal: str | None = None
    """The signal that ended the agent's process."""
    stderr: Object | None = None
    """The first and the last lines that the agent's process wrote to stderr."""
    data: object = None
    """Further facts of the error."""


NoticeSubject: TypeAlias = Literal["mode", "option", "ended", "resumed", "decision", "unparsed", "agent", "unknown"]
"""The subject of a notice; `unknown` is an update of a kind that the SDK does not know."""


class NoticeItem(_Item, frozen=True, tag="notice"):
    """A fact worth a line."""

    about: NoticeSubject
    """The subject of the fact."""
    text: str
    """The fact, for people."""


class GapItem(_Item, frozen=True, tag="gap"):
    """Events that are missing here: they were deleted from the log, or the view began after them."""

    after: int
    """Position of the last event before the gap."""
    resumes_at: int
    """Position of the first event after the gap."""


ViewItem: TypeAlias = (
    UserItem
    | TextItem
    | ThoughtItem
    | ContentItem
    | ToolCallItem
    | PlanItem
    | RequestItem
    | FailureItem
    | NoticeItem
    | GapItem
)
"""Something in a turn. `match` it by its class, or read its `type`."""


class TurnError(_Value, frozen=True):
    """The error of a turn that failed."""

    code: Number
    """The code of the error."""
    message: str
    """Description of the error, for people."""


TurnState: TypeAlias = Literal["running", "ended", "cancelled", "failed", "outside"]
"""The state of a turn; `outside` marks events that belong to no turn."""


class TurnView(_Value, frozen=True):
    """A prompt and its results. Events outside of turns are in turns of their own, whose state is `outside`."""

    key: str
    """Unique in its session, and the same at every moment."""
    state: TurnState
    """Whether it runs, has ended in one of three ways, or is no turn."""
    started_at: str
    """The time when it started. If its start is not known, the time of its first known event."""
    never_began: bool
    """Whether its prompt was withdrawn before its turn."""
    events: EventRange
    """Events of the turn itself: its prompt, start, end and result."""
    items: tuple[ViewItem, ...]
    """Everything in it, oldest first."""
    turn_id: str | None = None
    """The server's id of the turn; None outside of turns."""
    prompt_id: str | None = None
    """The id that the client gave to its prompt."""
    ended_at: str | None = None
    """The time when it ended."""
    stop_reason: str | None = None
    """Why the agent stopped, such as `end_turn`."""
    error: TurnError | None = None
    """The error of a turn that failed."""
    tokens: TokenCounts | None = None
    """Tokens of this turn, if its agent counts them."""


class QueuedPrompt(_Value, frozen=True):
    """A prompt that waits for the turns before it."""

    key: str
    """The key that its turn will have."""
    event: int
    """Position of the prompt."""
    at: str
    """The time when it was sent."""
    blocks: tuple[Object, ...]
    """The prompt's content, as ACP's content blocks."""
    attachments: tuple[AttachedFile, ...]
    """Files that the prompt names."""
    prompt_id: str | None = None
    """The id that the client gave to its prompt."""


class TerminalExit(_Value, frozen=True):
    """The end of a command."""

    exit_code: Number | None = None
    """Its exit code."""
    signal: str | None = None
    """The signal that ended it."""


class TerminalView(_Value, frozen=True):
    """A command in a terminal of the server, or in one of the agent."""

    terminal_id: str
    """Id of the terminal."""
    command: str
    """The command."""
    args: tuple[str, ...]
    """The command's arguments."""
    output: str
    """Its output, as far as the agent has read it; of an agent's own terminal, the end of it."""
    truncated: bool
    """Whether the beginning of the output is missing."""
    released: bool
    """Whether the agent has released the terminal."""
    events: EventRange
    """The events that it came from."""
    cwd: str | None = None
    """The directory that the command runs in."""
    exit: TerminalExit | None = None
    """How it ended; None while it runs."""


class FileWrite(_Value, frozen=True):
    """A file that the server wrote for the agent."""

    path: str
    """Path of the file."""
    new_text: str
    """Its text after the write."""
    turn_key: str
    """Key of the turn in which it was written."""
    at: str
    """The time when the agent asked for it."""
    events: EventRange
    """The events that it came from."""
    old_text: str | None = None
    """Its text before the write; None if the log does not have it."""
    done: bool | None = None
    """Whether it was written; None until the server has answered."""


class SessionEnd(_Value, frozen=True):
    """The end of a session."""

    reason: str
    """Why it ended: `error`, `closed`, `deleted` or `terminated`."""
    terminated_by: str
    """Who ended it: `agent`, `client` or `daemon` (the server)."""
    at: str
    """The time when it ended."""
    message: str | None = None
    """Explanation for people."""
    exit_code: Number | None = None
    """The exit code of its process."""
    signal: str | None = None
    """The signal that ended its process."""
    stderr: Object | None = None
    """The first and the last lines that its process wrote to stderr."""


class OpenCall(_Value, frozen=True):
    """A request whose answer is not in the log yet."""

    event: int
    """Position of the request."""
    id: str | Number
    """Its JSON-RPC id."""
    from_agent: bool
    """Whether the agent sent it."""
    method: str
    """Its method."""
    params: Object
    """Its params."""


class SessionView(_Value, frozen=True):
    """A session at one moment. Without members, it is one of which nothing is known."""

    position: int = _kept(0)
    """Position of the last event that is in it; 0 before the first one."""
    time: str = _kept("")
    """The time of that event; empty before the first one."""
    status: SessionStatus = _kept("idle")
    """Whether it runs, waits for a person, is idle, or has ended."""
    agent: str | None = None
    """Its agent's id, as the request that made the session has it."""
    cwd: str | None = None
    """Its directory, on the server's machine."""
    title: str | None = None
    """Its title: the agent's, or the one it was made with."""
    turns: tuple[TurnView, ...] = _kept(())
    """All prompts and their results, oldest first."""
    queue: tuple[QueuedPrompt, ...] = _kept(())
    """Prompts that wait for the turns before them."""
    plan: tuple[Object, ...] | None = None
    """The newest plan, as ACP has it."""
    pending: tuple[RequestItem, ...] = _kept(())
    """Requests that wait for a person, oldest first. The same objects are in their turns."""
    usage: SessionUsage = _kept(SessionUsage())
    """Tokens and cost of the whole session."""
    modes: Object | None = None
    """The modes that its agent offers, and the current one, as ACP has them."""
    config_options: tuple[Object, ...] = _kept(())
    """The agent's options, with their current values, as ACP has them."""
    commands: tuple[Object, ...] = _kept(())
    """The agent's slash commands, as ACP has them."""
    metadata: Object = _empty(dict[str, object])
    """Facts that clients keep with the session."""
    terminals: dict[str, TerminalView] = _empty(dict[str, TerminalView])
    """Commands in terminals of the server or of the agent, by the ids of the terminals."""
    writes: tuple[FileWrite, ...] = _kept(())
    """Files that the server wrote for the agent (`fs/write_text_file`)."""
    ended: SessionEnd | None = None
    """How it ended; None if it has not ended, or was resumed."""
    calls: tuple[OpenCall, ...] = _kept(())
    """Requests whose answer is not in the log yet. The reducer needs them to continue."""
    texts: dict[str, str] = _empty(dict[str, str])
    """The newest text of each file that the server read or wrote for the agent. The reducer needs it to continue."""

    def to_json(self) -> str:
        """Return the view as JSON, to store it or to send it to a browser."""
        try:
            return msgspec.json.encode(self).decode()
        except UnicodeEncodeError:
            # An agent cut a character in half.
            return json.dumps(msgspec.to_builtins(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> "SessionView":
        """Return a stored view. Raises InvalidCall if the text is none."""
        try:
            try:
                return msgspec.json.decode(text, type=cls)
            except (msgspec.DecodeError, UnicodeError):
                return msgspec.convert(json.loads(text), cls)
        except (ValueError, RecursionError) as error:
            raise InvalidCall(f"this is no view of a session: {error}") from error
