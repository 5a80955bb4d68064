"""Turn the events of a session into blocks for the screen.

Pure. It keeps the state that tells changes from repetitions: tool calls, plans and the last speaker.
"""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Literal, NamedTuple

from sandboxagent import Decision, Gap, SessionEnded, SessionItem, TurnEnded, TurnStarted
from sandboxagent.cli.call import CLIENT
from sandboxagent.cli.chat.blocks import (
    Block,
    Line,
    Note,
    ShownCall,
    Span,
    StreamedText,
    WorkDone,
    content,
    count_changes,
    join_facts,
    note,
    plain,
    spoken,
    work_of,
)
from sandboxagent.cli.output import one_line
from sandboxagent.client.updates import FINAL, ContentBlock
from sandboxagent.protocol.acp import (
    AgentMessageChunk,
    AgentPlanContentUpdate,
    AgentPlanUpdate,
    AgentThoughtChunk,
    AvailableCommandsUpdate,
    Cost,
    CurrentModeUpdate,
    FileEditToolCallContent,
    PlanEntry,
    PlanUpdateItems,
    PlanUpdateMarkdown,
    PromptResponse,
    TextContentBlock,
    ToolCallProgress,
    ToolCallStart,
    UsageUpdate,
    UserMessageChunk,
)
from sandboxagent.protocol.envelope import Object, text_at

_NAMES = (CLIENT, "sandbox-agent-python")
MAX_FILES = 3
"""Maximum number of a tool call's files that its line names."""


class Marks(NamedTuple):
    """Characters at the start of lines."""

    pending: str = "○"
    in_progress: str = "●"
    completed: str = "✔"
    failed: str = "✘"
    person: str = "❯"
    asks: str = "?"


ASCII = Marks("o", "*", "+", "x", ">", "?")
"""Marks for streams that are not UTF-8."""

_STYLES = {"pending": "dim", "in_progress": "yellow", "completed": "green", "failed": "red"}
STOPPED = {
    "cancelled": "cancelled",
    "refusal": "the agent refuses to continue",
    "max_tokens": "stopped: the answer reached the model's length limit",
    "max_turn_requests": "stopped: the agent reached its limit of model requests per turn",
}
"""Notes about turns that did not end normally, by stop reason."""


Shown = Literal["hidden", "folded", "whole"]
MAX_SAID = 10_000
"""Maximum number of characters of the agent's text that are kept, to notice an error that repeats it."""
MAX_KEPT = 4 << 20
"""Maximum number of characters of folded text that are kept for `/show`."""


