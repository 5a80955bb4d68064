"""Translate tool calls of ACP to OpenCode's form: the tool, its input, output and changes.

OpenCode's programs have a special view for each tool that they know, such as `bash`, `edit` and `read`, and a plain
view for all others. A person's own command is shown as a call of `bash`, too (`Shell`). Pure.
"""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from sandboxagent.adapters.opencode.objects import Completed, Failed, PartTime, Pending, Running, ToolState
from sandboxagent.core.texts import DiffBudget, Span, find_changes, split_lines, unfenced
from sandboxagent.protocol.envelope import Object, list_at, notification, object_at, objects_at, text_at
from sandboxagent.protocol.methods import SHELL

_BY_KIND = {
    "execute": "bash",
    "edit": "edit",
    "read": "read",
    "search": "grep",
    "fetch": "webfetch",
    "delete": "delete",
    "move": "move",
    "switch_mode": "mode",
}
_VARIANTS = {"edit": ("edit", "write"), "search": ("grep", "glob")}
"""For a clear kind, the tools among which the title may choose. They need the same permission."""
_NAMED = {
    "edit": ("edit", "write"),
    "read": ("read", "list"),
    "search": ("grep", "glob", "list", "websearch"),
    "fetch": ("webfetch", "websearch"),
}
"""For a clear kind, the tools among which the agent's own name may choose."""
_HARMLESS = ("read", "search", "fetch")
"""Kinds of tools that change nothing."""
DRAWN = frozenset(
    {
        *("bash", "edit", "write", "read", "grep", "glob", "list", "webfetch", "websearch", "todowrite", "task"),
        *("question", "skill"),
    }
)
"""Tools for which OpenCode's programs have a special view."""
_OUTPUTS = ("formatted_output", "aggregated_output", "output", "stdout", "stderr", "text", "error", "message")
_COMMANDS, _ARGUMENTS = ("command", "cmd", "script"), ("args", "arguments")
_SHELLS = frozenset(
    f"{place}{name}"
    for place in ("", "/bin/", "/usr/bin/", "/usr/local/bin/")
    for name in ("sh", "bash", "dash", "zsh", "ksh", "ash")
)
"""Shells, whose `-c` has a command. A program with the same name in another directory may be anything."""
_PATHS = ("filePath", "file_path", "path", "abs_path", "filename", "file")
_OPERANDS = {
    "grep": ("pattern", "query"),
    "glob": ("pattern", "query"),
    "webfetch": ("url", "uri"),
    "websearch": ("query",),
}
MAX_SHOWN = 512 << 10
"""Maximum characters of one call's changes that are shown line by line. For larger ones, only the size is shown."""
LINE = 32
"""Characters that each line counts in addition to its own."""
MAX_CHANGES = 200
"""Maximum number of changes of one call that are shown."""
CONTEXT = 3
"""Number of unchanged lines that are shown before and after a change."""
MAX_NAME = 80


