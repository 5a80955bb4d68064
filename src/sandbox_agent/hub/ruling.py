"""Rulings: permissions that rules decide, before anybody is asked; and the rules of a session."""

import asyncio
import logging

from sandbox_agent.envelope import Envelope, Object
from sandbox_agent.errors import InvalidParams
from sandbox_agent.hub.asking import PERMISSION
from sandbox_agent.hub.decision import Decider
from sandbox_agent.hub.hub import Hub
from sandbox_agent.hub.pending import Outcome, PendingRequest
from sandbox_agent.hub.permission_mode import mode_rules
from sandbox_agent.hub.process import Process
from sandbox_agent.hub.session import Session
from sandbox_agent.log.event import Direction
from sandbox_agent.permissions.policy import Decision, Policy
from sandbox_agent.permissions.request import read_request
from sandbox_agent.permissions.rules import Mistake, Rule, read_rules

logger = logging.getLogger(__name__)

KEY = "permissions"
"""Of a session's metadata, where its rules are."""


class Ruling:
    """Asks the rules, and answers agents what those say."""

    def __init__(self, hub: Hub, policy: Policy) -> None:
        self._hub = hub
        self._policy = policy
        self._tasks: set[asyncio.Task[None]] = set()

    def answers(self, running: Process, session: Session, request: Envelope) -> bool:
        """Take a request that the rules decide; False when people are to be asked."""
        if request.method != PERMISSION:
            return False
        pending = self._hub.new_pending(request, running, session)
        try:
            decision = self._decide(running, session, request)
            line = _answer(pending, decision)
        except Exception:
            logger.exception("asking the rules failed agent=%s", running.agent.id)
            return False
        if line is None or decision.rule is None:
            return False
        pending.answering = True
        self._hub.hold(pending)
        outcome = Outcome.ANSWERED if decision.action == "allow" else Outcome.REJECTED
        by = _decider(decision.rule, decision.why)
        position = self._hub.record(session, line, Direction.FROM_SERVER).last
        task = asyncio.create_task(self._give(pending, line, outcome, by, position))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def _decide(self, running: Process, session: Session, request: Envelope) -> Decision:
        cwd, by_title = session.facts.cwd, running.agent.command_in_title
        asked = read_request(request.params(), running.agent.id, cwd, command_in_title=by_title)
        return self._policy.decide(asked, cwd, _rules_of(session))

    async def _give(self, pending: PendingRequest, line: bytes, outcome: Outcome, by: Decider, position: int) -> None:
        try:
            # The agent acts on it only after it is kept: an action without a record of who allowed it must not be.
            await self._hub.log.committed(position)
        except Exception as error:
            logger.warning("ruling not kept agent=%s reason=%s", pending.process.agent.id, type(error).__name__)
            line, outcome = pending.rejection(), Outcome.REJECTED
            by = Decider(by.kind, by.facts, "what the rules say cannot be kept, so nothing is allowed")
        finally:
            pending.answering = False
        if not pending.open:
            # Cancelled meanwhile: an allow must not come after that.
            return
        self._hub.settle(pending, outcome, by, line)


def check_rules(metadata: Object) -> None:
    """Raises InvalidParams, which names the rule, when a session cannot have the rules in this metadata."""
    try:
        _own_rules(metadata)
    except Mistake as mistake:
        where = KEY if mistake.index is None else f"{KEY}[{mistake.index}]"
        raise InvalidParams(f"{where}: {mistake}", index=mistake.index, key=mistake.key) from None


def _rules_of(session: Session) -> tuple[Rule, ...] | None:
    """The rules of a session, with those of its permission mode; None when they cannot be read."""
    before, after = mode_rules(session.facts.ruled_as)
    try:
        return (
            *read_rules(before, "session"),
            *_own_rules(session.facts.metadata),
            *read_rules(after, "session"),
        )
    except Mistake as mistake:
        logger.warning("rules of a session cannot be read session=%s rule=%s", session.id, mistake.index)
        return None


def _own_rules(metadata: Object) -> tuple[Rule, ...]:
    raw = metadata.get(KEY)
    return () if raw is None else read_rules(raw, "session")


def _answer(pending: PendingRequest, decision: Decision) -> bytes | None:
    """What the agent is told; None when people are to be asked."""
    match decision.action:
        case "allow":
            return pending.permission(remember=decision.remember)
        case "reject":
            return pending.rejection()
        case "ask":
            return None


def _decider(rule: Rule, why: str) -> Decider:
    facts: Object = {"rule": rule.number, "source": rule.source}
    return Decider("rule", facts | ({"name": rule.name} if rule.name else {}), rule.reason or why)