class Showing:
    """The state of the text shown of one session.

    With `static`, nothing can be redrawn, so a tool call is shown only at its end. `work` says how much of a tool
    call's work is shown below its line.
    """

    def __init__(self, marks: Marks, *, static: bool = False, cwd: str = "", work: Shown = "folded") -> None:
        self.cwd = cwd
        """The session's directory. Paths inside of it are shown relative to it."""
        self.unfolds = False
        """Whether the user can type `/show`."""
        self._marks = marks
        self._static = static
        self._work = work
        self._calls: dict[str, ShownCall] = {}
        self._asked: set[str] = set()
        """Ids of calls whose work a permission request has shown."""
        self._folded: dict[int, Sequence[Line]] = {}
        """Folded texts in full, by their numbers."""
        self._foldings = 0
        self._plans: dict[str, Sequence[PlanEntry]] = {}
        self._message: tuple[str, str | None] | None = None
        """The kind and the id of the last message."""
        self.said = ""
        """The end of the agent's text in this turn."""
        self.answered_here = 0
        """Number of answers given here whose decisions have not arrived. Such decisions are not shown."""
        self.spending = Spending()
        self.commands: list[tuple[str, str]] = []
        """Names and descriptions of the agent's own commands."""

    def blocks(self, item: SessionItem) -> list[Block]:
        """Return the blocks to show for an item."""
        match item:
            case AgentMessageChunk() | AgentThoughtChunk() | UserMessageChunk():
                return self._chunk(item)
            case UsageUpdate():
                self.spending.usage = item
                return []
            case AvailableCommandsUpdate():
                self.commands = [(one_line(each.name), one_line(each.description)) for each in item.available_commands]
                return []
            case _:
                shown = self._note(item)
                if shown:
                    self._message = None
                return shown

    def _note(self, item: SessionItem) -> list[Block]:
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
                self._message, self.said = None, ""
                self.spending.begin_turn()
                return []
            case TurnEnded():
                self._message = None
                return self.end(item)
            case SessionEnded():
                return [note(describe_end(item), "dim")]
            case Gap():
                return [note("earlier events were deleted from the log", "dim")]
            case _:
                return []

    # Messages

    def _chunk(self, item: AgentMessageChunk | AgentThoughtChunk | UserMessageChunk) -> list[Block]:
        message = item.session_update, item.message_id
        new, self._message = message != self._message, message
        text = content(item.content)
        match item:
            case AgentMessageChunk():
                self.said = (self.said + text)[-MAX_SAID:]
                return [StreamedText("agent", text, new)] if text else []
            case AgentThoughtChunk():
                return [StreamedText("thought", text, new)] if text else []
            case UserMessageChunk():
                return [self._prompt(item.content, new=new)]

    def prompt(self, blocks: Sequence[ContentBlock]) -> list[Block]:
        """Return the blocks of a prompt."""
        self._message = None
        return [self._prompt(block, new=index == 0) for index, block in enumerate(blocks)]

    def _prompt(self, block: ContentBlock, *, new: bool) -> StreamedText:
        # Content other than text gets a line of its own.
        before = f"{self._marks.person} " if new else "" if isinstance(block, TextContentBlock) else "\n"
        return StreamedText("person", (before + content(block)).replace("\n", "\n  "), new)

    # Tool calls and plans

    def _tool_call(self, item: ToolCallStart | ToolCallProgress) -> list[Block]:
        was = self._calls.get(item.tool_call_id)
        call = self._calls.setdefault(item.tool_call_id, ShownCall())
        before = None if was is None else self.line(call)
        call.update(item)
        line = self.line(call)
        if line == before:
            return []
        lines = [line, *self._work_of(item.tool_call_id, call)] if call.is_over else [line]
        if self._static:
            return [Note(lines)] if call.is_over else []
        return [Note(lines, key=call_key(item.tool_call_id), brief=lines if call.is_over else [])]

    def _work_of(self, id: str, call: ShownCall) -> Sequence[Line]:
        """Return the lines to show below the line of a finished call."""
        if self._work == "hidden":
            return []
        number = self._foldings + 1
        hint = f"/show {number} shows all" if self.unfolds else "--verbose shows all"
        work = work_of(call, self.path, hint, seen=id in self._asked)
        if self._work == "whole":
            return work.all
        if work.is_folded:
            self._foldings = number
            self._keep(number, work)
        return work.few

    def _keep(self, number: int, work: WorkDone) -> None:
        self._folded[number] = work.all
        sizes = {each: sum(len(plain(line)) for line in lines) for each, lines in self._folded.items()}
        while len(self._folded) > 1 and sum(sizes[each] for each in self._folded) > MAX_KEPT:
            del self._folded[next(iter(self._folded))]

    def folded(self, number: int | None) -> Sequence[Line]:
        """Return a folded text in full, by its number or the last one; empty if it is not kept."""
        return self._folded.get(self._foldings if number is None else number, ())

    def asked(self, id: str) -> None:
        """Note that a permission request has shown a call's work, so that it is not shown again."""
        self._asked.add(id)

    def running_calls(self) -> dict[str, str]:
        """Return the titles of the tool calls that have not ended, by their ids."""
        return {
            id: one_line(call.title) or call.kind or "tool call" for id, call in self._calls.items() if not call.is_over
        }

    def line(self, call: ShownCall) -> Line:
        """Return a tool call as one line: status, title, kind and changed files."""
        mark = getattr(self._marks, call.status)
        spans = [Span(mark, _STYLES[call.status]), Span(f" {one_line(call.title) or call.kind or 'tool call'}")]
        if call.kind not in (None, "other"):
            spans.append(Span(f"  {call.kind}", "dim"))
        return [*spans, *self._edits(call.edits)]

    def _edits(self, edits: Sequence[FileEditToolCallContent]) -> list[Span]:
        spans: list[Span] = []
        for edit in edits[:MAX_FILES]:
            added, removed = count_changes(edit.old_text, edit.new_text)
            spans += [Span("  "), Span(f"+{added}", "green"), Span(" "), Span(f"-{removed}", "red")]
            spans.append(Span(f" {self.path(edit.path)}"))
        if len(edits) > MAX_FILES:
            spans.append(Span(f"  and {len(edits) - MAX_FILES} more files", "dim"))
        return spans

    def path(self, path: str) -> str:
        """Return a path for people, relative to the session's directory if it is inside of it."""
        inside = bool(self.cwd) and PurePath(path).is_relative_to(self.cwd)
        return one_line(str(PurePath(path).relative_to(self.cwd)) if inside else path)

    def unfinished(self) -> list[Block]:
        """Forget all tool calls at the end of a turn. Return the unfinished ones if they were not shown before."""
        lines = [self.line(call) for call in self._calls.values() if not call.is_over]
        self._calls.clear()
        self._asked.clear()
        return [Note(lines)] if lines and self._static else []

    def _plan(self, key: str, entries: Sequence[PlanEntry]) -> list[Block]:
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

    def _plan_of(self, item: AgentPlanContentUpdate) -> list[Block]:
        match item.plan:
            case PlanUpdateItems() as plan:
                return self._plan(f"plan {plan.plan_id}", plan.entries)
            case PlanUpdateMarkdown() as plan:
                return [Note([[Span(f"  {line}")] for line in spoken(plan.content).splitlines()])]
            case plan:
                return [note(f"plan: {one_line(plan.uri)}", "dim")]

    # Decisions

    def _decision(self, item: Decision) -> list[Block]:
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

    def end(self, item: TurnEnded) -> list[Block]:
        """Return the blocks for the end of a turn: unfinished calls, and a note if it did not end normally."""
        rest = self.unfinished()
        if item.error is not None:
            message = one_line(text_at(item.error, "message") or "the turn failed")
            return [*rest, note(message, "red", Span(self._marks.failed, "red"))]
        if item.stop_reason in (None, "end_turn"):
            return rest
        return [*rest, note(STOPPED.get(item.stop_reason, f"stopped: {one_line(item.stop_reason)}"), "yellow")]