@dataclass(slots=True)
class ToolCall:
    """The state of a tool call after all updates so far."""

    call_id: str
    started: int
    """Time at which the call first appeared, in milliseconds."""
    title: str = ""
    kind: str = ""
    status: str = "pending"
    content: list[Object] = field(default_factory=list[Object])
    locations: list[Object] = field(default_factory=list[Object])
    raw_input: object = None
    raw_output: object = None
    named: str = ""
    """The agent's own name for the tool."""
    ended: int | None = None
    terminals: dict[str, str] = field(default_factory=dict[str, str])
    """Ids of the terminals that the call shows, with their output."""
    command: str | None = None
    """The whole command that the call runs, if it runs one."""
    diffs: list[Object] = field(default_factory=list[Object])
    """The call's changes of files."""
    _changes_old: bool = False
    """Whether one of the changes has an old text."""
    _diff: str | None = None
    _output: str | None = None

    def update(self, change: Object, at: int) -> None:
        """Apply an update."""
        self.title = text_at(change, "title") or self.title
        self.kind = text_at(change, "kind") or self.kind
        self.named = _find_name(change) or self.named
        self.status = text_at(change, "status") or self.status
        # Compute derived values only when their sources change, not for every update.
        if change.get("rawInput") is not None:
            self.raw_input = change["rawInput"]
            self.command = _find_command(object_at(self.raw_input))
        if change.get("rawOutput") is not None:
            self.raw_output, self._output = change["rawOutput"], None
        if isinstance(change.get("content"), list):
            self.content, self._output = objects_at(change, "content"), None
            self.diffs = [each for each in self.content if each.get("type") == "diff" and text_at(each, "path")]
            shown = [text_at(each, "terminalId") or "" for each in self.content if each.get("type") == "terminal"]
            self.terminals = {id: self.terminals.get(id, "") for id in shown}
            self._changes_old, self._diff = any(text_at(each, "oldText") for each in self.diffs), None
        if isinstance(change.get("locations"), list):
            self.locations = [each for each in objects_at(change, "locations") if text_at(each, "path")]
        if self.is_over and self.ended is None:
            self.ended = max(at, self.started)

    def forget(self) -> None:
        """Drop the input, output and content, and keep only the tool, title and status."""
        self.update({"content": [], "locations": [], "rawInput": {}, "rawOutput": ""}, self.started)

    def start(self) -> None:
        """Mark the call as running, because its agent asks for permission."""
        if self.status == "pending":
            self.status = "in_progress"

    def break_off(self, at: int) -> None:
        """Mark the call as aborted, because its turn is over."""
        self.status, self.ended = "aborted", max(at, self.started)

    @property
    def is_over(self) -> bool:
        return self.status in ("completed", "failed", "aborted")

    @property
    def tool(self) -> str:
        """OpenCode's name for the tool, also for its permission. The tool's effects decide before its names do."""
        if self.command is not None:
            return "bash"
        vague = self.kind not in _BY_KIND
        changes = self.kind == "edit" or (bool(self.diffs) and (vague or self.kind in _HARMLESS))
        kind = "edit" if changes else self.kind
        named, titled = (name.strip().lower().replace("_", "") for name in (self.named, self.title))
        if vague and not changes:
            known = next((name for name in (named, titled) if name in DRAWN), None)
        elif named in _NAMED.get(kind, ()):
            known = named
        else:
            # A title with capital letters is none of OpenCode's names. It may be a sentence about something else.
            known = titled if self.title.islower() and titled in _VARIANTS.get(kind, ()) else None
        if known is not None:
            return known
        if changes:
            return "write" if self.diffs and not self._changes_old else "edit"
        if not vague:
            return _BY_KIND[kind]
        if objects_at(object_at(self.raw_input), "todos"):
            return "todowrite"
        return (self.named or self.title or self.kind or "tool")[:MAX_NAME]

    @property
    def path(self) -> str | None:
        """The first file that the call names; None if it names none."""
        return next(self._named_paths(), None)

    @property
    def paths(self) -> list[str]:
        """All files that the call names, each once."""
        return list(dict.fromkeys(self._named_paths()))

    def _named_paths(self) -> Iterator[str]:
        given = object_at(self.raw_input)
        stated = (text_at(each, "path") for each in chain(self.diffs, self.locations))
        return (path for path in chain(stated, (text_at(given, name) for name in _PATHS)) if path)

    @property
    def input(self) -> Object:
        """The arguments under OpenCode's names, in addition to the agent's own names."""
        raw = object_at(self.raw_input)
        given: Object = dict(raw) if raw or self.raw_input is None else {"input": self.raw_input}
        tool = self.tool
        if tool == "bash":
            given["command"] = self.command or self.title.strip("`")
            given.setdefault("description", self.title)
        elif tool in ("edit", "write", "read", "list", "delete", "move") and self.path:
            given.setdefault("filePath", self.path)
            if tool == "list":
                given.setdefault("path", self.path)
            if self.diffs and tool in ("edit", "write"):
                new = text_at(self.diffs[0], "newText") or ""
                given |= {"content": new} if tool == "write" else {"oldString": self._old, "newString": new}
        names = _OPERANDS.get(tool, ())
        for name in names[:1]:
            given[name] = next((text for other in names if (text := text_at(raw, other))), self.title)
        if tool == "task":
            given.setdefault("description", self.title)
            given.setdefault("subagent_type", "agent")
        return given

    @property
    def _old(self) -> str:
        return text_at(self.diffs[0], "oldText") or ""

    @property
    def output(self) -> str:
        """The output: the content for people, else the tool's raw output."""
        if self._output is None:
            terminals = dict(self.terminals)
            # Show each terminal once, even if the content names it several times.
            shown = (
                text_at(each, "content", "text") or terminals.pop(text_at(each, "terminalId") or "", "")
                for each in self.content
            )
            said = "\n".join(text for text in shown if text)
            self._output = unfenced(said or _write_output(self.raw_output))
        return self._output

    def write_terminal(self, id: str, output: str) -> bool:
        """Set the output of a terminal; return False if it belongs to another call."""
        if id not in self.terminals:
            return False
        self.terminals[id], self._output = output, None
        return True

    @property
    def diff(self) -> str:
        """The call's changes of files, as one unified diff."""
        if self._diff is None:
            self._diff = make_diff(
                (text_at(each, "path") or "", text_at(each, "oldText") or "", text_at(each, "newText") or "")
                for each in self.diffs
            )
        return self._diff

    def metadata(self) -> Object:
        """Return the facts that OpenCode's programs show besides input and output."""
        found: Object = {}
        if self.tool == "bash":
            found |= {"output": self.output, "description": self.title}
            code = object_at(self.raw_output).get("exit_code")
            if isinstance(code, int):
                found["exit"] = code
        if self.diffs:
            found |= {"diff": self.diff, "filepath": self.path}
        if self.tool == "todowrite":
            found["todos"] = objects_at(object_at(self.raw_input), "todos")
        return found

    def state(self) -> ToolState:
        """Return the call's state in OpenCode's form."""
        metadata = self.metadata()
        title = self.title or self.tool
        match self.status:
            case "completed":
                time = PartTime(start=self.started, end=self.ended or self.started)
                return Completed(input=self.input, output=self.output, title=title, metadata=metadata, time=time)
            case "failed" | "aborted":
                time = PartTime(start=self.started, end=self.ended or self.started)
                said = "Tool execution aborted" if self.status == "aborted" else self.output or "the tool failed"
                return Failed(input=self.input, error=said, metadata=metadata, time=time)
            case "in_progress":
                time = PartTime(start=self.started)
                return Running(input=self.input, title=title, metadata=metadata, time=time)
            case _:
                return Pending(input=self.input)


