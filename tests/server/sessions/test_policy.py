"""Rulings at awkward moments: what the rules allow is kept first, and never comes after a cancel."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Raw

from sandboxagent.protocol.envelope import parse
from sandboxagent.protocol.errors import InvalidParams, LogUnavailable
from sandboxagent.server.agents.dialects.dialect import Plain
from sandboxagent.server.log.database import Database
from sandboxagent.server.log.log import Limits, Log
from sandboxagent.server.permissions.budget import STEPS
from sandboxagent.server.permissions.rules import Policy, read_rules
from sandboxagent.server.sessions.decision import AGENT
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.lifecycle import Event
from sandboxagent.server.sessions.pending import Outcome
from sandboxagent.server.sessions.policy import PolicyCheck, check_rules
from sandboxagent.server.sessions.session import Session
from sandboxagent.server.sessions.turns import Turns
from tests.support.client import run
from tests.support.running import BOUND

Json = dict[str, Any]

OPTIONS = [
    {"optionId": "always", "kind": "allow_always"},
    {"optionId": "yes", "kind": "allow_once"},
    {"optionId": "no", "kind": "reject_once"},
]
ALLOWED: Json = {"outcome": {"outcome": "selected", "optionId": "yes"}}
REJECTED: Json = {"outcome": {"outcome": "selected", "optionId": "no"}}
CANCELLED: Json = {"outcome": {"outcome": "cancelled"}}


class World:
    """A session of an agent whose answers are remembered."""

    def __init__(
        self, rules: list[Json], resolve: Callable[[str], str] = str, timeout: float = 5, steps: int = STEPS
    ) -> None:
        self.log = Log(Database(None), Limits())
        self.hub = Hub(self.log)
        self.policy_check = PolicyCheck(self.hub, Policy(read_rules(rules, "server"), "/home", resolve, steps), timeout)
        self.running = fake_running()
        self.session: Session = self.hub.add_session(self.running, "s", "/srv", Raw(b"{}"))
        self.hub.move(self.session, Event.OPENED)
        self.session.facts.agent_session_id = "s"

    def asks(self, options: list[Json] | None = None, **given: Any) -> bool:
        """Whether the rules take a request of the agent to write a file."""
        call = {"toolCallId": "call", "kind": "edit", "rawInput": {"path": "/srv/a", **given}}
        params = {"sessionId": "s", "toolCall": call, "options": OPTIONS if options is None else options}
        line = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "session/request_permission", "params": params})
        request = parse(line.encode())
        return self.policy_check.take(self.hub.new_pending(request, self.running, self.session), self.session)

    async def answer(self) -> Json:
        """What the agent gets."""
        await self.running.news.wait()
        (line,) = self.running.sent
        return json.loads(line)["result"]


def fake_running() -> Any:
    from sandboxagent.server.agents.running import RunningAgent

    class Fake(RunningAgent):
        """Remembers what it was answered."""

        __slots__ = ("news", "sent")

        def __init__(self) -> None:
            self.agent: Any = SimpleNamespace(id="a", command_in_title=False)
            self.handshake: Any = SimpleNamespace(resumes=False)
            self.dialect = Plain()
            self.sent: list[bytes] = []
            self.news = asyncio.Event()

        @property
        def key(self) -> str:
            return "a-1"

        def answer(self, line: bytes) -> None:
            self.sent.append(line)
            self.news.set()

        send = answer

    return Fake()


@asynccontextmanager
async def world(*rules: Json, **how: Any) -> AsyncGenerator[World]:
    own = World(list(rules), **how)
    try:
        yield own
    finally:
        own.log.close()


ALLOWING, REJECTING = {"kind": "edit", "action": "allow"}, {"kind": "edit", "action": "reject"}


@pytest.mark.parametrize(
    ("rule", "options", "told"),
    [
        (ALLOWING, OPTIONS, ALLOWED),
        ({**ALLOWING, "remember": True}, OPTIONS, {"outcome": {"outcome": "selected", "optionId": "always"}}),
        ({**ALLOWING, "remember": True}, OPTIONS[1:], ALLOWED),
        ({**ALLOWING, "remember": True}, [OPTIONS[0], *OPTIONS], ALLOWED),
        (REJECTING, OPTIONS, REJECTED),
        (REJECTING, OPTIONS[:2], CANCELLED),
        (REJECTING, [], CANCELLED),
    ],
)
def test_the_option_is_chosen_by_its_kind(rule: Json, options: list[Json], told: Json) -> None:
    async def main() -> None:
        async with world(rule) as own:
            assert own.asks(options)
            assert await own.answer() == told

    run(main())


@pytest.mark.parametrize(
    "options",
    [[], OPTIONS[:1], [OPTIONS[1], OPTIONS[1]], [{"kind": "allow_once"}], [{"kind": "allow_once", "optionId": 5}]],
)
def test_people_are_asked_when_there_is_not_exactly_one_way_to_allow(options: list[Json]) -> None:
    async def main() -> None:
        async with world(ALLOWING) as own:
            assert not own.asks(options)
            assert own.log.position == 0, "nothing is kept twice"

    run(main())


def test_nothing_is_allowed_before_it_is_kept() -> None:
    async def main() -> None:
        async with world(ALLOWING) as own:
            kept, reached = asyncio.Event(), asyncio.Event()

            async def committed(position: int) -> None:
                reached.set()
                await kept.wait()

            own.log.committed = committed  # type: ignore[method-assign]
            assert own.asks()
            await reached.wait()
            assert own.running.sent == []
            kept.set()
            assert await own.answer() == ALLOWED

    run(main())


def test_nothing_is_allowed_after_a_cancel() -> None:
    async def main() -> None:
        async with world(ALLOWING) as own:
            kept, reached = asyncio.Event(), asyncio.Event()

            async def committed(position: int) -> None:
                reached.set()
                await kept.wait()

            own.log.committed = committed  # type: ignore[method-assign]
            assert own.asks()
            await reached.wait()
            Turns(own.hub, 16).cancel(own.session)
            kept.set()
            assert await own.answer() == CANCELLED
            await own.policy_check._tasks.settle()  # type: ignore[attr-defined]
            assert len(own.running.sent) == 1

    run(main())


@pytest.mark.parametrize("error", [LogUnavailable("the disk is full"), OSError("what else")])
def test_what_cannot_be_kept_is_rejected(error: Exception) -> None:
    async def main() -> None:
        async with world(ALLOWING) as own:

            async def failing(position: int) -> None:
                raise error

            own.log.committed = failing  # type: ignore[method-assign]
            assert own.asks()
            assert await own.answer() == REJECTED

    run(main())


def test_a_session_whose_rules_cannot_be_read_is_asked() -> None:
    async def main() -> None:
        async with world(ALLOWING) as own:
            own.session.facts.metadata = {"permissions": [{"tool": "*", "action": "alow"}]}
            assert not own.asks()
            own.session.facts.metadata = {"permissions": [{"tool": "*", "action": "reject"}]}
            assert own.asks()
            assert await own.answer() == REJECTED

    run(main())


def test_an_error_of_the_rules_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with world(ALLOWING) as own:
            own.session.facts.metadata = None  # type: ignore[assignment]
            assert not own.asks()

    run(main())
    assert "asking the rules failed" in caplog.text


def test_a_command_of_a_person_is_judged_by_the_rules_of_server_and_session() -> None:
    async def main() -> None:
        async with world({"command": "git push", "action": "reject"}) as own:
            own.session.facts.metadata = {"permissions": [{"command": "make", "action": "reject", "name": "no make"}]}
            made = [await own.policy_check.judge(own.session, text) for text in ("ls", "git push", "make")]
            assert [each.action for each in made] == ["allow", "reject", "reject"]
            assert "rule 1 of the session (no make)" in made[2].why
            own.session.facts.metadata = {"permissions": [{"tool": "*", "action": "alow"}]}
            assert (await own.policy_check.judge(own.session, "ls")).action == "reject"
            own.session.facts.metadata = None  # type: ignore[assignment]
            assert (await own.policy_check.judge(own.session, "ls")).action == "reject"

    run(main())


def test_a_command_of_a_person_that_is_hard_to_judge_is_rejected() -> None:
    async def main() -> None:
        disk = Disk()
        async with world({"path": "/srv/a", "action": "ask"}, resolve=disk.resolve, timeout=0.01) as own:
            made = await own.policy_check.judge(own.session, "cat b")
            assert (made.action, made.rule) == ("reject", None)
            assert "longer than 0.01 seconds" in made.why
            disk.answers.set()

    run(main())


# Rules that take their time

BY_PATH = {"path": "/srv/**", "action": "allow"}


class Disk:
    """A file system that answers when it is let."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()

    def resolve(self, path: str) -> str:
        self.asked.set()
        assert self.answers.wait(BOUND)
        return path

    async def is_asked(self) -> None:
        assert await asyncio.to_thread(self.asked.wait, BOUND)


