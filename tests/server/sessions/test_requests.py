"""Everything that a client can send: requests, notifications, and answers to what an agent asked."""

import json
from typing import Any

import pytest

from sandboxagent.protocol.errors import (
    AlreadyAnswered,
    IdempotencyMismatch,
    MissingAgent,
    NobodyAsked,
    ShuttingDown,
    WrongAnswer,
)
from sandboxagent.server.sessions.connection import Connection
from tests.support.world import Json, World, envelope, error_of, result_of, run, world

ECHO = "vendor/echo"
PERMISSION: Json = {"outcome": {"outcome": "selected", "optionId": "yes"}}


async def answer(own: World, id: object, result: object = None, client: Connection | None = None) -> None:
    """A client's answer to a request of the agent's."""
    line = envelope(id=id, result=PERMISSION if result is None else result)
    await own.requests.answer(client or own.client, line)


async def asked(own: World, client: Connection | None = None) -> object:
    """The id under which a client was asked last."""
    heard = await own.heard(client or own.client)
    return [one["id"] for one in heard if one.get("method") == "session/request_permission"][-1]


def answers(own: World, id: object) -> list[Json]:
    """What the agent was answered."""
    return [one for one in own.process.sent if one.get("id") == id and "method" not in one]


# --- requests ---------------------------------------------------------------------------------------------------------


def test_a_connection_is_opened_once() -> None:
    async def main() -> None:
        async with world() as own:
            error = error_of(await own.request("initialize", {"protocolVersion": 1}))

            assert error["code"] == -32600
            assert own.process.sent == []

    run(main())


def test_a_connection_needs_an_agent() -> None:
    async def main() -> None:
        async with world() as own:
            with pytest.raises(MissingAgent):
                await own.requests.open(envelope(id=1, method="initialize", params={"protocolVersion": 1}))

    run(main())


def test_no_request_is_taken_once_the_server_stops() -> None:
    async def main() -> None:
        async with world() as own:
            own.hub.stopping = True
            with pytest.raises(ShuttingDown):
                await own.request(ECHO, {"sessionId": "s"})
            assert own.process.sent == []

    run(main())


def test_an_unforeseen_failure_is_an_internal_error_that_says_nothing_of_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with world() as own:

            def broken(_: bytes) -> None:
                raise RuntimeError("a secret of the server")

            own.process.send = broken  # type: ignore[method-assign]
            error = error_of(await own.request(ECHO, {"sessionId": "s"}))

            assert error["code"] == -32603
            assert "secret" not in json.dumps(error)

    run(main())
    assert "request failed method=vendor/echo" in caplog.text


def test_a_key_gives_the_first_outcome_again_and_the_agent_is_asked_once() -> None:
    async def main() -> None:
        async with world() as own:
            first = own.request(ECHO, {"sessionId": "s", "n": 1}, id=1, key="k")
            await own.settled()
            meanwhile = own.request(ECHO, {"sessionId": "s", "n": 1}, id=1, key="k")
            await own.settled()
            await own.agent.answers(ECHO, {"n": 1})
            again = own.request(ECHO, {"sessionId": "s", "n": 1}, id=1, key="k")

            assert [result_of(await task) for task in (first, meanwhile, again)] == [{"n": 1}] * 3
            assert [one["method"] for one in own.process.sent] == [ECHO]

    run(main())


def test_a_key_is_for_one_request() -> None:
    async def main() -> None:
        async with world() as own:
            first = own.request(ECHO, {"sessionId": "s", "n": 1}, id=1, key="k")
            await own.settled()
            await own.agent.answers(ECHO)
            await first

            with pytest.raises(IdempotencyMismatch):
                await own.request(ECHO, {"sessionId": "s", "n": 2}, id=1, key="k")

    run(main())


# --- notifications ----------------------------------------------------------------------------------------------------


def test_a_notification_is_passed_on_as_it_is_and_kept() -> None:
    async def main() -> None:
        async with world() as own:
            await own.notify("vendor/note", sessionId="s", anything=[1, None])

            assert own.sent("vendor/note")["params"] == {"sessionId": "s", "anything": [1, None]}
            assert "vendor/note" in [one.get("method") for one in await own.events()]

    run(main())


