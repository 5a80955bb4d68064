"""The policy: what rules say to a request, before anybody is asked.

Fails closed: whatever is unknown, ambiguous or goes wrong is asked. Pure: how links are followed is passed in.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from sandbox_agent.permissions.commands import Simple
from sandbox_agent.permissions.conditions import Subject
from sandbox_agent.permissions.patterns import Match
from sandbox_agent.permissions.request import ToolRequest
from sandbox_agent.permissions.rules import Action, Rule

logger = logging.getLogger(__name__)

_SEVERITY: dict[Action, int] = {"allow": 0, "ask": 1, "reject": 2}


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done, and why."""

    action: Action
    why: str
    """For people: what decided, about which part of a command."""
    rule: Rule | None = None
    """The rule that decided; None when none did."""
    remember: bool = False
    """Whether what is allowed may be allowed for good."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The server's rules, and how this machine's paths are read."""

    rules: tuple[Rule, ...]
    home: str
    resolve: Callable[[str], str]
    """An absolute path without links in it, whether it exists or not."""

    def decide(self, request: ToolRequest, cwd: str, session_rules: tuple[Rule, ...] | None) -> Decision:
        """What the server's rules and the session's say; `session_rules` is None when those cannot be read.

        What a rule of the server rejects, no rule of a session allows.
        """
        try:
            return self._decide(request, cwd, session_rules)
        except Exception:
            logger.exception("deciding a permission failed agent=%s", request.agent)
            return Decision("ask", "the rules could not be applied: an internal error")

    def judge(self, request: ToolRequest, cwd: str, session_rules: tuple[Rule, ...]) -> list[Decision]:
        """What they say to each part of a command, or to the request as a whole when it has none."""
        # Many rules look at the same paths.
        resolve = cache(self.resolve)
        subjects = [Subject(request, part, cwd, self.home, resolve) for part in request.parts or (None,)]
        return [self._judge(subject, session_rules) for subject in subjects]

    def _decide(self, request: ToolRequest, cwd: str, session_rules: tuple[Rule, ...] | None) -> Decision:
        decisions = self.judge(request, cwd, session_rules or ())
        # The worst part decides; of equals the first about which there is a rule.
        worst = max(decisions, key=lambda decision: (_SEVERITY[decision.action], decision.rule is not None))
        if worst.action == "allow":
            reason = self._why_not(request, session_rules)
            if reason is not None:
                return Decision("ask", reason)
            rules = [decision.rule for decision in decisions if decision.rule is not None]
            return replace(worst, remember=all(rule.remember for rule in rules))
        return worst

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
            return Decision("ask", f"{_called(doubts[0])} may be about {_shown(subject)}", doubts[0])
        return chosen.decision(subject)


@dataclass(frozen=True, slots=True)
class _Verdict:
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
            return Decision(self.action, f"no rule is about {_shown(subject)}")
        return Decision(self.action, f"{_called(self.rule)} is about {_shown(subject)}", self.rule)


def _first(rules: tuple[Rule, ...], subject: Subject) -> _Verdict:
    """The first rule that fits."""
    part = subject.part
    unruled: Action = "allow" if isinstance(part, Simple) and part.runs_others else "ask"
    doubts: list[Rule] = []
    for rule in rules:
        if rule.action == "allow":
            if all(condition.surely(subject) for condition in rule.conditions):
                return _Verdict(rule, tuple(doubts), unruled)
            continue
        match min(condition.catches(subject) for condition in rule.conditions):
            case Match.YES:
                return _Verdict(rule, tuple(doubts), unruled)
            case Match.MAYBE:
                doubts.append(rule)
            case Match.NO:
                pass
    return _Verdict(None, tuple(doubts), unruled)


def _called(rule: Rule) -> str:
    name = f" ({rule.name})" if rule.name else ""
    return f"rule {rule.number} of the {rule.source}{name}"


def _shown(subject: Subject) -> str:
    """What was judged, and what keeps a rule about commands from allowing it."""
    part = subject.part
    if part is None:
        return "this request"
    text = f"`{part.text}`" if len(part.text) <= 200 else f"`{part.text[:200]}…`"
    if not isinstance(part, Simple):
        return f"{text}, which is not understood: {part.reason}"
    if part.literal is None or not part.bare:
        return f"{text}, which is more than plain words"
    return text if subject.request.only_command else f"{text}, with which more is asked for"
