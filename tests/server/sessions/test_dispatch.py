"""Which process an envelope goes to, how a session comes back to its agent, and what becomes of those who wait."""

import asyncio
import json
import threading
from typing import Any

import pytest
from msgspec import Raw

from sandboxagent.protocol.errors import AgentTimeout
from sandboxagent.server.sessions.dispatch import fill_from_session, resume_params
from sandboxagent.server.sessions.lifecycle import State
from tests.support.running import BOUND
from tests.support.world import Json, World, envelope, error_of, result_of, run, world

ECHO = "vendor/echo"
LOADS_ONLY: Json = {"loadSession": True}


async def crashed(own: World) -> None:
    """The agent's process is gone; the next one starts when it is needed."""
    own.agent.crashes()
    await own.settled()
    assert own.session.state is State.INTERRUPTED


def sent(own: World) -> list[str]:
    """The methods of what the agent that runs now has got."""
    return [one["method"] for one in own.process.sent if "method" in one]


def test_request_passes_unchanged_and_its_answer_has_the_clients_id() -> None:
    async def main() -> None:
        async with world() as own:
            task = own.request(ECHO, {"sessionId": "s", "exactly": [1, {"so": None}]}, id="mine")
            request = await own.process.request(ECHO)
            own.says(id=request["id"], result={"also": 1.0})

            assert request["params"] == {"sessionId": "s", "exactly": [1, {"so": None}]}
            assert request["id"] != "mine"
            assert (await task).line == b'{"jsonrpc": "2.0", "id": "mine", "result": {"also": 1.0}}'

    run(main())


def test_two_clients_may_use_the_same_id() -> None:
    async def main() -> None:
        async with world() as own:
            first = own.request(ECHO, {"sessionId": "s", "n": 1}, id=1)
            await own.settled()
            own.client, mine = own.connect(), own.client
            second = own.request(ECHO, {"sessionId": "s", "n": 2}, id=1)
            requests = [await own.process.request(ECHO) for _ in range(2)]
            for request in reversed(requests):
                own.says(id=request["id"], result={"n": request["params"]["n"]})

            assert [result_of(await task)["n"] for task in (first, second)] == [1, 2]
            assert mine is not own.client

    run(main())


def test_a_request_about_no_session_goes_to_the_agent_of_the_connection() -> None:
    async def main() -> None:
        async with world() as own:
            task = own.request(ECHO, {"anything": True})
            await own.agent.answers(ECHO, {"yes": True})

            assert result_of(await task) == {"yes": True}
            assert ECHO not in [one.get("method") for one in await own.events()]

    run(main())


def test_a_request_about_an_unknown_session_is_refused_and_no_agent_hears_of_it() -> None:
    async def main() -> None:
        async with world() as own:
            error = error_of(await own.request(ECHO, {"sessionId": "nowhere"}))

            assert (error["code"], error["data"]["sessionId"]) == (-32002, "nowhere")
            assert sent(own) == []

    run(main())


def test_a_request_that_the_agent_does_not_read_is_an_error_and_leaves_nothing_open() -> None:
    async def main() -> None:
        async with world() as own:
            own.process.reads = False

            error = error_of(await own.request(ECHO, {"sessionId": "s"}))

            assert error["data"]["type"] == "agent-not-reading"
            assert own.hub.calls.close_all(own.running) == []

    run(main())


def test_an_alias_is_replaced_by_the_id_that_the_agent_knows() -> None:
    async def main() -> None:
        async with world() as own:
            own.hub.store.set_alias(own.session, "alias")
            task = own.request(ECHO, {"sessionId": "alias"})
            request = await own.agent.answers(ECHO)

            assert request["params"]["sessionId"] == "s"
            result_of(await task)
            await own.notify("vendor/note", sessionId="alias")
            assert own.sent("vendor/note")["params"] == {"sessionId": "s"}

    run(main())


@pytest.mark.parametrize(
    ("capabilities", "method"),
    [({"loadSession": True, "sessionCapabilities": {"resume": {}}}, "session/resume"), (LOADS_ONLY, "session/load")],
    ids=["resumes", "loads"],
)
def test_session_without_process_is_resumed_in_the_agents_cheapest_way(capabilities: Json, method: str) -> None:
    async def main() -> None:
        async with world(capabilities=capabilities) as own:
            await crashed(own)
            task = own.request(ECHO, {"sessionId": "s"})
            await own.settled()
            asked = await own.agent.answers(method)
            await own.agent.answers(ECHO, {"here": "again"})

            assert asked["params"] == {"sessionId": "s", "cwd": "/", "mcpServers": []}
            assert result_of(await task) == {"here": "again"}
            assert sent(own) == [method, ECHO]

    run(main())


def test_all_that_wait_for_a_session_wait_for_one_return() -> None:
    async def main() -> None:
        async with world() as own:
            await crashed(own)
            tasks = [own.request(ECHO, {"sessionId": "s"}, id=number) for number in range(3)]
            await own.settled()
            await own.agent.answers("session/resume")
            for _ in tasks:
                await own.agent.answers(ECHO)

            assert [result_of(await task) for task in tasks] == [{}, {}, {}]
            assert sent(own).count("session/resume") == 1

    run(main())


def test_failed_resume_is_reported_and_the_next_request_tries_again() -> None:
    async def main() -> None:
        async with world() as own:
            await crashed(own)
            refused = own.request(ECHO, {"sessionId": "s"}, id=1)
            await own.settled()
            resume = await own.process.request("session/resume")
            own.says(id=resume["id"], error={"code": -32603, "message": "no memory of it"})

            error = error_of(await refused)
            assert "no memory of it" in error["message"]
            assert own.session.state is State.INTERRUPTED

            again = own.request(ECHO, {"sessionId": "s"}, id=2)
            await own.settled()
            await own.agent.answers("session/resume")
            await own.agent.answers(ECHO)
            assert result_of(await again) == {}

    run(main())