@pytest.mark.parametrize("method", ["vendor/note", "session/cancel"])
def test_a_notification_that_cannot_be_delivered_is_dropped(method: str) -> None:
    async def main() -> None:
        async with world() as own:
            await own.notify(method, sessionId="nowhere")
            own.process.reads = False
            await own.notify(method, sessionId="s")

            assert own.process.sent == []

    run(main())


def test_a_cancel_ends_what_waits_also_when_the_agent_does_not_read() -> None:
    async def main() -> None:
        async with world() as own:
            running = own.prompt("one", "1")
            await own.settled()
            waiting = own.prompt("two", "2")
            await own.settled()
            own.process.reads = False

            await own.notify("session/cancel", sessionId="s")

            assert result_of(await waiting) == {"stopReason": "cancelled"}
            own.process.reads = True
            await own.agent.answers("session/prompt", {"stopReason": "cancelled"})
            await running

    run(main())


def test_a_request_is_taken_back_under_the_id_that_the_agent_knows() -> None:
    async def main() -> None:
        async with world() as own:
            task = own.request(ECHO, {"sessionId": "s"}, id="mine")
            request = await own.process.request(ECHO)

            await own.notify("$/cancel_request", requestId="mine")
            await own.notify("$/cancel_request", requestId="not mine")
            await own.notify("$/cancel_request")

            taken_back = [one["params"] for one in own.process.sent if one.get("method") == "$/cancel_request"]
            assert taken_back == [{"requestId": request["id"]}]
            own.says(id=request["id"], error={"code": -32800, "message": "cancelled"})
            assert error_of(await task)["code"] == -32800

    run(main())


def test_a_client_cannot_take_back_the_request_of_another() -> None:
    async def main() -> None:
        async with world() as own:
            task = own.request(ECHO, {"sessionId": "s"}, id=1)
            await own.process.request(ECHO)
            other = own.connect()
            await own.requests.notify(other, envelope(method="$/cancel_request", params={"requestId": 1}))

            assert [one["method"] for one in own.process.sent] == [ECHO]
            task.cancel()

    run(main())


# --- answers ----------------------------------------------------------------------------------------------------------


def test_first_answer_reaches_the_agent_and_the_second_is_refused() -> None:
    """The agent gets the answer under its own id."""

    async def main() -> None:
        async with world() as own:
            own.asks("p")
            other = own.connect()
            own.hub.attach(other, own.session)
            id = await asked(own)

            await answer(own, id)
            with pytest.raises(AlreadyAnswered):
                await answer(own, id, client=other)

            assert [one["result"] for one in answers(own, "p")] == [PERMISSION]

    run(main())


def test_only_a_client_that_was_asked_can_answer() -> None:
    async def main() -> None:
        async with world() as own:
            own.asks("p")
            id = await asked(own)
            stranger = own.connect()

            for client, wrong in ((stranger, id), (own.client, "never asked")):
                with pytest.raises(NobodyAsked):
                    await answer(own, wrong, client=client)

            assert answers(own, "p") == []

    run(main())


def test_a_client_that_has_detached_decides_nothing_more() -> None:
    async def main() -> None:
        async with world() as own:
            own.asks("p")
            id = await asked(own)
            await own.request("_sandboxagent/session/detach", {"sessionId": "s"})

            with pytest.raises(NobodyAsked):
                await answer(own, id)

            assert answers(own, "p") == []

    run(main())


@pytest.mark.parametrize(
    "wrong",
    [{}, {"outcome": {"outcome": "selected", "optionId": "never offered"}}, {"outcome": {"outcome": "allowed"}}],
    ids=["empty", "unknown option", "unknown outcome"],
)
def test_an_answer_that_does_not_fit_allows_nothing_and_the_request_stays_open(wrong: Any) -> None:
    async def main() -> None:
        async with world() as own:
            own.asks("p")
            id = await asked(own)

            with pytest.raises(WrongAnswer):
                await answer(own, id, wrong)

            assert answers(own, "p") == []
            await answer(own, id)
            assert [one["result"] for one in answers(own, "p")] == [PERMISSION]

    run(main())
