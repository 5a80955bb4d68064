"""What happens to a session in every order: any three of seven events, with agents of four kinds.

Contract, sections 5 and 6. `python -m tests.server.sessions.test_orders` tries all orders of all seven, which takes
minutes.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxagent.protocol.errors import AgentTimeout
from sandboxagent.server.sessions.lifecycle import AT_REST, State
from sandboxagent.server.sessions.session import TERMINATED as ENDED_FOR_GOOD
from sandboxagent.server.sessions.session import Session
from tests.support.running import BOUND
from tests.support.world import FakeAgent, World, run, world

EVENTS = ("crash", "terminate", "delete", "load", "resume", "prompt", "timeout")
AGENTS = ("silent", "answers", "refuses", "starts late")
LATE = 1801
"""Seconds after which no client waits for an answer any more."""
PAGES = 2
"""Of the log that a load reads, one after another."""
TERMINATE = "_sandboxagent/session/terminate"


class Life:
    """One session, what is asked of it, and what must be true of it all the time."""

    def __init__(self, own: World, agent: str, name: str) -> None:
        self.own = own
        self.agent = agent
        self.name = name
        self.began = len(own.agents) - 1
        self.client = own.client = own.connect()
        self.session = own.add_session(name)
        own.hub.attach(self.client, self.session)
        self.asked: dict[str, asyncio.Task[Any]] = {}
        self.is_over = False
        """A client has heard that it was terminated."""
        self.is_deleted = False

    async def happens(self, event: str) -> None:
        """One event, and all that comes of it by itself."""
        own, name = self.own, f"{len(self.asked)} {event}"
        match event:
            case "crash":
                if own.agents[-1] is not None:
                    own.agent.crashes()
                    if self.agent == "starts late":
                        own.starting.clear()
            case "prompt":
                self.asked[name] = own.prompt(name, name, self.name)
            case "cancel":
                await own.notify("session/cancel", sessionId=self.name)
            case "answer" | "refuse":
                self.answer(refuse=event == "refuse")
            case "timeout":
                own.now += LATE
                self.client.used_at = own.now
                own.timeout_loop.tick()
            case _:
                method = TERMINATE if event == "terminate" else f"session/{event}"
                params = {"sessionId": self.name, "cwd": "/", "mcpServers": []}
                self.asked[name] = own.request(method, params, name)
        await self.settled()
        while self.agent in ("answers", "refuses") and self.answer(refuse=self.agent == "refuses"):
            await self.settled()

    async def settled(self) -> None:
        """Let everything happen that can happen by itself."""
        await self.own.settled()
        for _ in range(PAGES if self.unanswered() else 0):
            # What reads a page of the log has it after this.
            await self.own.log.history(self.name, 0, 1, 1)
            await self.own.settled()
        self.check()

    def processes(self) -> list[FakeAgent]:
        """All processes of the agent in this life."""
        return [one for one in self.own.agents[self.began :] if one is not None]

    def answer(self, *, refuse: bool = False) -> bool:
        """The agent answers its oldest open request; False when it has none."""
        for process in self.processes():
            for asked in process.sent if process.pipe.alive else []:
                if "id" in asked and "method" in asked and "answered" not in asked:
                    asked["answered"] = True
                    result = {"stopReason": "end_turn"} if asked["method"] == "session/prompt" else {}
                    said = {"error": {"code": -32000, "message": "no"}} if refuse else {"result": result}
                    process.says(id=asked["id"], **said)
                    return True
        return False

    async def ends(self) -> None:
        """The agent has started, and answers all that it is asked: no client may wait for ever."""
        self.own.starting.set()
        await self.settled()
        while self.answer() or self.unanswered():
            await self.settled()
        await self.check_answers()
        assert self.own.hub.calls.empty
        session = self.own.hub.find_session(self.name)
        if session is not None:
            self.own.hub.delete_session(session)
        self.own.hub.close_connection(self.client, "the life is over")

    def unanswered(self) -> list[str]:
        return [name for name, task in self.asked.items() if not task.done()]

    # What must be true

    def check(self) -> None:
        """After every event."""
        session = self.session
        check_flags(session)
        self.check_processes()
        # A load may make another session of the same id, once this one is gone.
        self.is_deleted = self.is_deleted or self.own.hub.find_session(self.name) is not session
        assert self.is_deleted == (session.state is State.DELETED)
        self.is_over = self.is_over or self.has_been_terminated()
        assert not self.is_over or session.state in (State.TERMINATED, State.DELETED), f"{session.state} after its end"

    def has_been_terminated(self) -> bool:
        done = [task for name, task in self.asked.items() if name.endswith("terminate") and task.done()]
        answers = [json.loads(task.result().line) for task in done if task.exception() is None]
        return any(one.get("result", {}).get("terminated") is True for one in answers)

    def check_processes(self) -> None:
        """One living process has the session, or none; no prompt goes to an agent twice, or after the end."""
        processes, held_by = self.processes(), self.session.process
        found = [one for one in processes if self.own.hub.store.find_held(one.running, self.name) is self.session]
        assert [one.running for one in found] == ([] if held_by is None else [held_by])
        assert all(one.pipe.alive for one in found), "held by a process that is gone"
        sent = [one["params"] for process in processes for one in process.sent if one.get("method") == "session/prompt"]
        prompts = Counter(one["prompt"][0]["text"] for one in sent if one["sessionId"] == self.name)
        assert set(prompts.values()) <= {1}, f"ran twice: {prompts}"

    async def check_answers(self) -> None:
        """At the end each request has one answer: for its caller or, when that has given up, on the stream."""
        heard = [one for one in await self.own.heard(self.client, self.name) if "method" not in one]
        told = Counter(one["id"] for one in heard)
        for name, task in self.asked.items():
            error = task.exception()
            assert error is None or isinstance(error, AgentTimeout), f"{name}: {error!r}"
            if error is None:
                answer = json.loads(task.result().line)
                assert answer["id"] == name
                failure = answer.get("error", {"code": 0})
                assert failure["code"] != -32603 or "exited" in failure["message"], answer
                heard.append(answer)
            is_told = error is None or error.late is None
            times = told[name] + is_told
            assert times == 1, f"{name} was answered {times} times"
        deleted = [one for one in heard if one["id"].endswith("delete") and "result" in one]
        assert self.is_deleted or not deleted, f"there after {deleted}"


def check_flags(session: Session) -> None:
    """What is kept and shown of a life follows from its state."""
    facts, state = session.facts, session.state
    assert session.running is None or session.live
    assert (session.process is None) == (state in AT_REST)
    if state is State.DELETED:
        return
    assert (state is State.TERMINATED) == (facts.termination == ENDED_FOR_GOOD)
    assert facts.ended == (facts.termination is not None)
    assert facts.ended == (state in AT_REST or state is State.RESUMING)
    assert facts.can_resume == (state not in (State.ENDED, State.TERMINATED))
    assert session.replay is None or state is not State.HELD
    assert not session.waiting or state not in (State.ENDED, State.TERMINATED)


async def play_one(own: World, agent: str, name: str, events: Iterable[str]) -> None:
    life = Life(own, agent, name)
    async with asyncio.timeout(BOUND):
        for event in events:
            await life.happens(event)
        await life.ends()
    if own.agents[-1] is None:
        await own.booted()


async def play(agent: str, orders: list[tuple[str, ...]]) -> list[str]:
    """The lives in which something was wrong, and what. One world has them all, until one goes wrong."""
    wrong: list[str] = []
    done = 0
    while done < len(orders):
        async with world() as own:
            for events in orders[done:]:
                done += 1
                try:
                    await play_one(own, agent, f"life-{done}", events)
                except (AssertionError, TimeoutError) as error:
                    wrong.append(f"{agent}: {', '.join(events)}: {error!r}")
                    break
    return wrong


def play_all(orders: Iterable[tuple[str, ...]]) -> list[str]:
    tried = list(orders)
    return [one for agent in AGENTS for one in asyncio.run(play(agent, tried))]


@pytest.mark.requirement("6.terminate-wins")
def test_every_order_of_three_events_answers_each_request_once() -> None:
    """A session that was ended stays ended."""
    assert play_all(product(EVENTS, repeat=3)) == []


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from((*EVENTS, "cancel", "answer", "refuse", "close")), max_size=14))
def test_long_lives_answer_each_request_once(events: list[str]) -> None:
    """A session that was ended stays ended."""

    async def main() -> None:
        async with world() as own:
            await play_one(own, "silent", "life", events)

    run(main())


if __name__ == "__main__":
    print("\n".join(play_all(permutations(EVENTS))))