def test_an_agent_that_offers_no_way_back_is_not_asked_for_one() -> None:
    async def main() -> None:
        async with world(capabilities={}) as own:
            own.agent.crashes()

            error = error_of(await own.request(ECHO, {"sessionId": "s"}))

            assert (error["code"], own.session.state) == (-32600, State.ENDED)
            assert own.agents[-1] is None

    run(main())


def test_an_agent_that_dies_while_it_takes_a_session_up_fails_those_who_wait_for_it() -> None:
    async def main() -> None:
        async with world() as own:
            await crashed(own)
            task = own.request(ECHO, {"sessionId": "s"})
            await own.settled()
            await own.process.request("session/resume")
            own.agent.crashes()

            assert error_of(await task)["data"]["type"] == "agent-exited"
            assert own.session.state is State.INTERRUPTED

    run(main())


def test_a_client_that_leaves_does_not_take_the_return_of_a_session_with_it() -> None:
    async def main() -> None:
        async with world() as own:
            await crashed(own)
            leaving, staying = (own.request(ECHO, {"sessionId": "s"}, id=number) for number in range(2))
            await own.settled()
            leaving.cancel()
            await own.settled()
            await own.agent.answers("session/resume")
            # The request of the one that has left goes on as well.
            await own.process.has_been_sent(3)
            for request in own.process.sent[-2:]:
                own.says(id=request["id"], result={})

            assert result_of(await staying) == {}
            assert leaving.cancelled()

    run(main())


def test_only_one_at_a_time_takes_a_session_up_and_no_lock_is_left_behind() -> None:
    async def main() -> None:
        async with world() as own:
            inside: list[str] = []
            gate = asyncio.Event()

            async def take_up(name: str) -> None:
                async with own.dispatcher.lock_session("s"):
                    inside.append(name)
                    await gate.wait()

            tasks = [asyncio.create_task(take_up(name)) for name in ("first", "second")]
            await own.settled()
            assert inside == ["first"]

            tasks[0].cancel()
            await own.settled()
            assert inside == ["first", "second"]
            gate.set()
            await tasks[1]
            await take_up("third")
            assert inside == ["first", "second", "third"]

    run(main())


def test_late_answer_to_a_timed_out_request_goes_to_the_stream() -> None:
    async def main() -> None:
        async with world() as own:
            task = own.request(ECHO, {"sessionId": "s"}, id="slow")
            request = await own.process.request(ECHO)
            own.now += 121
            own.timeout_loop.tick()

            with pytest.raises(AgentTimeout):
                await task
            own.says(id=request["id"], result={"late": True})

            answers = [one for one in await own.heard(own.client) if one.get("id") == "slow"]
            assert [one["result"] for one in answers if "result" in one] == [{"late": True}]

    run(main())


def test_resume_params_are_what_the_session_was_opened_with() -> None:
    async def main() -> None:
        async with world() as own:
            opened: Any = b'{"cwd":"/","mcpServers":[{"name":"m"}],"additionalDirectories":["/srv"],"_meta":{"x":1}}'
            own.session.facts.opened_with = Raw(opened)

            params = resume_params(own.session)

            assert set(params) == {"sessionId", "cwd", "mcpServers", "additionalDirectories"}
            assert bytes(params["mcpServers"]) == b'[{"name":"m"}]'  # type: ignore[arg-type]

    run(main())


def test_what_a_request_leaves_out_is_as_it_was_and_what_it_says_stays() -> None:
    async def main() -> None:
        async with world() as own:
            line = envelope(id=1, method="session/load", params={"sessionId": "s", "cwd": "/elsewhere"}).line

            completed = json.loads(fill_from_session(line, own.session))["params"]

            assert completed == {"sessionId": "s", "cwd": "/elsewhere", "mcpServers": []}

    run(main())


class HangingDisk:
    """Says whether a directory is there when a test says so."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()

    def is_directory(self, _: str) -> bool:
        self.asked.set()
        assert self.answers.wait(BOUND)
        return True


@pytest.mark.parametrize("method", ["session/new", "session/load"])
def test_a_disk_that_hangs_at_a_cwd_does_not_hold_the_event_loop(method: str) -> None:
    async def main() -> None:
        disk = HangingDisk()
        async with world(is_directory=disk.is_directory) as own:
            asked = {"cwd": "/srv", "mcpServers": [], "sessionId": "unknown"}
            opening = own.request(method, asked)
            assert await asyncio.to_thread(disk.asked.wait, BOUND)
            # Others go on.
            echo = own.request(ECHO, {"sessionId": "s"})
            request = await own.process.request(ECHO)
            own.says(id=request["id"], result={})
            assert result_of(await echo) == {}
            assert method not in sent(own)
            disk.answers.set()
            request = await own.process.request(method)
            own.says(id=request["id"], result={"sessionId": "unknown"})
            assert "result" in json.loads((await opening).line)

    run(main())


def test_a_disk_that_hangs_at_a_cwd_for_too_long_is_an_error_that_says_so() -> None:
    async def main() -> None:
        disk = HangingDisk()
        async with world(is_directory=disk.is_directory, disk_timeout=0.01) as own:
            answer = await own.request("session/new", {"cwd": "/srv", "mcpServers": []})
            assert "does not answer" in error_of(answer)["message"]
            disk.answers.set()

    run(main())
