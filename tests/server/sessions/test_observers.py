"""What parts above the hub hear of sessions, turns, requests and connections."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from sandboxagent.protocol.envelope import Object
from sandboxagent.protocol.errors import BadRequest
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.lifecycle import Event
from sandboxagent.server.sessions.observers import Observer
from sandboxagent.server.sessions.pending import PendingRequest
from sandboxagent.server.sessions.session import Prompt, Session
from tests.support.running import BOUND
from tests.support.world import World, error_of, result_of


class Recorder(Observer):
    """Hears everything."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, ...]] = []

    def session_opened(self, session: Session) -> None:
        self.heard.append(("opened", session.id))

    def session_ended(self, session: Session) -> None:
        self.heard.append(("ended", session.id))

    def session_deleted(self, session: Session) -> None:
        self.heard.append(("deleted", session.id))

    def turn_started(self, session: Session, turn_id: str) -> None:
        self.heard.append(("turn", session.id, turn_id))

    def turn_ended(self, session: Session, turn_id: str, end: Object) -> None:
        self.heard.append(("turn ended", turn_id, str(end.get("stopReason") or end.get("error"))))

    def request_opened(self, pending: PendingRequest) -> None:
        self.heard.append(("asked", pending.kind))

    def request_settled(self, pending: PendingRequest, decision: bytes | None) -> None:
        self.heard.append(("decided", pending.outcome or "", str(decision is not None)))

    def connection_closed(self, connection: Connection) -> None:
        self.heard.append(("closed", connection.tag))


class Broken(Observer):
    def turn_started(self, session: Session, turn_id: str) -> None:
        raise ZeroDivisionError


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, BOUND))


def test_an_observer_hears_a_turn_from_its_start_to_its_end() -> None:
    async def scenario() -> None:
        world, recorder = World(), Recorder()
        world.hub.observers.add(recorder)
        answer = world.prompt()
        await world.agent.answers("session/prompt", {"stopReason": "end_turn"})
        await answer

        (turn, session, turn_id), ended = recorder.heard
        assert (turn, session) == ("turn", "s")
        assert ended == ("turn ended", turn_id, "end_turn")

    run(scenario())


def test_an_observer_hears_what_is_asked_and_decided() -> None:
    async def scenario() -> None:
        world, recorder = World(), Recorder()
        world.hub.observers.add(recorder)
        world.prompt()
        await world.agent.pipe.request("session/prompt")
        world.asks(1)
        await world.notify("session/cancel", sessionId="s")

        assert [each for each in recorder.heard if each[0] in ("asked", "decided")] == [
            ("asked", "permission"),
            ("decided", "cancelled", "True"),
        ]

    run(scenario())


def test_an_observer_hears_sessions_and_connections_begin_and_end() -> None:
    async def scenario() -> None:
        world, recorder = World(), Recorder()
        world.hub.observers.add(recorder)
        session = world.add_session("t")
        world.agent.crashes()
        world.hub.delete_session(session)
        world.hub.close_connection(world.client, "test")

        assert ("opened", "t") in recorder.heard
        assert ("ended", "t") in recorder.heard
        assert ("ended", "s") in recorder.heard
        assert ("deleted", "t") in recorder.heard
        assert recorder.heard[-1] == ("closed", world.client.tag)

    run(scenario())


def test_an_observer_that_fails_is_reported_and_harms_no_turn(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        world, recorder = World(), Recorder()
        world.hub.observers.add(Broken())
        world.hub.observers.add(recorder)
        answer = world.prompt()
        await world.agent.answers("session/prompt", {"stopReason": "end_turn"})

        assert result_of(await answer)["stopReason"] == "end_turn"
        assert [each[0] for each in recorder.heard] == ["turn", "turn ended"]

    run(scenario())
    assert "observer failed event=Broken.turn_started" in caplog.text


# What may be refused: a prompt


class Hold:
    """A check of prompts: each waits until the test has decided about it."""

    def __init__(self, world: World) -> None:
        self.asked: list[str] = []
        self.decided: dict[str, asyncio.Future[None]] = {}
        world.hub.before_prompt.add("hold", self.check)

    def check(self, session: Session, prompt: Prompt) -> "asyncio.Future[None]":
        self.asked.append(prompt.turn_id)
        return self.decided.setdefault(prompt.turn_id, asyncio.get_running_loop().create_future())


def test_a_prompt_starts_when_its_check_agrees_and_those_behind_it_wait() -> None:
    async def scenario() -> None:
        world = World()
        hold = Hold(world)
        first, second = world.prompt("one", "1"), world.prompt("two", "2")
        await world.settled()

        assert len(hold.asked) == 1
        assert not [each for each in world.process.sent if each.get("method") == "session/prompt"]
        hold.decided[hold.asked[0]].set_result(None)
        await world.agent.answers("session/prompt", {"stopReason": "end_turn"})
        await first
        await world.settled()
        assert len(hold.asked) == 2
        hold.decided[hold.asked[1]].set_result(None)
        request = await world.agent.answers("session/prompt", {"stopReason": "end_turn"})
        assert request["params"]["prompt"][0]["text"] == "two"
        await second

    run(scenario())


@pytest.mark.parametrize("at_once", [True, False])
def test_a_refused_prompt_is_answered_with_the_reason_and_the_next_one_starts(at_once: bool) -> None:
    async def scenario() -> None:
        world = World()
        seen: list[str] = []

        async def later() -> None:
            raise BadRequest("too dear")

        def check(session: Session, prompt: Prompt) -> Coroutine[Any, Any, None] | None:
            seen.append(prompt.turn_id)
            if len(seen) > 1:
                return None
            if at_once:
                raise BadRequest("too dear")
            return later()

        world.hub.before_prompt.add("budget", check)
        first, second = world.prompt("one", "1"), world.prompt("two", "2")

        assert "too dear" in error_of(await first)["message"]
        request = await world.agent.answers("session/prompt", {"stopReason": "end_turn"})
        assert request["params"]["prompt"][0]["text"] == "two"
        assert result_of(await second)["stopReason"] == "end_turn"

    run(scenario())


def test_a_prompt_that_is_cancelled_while_it_is_checked_never_starts() -> None:
    async def scenario() -> None:
        world = World()
        hold = Hold(world)
        answer = world.prompt()
        await world.settled()
        await world.notify("session/cancel", sessionId="s")

        assert result_of(await answer)["stopReason"] == "cancelled"
        hold.decided[hold.asked[0]].set_result(None)
        await world.settled()
        assert not [each for each in world.process.sent if each.get("method") == "session/prompt"]

    run(scenario())


def test_a_prompt_checked_while_its_agent_exits_fails_and_never_starts() -> None:
    async def scenario() -> None:
        world = World()
        hold = Hold(world)
        answer = world.prompt()
        await world.settled()
        world.agent.crashes()

        assert "message" in error_of(await answer)
        hold.decided[hold.asked[0]].set_result(None)
        await world.settled()
        assert world.session.state is not Event.OPENED

    run(scenario())
