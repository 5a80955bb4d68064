"""The death of an agent's process: what becomes of its sessions, and how they come back."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from tests.support.asking import ENDED, TERMINATE
from tests.support.client import META, Client, Json, run
from tests.support.history import view_of
from tests.support.inventory import PERMISSION
from tests.support.running import BOUND, Server, alive, eventually, scripted


async def pid_of(client: Client, session: str) -> int:
    """The process that holds a session, by asking it."""
    await client.prompt(session, [["pid"]])
    events = (await client.result("_sandboxagent/session/events", {"sessionId": session}))["events"]
    updates = [event["envelope"] for event in events if event["envelope"].get("method") == "session/update"]
    return int(updates[-1]["params"]["update"]["content"]["text"])


# The death of an agent's process. One that has a process for each session can die without others noticing.


@pytest.mark.requirement("6.death-waiting")
def test_requests_waiting_on_a_dead_agent_fail_with_exit_code_and_stderr(crashing: Server) -> None:
    async def main() -> None:
        async with Client(crashing, "one") as client, client.stream() as stream:
            session = await client.new_session()
            hanging = asyncio.create_task(client.call("x/hang"))
            in_session = asyncio.create_task(client.call("x/hang", {"sessionId": session}))
            program = [["say", "on"], ["wait_answer"], ["stderr", "last words"], ["exit", 7]]
            program.insert(1, ["ask", "session/request_permission", PERMISSION])
            running = asyncio.create_task(client.prompt(session, program))
            asked = await stream.method("session/request_permission")
            waiting = asyncio.create_task(client.prompt(session, "waits for its turn"))
            # The waiting prompt is in once the session's log has it.
            for _ in range(200):
                events = await client.result("_sandboxagent/session/events", {"sessionId": session})
                if "waits for its turn" in json.dumps(events):
                    break
            await client.answer(asked.data["id"], {"outcome": {"outcome": "selected", "optionId": "yes"}})
            for task in (hanging, in_session, running, waiting):
                error = (await task)["error"]
                assert error["code"] == -32603
                assert error["data"]["exitCode"] == 7
                assert "signal" not in error["data"]
                assert "last words" in json.dumps(error["data"]["stderr"])
                assert "one" in error["message"]

    run(main())


@pytest.mark.requirement("6.death-waiting")
def test_a_prompt_that_was_only_accepted_gets_its_error_on_the_stream_once(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "isolated") as client, client.stream() as stream:
            session = await client.new_session()
            body = {"jsonrpc": "2.0", "id": "accepted", "method": "session/prompt"}
            body |= {"params": client.prompt_params(session, [["exit", 4]])}
            assert (await client.post(body, Prefer="respond-async")).status_code == 202
            await stream.until(lambda event: event.data.get("id") == "accepted")
            await client.prompt(session, "again")
            await stream.until(lambda event: event.text == "again")
            [answer] = [event.data for event in stream.seen if event.data.get("id") == "accepted"]
            assert answer["error"]["code"] == -32603
            assert answer["error"]["data"]["exitCode"] == 4

    run(main())


@pytest.mark.requirement("6.death-ended")
def test_every_live_session_of_a_dead_agent_gets_ended_with_all_its_fields(crashing: Server) -> None:
    async def main() -> None:
        async with Client(crashing, "two") as client, Client(crashing) as guest, guest.stream() as seen:
            sessions = [await client.new_session() for _ in range(2)]
            for session in sessions:
                await guest.result("_sandboxagent/session/attach", {"sessionId": session})
            lines = [["stderr", f"line {number}"] for number in range(100)]
            await client.prompt(sessions[0], [*lines, ["exit", 3]])
            ended = [(await seen.method(ENDED)).data["params"] for _ in sessions]
            assert {params["sessionId"] for params in ended} == set(sessions)
            for params in ended:
                assert params["reason"] == "error"
                assert params["terminatedBy"] == "agent"
                assert "two" in params["message"]
                assert params["exitCode"] == 3
                stderr = params["stderr"]
                assert set(stderr) == {"head", "tail", "truncated", "totalLines"}
                assert "line 0" in json.dumps(stderr["head"])
                assert "line 99" in json.dumps(stderr["tail"])
                assert (stderr["truncated"], stderr["totalLines"]) == (True, 100)
            for session in sessions:
                view = await view_of(client, session)
                assert (view["ended"], view["resumable"]) == (True, True)
                info = {name: value for name, value in ended[0].items() if name != "sessionId"}
                assert view["terminationInfo"] == info
                events = (await client.result("_sandboxagent/session/events", {"sessionId": session}))["events"]
                assert events[-1]["envelope"]["method"] == ENDED

    run(main())


@pytest.mark.requirement("6.death-turn-first")
def test_a_turn_that_dies_with_its_agent_ends_before_its_session_does(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "isolated") as client, client.stream() as stream:
            session = await client.new_session()
            await client.prompt(session, [["say", "on"], ["exit", 1]])
            events = await stream.until(lambda event: event.method == ENDED)
            turns = [event.data["params"] for event in events if event.method == "_sandboxagent/session/turn"]
            assert [turn["state"] for turn in turns] == ["started", "ended"]
            assert turns[-1]["error"]["code"] == -32603

    run(main())


@pytest.mark.requirement("6.death-signal")
def test_after_a_signal_the_exit_code_is_absent_and_the_signal_is_named(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "isolated") as client, client.stream() as stream:
            session = await client.new_session()
            error = (await client.prompt(session, [["kill"]]))["error"]
            assert error["code"] == -32603
            assert error["data"]["signal"] == "SIGKILL"
            assert "exitCode" not in error["data"]
            ended = (await stream.method(ENDED)).data["params"]
            assert ended["signal"] == "SIGKILL"
            assert "exitCode" not in ended

    run(main())


@pytest.mark.requirement("6.death-pending")
def test_what_a_dead_agent_asked_is_withdrawn(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "isolated") as client, client.stream() as stream:
            session = await client.new_session()
            answer = await client.prompt(session, [["ask", "session/request_permission", PERMISSION], ["exit", 1]])
            assert answer["error"]["code"] == -32603
            events = await stream.until(lambda event: event.method == "$/cancel_request")
            [asked] = [event for event in events if event.method == "session/request_permission"]
            assert events[-1].data["params"]["requestId"] == asked.data["id"]
            assert await client.result("_sandboxagent/session/pending", {"sessionId": session}) == {"pending": []}
            late = await client.answer(asked.data["id"], {"outcome": {"outcome": "selected", "optionId": "yes"}})
            assert late.status_code == 409

    run(main())


@pytest.mark.requirement("6.death-next")
@pytest.mark.requirement("6.death-resume")
def test_a_prompt_to_a_resumable_session_starts_a_new_process_and_resumes_it_first(crashing: Server) -> None:
    async def main() -> None:
        async with Client(crashing, "three") as client:

            async def status() -> Json:
                return (await client.http.get("/v1/agents/three")).json()["serverStatus"]

            session = await client.new_session()
            before = await status()
            assert (before["status"], before["restartCount"]) == ("running", 0)
            await client.prompt(session, [["exit", 1]])
            assert (await status())["status"] == "error"
            async with client.stream() as stream:
                answer = await client.prompt(session, "are you back?")
                assert answer["result"]["stopReason"] == "end_turn"
                await stream.until(lambda event: event.text == "are you back?")
            after = await status()
            assert (after["status"], after["restartCount"]) == ("running", 1)
            assert after["pid"] != before["pid"]
            received = [json.loads(line) for line in (await client.result("x/received"))["lines"]]
            methods = [one.get("method") for one in received]
            assert methods[:3] == ["initialize", "session/resume", "session/prompt"]
            assert received[1]["params"]["sessionId"] == session
            assert received[1]["params"]["cwd"] == crashing.work
            view = await view_of(client, session)
            assert (view["ended"], view["terminationInfo"]) == (False, None)

    run(main())


@pytest.mark.requirement("6.death-resume")
def test_session_of_a_load_only_agent_is_loaded_without_repeating_the_past(crashing: Server) -> None:
    async def main() -> None:
        async with Client(crashing, "loads") as client:
            session = await client.new_session()
            await client.prompt(session, [["exit", 1]])
            before = (await view_of(client, session))["eventCount"]
            async with client.stream() as stream:
                await client.prompt(session, "new words")
                await stream.until(lambda event: event.text == "new words")
                assert [event.text for event in stream.seen if event.text] == ["new words"]
            received = [json.loads(line).get("method") for line in (await client.result("x/received"))["lines"]]
            assert received[:3] == ["initialize", "session/load", "session/prompt"]
            events = (await client.result("_sandboxagent/session/events", {"sessionId": session}))["events"]
            assert "an old answer" not in json.dumps(events)
            assert len(events) > before

    run(main())


@pytest.mark.requirement("6.death-resume")
def test_concurrent_prompts_to_a_dead_session_share_one_resume_in_order(crashing: Server) -> None:
    async def main() -> None:
        async with Client(crashing, "four") as client, client.stream() as stream:
            session = await client.new_session()
            await client.prompt(session, [["exit", 1]])
            for number in range(3):
                body = {"jsonrpc": "2.0", "id": f"p{number}", "method": "session/prompt"}
                body |= {"params": client.prompt_params(session, f"text {number}")}
                assert (await client.post(body, Prefer="respond-async")).status_code == 202
            await stream.until(lambda event: event.data.get("id") == "p2")
            texts = [event.text for event in stream.seen if event.text.startswith("text ")]
            assert texts == ["text 0", "text 1", "text 2"]
            received = [json.loads(line).get("method") for line in (await client.result("x/received"))["lines"]]
            assert received.count("session/resume") == 1

    run(main())


@pytest.mark.requirement("6.death-resume")
def test_a_session_that_its_agent_cannot_resume_says_so(crashing: Server) -> None:
    async def main() -> None:
        async with Client(crashing, "plainest") as client:
            session = await client.new_session()
            await client.prompt(session, [["exit", 1]])
            view = await view_of(client, session)
            assert (view["ended"], view["resumable"]) == (True, False)
            error = (await client.prompt(session, "hello?"))["error"]
            assert session in error["message"]
            assert "resume" in error["message"]
            assert (await client.prompt(await client.new_session(), "hi"))["result"]["stopReason"] == "end_turn"

    run(main())


@pytest.mark.requirement("6.death-resume")
def test_a_session_that_its_agent_has_forgotten_says_so_and_stays_ended(crashing: Server) -> None:
    async def main() -> None:
        async with Client(crashing, "forgetful") as client:
            session = await client.new_session()
            await client.prompt(session, [["exit", 1]])
            (crashing.directory / "forgetful").write_text("")
            error = (await client.prompt(session, "hello?"))["error"]
            assert "no such session" in error["message"]
            assert (await view_of(client, session))["ended"] is True

    run(main())


@pytest.mark.requirement("6.death-backoff")
def test_an_agent_that_crashes_again_and_again_is_started_with_a_growing_wait(crashing: Server) -> None:
    async def main() -> None:
        async with Client(crashing, "five") as client:
            waits = []
            for _ in range(5):
                began = time.monotonic()
                session = await client.new_session()
                waits.append(time.monotonic() - began)
                await client.prompt(session, [["exit", 1]])
            assert waits[3] >= 0.5
            assert waits[4] >= 1
            shown = (await client.http.get("/v1/agents/five")).json()["serverStatus"]
            assert shown["restartCount"] >= 4
            assert "code 1" in shown["lastError"]

    run(main())


@pytest.fixture(scope="module")
def crashing(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """A server whose agents may crash: each test has one of its own."""
    directory = tmp_path_factory.mktemp("crashing")
    agents = {name: scripted() for name in ("one", "two", "three", "four", "five")}
    agents["isolated"] = scripted(isolation="session")
    agents["loads"] = scripted("--no-resume")
    agents["plainest"] = scripted("--no-resume", "--no-load")
    agents["refusing"] = scripted("--state", str(directory / "refusing"), isolation="session")
    agents["forgetful"] = scripted("--state", str(directory / "forgetful"))
    with Server(agents=agents, directory=directory) as running:
        yield running


# One process per session


@pytest.mark.requirement("6.isolation")
def test_an_isolated_agent_has_a_process_for_each_session_which_ends_with_it(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "isolated") as client:
            sessions = [await client.new_session() for _ in range(3)]
            pids = [await pid_of(client, session) for session in sessions]
            assert len(set(pids)) == 3
            assert all(map(alive, pids))
            await client.result(TERMINATE, {"sessionId": sessions[0]})
            eventually(lambda: not alive(pids[0]), "the end of a terminated session's process")
            await client.result("session/close", {"sessionId": sessions[1]})
            eventually(lambda: not alive(pids[1]), "the end of a closed session's process")
            assert alive(pids[2])
            assert (await client.prompt(sessions[2], "hello"))["result"]["stopReason"] == "end_turn"
            await client.result("session/delete", {"sessionId": sessions[2]})
            eventually(lambda: not alive(pids[2]), "the end of a deleted session's process")

    run(main())


@pytest.mark.requirement("6.isolation")
def test_the_death_of_one_isolated_session_leaves_the_others_alone(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "isolated") as client:
            doomed, other = await client.new_session(), await client.new_session()
            pid = await pid_of(client, other)
            await client.prompt(doomed, [["exit", 1]])
            assert (await view_of(client, doomed))["ended"] is True
            assert (await view_of(client, other))["ended"] is False
            assert await pid_of(client, other) == pid
            resumed = await client.prompt(doomed, "hello")
            assert resumed["result"]["stopReason"] == "end_turn"
            assert await pid_of(client, doomed) != pid

    run(main())


@pytest.mark.requirement("6.isolation")
def test_ending_a_fork_of_an_isolated_session_leaves_its_source_alive(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "isolated") as client, Client(server, "isolated") as guest:
            source = await client.new_session()
            fork = (await client.result("session/fork", {"sessionId": source, "cwd": server.work}))["sessionId"]
            await guest.result("_sandboxagent/session/attach", {"sessionId": source})
            await client.result(TERMINATE, {"sessionId": fork})
            async with guest.stream() as stream:
                assert (await client.prompt(source, "hello"))["result"]["stopReason"] == "end_turn"
                await stream.turn_ended()
                assert ENDED not in [event.method for event in stream.seen]

    run(main())


@pytest.mark.requirement("6.isolation")
@pytest.mark.parametrize("method", ["session/load", "session/resume", "session/prompt"])
def test_no_process_stays_for_a_session_that_its_isolated_agent_refuses(crashing: Server, method: str) -> None:
    state = crashing.directory / "refusing"

    def started() -> set[int]:
        return {json.loads(line)["started"] for line in state.read_text().splitlines() if "started" in line}

    async def main() -> None:
        async with Client(crashing, "refusing") as client:
            params: Json = {"sessionId": "never heard of", "cwd": crashing.work, "mcpServers": []}
            if method == "session/prompt":
                session = await client.new_session()
                await client.prompt(session, [["exit", 1]])
                params = client.prompt_params(session, "hello?")
            before = started()
            state.write_text("")
            error = await client.error(method, params)
            assert "no such session" in error["message"]
            [refusing] = started() - before
            eventually(lambda: not alive(refusing), "the end of a process without a session")

    run(main())


@pytest.mark.requirement("6.isolation")
def test_sessions_that_were_ended_on_purpose_do_not_count_as_crashes(crashing: Server) -> None:
    async def main() -> None:
        async with Client(crashing, "isolated") as client:
            for _ in range(8):
                await client.result(TERMINATE, {"sessionId": await client.new_session()})

            async def status() -> Json:
                return (await client.http.get("/v1/agents/isolated")).json()["serverStatus"]

            before = await status()
            assert "lastError" not in before
            os.kill(before["pid"], signal.SIGKILL)
            # Until the server knows that, it may still send something there.
            async with asyncio.timeout(BOUND):
                while (await status())["restartCount"] == before["restartCount"]:
                    pass
            began = time.monotonic()
            await client.result("x/echo")
            # If they did, this would wait for half a minute.
            assert time.monotonic() - began < 20, "a wait after a first crash"

    run(main())


@pytest.mark.requirement("6.env")
def test_env_in_session_new_reaches_that_sessions_process_alone(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "isolated") as client, client.stream() as stream:
            session = await client.new_session(env={"DEPLOY_KEY": "s3cret-äöü", "EMPTY": ""})
            plain = await client.new_session()
            for one, expected in ((session, '"s3cret-äöü"'), (plain, "null")):
                await client.prompt(one, [["env", "DEPLOY_KEY"]])
                [text] = [event.text for event in await stream.turn_ended() if event.text]
                assert json.loads(text) == json.loads(expected)
            await client.prompt(session, [["env", "EMPTY"]])
            [text] = [event.text for event in await stream.turn_ended() if event.text]
            assert text == '""'

    run(main())


@pytest.mark.requirement("6.env")
def test_env_gives_a_session_a_process_of_its_own_which_ends_with_it(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            own, plain = await client.new_session(env={"DEPLOY_KEY": "s3cret"}), await client.new_session()
            pids: list[int] = []
            for session, expected in ((own, "s3cret"), (plain, None)):
                await client.prompt(session, [["env", "DEPLOY_KEY"], ["pid"]])
                value, pid = [event.text for event in await stream.turn_ended() if event.text]
                assert json.loads(value) == expected
                pids.append(int(pid))
            assert len(set(pids)) == 2
            await client.result("_sandboxagent/session/terminate", {"sessionId": own})
            eventually(lambda: not alive(pids[0]), "the end of its process")
            assert alive(pids[1])

    run(main())


@pytest.mark.requirement("6.env-taken-up")
def test_a_session_with_its_own_environment_is_taken_up_with_env(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with Client(server, "keeping") as client, client.stream() as stream:
            session = await client.new_session(env={"DEPLOY_KEY": "first"})
            await client.prompt(session, [["pid"]])
            [pid] = [event.text for event in await stream.turn_ended() if event.text]
            os.kill(int(pid), signal.SIGKILL)
            await stream.method("_sandboxagent/session/ended")
            assert (await client.error("session/prompt", client.prompt_params(session, [])))["code"] == -32600
            meta = {META: {"env": {"DEPLOY_KEY": "second"}}}
            await client.result(
                "session/load", {"sessionId": session, "cwd": server.work, "mcpServers": [], "_meta": meta}
            )
            await client.prompt(session, [["env", "DEPLOY_KEY"]])
            assert await stream.until(lambda event: event.text == '"second"')

    with Server(directory=tmp_path, agents={"keeping": scripted("--state", str(tmp_path / "state"))}) as server:
        run(main(server))


@pytest.mark.requirement("6.env-form")
@pytest.mark.parametrize("env", [["A=b"], "A=b", {"A": 1}, {"A": None}, {"A=B": "c"}, {"": "c"}, {"A": "b\0c"}])
def test_env_that_is_no_table_of_texts_is_refused(server: Server, env: object) -> None:
    async def main() -> None:
        async with Client(server, "isolated") as client:
            params = {"cwd": server.work, "mcpServers": [], "_meta": {META: {"env": env}}}
            assert (await client.error("session/new", params))["code"] == -32602

    run(main())


@pytest.mark.requirement("6.env-secret")
def test_env_is_never_kept_listed_or_logged(tmp_path_factory: pytest.TempPathFactory) -> None:
    secret = "never-to-be-found"
    name = "NAME_OF_A_SECRET"
    directory = tmp_path_factory.mktemp("secret")

    async def main(server: Server) -> None:
        async with Client(server, "isolated") as client, client.stream() as stream:
            session = await client.new_session(env={name: secret}, kept="yes")
            await client.prompt(session, [["environ"]])
            assert name in (await stream.method("session/update")).text
            received = await client.result("x/received", {"sessionId": session})
            events = await client.result("_sandboxagent/session/events", {"sessionId": session})
            listed = await client.result("session/list")
            shown = await view_of(client, session)
            assert shown["metadata"] == {"kept": "yes"}
            forked = await client.call("session/fork", {"sessionId": session, "cwd": server.work})
            refused = {"cwd": server.work, "mcpServers": [], "_meta": {META: {"env": {name: [secret]}}}}
            error = await client.error("session/new", refused)
            for answer in (received, events, listed, shown, forked, error):
                assert secret not in json.dumps(answer)
                assert "env" not in json.dumps(answer).replace("envelope", "").replace("environ", "") or answer is error

    with Server(
        "--log-level", "debug", agents={"isolated": scripted(isolation="session")}, directory=directory
    ) as server:
        run(main(server))
    files = [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]
    assert any(path.name == "log.db" for path in files)
    found = [path for path in files if secret.encode() in path.read_bytes()]
    assert found == []


@pytest.mark.requirement("6.env-secret")
def test_an_http_view_of_an_isolated_session_does_not_name_its_env(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "isolated") as client:
            session = await client.new_session(env={"HIDDEN": "value-of-it"})
            responses: list[httpx.Response] = [
                await client.http.get(f"/v1/sessions/{session}"),
                await client.http.get("/v1/sessions", params={"cwd": server.work}),
                await client.http.get("/v1/agents/isolated"),
            ]
            for response in responses:
                assert "value-of-it" not in response.text
                assert "HIDDEN" not in response.text

    run(main())


@pytest.mark.requirement("6.late-updates")
def test_update_of_an_ended_session_reaches_attached_clients_only(server: Server) -> None:
    async def main() -> None:
        async with (
            Client(server) as owner,
            Client(server) as stranger,
            owner.stream() as seen,
            stranger.stream() as others,
        ):
            ended, live = await owner.new_session(), await stranger.new_session()
            await owner.result(TERMINATE, {"sessionId": ended})
            title = {"sessionUpdate": "session_info_update", "title": "late"}
            late = ["notify", "session/update", {"sessionId": ended, "update": title}]
            await stranger.prompt(live, [late, ["say", "end"]])
            await others.turn_ended()
            assert (await seen.until(lambda event: "late" in event.line))[-1].data["params"]["sessionId"] == ended
            assert [event for event in others.seen if "late" in event.line] == []

    run(main())
