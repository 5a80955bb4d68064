"""Sessions that crash, come back, are cancelled and ended. Contract, sections 5 and 6.

`test_orders.py` has all of that in every order.
"""

import asyncio
import json
from typing import Any

import pytest

from sandboxagent.protocol.errors import AgentTimeout
from sandboxagent.server.sessions.lifecycle import State
from tests.support.world import CAPABILITIES, World, envelope, error_of, result_of, run, world

CANCELLED = {"stopReason": "cancelled"}
ENDED = {"stopReason": "end_turn"}
TERMINATED = {"terminated": True, "reason": "terminated", "terminatedBy": "daemon"}
SESSION = {"sessionId": "s"}


async def resuming(own: World) -> asyncio.Task[Any]:
    """A prompt in a session whose agent has crashed: the new process was asked to resume it, and takes its time."""
    own.agent.crashes()
    prompt = own.prompt()
    await (await own.started()).pipe.request("session/resume")
    assert own.session.state is State.RESUMING
    return prompt


def resume_id(own: World) -> object:
    return own.sent("session/resume")["id"]


@pytest.mark.requirement("6.terminate-wins")
def test_session_terminated_during_resume_stays_so_and_its_prompt_never_runs() -> None:
    async def main() -> None:
        async with world() as own:
            prompt = await resuming(own)

            answer = result_of(await own.request("_sandboxagent/session/terminate", SESSION))

            assert answer == TERMINATED | {"alreadyEnded": True}
            assert result_of(await prompt) == CANCELLED
            own.says(id=resume_id(own), result={})
            await own.agent.answers("session/close")
            await own.settled()
            assert own.session.state is State.TERMINATED
            assert not [one for one in own.agent.sent if one.get("method") == "session/prompt"]
            again = await own.prompt()
            assert "session/new" in error_of(again)["message"]

    run(main())


@pytest.mark.requirement("6.terminate-wins")
def test_terminated_session_stays_so_when_its_agent_learns_to_load() -> None:
    async def main() -> None:
        async with world(capabilities={}) as own:
            own.agent.crashes()
            assert own.session.state is State.ENDED
            answer = result_of(await own.request("_sandboxagent/session/terminate", SESSION))
            assert answer == TERMINATED | {"alreadyEnded": True}

            own.capabilities = CAPABILITIES
            loaded = await own.request("session/load", {**SESSION, "cwd": "/", "mcpServers": []})
            assert "terminated" in error_of(loaded)["message"]
            assert own.session.state is State.TERMINATED

    run(main())


@pytest.mark.requirement("6.terminate-wins")
def test_a_prompt_that_comes_while_a_session_is_terminated_is_refused() -> None:
    async def main() -> None:
        async with world() as own:
            ending = own.request("_sandboxagent/session/terminate", SESSION, "t")
            await own.agent.pipe.request("session/close")

            assert "session/new" in error_of(await own.prompt())["message"]

            twice = own.request("_sandboxagent/session/terminate", SESSION, "t2")
            await own.settled()
            own.says(id=own.sent("session/close")["id"], result={})
            assert result_of(await ending) == result_of(await twice) == TERMINATED
            ends = [one for one in await own.events() if one.get("method") == "_sandboxagent/session/ended"]
            assert len(ends) == 1

    run(main())


@pytest.mark.requirement("5.cancel-while-resuming")
def test_a_prompt_is_cancelled_while_its_session_comes_back() -> None:
    async def main() -> None:
        async with world() as own:
            prompt = await resuming(own)
            await own.notify("session/cancel", **SESSION)
            assert result_of(await prompt) == CANCELLED
            own.says(id=resume_id(own), result={})
            await own.settled()
            assert own.session.state is State.HELD
            assert not [one for one in own.agent.sent if one.get("method") == "session/prompt"]

    run(main())


@pytest.mark.requirement("5.cancel-while-resuming")
def test_one_prompt_is_taken_back_while_its_session_comes_back_and_the_other_runs() -> None:
    async def main() -> None:
        async with world() as own:
            first = await resuming(own)
            second = own.prompt("second", "p2")
            await own.settled()
            await own.notify("$/cancel_request", requestId="p")
            assert result_of(await first) == CANCELLED
            own.says(id=resume_id(own), result={})
            asked = await own.agent.answers("session/prompt", ENDED)
            assert asked["params"]["prompt"][0]["text"] == "second"
            assert result_of(await second) == ENDED

    run(main())


@pytest.mark.requirement("5.cancel-while-resuming")
def test_any_other_request_is_taken_back_while_its_session_comes_back() -> None:
    async def main() -> None:
        async with world() as own:
            own.agent.crashes()
            asked = own.request("session/set_mode", {**SESSION, "modeId": "other"}, 8)
            await own.settled()
            await own.notify("$/cancel_request", requestId=8)
            assert error_of(await asked)["code"] == -32800

    run(main())


@pytest.mark.requirement("6.alias-late")
def test_late_new_session_keeps_its_alias_which_no_other_gets_meanwhile() -> None:
    async def main() -> None:
        async with world() as own:
            named = {"cwd": "/", "mcpServers": [], "_meta": {"sandboxagent.dev": {"requestedSessionId": "mine"}}}
            first = own.request("session/new", named, 1)
            late = await own.agent.pipe.request("session/new")
            own.now += 121
            own.timeout_loop.tick()
            with pytest.raises(AgentTimeout):
                await first

            retried = error_of(await own.request("session/new", named, 2))
            assert "taken" in retried["message"]

            own.says(id=late["id"], result={"sessionId": "late"})
            await own.settled()
            assert own.hub.session("mine").id == "late"
            assert [one.id for one in own.hub.store.page(None, None, 10) if one.facts.alias == "mine"] == ["late"]

    run(main())


