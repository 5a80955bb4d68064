"""Deleting sessions that no process holds any more: ended, terminated, or of an agent that cannot delete."""

import asyncio
import json
from collections.abc import Generator

import pytest

from tests.support.client import META, Client, Json, run
from tests.support.history import view_of
from tests.support.running import Server, scripted

DELETE = "session/delete"
TERMINATE = "_sandboxagent/session/terminate"


@pytest.fixture(scope="module")
def agents() -> Generator[Server]:
    """A server with agents that have their own ways with deleting."""
    kinds = {
        "keeps": scripted("--no-delete"),
        "keeps-isolated": scripted("--no-delete", isolation="session"),
        "refuses": scripted("--lacks", DELETE),
        "ends": scripted("--no-load", "--no-resume"),
        "counts": scripted("--session-id", "1"),
    }
    with Server(agents=kinds) as running:
        yield running


async def received(client: Client, method: str) -> list[Json]:
    """Params of the requests of a method that the agent's shared process was sent."""
    lines = (await client.result("x/received"))["lines"]
    return [one["params"] for one in map(json.loads, lines) if one.get("method") == method]


async def is_gone(client: Client, session: str) -> bool:
    listed = (await client.result("session/list"))["sessions"]
    told = await client.call("_sandboxagent/session/events", {"sessionId": session})
    return session not in [one["sessionId"] for one in listed] and told["error"]["code"] == -32002


@pytest.mark.requirement("6.delete-ended")
@pytest.mark.parametrize("agent", ["scripted", "isolated"])
def test_a_terminated_session_is_deleted_here_and_at_its_agent(server: Server, agent: str) -> None:
    async def main() -> None:
        async with Client(server, agent) as client:
            session = await client.new_session(requestedSessionId=f"short-lived {agent}")
            await client.prompt(session, "hello")
            await client.result(TERMINATE, {"sessionId": session})
            assert await client.result(DELETE, {"sessionId": f"short-lived {agent}"}) == {}
            assert await is_gone(client, session)
            assert {"sessionId": session} in await received(client, DELETE)
            assert await client.new_session(requestedSessionId=f"short-lived {agent}")

    run(main())


@pytest.mark.requirement("6.delete-ended")
def test_an_ended_session_is_deleted_without_being_resumed(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            await client.result("session/close", {"sessionId": session})
            assert await client.result(DELETE, {"sessionId": session}) == {}
            assert await is_gone(client, session)
            resumed = [params["sessionId"] for params in await received(client, "session/resume")]
            assert session not in resumed

    run(main())


@pytest.mark.requirement("6.delete-ended")
def test_a_session_that_cannot_be_resumed_is_deleted(agents: Server) -> None:
    async def main() -> None:
        async with Client(agents, "ends") as client:
            session = await client.new_session()
            await client.prompt(session, [["exit", 3]])
            assert (await view_of(client, session))["resumable"] is False
            assert await client.result(DELETE, {"sessionId": session}) == {}
            assert await is_gone(client, session)

    run(main())


@pytest.mark.requirement("6.delete-not-offered")
@pytest.mark.parametrize("agent", ["keeps", "keeps-isolated"])
def test_an_agent_that_cannot_delete_hinders_only_what_could_go_on(agents: Server, agent: str) -> None:
    async def main() -> None:
        async with Client(agents, agent) as client:
            session = await client.new_session()
            for resumable in (False, True):
                if resumable:
                    await client.result("session/close", {"sessionId": session})
                error = await client.error(DELETE, {"sessionId": session})
                assert error["code"] == -32601
                assert "terminate the session first" in error["message"]
                assert (await view_of(client, session))["ended"] is resumable
            await client.result(TERMINATE, {"sessionId": session})
            answer = await client.result(DELETE, {"sessionId": session})
            [warning] = answer["_meta"][META]["warnings"]
            assert warning == f"agent {agent} does not offer session/delete; its own copy stays"
            assert await is_gone(client, session)

    run(main())


@pytest.mark.requirement("6.delete-ended")
def test_refusal_to_delete_keeps_a_resumable_but_no_terminated_session(agents: Server) -> None:
    async def main() -> None:
        async with Client(agents, "refuses") as client:
            session = await client.new_session()
            await client.result("session/close", {"sessionId": session})
            assert (await client.error(DELETE, {"sessionId": session}))["code"] == -32601
            assert (await view_of(client, session))["resumable"] is True
            await client.result(TERMINATE, {"sessionId": session})
            answer = await client.result(DELETE, {"sessionId": session})
            assert "agent refuses did not delete it: " in answer["_meta"][META]["warnings"][0]
            assert await is_gone(client, session)

    run(main())


@pytest.mark.requirement("6.delete-ended")
def test_session_of_a_removed_agent_is_deleted_once_terminated() -> None:
    async def before(server: Server) -> str:
        async with Client(server, "passing") as client:
            return await client.new_session()

    async def after(server: Server, session: str) -> None:
        async with Client(server) as client:
            assert (await client.error(DELETE, {"sessionId": session}))["data"]["type"] == "unknown-agent"
            await client.result(TERMINATE, {"sessionId": session})
            answer = await client.result(DELETE, {"sessionId": session})
            assert "passing" in answer["_meta"][META]["warnings"][0]
            assert await is_gone(client, session)

    with Server(agents={"passing": scripted()}) as server:
        session = run(before(server))
        server.stop()
        del server.agents["passing"]
        server.start()
        run(after(server, session))


@pytest.mark.requirement("6.delete-ended")
def test_an_agent_is_not_asked_to_delete_what_has_become_another_session(agents: Server) -> None:
    async def main() -> None:
        async with Client(agents, "counts") as client:
            old = await client.new_session()
            await client.result(TERMINATE, {"sessionId": old})
            new = await client.new_session()
            assert new != old == "1"
            assert await client.result(DELETE, {"sessionId": old}) == {}
            assert await is_gone(client, old)
            assert await received(client, DELETE) == []
            assert (await client.prompt(new, "hello"))["result"]["stopReason"] == "end_turn"

    run(main())


@pytest.mark.requirement("6.delete-ended")
def test_of_many_who_delete_an_ended_session_one_does(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            await client.result("session/close", {"sessionId": session})
            deletions = [client.call(DELETE, {"sessionId": session}) for _ in range(5)]
            answers = await asyncio.gather(*deletions)
            assert sorted("result" in answer for answer in answers) == [False] * 4 + [True]
            assert {answer["error"]["code"] for answer in answers if "error" in answer} == {-32002}
            assert (await client.prompt(session, "hello"))["error"]["code"] == -32002
            assert len([one for one in await received(client, DELETE) if one["sessionId"] == session]) == 1

    run(main())


@pytest.mark.requirement("6.delete-ended")
def test_what_was_deleted_is_not_back_after_a_crash() -> None:
    async def before(server: Server) -> str:
        async with Client(server) as client:
            session = await client.new_session()
            await client.prompt(session, "hello")
            await client.result(TERMINATE, {"sessionId": session})
            await client.result(DELETE, {"sessionId": session})
            server.kill()
            return session

    async def after(server: Server, session: str) -> None:
        async with Client(server) as client:
            assert await is_gone(client, session)

    with Server() as server:
        session = run(before(server))
        server.start()
        run(after(server, session))