def test_a_disk_that_hangs_does_not_hold_the_event_loop() -> None:
    async def main() -> None:
        disk = Disk()
        async with world(BY_PATH, resolve=disk.resolve) as own:
            assert own.asks()
            assert own.log.position == 1, "the request is kept where it came"
            await disk.is_asked()
            assert own.running.sent == []
            disk.answers.set()
            assert await own.answer() == ALLOWED

    run(main())


def test_what_takes_too_long_is_rejected_and_says_so() -> None:
    async def main() -> None:
        disk = Disk()
        async with world(BY_PATH, resolve=disk.resolve, timeout=0.01) as own:
            assert own.asks()
            assert await own.answer() == REJECTED
            disk.answers.set()

    run(main())


def test_request_that_takes_too_many_steps_is_rejected_by_a_limit() -> None:
    async def main() -> None:
        async with world({"tool": "*", "action": "allow"}, BY_PATH, steps=500) as own:
            told: list[bytes] = []
            tell = own.hub.tell
            own.hub.tell = lambda session, line: (told.append(line), tell(session, line))[1]  # type: ignore[method-assign]
            assert own.asks(paths=[f"/srv/{number}" for number in range(5000)])
            assert await own.answer() == REJECTED
            (decision,) = [json.loads(line)["params"] for line in told]
            assert decision["by"] == {"kind": "limit"}
            assert decision["reason"] == "the rules would take more than 500 steps to decide it"

    run(main())