def make_diff(changes: Iterable[tuple[str, str, str]]) -> str:
    """Return changes as one unified diff; each is a path, the old text and the new one.

    The work is limited. The diff names the parts that it does not show, or that were not compared line by line.
    """
    effort, room, written = DiffBudget(), MAX_SHOWN, list[str]()
    for number, (path, old, new) in enumerate(changes):
        if number == MAX_CHANGES:
            written.append("--- more\n+++ more\n@@ -0,0 +1 @@ too many changes\n+[further changes are not shown]\n")
            break
        size = sum(len(text) + LINE * text.count("\n") for text in (old, new))
        if size > room:
            hunks = [_tell_sizes(old, new)]
        else:
            room -= size
            hunks = _write_hunks(split_lines(old), split_lines(new), effort)
        written += [f"--- {path}\n+++ {path}\n", *hunks] if hunks else []
    return "".join(written)


def _tell_sizes(old: str, new: str) -> str:
    """Return a hunk for a change that is too large: one line about the size of each text."""
    said = [f"[{text.count(chr(10)):,} lines, {len(text):,} characters: too large to show]" for text in (old, new)]
    removed, ranges = (f"-{said[0]}\n", "-1 +1") if old else ("", "-0,0 +1")
    return f"@@ {ranges} @@ too large to show\n{removed}+{said[1]}\n"


def _write_hunks(old: list[str], new: list[str], effort: DiffBudget) -> list[str]:
    spans, exact = find_changes(old, new, effort)
    written: list[str] = []
    note = "" if exact else " too much has changed to compare it line by line"
    for hunk in _group(spans):
        start, end = max(0, hunk[0].old - CONTEXT), min(len(old), hunk[-1].old_end + CONTEXT)
        begin = hunk[0].new - (hunk[0].old - start)
        added = sum((each.new_end - each.new) - (each.old_end - each.old) for each in hunk)
        written.append(f"@@ -{_range(start, end - start)} +{_range(begin, end - start + added)} @@{note}\n")
        at = start
        for span in hunk:
            written += [_line(" ", line) for line in old[at : span.old]]
            written += [_line("-", line) for line in old[span.old : span.old_end]]
            written += [_line("+", line) for line in new[span.new : span.new_end]]
            at = span.old_end
        written += [_line(" ", line) for line in old[at:end]]
    return written


