"""What happens in a session, as pieces to be shown. Pure: items in, pieces out.

Keeps what it needs to tell changes from repetitions: tool calls, plans, whose turn it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import NamedTuple

from sandbox_agent.cli.calling import CLIENT
from sandbox_agent.cli.output import one_line
from sandbox_agent.cli.talk.pieces import Line, Note, Piece, Span, Speech, count_changes, joined, note, spoken
from sandbox_agent.client import Decision, Gap, SessionEnded, SessionItem, TurnEnded, TurnStarted
from sandbox_agent.client.updates import ContentBlock
from sandbox_agent.envelope import Object, text_at
from sandbox_agent.wire.acp import (
    AgentMessageChunk,
    AgentPlanContentUpdate,
    AgentPlanUpdate,
    AgentThoughtChunk,
    AudioContentBlock,
    AvailableCommandsUpdate,
    CurrentModeUpdate,
    EmbeddedResourceContentBlock,
    FileEditToolCallContent,
    ImageContentBlock,
    PlanEntry,
    PlanUpdateItems,
    PlanUpdateMarkdown,
    PromptResponse,
    ResourceContentBlock,
    TextContentBlock,
    ToolCallProgress,
    ToolCallStart,
    ToolCallUpdate,
    UsageUpdate,
    UserMessageChunk,
)

_NAMES = (CLIENT, "sandbox-agent-python")
MOST_FILES = 3
"""Files of one tool call that are named on its line."""


class Marks(NamedTuple):
    """Signs in front of lines."""

    pending: str = "○"
    in_progress: str = "●"
    completed: str = "✔"
    failed: str = "✘"
    person: str = "❯"
    asks: str = "?"


ASCII = Marks("o", "*", "+", "x", ">", "?")
"""For streams that have no others."""

_STYLES = {"pending": "dim", "in_progress": "yellow", "completed": "green", "failed": "red"}
STOPPED = {
    "cancelled": "cancelled",
    "refusal": "the agent refuses to continue",
    "max_tokens": "stopped: the answer reached the model's length limit",
    "max_turn_requests": "stopped: the agent reached its limit of model requests per turn",
}
"""The notes about turns that did not end normally."""


@dataclass(slots=True)
class ToolCall:
    """What is known of a tool call by now."""

    title: str = ""
    kind: str | None = None
    status: str = "pending"
    edits: list[FileEditToolCallContent] = field(default_factory=list[FileEditToolCallContent])

    @property
    def is_over(self) -> bool:
        return self.status in ("completed", "failed")

    def update(self, change: ToolCallStart | ToolCallProgress | ToolCallUpdate) -> None:
        """Take over what an update says."""
        self.title = change.title or self.title
        self.kind = change.kind or self.kind
        self.status = change.status or self.status
        if change.content is not None:
            self.edits = [each for each in change.content if isinstance(each, FileEditToolCallContent)]


class Showing:
    """The state of what was shown of one session.

    With `static`, nothing can be redrawn: only the end of a tool call is shown.
    """

    def __init__(self, marks: Marks, *, static: bool = False, cwd: str = "") -> None:
        self.cwd = cwd
        """The session's directory: what is in it is shown without."""
        self._marks = marks
        self._static = static
        self._calls: dict[str, ToolCall] = {}
        self._plans: dict[str, Sequence[PlanEntry]] = {}
        self._message: tuple[str, str | None] | None = None
        """Who speaks, and in which message."""
        self.answered_here = 0
        """How many answers of this client have not been told of yet: who has given them knows."""
        self.usage: UsageUpdate | None = None
        self.commands: list[tuple[str, str]] = []
        """Names and descriptions of the agent's own commands."""

    def pieces(self, item: SessionItem) -> list[Piece]:
        """What is to be seen of an item."""
        match item:
            case AgentMessageChunk() | AgentThoughtChunk() | UserMessageChunk():
                return self._chunk(item)
            case UsageUpdate():
                self.usage = item
                return []
            case AvailableCommandsUpdate():
                self.commands = [(one_line(each.name), one_line(each.description)) for each in item.available_commands]
                return []
            case _:
                shown = self._note(item)
                if shown:
                    self._message = None
                return shown

    def _note(self, item: SessionItem) -> list[Piece]:
        match item:
            case ToolCallStart() | ToolCallProgress():
                return self._tool_call(item)
            case AgentPlanUpdate():
                return self._plan("plan", item.entries)
            case AgentPlanContentUpdate():
                return self._plan_of(item)
            case CurrentModeUpdate():
                return [note(f"mode: {one_line(item.current_mode_id)}", "dim")]
            case Decision():
                return self._decision(item)
            case TurnStarted():
                self._message = None
                return []
            case TurnEnded():
                self._message = None
                return self.end(item)
            case SessionEnded():
                return [note(ended(item), "dim")]
            case Gap():
                return [note("earlier events are no longer kept", "dim")]
            case _:
                return []

    # What is said

    def _chunk(self, item: AgentMessageChunk | AgentThoughtChunk | UserMessageChunk) -> list[Piece]:
        message = item.session_update, item.message_id
        new, self._message = message != self._message, message
        text = content(item.content)
        match item:
            case AgentMessageChunk():
                return [Speech("agent", text, new)] if text else []
            case AgentThoughtChunk():
                return [Speech("thought", text, new)] if text else []
            case UserMessageChunk():
                return [self._prompt(item.content, new=new)]

    def prompt(self, blocks: Sequence[ContentBlock]) -> list[Piece]:
        """What was said to the agent."""
        self._message = None
        return [self._prompt(block, new=index == 0) for index, block in enumerate(blocks)]

    def _prompt(self, block: ContentBlock, *, new: bool) -> Speech:
        # What is no text stands on a line of its own.
        before = f"{self._marks.person} " if new else "" if isinstance(block, TextContentBlock) else "\n"
        return Speech("person", (before + content(block)).replace("\n", "\n  "), new)

    # What is done

    def _tool_call(self, item: ToolCallStart | ToolCallProgress) -> list[Piece]:
        was = self._calls.get(item.tool_call_id)
        call = self._calls.setdefault(item.tool_call_id, ToolCall())
        before = None if was is None else self.line(call)
        call.update(item)
        line = self.line(call)
        if line == before:
            return []
        if self._static:
            return [Note([line])] if call.is_over else []
        return [Note([line], key=call_key(item.tool_call_id), brief=[line] if call.is_over else [])]

    def line(self, call: ToolCall) -> Line:
        """A tool call on one line: how it stands, what it is, and what it changes."""
        mark = getattr(self._marks, call.status)
        spans = [Span(mark, _STYLES[call.status]), Span(f" {one_line(call.title) or call.kind or 'tool call'}")]
        if call.kind not in (None, "other"):
            spans.append(Span(f"  {call.kind}", "dim"))
        return [*spans, *self._edits(call.edits)]

    def _edits(self, edits: Sequence[FileEditToolCallContent]) -> list[Span]:
        spans: list[Span] = []
        for edit in edits[:MOST_FILES]:
            added, removed = count_changes(edit.old_text, edit.new_text)
            spans += [Span("  "), Span(f"+{added}", "green"), Span(" "), Span(f"-{removed}", "red")]
            spans.append(Span(f" {self.path(edit.path)}"))
        if len(edits) > MOST_FILES:
            spans.append(Span(f"  and {len(edits) - MOST_FILES} more files", "dim"))
        return spans

    def path(self, path: str) -> str:
        """A path as it is seen from the session's directory."""
        inside = bool(self.cwd) and PurePath(path).is_relative_to(self.cwd)
        return one_line(str(PurePath(path).relative_to(self.cwd)) if inside else path)

    def unfinished(self) -> list[Piece]:
        """Tool calls that have not come to an end, for when their turn has: the last word about them."""
        lines = [self.line(call) for call in self._calls.values() if not call.is_over]
        self._calls.clear()
        return [Note(lines)] if lines and self._static else []

    def _plan(self, key: str, entries: Sequence[PlanEntry]) -> list[Piece]:
        before, self._plans[key] = self._plans.get(key, ()), entries
        if list(before) == list(entries):
            return []
        lines = [self._entry(entry) for entry in entries]
        same = [entry.content for entry in before] == [entry.content for entry in entries]
        changed = [line for line, old, new in zip(lines, before, entries, strict=False) if old.status != new.status]
        brief = changed if same else lines
        return [Note(brief) if self._static else Note(lines, key=key, brief=brief)]

    def _entry(self, entry: PlanEntry) -> Line:
        style = "dim" if entry.status == "completed" else ""
        return [
            Span("  "),
            Span(getattr(self._marks, entry.status), _STYLES[entry.status]),
            Span(f" {one_line(entry.content)}", style),
        ]

    def _plan_of(self, item: AgentPlanContentUpdate) -> list[Piece]:
        match item.plan:
            case PlanUpdateItems() as plan:
                return self._plan(f"plan {plan.plan_id}", plan.entries)
            case PlanUpdateMarkdown() as plan:
                return [Note([[Span(f"  {line}")] for line in spoken(plan.content).splitlines()])]
            case plan:
                return [note(f"plan: {one_line(plan.uri)}", "dim")]

    # What is decided

    def _decision(self, item: Decision) -> list[Piece]:
        who = decider(item.by)
        if self.answered_here and text_at(item.by, "client") in _NAMES:
            self.answered_here -= 1
            return []
        if who is None:
            return []
        allowed = (text_at(item.raw, "optionKind") or "").startswith("allow") or (
            item.kind != "permission" and item.outcome == "answered"
        )
        call = self._calls.get(text_at(item.raw, "toolCallId") or "")
        about = f"{one_line(call.title)}: " if call is not None and call.title else ""
        word = "answered" if item.kind != "permission" and allowed else "allowed" if allowed else "rejected"
        reason = f": {one_line(item.reason)}" if item.reason and item.by.get("kind") in ("rule", "client") else ""
        mark = Span(*((self._marks.completed, "green") if allowed else (self._marks.failed, "red")))
        return [note(f"{about}{word} {who}{reason}", "dim", mark)]

    def end(self, item: TurnEnded) -> list[Piece]:
        """How a turn ended, unless that is as it should be."""
        rest = self.unfinished()
        if item.error is not None:
            message = one_line(text_at(item.error, "message") or "the turn failed")
            return [*rest, note(message, "red", Span(self._marks.failed, "red"))]
        if item.stop_reason in (None, "end_turn"):
            return rest
        return [*rest, note(STOPPED.get(item.stop_reason, f"stopped: {one_line(item.stop_reason)}"), "yellow")]