def call_key(id: str) -> str:
    """Return the key of a tool call's line. A permission request for the call uses the same key."""
    return f"call {id}"


def decider(by: Object) -> str | None:
    """Say who or what decided a request; None for a decision that needs no explanation."""
    match by.get("kind"):
        case "rule":
            name = text_at(by, "name")
            return f"by rule {by.get('rule')} of the {by.get('source')}" + (f" ({one_line(name)})" if name else "")
        case "client":
            named = [text_at(by, "user"), text_at(by, "client")]
            return "by " + one_line(join_facts((each for each in named if each), ", ") or str(by.get("name")))
        case "timeout":
            return "because no answer came in time"
        case "limit":
            return "because the rules took too long"
        case _:
            return None


def describe_end(item: SessionEnded) -> str:
    """Say how a session ended. If it can be resumed, only its agent has stopped."""
    if item.reason in FINAL or item.reason == "closed":
        return f"the session was {item.reason}"
    return f"the agent has stopped: {one_line(item.message or item.reason)}"


class Spending:
    """The usage of a session and of its last turn, as far as the agent reports it."""

    def __init__(self) -> None:
        self.usage: UsageUpdate | None = None
        """The usage of the whole session."""
        self._before: Cost | None = None
        """The session's cost when the turn began; None if unknown."""
        self._is_new = False
        """Whether this is the first turn of a new session, before which the cost was zero."""
        self._turns = 0

    def begin_session(self) -> None:
        """Note that the session is new, so that its cost is zero."""
        self._is_new = True

    def begin_turn(self) -> None:
        """Note the session's cost at the start of a turn."""
        self._before = None if self.usage is None else self.usage.cost
        self._turns += 1
        self._is_new = self._is_new and self._turns == 1

    def describe(self, response: PromptResponse | None) -> str:
        """Return the usage of the turn and then of the session, each with tokens and cost."""
        turn, session = [self._tokens(response), self._cost_of_turn()], [self._cost(), self._context()]
        groups = {"this turn": join_facts(turn, ", "), "session": join_facts(session, ", ")}
        return join_facts(f"{name}: {facts}" for name, facts in groups.items() if facts)

    def _tokens(self, response: PromptResponse | None) -> str:
        used = None if response is None else response.usage
        if used is None:
            return ""
        return f"{used.total_tokens:,} tokens ({used.input_tokens:,} in, {used.output_tokens:,} out)"

    def _cost_of_turn(self) -> str:
        cost, before = None if self.usage is None else self.usage.cost, self._before
        if cost is None or (before is None and not self._is_new) or (before and before.currency != cost.currency):
            return ""
        return _money(cost.amount - (before.amount if before else 0), cost.currency)

    def _cost(self) -> str:
        cost = None if self.usage is None else self.usage.cost
        return "" if cost is None else _money(cost.amount, cost.currency)

    def _context(self) -> str:
        usage = self.usage
        if usage is None or not usage.size:
            return ""
        return f"context {100 * usage.used / usage.size:.0f}% of {usage.size:,}"


def _money(amount: float, currency: str) -> str:
    return f"{amount:.4f} {one_line(currency)}" if amount > 0 else ""
