"""Let rules decide requests for permission before people are asked, and keep a session's rules.

Cheap decisions are made at once. Decisions that take long or read the disk run in a thread. Meanwhile the request is
recorded and can be cancelled. It goes to people if the rules do not decide it.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from sandboxagent.core.tasks import Tasks
from sandboxagent.protocol.envelope import Envelope, Object
from sandboxagent.protocol.errors import InvalidParams
from sandboxagent.server.agents.options import mode_rules
from sandboxagent.server.log.event import Direction
from sandboxagent.server.permissions.request import Asked
from sandboxagent.server.permissions.rules import Decision, Mistake, Policy, Rule, read_rules
from sandboxagent.server.sessions.decision import Decider
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.pending import PERMISSION, Outcome, PendingRequest
from sandboxagent.server.sessions.session import Process, Session

logger = logging.getLogger(__name__)


T = TypeVar("T")

KEY = "permissions"
"""Key of a session's rules in its metadata."""
PERSONS_TOOL = "bash"
"""The tool name that rules see for a command that a person runs."""
MAX_SHORT_LINE_BYTES = 64 << 10
"""Maximum bytes of a request that is parsed and decided without a thread."""
MAX_THREADS = 8
MAX_CACHED = 64
"""Maximum number of sessions whose parsed rules are cached."""
Rules = tuple[Rule, ...] | None


class Threads:
    """Runs functions in threads; functions of one key run one after another, in order."""

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most)
        self._last: dict[str, asyncio.Future[None]] = {}
        """For each key, a future that completes when its last function has ended."""

    async def run(self, key: str, function: Callable[[], T]) -> T:
        """Run a function and return its result. If the caller stops waiting, the thread runs on and keeps its slot."""
        loop = asyncio.get_running_loop()
        before, ended = self._last.get(key), loop.create_future()
        self._last[key] = ended
        ended.add_done_callback(lambda _: self._forget(key, ended))
        try:
            if before is not None:
                await asyncio.shield(before)
            await self._free.acquire()
        except BaseException:
            _end_with(before, ended)
            raise
        outcome: asyncio.Future[T] = loop.create_future()

        def end(result: T | None, error: BaseException | None) -> None:
            self._free.release()
            ended.set_result(None)
            if outcome.cancelled():
                return
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result, error = None, None
            try:
                result = function()
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(end, result, error)
            except RuntimeError:
                # The event loop was closed meanwhile.
                return

        threading.Thread(target=work, daemon=True, name=f"rules-{key}").start()
        return await outcome

    def _forget(self, key: str, ended: asyncio.Future[None]) -> None:
        if self._last.get(key) is ended:
            del self._last[key]


def _end_with(before: asyncio.Future[None] | None, ended: asyncio.Future[None]) -> None:
    """Complete `ended` as soon as `before` is done, so that a cancelled waiter does not let the next one overtake."""
    if before is None or before.done():
        ended.set_result(None)
    else:
        before.add_done_callback(lambda _: ended.set_result(None))


