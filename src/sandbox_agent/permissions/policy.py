"""The policy: what rules say to a request, before people are asked.

Fails closed: anything unknown, ambiguous or broken goes to a human, and what takes too long is rejected. Pure: how
links are followed is passed in.
"""

import logging
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from sandbox_agent.permissions.commands import Simple
from sandbox_agent.permissions.conditions import Subject
from sandbox_agent.permissions.patterns import Match
from sandbox_agent.permissions.request import Asked, ToolRequest, read_request
from sandbox_agent.permissions.rules import Action, Rule
from sandbox_agent.permissions.work import STEPS, TooMuch, Work

logger = logging.getLogger(__name__)

QUICK_STEPS = 2_000
"""Of a decision that is made on the spot: some milliseconds."""

_SEVERITY: dict[Action, int] = {"allow": 0, "ask": 1, "reject": 2}


class _NeedsDisk(Exception):
    """A path has to be followed, which can take any time."""


class Decision(Struct, frozen=True):
    """What is to be done, and why."""

    action: Action
    why: str
    """For people: what decided, about which part of a command."""
    rule: Rule | None = None
    """The rule that decided; None when none did."""
    remember: bool = False
    """Whether what is allowed may be allowed for good."""
    parts: "tuple[Decision, ...]" = ()
    """The verdict on each part of a command."""


class Policy(Struct, frozen=True):
    """The server's rules, and how this machine's paths are read."""

    rules: tuple[Rule, ...]
    home: str
    resolve: Callable[[str], str]
    """An absolute path without links in it, whether it exists or not."""

    steps: int = STEPS
    """What one decision may take. What takes more is rejected."""

    def decide(self, asked: Asked, session_rules: tuple[Rule, ...] | None) -> Decision:
        """What the server's rules and the session's say; `session_rules` is None when those cannot be read.

        What a rule of the server rejects, no rule of a session allows.
        """
        try:
            return self._decide(asked, session_rules, Work(self.steps, self.resolve))
        except TooMuch:
            return Decision("reject", f"the rules would take more than {self.steps} steps to decide it")
        except Exception:
            logger.exception("deciding a permission failed agent=%s", asked.agent)
            return Decision("ask", "the rules could not be applied: an internal error")

    def decide_at_once(self, asked: Asked, session_rules: tuple[Rule, ...] | None) -> Decision | None:
        """The same where it takes little and needs no disk; else None."""
        try:
            return self._decide(asked, session_rules, Work(min(QUICK_STEPS, self.steps), _refuse))
        except Exception:
            # The slow path decides it, and handles errors.
            return None

    def _decide(self, asked: Asked, session_rules: tuple[Rule, ...] | None, work: Work) -> Decision:
        request = read_request(asked, work)
        subjects = [Subject(request, part, self.home, work) for part in request.parts or (None,)]
        decisions = tuple(self._judge(subject, session_rules or ()) for subject in subjects)
        # The worst part decides; of equals the first about which there is a rule.
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
        """What keeps any rule from allowing it."""
        if session_rules is None:
            return "the session's rules cannot be read"
        if not request.is_readable:
            return "the request cannot be read"
        return "it is a question, in the form of a permission" if request.is_question else None

    def _judge(self, subject: Subject, session_rules: tuple[Rule, ...]) -> Decision:
        server = _first(self.rules, subject)
        if server.action == "reject":
            return server.decision(subject)
        session = _first(session_rules, subject)
        chosen = session if session.rule is not None else server
        # A rule of the session may allow what the server would ask, but not what the server would reject.
        doubts = [*session.doubts, *(rule for rule in server.doubts if chosen is server or rule.action == "reject")]
        if chosen.action == "allow" and doubts:
            return Decision("ask", f"{_rule_name(doubts[0])} may be about {_subject_text(subject)}", doubts[0])
        return chosen.decision(subject)


def _refuse(path: str) -> str:
    raise _NeedsDisk(path)


class _Verdict(Struct, frozen=True):
    """What one list of rules says of one subject."""

    rule: Rule | None
    doubts: tuple[Rule, ...]
    """Rules before it that may be about the subject, and do not allow."""
    unruled: Action
    """What happens when no rule is about it."""

    @property
    def action(self) -> Action:
        return self.unruled if self.rule is None else self.rule.action

    def decision(self, subject: Subject) -> Decision:
        if self.rule is None:
            but = f"; one would be, but {subject.notes[0]}" if subject.notes and self.action != "allow" else ""
            return Decision(self.action, f"no rule is about {_subject_text(subject)}{but}")
        return Decision(self.action, f"{_rule_name(self.rule)} is about {_subject_text(subject)}", self.rule)


def _first(rules: tuple[Rule, ...], subject: Subject) -> _Verdict:
    """The first rule that fits.

    A text that was not understood may hold several commands. A rule that is about one of them says nothing of the
    others, so the rules after it count too, up to one that surely allows all of it; the strictest decides.
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
    """What was judged, and what keeps a rule about commands from allowing it."""
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
    return text if subject.request.only_command else f"{text}, with which more is asked for"
