"""Read permission rules, check them, and decide a request by them before people are asked.

Amp's `PermissionRule` is understood as well. The policy fails closed: people decide every request that is unknown,
ambiguous or broken, and a request that takes too long is rejected. The module is pure: the caller passes in how to
resolve links.
"""

import logging
import shlex
from collections.abc import Callable
from typing import Annotated, Literal, cast

import msgspec
from msgspec import Meta, Struct, structs
from msgspec.structs import replace

from sandboxagent.core.settings.sources import did_you_mean
from sandboxagent.server.permissions.budget import STEPS, StepBudget, TooMuch
from sandboxagent.server.permissions.commands import Simple
from sandboxagent.server.permissions.conditions import (
    AllowedFolders,
    ArgumentIs,
    CommandIs,
    CommandPattern,
    Condition,
    FactIs,
    FolderIs,
    KindIs,
    Line,
    PathIs,
    Subject,
    Unknowable,
    Words,
)
from sandboxagent.server.permissions.patterns import FlatPathGlob, Glob, Match, PathGlob, Regex, compile_pattern
from sandboxagent.server.permissions.request import Asked, ToolRequest, read_request

Action = Literal["allow", "ask", "reject"]
Source = Literal["server", "session"]

MAX_RULES = 500
KINDS = ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other")
"""The kinds of tool calls in ACP."""

Text = Annotated[str, Meta(min_length=1, max_length=4096)]
Texts = Text | Annotated[tuple[Text, ...], Meta(min_length=1)]


class RuleTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule as it is written."""

    action: Literal["allow", "reject", "ask", "delegate"]
    tool: Texts | None = None
    kind: Texts | None = None
    path: Texts | None = None
    command: Texts | None = None
    cwd: Texts | None = None
    agent: Texts | None = None
    matches: dict[str, object] | None = None
    context: Literal["thread", "subagent"] | None = None
    to: Text | None = None
    reason: Text | None = None
    message: Text | None = None
    name: Text | None = None
    remember: bool = False


KEYS = {
    "action": '"allow", "reject", "ask" or "delegate", which asks',
    "tool": "a glob, or a list of globs",
    "kind": f"one of {', '.join(KINDS)}, a glob, or a list of these",
    "path": "a glob of paths, or a list of globs",
    "command": "the words of a command, or a list of commands",
    "cwd": 'a glob of the folder that a command runs in, "*" for any, or a list of globs',
    "agent": "the id of an agent or a glob, or a list of these",
    "matches": "a table of arguments and their values (from Amp)",
    "context": '"thread" or "subagent" (from Amp)',
    "to": "a program (from Amp, for delegate; it is not run)",
    "reason": "a text",
    "message": "a text (from Amp: the reason)",
    "name": "a text",
    "remember": "true or false",
}
"""The keys of a rule, and a description of their values."""
_CONDITIONS = ("tool", "kind", "path", "command", "cwd", "agent", "matches")


class Mistake(Exception):
    """A mistake in a rule: its index (from 0), the wrong key, and the reason."""

    def __init__(self, index: int | None, key: str | None, complaint: str) -> None:
        super().__init__(complaint)
        self.index = index
        self.key = key


class Rule(Struct, frozen=True):
    """A rule that can be applied."""

    number: int
    """The number of the rule in its list, from 1."""
    action: Action
    conditions: tuple[Condition, ...]
    source: Source
    name: str | None
    reason: str | None
    remember: bool
    """Whether the rule allows for good, if the agent offers that."""

    @property
    def title(self) -> str:
        """Number and name of the rule, for people."""
        return f"rule {self.number} ({self.name})" if self.name else f"rule {self.number}"


def read_rules(raw: object, source: Source) -> tuple[Rule, ...]:
    """Read rules from decoded TOML or JSON. Raises Mistake."""
    if not isinstance(raw, list):
        raise Mistake(None, None, "expected a list of rules")
    tables = cast(list[object], raw)
    if len(tables) > MAX_RULES:
        raise Mistake(None, None, f"more than {MAX_RULES} rules")
    return tuple(_rule(index, table, source) for index, table in enumerate(tables))


def _rule(index: int, raw: object, source: Source) -> Rule:
    written = _table(index, raw)
    conditions: list[Condition] = []
    for key in (*_CONDITIONS, "context"):
        value = cast(object, getattr(written, key))
        if value is not None:
            try:
                conditions += _MAKERS[key](value)
            except ValueError as problem:
                raise Mistake(index, key, f"{key} {problem}") from None
    if all(isinstance(condition, FolderIs) for condition in conditions):
        raise Mistake(index, None, 'it has no condition; tool = "*" matches every request')
    where = next((condition.where for condition in conditions if isinstance(condition, FolderIs)), AllowedFolders())
    conditions = [replace(each, where=where) if isinstance(each, CommandIs) else each for each in conditions]
    action = "ask" if written.action == "delegate" else written.action
    reason = written.reason or written.message
    return Rule(index + 1, action, tuple(conditions), source, written.name, reason, written.remember)


def _table(index: int, raw: object) -> RuleTable:
    if not isinstance(raw, dict):
        raise Mistake(index, None, "expected a table")
    table = cast("dict[str, object]", raw)
    types = {info.name: cast("type", info.type) for info in structs.fields(RuleTable)}
    for key, value in table.items():
        if key not in KEYS:
            raise Mistake(index, key, f"unknown key {key} (known: {', '.join(KEYS)}){did_you_mean(key, KEYS)}")
        try:
            msgspec.convert(value, types[key])
        except msgspec.ValidationError:
            raise Mistake(index, key, f"{key}: expected {KEYS[key]}, got {value!r:.100}") from None
    if "action" not in table:
        raise Mistake(index, None, f"it has no action, which is {KEYS['action']}")
    written = msgspec.convert(table, RuleTable)
    if written.remember and written.action != "allow":
        raise Mistake(index, "remember", "remember is for rules that allow")
    return written


# Conditions


def _texts(value: object) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else cast("tuple[str, ...]", value)


def _fact(fact: Callable[[ToolRequest], str | None], value: object) -> list[Condition]:
    texts = _texts(value)
    everything = any(set(text) == {"*"} for text in texts)
    return [FactIs(tuple(compile_pattern(text) for text in texts), fact, everything)]


def _tool(value: object) -> list[Condition]:
    folded = tuple(text.casefold() for text in _texts(value))
    return _fact(lambda request: request.tool.casefold() if request.tool else None, folded)


def _agent(value: object) -> list[Condition]:
    return _fact(lambda request: request.agent, value)


def _kind(value: object) -> list[Condition]:
    for text in _texts(value):
        if not any(map(Glob(text).is_all_of, KINDS)):
            raise ValueError(f"{text!r} is not known in ACP{did_you_mean(text, KINDS)}; it has {', '.join(KINDS)}")
    texts = _texts(value)
    everything = any(set(text) == {"*"} for text in texts)
    return [KindIs(FactIs(tuple(map(compile_pattern, texts)), lambda request: request.kind, everything))]


def _path(value: object) -> list[Condition]:
    return [PathIs(_path_globs(_texts(value)))]


def _cwd(value: object) -> list[Condition]:
    texts = _texts(value)
    if any(set(text) == {"*"} for text in texts):
        return [FolderIs(AllowedFolders(anywhere=True))]
    # A folder matches with everything beneath it, so a trailing `/**` adds nothing.
    return [FolderIs(AllowedFolders(_path_globs(tuple(text.removesuffix("/**") or "/" for text in texts))))]


def _path_globs(texts: tuple[str, ...]) -> tuple[PathGlob, ...]:
    for text in texts:
        if ".." in text.split("/"):
            raise ValueError(f"{text!r} goes up with ..; write where it leads")
        if text.startswith("~") and text[1:2] not in ("", "/"):
            raise ValueError(f"{text!r} is another user's home; write its absolute path")
    return tuple(map(PathGlob, texts))


def _command(value: object) -> list[Condition]:
    return [CommandIs(tuple(_command_pattern(text) for text in _texts(value)))]


def _command_pattern(text: str) -> CommandPattern:
    if len(text) > 2 and text[0] == text[-1] == "/" and "/" not in text[1:-1].replace("\\/", ""):
        return Line(Regex(text[1:-1]))
    if set(text) & set(";&|<>()$`\n"):
        raise ValueError(f"{text!r} is more than one plain command; a rule judges each part of a command by itself")
    try:
        words = tuple(shlex.split(text))
    except ValueError as problem:
        raise ValueError(f"{text!r} cannot be read: {problem}") from None
    if not words:
        raise ValueError("is empty")
    # A star at the end allows further words, and is no word itself.
    is_open = set(words[-1]) == {"*"}
    return Words(tuple(map(Glob, words[:-1] if is_open and len(words) > 1 else words)), is_open)


# Amp's format


def _matches(value: object) -> list[Condition]:
    table = cast("dict[str, object]", value)
    return [condition for key, expected in table.items() for condition in _argument(key, expected)]


def _argument(key: str, expected: object) -> list[Condition]:
    flat = key.replace("_", "").lower()
    if flat in ("cmd", "command"):
        return [CommandIs(tuple(Line(compile_pattern(text)) for text in _patterns(key, expected)))]
    if flat in ("path", "filepath"):
        return [PathIs(tuple(FlatPathGlob(text) for text in _patterns(key, expected)))]
    return [ArgumentIs(key, _expected(key, expected, 0))]


def _patterns(key: str, expected: object) -> tuple[str, ...]:
    try:
        return _texts(msgspec.convert(expected, Texts))
    except msgspec.ValidationError:
        raise ValueError(f"{key}: expected a glob or a list of globs, got {expected!r:.100}") from None


def _expected(key: str, expected: object, depth: int) -> object:
    if depth > 10:
        raise ValueError(f"{key}: is nested too deeply")
    match expected:
        case str():
            return compile_pattern(expected)
        case list():
            return tuple(_expected(key, each, depth + 1) for each in cast(list[object], expected))
        case dict():
            table = cast("dict[str, object]", expected)
            return {name: _expected(name, each, depth + 1) for name, each in table.items()}
        case bool() | int() | float() | None:
            return expected
        case _:
            raise ValueError(f"{key}: expected a glob, a list, a table or a plain value")


def _context(value: object) -> list[Condition]:
    # Agents do not say whether they themselves or one of their subagents asks.
    return [Unknowable()]


_MAKERS: dict[str, Callable[[object], list[Condition]]] = {
    "tool": _tool,
    "kind": _kind,
    "path": _path,
    "command": _command,
    "cwd": _cwd,
    "agent": _agent,
    "matches": _matches,
    "context": _context,
}


logger = logging.getLogger(__name__)

QUICK_STEPS = 2_000
"""The number of steps of a decision without a thread: they take some milliseconds."""

_SEVERITY: dict[Action, int] = {"allow": 0, "ask": 1, "reject": 2}


class _NeedsDisk(Exception):
    """A path must be followed, which can take any time."""


class Decision(Struct, frozen=True):
    """A decision, and the reason for it."""

    action: Action
    why: str
    """The rule that decided, and the part of the command it is about, for people."""
    rule: Rule | None = None
    """The rule that decided; None if none did."""
    remember: bool = False
    """Whether the call may be allowed for good."""
    parts: "tuple[Decision, ...]" = ()
    """The decision on each part of a command."""
    doubt: Rule | None = None
    """A rule that may reject the call, if it is not certain whether it matches."""


class Policy(Struct, frozen=True):
    """The server's rules, and the way this machine's paths are read."""

    rules: tuple[Rule, ...]
    home: str
    resolve: Callable[[str], str]
    """Returns an absolute path without links, whether it exists or not."""

    steps: int = STEPS
    """Maximum number of steps of one decision. A request that needs more is rejected."""

    def decide(self, asked: Asked, session_rules: tuple[Rule, ...] | None) -> Decision:
        """Decide a request by the rules of the server and the session. `session_rules` is None if they cannot be read.

        If a rule of the server rejects a request, no rule of a session can allow it.
        """
        try:
            return self._decide(asked, session_rules, StepBudget(self.steps, self.resolve))
        except TooMuch:
            return Decision("reject", f"the rules would take more than {self.steps} steps to decide it")
        except Exception:
            logger.exception("deciding a permission failed agent=%s", asked.agent)
            return Decision("ask", "the rules could not be applied: an internal error")

    def decide_for_person(self, asked: Asked, session_rules: tuple[Rule, ...] | None) -> Decision:
        """Decide a person's own command: allow it, or reject it, also in doubt.

        The person's command counts as the answer to a rule that asks, but not to a rule that may reject.
        """
        if session_rules is None:
            return Decision("reject", "the session's rules cannot be read")
        try:
            decision = self._decide(asked, session_rules, StepBudget(self.steps, self.resolve))
        except TooMuch:
            return Decision("reject", f"the rules would take more than {self.steps} steps to decide it")
        except Exception:
            logger.exception("deciding a command failed agent=%s", asked.agent)
            return Decision("reject", "the rules could not be applied: an internal error")
        if decision.action == "reject":
            return decision
        doubt = next((part.doubt for part in decision.parts if part.doubt is not None), None)
        if doubt is None:
            return replace(decision, action="allow")
        why = f"{_rule_name(doubt)} may reject it, so it is not run; write the command as plain words"
        return Decision("reject", why, doubt)

    def decide_at_once(self, asked: Asked, session_rules: tuple[Rule, ...] | None) -> Decision | None:
        """Decide like `decide` if that takes few steps and no disk access, else return None."""
        try:
            return self._decide(asked, session_rules, StepBudget(min(QUICK_STEPS, self.steps), _refuse))
        except Exception:
            # The slow path decides it, and handles errors.
            return None

    def _decide(self, asked: Asked, session_rules: tuple[Rule, ...] | None, work: StepBudget) -> Decision:
        request = read_request(asked, work)
        subjects = [Subject(request, part, self.home, work) for part in request.parts or (None,)]
        decisions = tuple(self._judge(subject, session_rules or ()) for subject in subjects)
        # The strictest part decides; among equal parts, the first one that a rule matches.
        worst = max(decisions, key=lambda decision: (_SEVERITY[decision.action], decision.rule is not None))
        if worst.action == "allow":
            reason = self._why_not(request, session_rules)
            if reason is not None:
                return Decision("ask", reason, parts=decisions)
            rules = [decision.rule for decision in decisions if decision.rule is not None]
            return replace(worst, remember=all(rule.remember for rule in rules), parts=decisions)
        return replace(worst, parts=decisions)

    @staticmethod
    def _why_not(request: ToolRequest, session_rules: tuple[Rule, ...] | None) -> str | None:
        """Return the reason why no rule may allow the request; None if there is none."""
        if session_rules is None:
            return "the session's rules cannot be read"
        if not request.is_readable:
            return "the request cannot be read"
        return "it is a question in the form of a permission" if request.is_question else None

    def _judge(self, subject: Subject, session_rules: tuple[Rule, ...]) -> Decision:
        server = _first(self.rules, subject)
        if server.action == "reject":
            return server.decision(subject)
        session = _first(session_rules, subject)
        chosen = session if session.rule is not None else server
        # A rule of the session may allow a request that the server would ask about, but not one that it would reject.
        doubts = [*session.doubts, *(rule for rule in server.doubts if chosen is server or rule.action == "reject")]
        rejecting = next((rule for rule in (*session.doubts, *server.doubts) if rule.action == "reject"), None)
        if chosen.action == "allow" and doubts:
            why = f"{_rule_name(doubts[0])} may be about {_subject_text(subject)}"
            return Decision("ask", why, doubts[0], doubt=rejecting)
        return replace(chosen.decision(subject), doubt=rejecting)


def _refuse(path: str) -> str:
    raise _NeedsDisk(path)


class _Verdict(Struct, frozen=True):
    """The verdict of one list of rules on one subject."""

    rule: Rule | None
    doubts: tuple[Rule, ...]
    """Earlier rules that may match the subject, and do not allow."""
    unruled: Action
    """The action if no rule matches."""

    @property
    def action(self) -> Action:
        return self.unruled if self.rule is None else self.rule.action

    def decision(self, subject: Subject) -> Decision:
        if self.rule is None:
            but = f"; no allow rule applies: {subject.notes[0]}" if subject.notes and self.action != "allow" else ""
            return Decision(self.action, f"no rule is about {_subject_text(subject)}{but}")
        return Decision(self.action, f"{_rule_name(self.rule)} is about {_subject_text(subject)}", self.rule)


def _first(rules: tuple[Rule, ...], subject: Subject) -> _Verdict:
    """Return the verdict of the first rule that matches.

    A text that was not understood may hold several commands. A rule that matches one of them says nothing about the
    others. So the later rules count too, up to a rule that surely allows the whole text, and the strictest one decides.
    """
    part = subject.part
    is_understood = part is None or isinstance(part, Simple)
    unruled: Action = "allow" if isinstance(part, Simple) and part.runs_others else "ask"
    doubts: list[Rule] = []
    strictest: Rule | None = None
    for rule in rules:
        if rule.action == "allow":
            if all(condition.surely(subject) for condition in rule.conditions):
                return _Verdict(strictest or rule, tuple(doubts), unruled)
            continue
        match min(condition.catches(subject) for condition in rule.conditions):
            case Match.YES:
                if is_understood or rule.action == "reject":
                    return _Verdict(rule, tuple(doubts), unruled)
                strictest = strictest or rule
            case Match.MAYBE:
                doubts.append(rule)
            case Match.NO:
                pass
    return _Verdict(strictest, tuple(doubts), unruled)


def _rule_name(rule: Rule) -> str:
    name = f" ({rule.name})" if rule.name else ""
    return f"rule {rule.number} of the {rule.source}{name}"


def _subject_text(subject: Subject) -> str:
    """Describe the subject, and the reason why no rule about commands allows it."""
    part = subject.part
    if part is None:
        return "this request"
    if not part.text:
        return "an unknown command"
    text = f"`{part.text}`" if len(part.text) <= 200 else f"`{part.text[:200]}…`"
    if not isinstance(part, Simple):
        return f"{text}, which is not understood: {part.reason}"
    if part.literal is None or not part.bare:
        return f"{text}, which is more than plain words"
    return text if subject.request.only_command else f"{text}, in a request for more than this command"