class PolicyCheck:
    """Applies the rules to requests, and answers agents with the decisions."""

    def __init__(self, hub: Hub, policy: Policy, timeout: float) -> None:
        """`timeout` is the maximum number of seconds for a decision."""
        self._hub = hub
        self._policy = policy
        self._timeout = timeout
        self._threads = Threads(MAX_THREADS)
        self._tasks = Tasks()
        self._read: dict[str, tuple[object, str | None, Rules]] = {}

    def take(self, pending: PendingRequest, session: Session) -> bool:
        """Let the rules decide a request, at once or in a thread; return False if people have to decide it."""
        request, running = pending.request, pending.process
        if request.method != PERMISSION:
            return False
        try:
            rules = self._rules_of(session)
            if not self._policy.rules and rules == ():
                return False
            ask = _asker(running, session, request)
            short = len(request.line) <= MAX_SHORT_LINE_BYTES
            decision = self._policy.decide_at_once(ask(), rules) if short else None
            line = None if decision is None else _answer(pending, decision)
        except Exception:
            logger.exception("asking the rules failed agent=%s", running.agent.id)
            return False
        if decision is not None and line is None:
            return False
        pending.answering = pending.deciding = True
        self._hub.record_request(pending)
        if decision is None or line is None:
            self._tasks.run(self._decide(pending, session, lambda: self._policy.decide(ask(), rules)), "ask the rules")
        else:
            self._answer(pending, session, decision, line)
        return True

    async def judge(self, session: Session, command: str) -> Decision:
        """Let the rules decide a command that a person wants to run: allow or reject."""
        try:
            rules = self._rules_of(session)
            if not self._policy.rules and rules == ():
                return Decision("allow", "there are no rules")
            cwd, *others = session.directories
            call: Object = {"name": PERSONS_TOOL, "kind": "execute", "title": command, "rawInput": {"command": command}}
            asked = Asked({"toolCall": call}, session.facts.agent, cwd, tuple(others))
            async with asyncio.timeout(self._timeout):
                return await self._threads.run(session.id, lambda: self._policy.decide_for_person(asked, rules))
        except TimeoutError:
            return Decision("reject", f"the rules took longer than {self._timeout:g} seconds to decide it")
        except Exception:
            logger.exception("asking the rules failed session=%s", session.id)
            return Decision("reject", "the rules could not be applied: an internal error")

    async def _decide(self, pending: PendingRequest, session: Session, decide: Callable[[], Decision]) -> None:
        """Decide in a thread. The thread also makes the answer, because that has to parse the request."""

        def work() -> tuple[Decision, bytes | None]:
            decision = decide()
            pending.about = pending.request.asked()
            return decision, _answer(pending, decision)

        try:
            async with asyncio.timeout(self._timeout):
                decision, line = await self._threads.run(session.id, work)
        except TimeoutError:
            logger.warning("rules took too long session=%s", session.id)
            decision = Decision("reject", f"the rules took longer than {self._timeout:g} seconds to decide it")
            line = pending.rejection()
        except Exception:
            logger.exception("asking the rules failed session=%s", session.id)
            decision, line = Decision("ask", "the rules could not be applied: an internal error"), None
        if not pending.open:
            # Cancelled, withdrawn, or its process died: nothing is left to decide.
            return
        if line is None:
            pending.about = None
            pending.answering = pending.deciding = False
            self._hub.publish_request(pending)
        else:
            self._answer(pending, session, decision, line)

    def _answer(self, pending: PendingRequest, session: Session, decision: Decision, line: bytes) -> None:
        outcome = Outcome.ANSWERED if decision.action == "allow" else Outcome.REJECTED
        position = self._hub.record(session, line, Direction.FROM_SERVER).last
        self._tasks.run(self._give(pending, line, outcome, _decider(decision), position), "answer by a rule")

    async def _give(self, pending: PendingRequest, line: bytes, outcome: Outcome, by: Decider, position: int) -> None:
        try:
            # The answer goes out only after it is on disk: no action may happen without a record of who allowed it.
            await self._hub.log.committed(position)
        except Exception as error:
            logger.warning("decision not kept agent=%s reason=%s", pending.process.agent.id, type(error).__name__)
            line, outcome = pending.rejection(), Outcome.REJECTED
            by = Decider(by.kind, by.facts, "the decision of the rules cannot be recorded, so nothing is allowed")
        finally:
            pending.answering = pending.deciding = False
        if not pending.open:
            # Cancelled meanwhile: an allow must not come after that.
            return
        self._hub.settle(pending, outcome, by, line)

    def _rules_of(self, session: Session) -> Rules:
        """Return the rules of a session, with those of its permission mode; None if they are invalid."""
        raw, mode = session.facts.metadata.get(KEY), session.facts.ruled_as
        read = self._read.pop(session.id, None)
        if read is None or read[0] is not raw or read[1] != mode:
            read = (raw, mode, _read(session, mode))
        self._read[session.id] = read
        while len(self._read) > MAX_CACHED:
            del self._read[next(iter(self._read))]
        return read[2]


def check_rules(metadata: Object) -> None:
    """Raise InvalidParams, which names the rule, if the rules in a session's metadata are invalid."""
    try:
        _read_session_rules(metadata)
    except Mistake as mistake:
        where = KEY if mistake.index is None else f"{KEY}[{mistake.index}]"
        raise InvalidParams(f"{where}: {mistake}", index=mistake.index, key=mistake.key) from None


def _read(session: Session, mode: str | None) -> Rules:
    before, after = mode_rules(mode)
    try:
        return (
            *read_rules(before, "session"),
            *_read_session_rules(session.facts.metadata),
            *read_rules(after, "session"),
        )
    except Mistake as mistake:
        logger.warning("rules of a session cannot be read session=%s rule=%s", session.id, mistake.index)
        return None


def _asker(running: Process, session: Session, request: Envelope) -> Callable[[], Asked]:
    """Return a function that parses the request. The thread that decides calls it, because it may take long."""
    agent, by_title, directories = running.agent.id, running.agent.command_in_title, session.directories
    return lambda: Asked(request.params(), agent, directories[0], tuple(directories[1:]), by_title)


def _read_session_rules(metadata: Object) -> tuple[Rule, ...]:
    raw = metadata.get(KEY)
    return () if raw is None else read_rules(raw, "session")


def _answer(pending: PendingRequest, decision: Decision) -> bytes | None:
    """Return the answer for the agent; None if people have to decide."""
    match decision.action:
        case "allow":
            return pending.permission(remember=decision.remember)
        case "reject":
            return pending.rejection()
        case "ask":
            return None


def _decider(decision: Decision) -> Decider:
    rule = decision.rule
    if rule is None:
        return Decider("limit", reason=decision.why)
    facts: Object = {"rule": rule.number, "source": rule.source}
    return Decider("rule", facts | ({"name": rule.name} if rule.name else {}), rule.reason or decision.why)