def _group(spans: list[Span]) -> list[list[Span]]:
    """Group changes into hunks. Changes whose context lines overlap share a hunk."""
    hunks: list[list[Span]] = []
    for span in spans:
        if hunks and span.old - hunks[-1][-1].old_end <= 2 * CONTEXT:
            hunks[-1].append(span)
        else:
            hunks.append([span])
    return hunks


def _range(start: int, length: int) -> str:
    """Return a range of lines in the form of a unified diff.

    Lines count from one. An empty range names the line before it.
    """
    return f"{start + 1}" if length == 1 else f"{start + 1 if length else start},{length}"


def _line(sign: str, line: str) -> str:
    return f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"


def _find_command(given: Object) -> str | None:
    """Return the whole command in the input of a tool; None if there is none."""
    value = next((given[name] for name in _COMMANDS if given.get(name)), None)
    if value is None:
        return None
    following = [given[name] for name in _ARGUMENTS if given.get(name)]
    match value:
        case [str(shell), "-c" | "-lc", str(script)] if shell in _SHELLS and not following:
            return script
        case _:
            return " ".join(map(_spell, (value, *following)))


def _spell(words: object) -> str:
    """Return a command or its arguments as one line; as JSON if it is neither a text nor a list of texts."""
    if isinstance(words, str):
        return words
    texts = [word for word in list_at({"words": words}, "words") if isinstance(word, str)]
    if texts and texts == words:
        return shlex.join(texts)
    return msgspec.json.encode(words).decode()


def _find_name(change: Object) -> str | None:
    """Return the agent's own name for the tool. Some agents put it into `_meta`, under their vendor's name."""
    meta = object_at(change, "_meta")
    return text_at(change, "name") or next(
        (name for place in (meta, *meta.values()) if (name := text_at(place, "toolName"))), None
    )


def _write_output(output: object) -> str:
    """Return the raw output of a tool as text."""
    if output is None or isinstance(output, str):
        return output or ""
    named = [text for name in _OUTPUTS if (text := text_at(output, name))]
    if named:
        return named[0]
    return msgspec.json.format(msgspec.json.encode(output)).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """A command that a person runs from OpenCode, as it is in the session's log.

    The agent does not see it, and ACP has no message for it. The server records two notifications: one when the command
    begins, and one with the `output` when it has ended.
    """

    id: str
    command: str
    agent: str | None = None
    message_id: str | None = None
    output: str | None = None
    exit_code: int | None = None

    def write(self, session_id: str) -> bytes:
        """Return the notification for the log."""
        facts = {"shellId": self.id, "command": self.command, "agent": self.agent, "messageId": self.message_id}
        facts |= {"output": self.output, "exitCode": self.exit_code}
        said = {name: value for name, value in facts.items() if value is not None}
        return notification(SHELL, {"sessionId": session_id, **said})

    @property
    def call_id(self) -> str:
        return f"shell-{self.id}"

    def as_call(self) -> Object:
        """Return the command as an update of a tool call."""
        call: Object = {"toolCallId": self.call_id, "title": self.command, "kind": "execute"}
        call["rawInput"] = {"command": self.command}
        if self.output is None:
            return call | {"status": "in_progress"}
        return call | {"status": "completed", "rawOutput": {"output": self.output, "exit_code": self.exit_code}}


def read_shell(params: Object) -> Shell:
    """Read a command from the params of its notification in the log."""
    code = params.get("exitCode")
    return Shell(
        id=text_at(params, "shellId") or "",
        command=text_at(params, "command") or "",
        agent=text_at(params, "agent"),
        message_id=text_at(params, "messageId"),
        output=text_at(params, "output"),
        exit_code=code if isinstance(code, int) else None,
    )