@pytest.mark.requirement("6.alias-late")
@pytest.mark.parametrize("how", ["refused", "crashed"])
def test_an_alias_is_free_again_when_its_session_does_not_come_about(how: str) -> None:
    async def main() -> None:
        async with world() as own:
            named = {"cwd": "/", "mcpServers": [], "_meta": {"sandboxagent.dev": {"requestedSessionId": "mine"}}}
            first = own.request("session/new", named, 1)
            asked = await own.agent.pipe.request("session/new")
            if how == "refused":
                own.says(id=asked["id"], error={"code": -32000, "message": "no"})
            else:
                own.agent.crashes()
            error_of(await first)

            second = own.request("session/new", named, 2)
            await (await own.started()).answers("session/new", {"sessionId": "second"})
            await second
            assert own.hub.session("mine").id == "second"

    run(main())


@pytest.mark.requirement("5.quarantine")
def test_too_deep_line_held_for_a_new_session_does_not_spoil_its_answer() -> None:
    async def main() -> None:
        async with world() as own:
            asked = own.request("session/new", {"cwd": "/", "mcpServers": []}, 1)
            request = await own.agent.pipe.request("session/new")
            deep = "[" * 5000 + "]" * 5000
            update = '{"sessionUpdate":"config_option_update","configOptions":' + deep + "}"
            line = f'{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"new","update":{update}}}}}\n'
            own.agent_events.receive(own.running, line.encode())
            own.agent.updates("fine", "new")
            own.says(id=request["id"], result={"sessionId": "new"})
            assert result_of(await asked)["sessionId"] == "new"
            assert "fine" in json.dumps(await own.events("new"))

    run(main())


@pytest.mark.requirement("3.idempotency-async")
def test_a_repeated_request_is_accepted_at_once_where_the_first_one_was() -> None:
    async def main() -> None:
        async with world() as own:
            asked = envelope(id=1, method="session/prompt", params={**SESSION, "prompt": []})
            first = own.requests.submit(own.client, asked, "key")
            await first.accepted()
            await own.settled()

            again = own.requests.submit(own.client, asked, "key")

            assert await again.accepted() == first.position
            await own.agent.answers("session/prompt", ENDED)
            assert result_of(await first) == result_of(await again) == ENDED

    run(main())


@pytest.mark.requirement("3.idempotency-after-504")
def test_a_late_resume_is_not_taken_for_the_answer_to_the_prompt_that_waited_for_it() -> None:
    async def main() -> None:
        async with world() as own:
            own.agent.crashes()
            params = {**SESSION, "prompt": []}
            first = own.request("session/prompt", params, "p", "key")
            await (await own.started()).pipe.request("session/resume")
            own.now += 121
            own.timeout_loop.tick()
            with pytest.raises(AgentTimeout):
                await first
            own.says(id=resume_id(own), result={})
            await own.settled()

            again = own.request("session/prompt", params, "p", "key")
            await own.agent.answers("session/resume")
            await own.agent.answers("session/prompt", ENDED)
            assert result_of(await again) == ENDED

    run(main())


@pytest.mark.requirement("3.late-answer")
def test_a_late_answer_is_still_to_be_read_when_its_session_was_deleted() -> None:
    async def main() -> None:
        async with world() as own:
            prompt = own.prompt()
            await own.agent.pipe.request("session/prompt")
            own.now += 1801
            own.client.used_at = own.now
            own.timeout_loop.tick()
            with pytest.raises(AgentTimeout):
                await prompt

            deleted = own.request("session/delete", SESSION)
            await own.agent.answers("session/delete")
            await deleted

            assert [one["result"] for one in await own.heard(own.client) if one.get("id") == "p"] == [CANCELLED]

    run(main())


async def answered_late(own: World, method: str) -> None:
    """A request that its agent does only after its client has given up."""
    asked = own.request(method, SESSION)
    request = await own.agent.pipe.request(method)
    own.now += 121
    own.timeout_loop.tick()
    with pytest.raises(AgentTimeout):
        await asked
    own.says(id=request["id"], result={})
    await own.settled()
    assert [one["result"] for one in await own.heard(own.client) if one.get("id") == "r"] == [{}]


@pytest.mark.requirement("3.late-answer")
def test_a_session_is_closed_when_its_agent_says_so_late() -> None:
    async def main() -> None:
        async with world() as own:
            await answered_late(own, "session/close")
            assert own.session.state is State.INTERRUPTED

    run(main())


@pytest.mark.requirement("3.late-answer")
def test_a_session_is_deleted_when_its_agent_says_so_late() -> None:
    async def main() -> None:
        async with world() as own:
            await answered_late(own, "session/delete")
            assert own.hub.find_session("s") is None

    run(main())


@pytest.mark.requirement("3.late-answer")
def test_a_deletion_that_does_not_wait_for_its_agent_is_answered_once() -> None:
    async def main() -> None:
        async with world() as own:
            own.agent.crashes()
            await own.request("_sandboxagent/session/terminate", SESSION)
            deleted = own.request("session/delete", SESSION, "d")
            late = await (await own.started()).pipe.request("session/delete")
            own.now += 121
            own.timeout_loop.tick()
            assert "warnings" in json.dumps(result_of(await deleted))
            assert own.hub.find_session("s") is None

            own.says(id=late["id"], result={})
            await own.settled()
            assert [one for one in await own.heard(own.client) if one.get("id") == "d"] == []

    run(main())