def call_key(id: str) -> str:
    """The key of the line of a tool call, which a question about it takes over."""
    return f"call {id}"


def content(block: ContentBlock) -> str:
    """A block of content as text."""
    match block:
        case TextContentBlock():
            return block.text
        case ResourceContentBlock():
            return one_line(f"[{block.title or block.name}]({block.uri})")
        case EmbeddedResourceContentBlock():
            return one_line(f"[{PurePath(block.resource.uri).name or block.resource.uri}]({block.resource.uri})")
        case ImageContentBlock() | AudioContentBlock():
            kind = "image" if isinstance(block, ImageContentBlock) else "audio"
            return one_line(f"[{kind}: {block.mime_type}, {len(block.data) * 3 // 4:,} bytes]")


def decider(by: Object) -> str | None:
    """Who settled a request, for people; None when that goes without saying."""
    match by.get("kind"):
        case "rule":
            name = text_at(by, "name")
            return f"by rule {by.get('rule')} of the {by.get('source')}" + (f" ({one_line(name)})" if name else "")
        case "client":
            named = [text_at(by, "user"), text_at(by, "client")]
            return "by " + one_line(joined((each for each in named if each), ", ") or str(by.get("name")))
        case "timeout":
            return "because no answer came in time"
        case "limit":
            return "because the rules took too long"
        case _:
            return None


def ended(item: SessionEnded) -> str:
    """How a session ended."""
    how = {"closed": "the session was closed", "terminated": "the session was terminated"}
    return how.get(item.reason, f"the session has ended: {one_line(item.message or item.reason)}")


def spent(response: PromptResponse | None, usage: UsageUpdate | None) -> str:
    """What a turn has used up, as far as the agent says."""
    facts: list[str] = []
    if response is not None and response.usage is not None:
        told = response.usage
        facts.append(f"{told.total_tokens:,} tokens ({told.input_tokens:,} in, {told.output_tokens:,} out)")
    if usage is not None and usage.size:
        facts.append(f"context {100 * usage.used / usage.size:.0f}% of {usage.size:,}")
    if usage is not None and usage.cost is not None and usage.cost.amount:
        facts.append(f"{usage.cost.amount:.4f} {one_line(usage.cost.currency)}")
    return joined(facts)
