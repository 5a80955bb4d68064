"""How sessions end: terminate, close and delete."""

import asyncio
import json

import pytest

from tests.support.asking import ENDED, TERMINATE
from tests.support.client import Client, run
from tests.support.history import view_of
from tests.support.inventory import PERMISSION
from tests.support.running import Server

# terminate


@pytest.mark.requirement("6.terminate")
@pytest.mark.requirement("6.ended-terminated")
def test_terminate_closes_the_session_at_the_agent_and_notifies_all_attached_clients(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as owner, Client(server) as guest, guest.stream() as seen:
            session = await owner.new_session()
            await guest.result("_sandboxagent/session/attach", {"sessionId": session})
            answer = await owner.result(TERMINATE, {"sessionId": session})
            assert answer == {"terminated": True, "reason": "terminated", "terminatedBy": "daemon"}
            ended = await seen.method(ENDED)
            assert ended.data["params"]["sessionId"] == session
            assert ended.data["params"]["reason"] == "terminated"
            assert ended.data["params"]["terminatedBy"] == "daemon"
            received = [json.loads(line) for line in (await owner.result("x/received"))["lines"]]
            closed = [one for one in received if one.get("method") == "session/close"]
            assert session in [one["params"]["sessionId"] for one in closed]
            view = await view_of(owner, session)
            assert (view["ended"], view["resumable"]) == (True, False)
            assert view["terminationInfo"]["reason"] == "terminated"

    run(main())


@pytest.mark.requirement("6.terminate-again")
def test_terminate_again_says_that_it_has_ended_and_notifies_no_client_twice(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            first, second = await asyncio.gather(
                client.result(TERMINATE, {"sessionId": session}), client.result(TERMINATE, {"sessionId": session})
            )
            assert first["terminated"] is second["terminated"] is True
            again = await client.result(TERMINATE, {"sessionId": session})
            assert again == {
                "terminated": True,
                "alreadyEnded": True,
                "reason": "terminated",
                "terminatedBy": "daemon",
            }
            marker = await client.new_session()
            await client.prompt(marker, "a later event")
            await stream.turn_ended()
            assert [event.method for event in stream.seen].count(ENDED) == 1
            assert (await client.error(TERMINATE, {"sessionId": "none"}))["code"] == -32002

    run(main())


@pytest.mark.requirement("6.terminate-not-resumable")
@pytest.mark.parametrize("method", ["session/prompt", "session/load", "session/resume", "x/echo", "session/fork"])
def test_a_terminated_session_does_not_come_back(server: Server, method: str) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            await client.result(TERMINATE, {"sessionId": session})
            params = client.prompt_params(session, "hello") | {"cwd": server.work, "mcpServers": []}
            error = await client.error(method, params)
            assert session in error["message"]
            view = await view_of(client, session)
            assert (view["ended"], view["resumable"]) == (True, False)
            assert view["terminationInfo"]["reason"] == "terminated"

    run(main())


@pytest.mark.requirement("6.terminate-log")
def test_the_log_of_a_terminated_session_stays(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            await client.prompt(session, "remember me")
            await client.result(TERMINATE, {"sessionId": session})
            events = (await client.result("_sandboxagent/session/events", {"sessionId": session}))["events"]
            assert "remember me" in json.dumps(events)
            assert events[-1]["envelope"]["method"] == ENDED
            attached = await client.result("_sandboxagent/session/attach", {"sessionId": session})
            assert attached["session"]["ended"] is True

    run(main())


@pytest.mark.requirement("6.terminate-turn")
def test_terminate_ends_the_running_turn_the_waiting_prompts_and_what_is_pending(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, Client(server) as killer, client.stream() as stream:
            session = await client.new_session()
            program = [["ask", "session/request_permission", PERMISSION], ["wait_cancel"]]
            running = asyncio.create_task(client.prompt(session, program))
            asked = await stream.method("session/request_permission")
            body = {"jsonrpc": "2.0", "id": "waits", "method": "session/prompt"}
            body |= {"params": client.prompt_params(session, "waits")}
            assert (await client.post(body, Prefer="respond-async")).status_code == 202
            await killer.result(TERMINATE, {"sessionId": session})
            assert (await running)["result"]["stopReason"] == "cancelled"
            events = await stream.until(lambda event: event.method == ENDED)
            seen = events + ([] if any("waits" in e.line for e in events) else [await stream.next()])
            [waited] = [event.data for event in seen if event.data.get("id") == "waits"]
            assert waited["result"] == {"stopReason": "cancelled"}
            withdrawn = [event.data["params"]["requestId"] for event in seen if event.method == "$/cancel_request"]
            assert withdrawn == [asked.data["id"]]
            assert (await killer.result("_sandboxagent/session/pending", {"sessionId": session})) == {"pending": []}

    run(main())


@pytest.mark.requirement("6.terminate-turn")
def test_terminate_does_not_wait_for_an_agent_that_ignores_it(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "isolated") as client, client.stream() as stream:
            session = await client.new_session()
            running = asyncio.create_task(client.prompt(session, [["say", "on"], ["stop_reading"], ["sleep", 60]]))
            await stream.method("session/update")
            answer = await client.result(TERMINATE, {"sessionId": session})
            assert answer["terminated"] is True
            assert (await running)["result"]["stopReason"] == "cancelled"

    run(main())


@pytest.mark.requirement("6.close")
@pytest.mark.requirement("6.delete-told")
def test_clients_attached_to_a_deleted_session_are_notified(server: Server) -> None:
    async def scenario() -> None:
        async with Client(server) as client, Client(server) as other, other.stream() as stream:
            session = await client.new_session()
            await other.result("_sandboxagent/session/attach", {"sessionId": session})
            await client.result("session/delete", {"sessionId": session})
            ended = await stream.method("_sandboxagent/session/ended")

        assert ended.data["params"] == {"sessionId": session, "reason": "deleted", "terminatedBy": "client"}

    run(scenario())


@pytest.mark.requirement("6.delete")
@pytest.mark.parametrize("method", ["session/close", "session/delete"])
def test_closing_or_deleting_a_session_ends_its_turn_and_the_waiting_prompts(server: Server, method: str) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            running = asyncio.create_task(client.prompt(session, [["say", "on"], ["wait_cancel"]]))
            await stream.method("session/update")
            body = {"jsonrpc": "2.0", "id": "waits", "method": "session/prompt"}
            body |= {"params": client.prompt_params(session, "waits")}
            assert (await client.post(body, Prefer="respond-async")).status_code == 202
            await client.result(method, {"sessionId": session})
            assert (await running)["result"]["stopReason"] == "cancelled"
            [*_, waited] = await stream.until(lambda event: event.data.get("id") == "waits")
            assert waited.data["result"] == {"stopReason": "cancelled"}

    run(main())