def test_what_the_rules_leave_to_people_is_asked_when_they_are_done() -> None:
    async def main() -> None:
        disk = Disk()
        async with world({"path": "/elsewhere/**", "action": "allow"}, resolve=disk.resolve) as own:
            assert own.asks()
            (pending,) = own.hub.pending.of_session(own.session)
            assert pending.deciding
            disk.answers.set()
            await own.policy_check._tasks.settle()  # type: ignore[attr-defined]
            assert pending.open
            assert not pending.deciding
            assert not pending.answering
            assert own.running.sent == []

    run(main())


@pytest.mark.parametrize("how", ["cancel", "exit"])
def test_nothing_is_allowed_when_the_turn_or_the_agent_ended_meanwhile(how: str) -> None:
    async def main() -> None:
        disk = Disk()
        async with world(BY_PATH, resolve=disk.resolve) as own:
            assert own.asks()
            await disk.is_asked()
            (pending,) = own.hub.pending.of_session(own.session)
            if how == "cancel":
                Turns(own.hub, 16).cancel(own.session)
            else:
                own.hub.settle(pending, Outcome.CANCELLED, AGENT)
            disk.answers.set()
            await own.policy_check._tasks.settle()  # type: ignore[attr-defined]
            assert pending.outcome is Outcome.CANCELLED
            assert [json.loads(line)["result"] for line in own.running.sent] == ([CANCELLED] if how == "cancel" else [])

    run(main())


def test_rules_of_a_session_are_read_once_and_anew_when_they_change() -> None:
    async def main() -> None:
        async with world() as own:
            own.session.facts.metadata = {"permissions": [{"kind": "edit", "action": "reject"}]}
            first = own.policy_check._rules_of(own.session)  # type: ignore[attr-defined]
            assert own.policy_check._rules_of(own.session) is first  # type: ignore[attr-defined]
            own.session.facts.metadata = {"permissions": [{"kind": "edit", "action": "allow"}]}
            assert own.policy_check._rules_of(own.session) is not first  # type: ignore[attr-defined]

    run(main())


@pytest.mark.parametrize(
    ("raw", "index"), [([{"tool": "x", "action": "ask"}, {"tool": "x"}], 1), ("x", None), ({}, None), (0, None)]
)
def test_rules_of_a_session_that_are_wrong_are_named(raw: Any, index: int | None) -> None:
    with pytest.raises(InvalidParams) as caught:
        check_rules({"permissions": raw})
    assert caught.value.fields["index"] == index
    check_rules({"permissions": None})
    check_rules({})
