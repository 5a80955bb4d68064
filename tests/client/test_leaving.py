"""Leaving and cancelling, with a fake server: nothing is left, no caller waits, no other turn ends."""

import asyncio
import gc

import pytest

from sandboxagent import (
    Answer,
    ClientError,
    ConnectionLost,
    PermissionRequest,
    SandboxAgent,
)
from tests.support.client import run
from tests.support.pretending import (
    Json,
    Post,
    asks,
    left,
    looked,
    opened,
    pretender,
    turn_started,
)
from tests.support.running import BOUND

# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_client_that_is_closed_while_it_opens_leaves_nothing() -> None:
    async def main() -> None:
        async with pretender() as pretending:
            go = asyncio.Event()

            async def slow(post: Post) -> Json:
                await go.wait()
                return {}

            pretending.results["initialize"] = slow
            async with SandboxAgent.connect(pretending.url) as client:
                opening = asyncio.create_task(opened(client, pretending))
                await pretending.until(lambda: pretending.requests("initialize"))
            go.set()
            with pytest.raises(ClientError):
                await opening
            await looked(lambda: left() == [])

    run(main())


def test_a_client_that_is_closed_while_it_attaches_again_leaves_nothing() -> None:
    async def main() -> None:
        problems: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        async with pretender() as pretending:
            async with SandboxAgent.connect(pretending.url) as client:
                await opened(client, pretending)
                never = asyncio.Event()
                pretending.results["_sandboxagent/session/attach"] = lambda post: never.wait()
                for count in (1, 2):
                    pretending.restart()
                    attach = "_sandboxagent/session/attach"
                    await pretending.until(lambda: len(pretending.requests(attach)) >= count)  # noqa: B023
            await looked(lambda: left() == [])
        gc.collect()
        assert problems == []

    run(main())


def test_callers_that_wait_for_the_server_learn_at_once_that_the_client_is_closed() -> None:
    async def main() -> None:
        async with pretender() as pretending:
            async with SandboxAgent.connect(pretending.url) as client:
                session = await opened(client, pretending)
                pretending.outages = 1000
                turn = session.prompt("hello")
                # The next try is more than a second away.
                await pretending.until(lambda: pretending.outages <= 1000 - 5)
                await client.health()
            tries = pretending.outages
            async with asyncio.timeout(BOUND):
                with pytest.raises(ConnectionLost):
                    await turn
            assert pretending.outages == tries, "it was tried once more"

    run(main())


def test_what_is_read_of_a_closed_client_ends() -> None:
    async def main() -> None:
        async with pretender() as pretending:
            async with SandboxAgent.connect(pretending.url) as client:
                session = await opened(client, pretending)
                following = session.log()
            async with asyncio.timeout(BOUND):
                assert [item async for item in session.updates()] == []
                assert [item async for item in following] == []
                assert [item async for item in session.log()] == []

    run(main())


def test_a_handler_that_fails_at_the_end_does_not_keep_the_client_from_closing() -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def fail(request: PermissionRequest) -> Answer:
            asked.set()
            try:
                await asyncio.sleep(3600)
            finally:
                raise ValueError("in a hurry")

        async with pretender() as pretending:
            async with SandboxAgent.connect(pretending.url, on_permission=fail) as client:
                await opened(client, pretending)
                await pretending.told(1, asks(0, "any"))
                await asked.wait()
            assert client._api._is_closed
            assert left() == []

    run(main())


# --- cancelling -------------------------------------------------------------------------------------------------------


def test_a_turn_is_cancelled_when_it_has_started_and_not_before() -> None:
    """A cancel that comes before its prompt, or while an agent is started for it, would be lost."""

    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            session = await opened(client, pretending)
            ended = asyncio.Event()

            async def prompted(post: Post) -> Json:
                await ended.wait()
                return {"stopReason": "cancelled"}

            pretending.results["session/prompt"] = prompted
            turn = session.prompt("hello")
            cancelling = asyncio.create_task(turn.cancel())
            await pretending.until(lambda: pretending.requests("$/cancel_request"))
            [post] = pretending.requests("session/prompt")
            taken_back = pretending.requests("$/cancel_request")[0]
            assert taken_back.envelope["params"] == {"requestId": post.envelope["id"]}
            assert pretending.requests("session/cancel") == []
            await pretending.told(1, turn_started(post.envelope["params"]["_meta"]["sandboxagent.dev"]["promptId"]))
            await pretending.until(lambda: pretending.requests("session/cancel"))
            ended.set()
            await cancelling
            assert (await turn).stop_reason == "cancelled"
            assert len(pretending.requests("session/cancel")) == 1

    run(main())


def test_a_turn_is_cancelled_also_when_no_caller_waits_for_that() -> None:
    """An agent may take its time to start."""

    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            session = await opened(client, pretending)

            async def prompted(post: Post) -> Json:
                await pretending.until(lambda: pretending.requests("session/cancel"))
                return {"stopReason": "cancelled"}

            pretending.results["session/prompt"] = prompted
            turn = session.prompt("hello")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(turn.cancel(), 0.05)
            await pretending.until(lambda: pretending.requests("session/prompt"))
            [post] = pretending.requests("session/prompt")
            await pretending.told(1, turn_started(post.envelope["params"]["_meta"]["sandboxagent.dev"]["promptId"]))
            assert (await turn).stop_reason == "cancelled"
            await looked(lambda: "sandbox-agent cancelling" not in left())

    run(main())


def test_a_turn_is_cancelled_also_when_the_stream_does_not_say_that_it_has_started() -> None:
    async def main() -> None:
        async with pretender() as pretending, SandboxAgent.connect(pretending.url) as client:
            session = await opened(client, pretending)

            async def prompted(post: Post) -> Json:
                await pretending.until(lambda: pretending.requests("session/cancel"))
                return {"stopReason": "cancelled"}

            pretending.results["session/prompt"] = prompted
            turn = session.prompt("hello")
            await turn.cancel()
            assert (await turn).stop_reason == "cancelled"

    run(main())
