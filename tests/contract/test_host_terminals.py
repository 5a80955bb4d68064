"""Contract, section 5: the server runs an agent's terminals; section 10: nothing of them is left behind."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from tests.support.asking import ask_outright
from tests.support.client import Client, run
from tests.support.hosting import CREATE, KILL, OUTPUT, READ, RELEASE, WAIT, answer, answers, gets, refused, runs
from tests.support.pids import Pids
from tests.support.running import TOKEN, Server, alive, eventually, scripted
from tests.support.saying import said

DAEMONS = """
import os, signal, sys, time
def sleeper(fork, session, clear):
    reader, writer = os.pipe()
    if os.fork() == 0:
        if session: os.setsid()
        if fork and os.fork(): os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(writer, str(os.getpid()).encode())
        for descriptor in (0, 1, 2, reader, writer): os.close(descriptor)
        os.execve("/bin/sleep", ["sleep", "3600"], {} if clear else os.environ)
    os.close(writer)
    return os.read(reader, 32).decode()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pids = [sleeper(*each) for each in ((0, 0, 0), (0, 1, 0), (1, 1, 0), (1, 1, 1))]
with open(sys.argv[1] + ".new", "w") as file: print(os.getpid(), *pids, file=file)
os.rename(file.name, sys.argv[1])
while True: time.sleep(60)
"""


async def daemons(client: Client, session: str, pids: Pids) -> str:
    """A terminal whose command and daemons ignore SIGTERM; gives its id when they all run."""
    started = Path(client.server.work, f"daemons-{session}")

    def read_pids() -> list[int]:
        eventually(started.exists, "the start of the daemons")
        return list(map(int, started.read_text().split()))

    terminal = await runs(client, session, sys.executable, "-I", "-S", "-c", DAEMONS, str(started))
    pids += await asyncio.to_thread(read_pids)
    assert len(pids) == 5
    assert all(map(alive, pids))
    return terminal


@pytest.mark.requirement("5.host-terminals")
def test_a_command_runs_in_the_sessions_directory_and_tells_how_it_ended(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            session = await a.new_session()
            terminal = await runs(
                a, session, "sh", "-c", "pwd; echo $OWN >&2; exit 3", env=[{"name": "OWN", "value": "1"}]
            )
            assert await gets(a, session, WAIT, terminalId=terminal) == {"exitCode": 3, "signal": None}
            output = {
                "output": f"{server.work}\n1\n",
                "truncated": False,
                "exitStatus": {"exitCode": 3, "signal": None},
            }
            assert await gets(a, session, OUTPUT, terminalId=terminal) == output
            assert await gets(a, session, RELEASE, terminalId=terminal) == {}
            for method in (OUTPUT, WAIT, KILL, RELEASE):
                error = await refused(a, session, method, terminalId=terminal)
                assert (error["code"], error["data"]["type"]) == (-32002, "unknown-terminal")

    run(main())


@pytest.mark.requirement("5.host-terminals")
def test_a_whole_line_as_command_is_run_by_a_shell(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            session = await a.new_session()
            created = await gets(a, session, CREATE, command="mkdir -p sub && cd sub && pwd | tr a-z A-Z")
            terminal = created["terminalId"]
            assert await gets(a, session, WAIT, terminalId=terminal) == {"exitCode": 0, "signal": None}
            output = await gets(a, session, OUTPUT, terminalId=terminal)
            assert output["output"] == f"{server.work}/sub\n".upper()

    run(main())


@pytest.mark.requirement("5.host-terminals")
def test_several_wait_for_an_exit_and_a_kill_answers_them_all(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            session = await a.new_session()
            terminal = await runs(a, session, "sh", "-c", "echo before; sleep 3600")
            running = await gets(a, session, OUTPUT, terminalId=terminal)
            assert "exitStatus" not in running
            waiting = [(WAIT, {"terminalId": terminal})] * 3
            answered = await answers(a, session, *waiting, (KILL, {"terminalId": terminal}))
            ended = answered[0]["result"]
            # Killed outright where a busy machine does not let it end within a second.
            assert ended in ({"exitCode": None, "signal": "SIGTERM"}, {"exitCode": None, "signal": "SIGKILL"})
            assert [one["result"] for one in answered] == [ended] * 3 + [{}]
            # It can be read until it is released.
            after = await gets(a, session, OUTPUT, terminalId=terminal)
            assert after["exitStatus"] == ended
            assert after["output"] in ("before\n", "")

    run(main())


@pytest.mark.requirement("5.host-terminals")
def test_an_agent_may_take_back_that_it_waits(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            session = await a.new_session()
            terminal = await runs(a, session, "sleep", "3600")
            steps = [["ask_id", "77", WAIT, {"terminalId": terminal}], ["cancel_own", 77], ["echo_answer"]]
            (line,) = await said(a, session, *steps)
            assert json.loads(line)["error"]["code"] == -32800
            assert "exitStatus" not in await gets(a, session, OUTPUT, terminalId=terminal)
            await gets(a, session, RELEASE, terminalId=terminal)

    run(main())


@pytest.mark.requirement("5.host-terminals")
def test_a_terminal_is_known_to_its_own_session_only(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            mine, other = await a.new_session(), await a.new_session()
            terminal = await runs(a, mine, "sleep", "3600")
            for method in (OUTPUT, WAIT, KILL, RELEASE):
                assert (await refused(a, other, method, terminalId=terminal))["code"] == -32002
            await gets(a, mine, RELEASE, terminalId=terminal)

    run(main())


@pytest.mark.requirement("5.host-terminals")
def test_others_are_served_while_an_agent_waits_for_an_exit(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            session = await a.new_session()
            terminal = await runs(a, session, "sleep", "3600")
            await ask_outright(a, session, ["ask", WAIT, {"terminalId": terminal}], ["wait_answer"])
            other = await a.new_session()
            assert (await a.prompt(other, "hello"))["result"] == {"stopReason": "end_turn"}
            assert (await answer(a, other, READ, path="/"))["error"]["code"] == -32602
            await a.result("_sandboxagent/session/terminate", {"sessionId": session})

    run(main())


# Limits


@pytest.mark.requirement("5.host-limits")
def test_the_newest_output_is_kept_cut_between_characters(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            session = await a.new_session()
            terminal = await runs(a, session, "printf", "aäöü", outputByteLimit=5)
            await gets(a, session, WAIT, terminalId=terminal)
            output = await gets(a, session, OUTPUT, terminalId=terminal)
            assert (output["output"], output["truncated"]) == ("öü", True)

    run(main())


@pytest.mark.requirement("5.host-limits")
def test_64_mib_of_output_and_the_most_of_terminals_cost_no_memory() -> None:
    def memory(server: Server) -> int:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0])

    async def main(server: Server) -> None:
        async with Client(server) as a:
            session = await a.new_session()
            first = await runs(a, session, "true")
            before = memory(server)
            large = await runs(
                a, session, "sh", "-c", "head -c 64M /dev/zero | tr '\\0' x; echo end", outputByteLimit=1 << 40
            )
            await gets(a, session, WAIT, terminalId=large)
            assert memory(server) - before < 24 * 1024, "KiB"
            output = await gets(a, session, OUTPUT, terminalId=large)
            assert output["truncated"] is True
            assert output["output"].endswith("xend\n")
            assert len(output["output"]) == 1 << 20
            await runs(a, session, "true")
            error = await refused(a, session, CREATE, command="true")
            assert (error["code"], error["data"]["limit"]) == (-32600, 3)
            await gets(a, session, RELEASE, terminalId=first)
            await runs(a, session, "true")

    with Server("--terminals", "3") as server:
        run(main(server))


# What a command sees


@pytest.mark.requirement("5.host-environment")
def test_a_command_sees_what_its_agent_may_see_but_no_credentials_token_or_settings() -> None:
    environment = {
        "SANDBOX_AGENT_LOG_LEVEL": "info",
        "SECRET_OF_THE_SERVER": "hidden",
        "COPY_OF_THE_TOKEN": TOKEN,
        "MODEL_KEY": "key",
        "LC_TEST": "seen",
    }
    keys = 'credentials = ["MODEL_KEY"]\nvariables = ["COPY_OF_*"]\nenv = {OWN = "1", MODEL_KEY = "other"}'

    async def main(server: Server) -> None:
        async with Client(server, "own") as a:
            session = await a.new_session()
            terminal = await runs(a, session, "env", env=[{"name": "ASKED", "value": "x=y"}])
            await gets(a, session, WAIT, terminalId=terminal)
            output = (await gets(a, session, OUTPUT, terminalId=terminal))["output"]
            seen = dict(line.split("=", 1) for line in output.splitlines())
            assert (seen["ASKED"], seen["OWN"], seen["LC_TEST"]) == ("x=y", "1", "seen")
            assert "PATH" in seen
            assert TOKEN not in output
            assert (
                not {"MODEL_KEY", "SECRET_OF_THE_SERVER", "COPY_OF_THE_TOKEN", "SANDBOX_AGENT_LOG_LEVEL"} & seen.keys()
            )

    with Server(agents={"own": f"{scripted()}\n{keys}"}, environment=environment) as server:
        run(main(server))


@pytest.mark.requirement("5.host-environment")
def test_a_command_sees_the_variables_of_its_own_session(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "isolated") as a:
            for value in ("one", "two"):
                session = await a.new_session(env={"OF_THE_SESSION": value})
                terminal = await runs(a, session, "printenv", "OF_THE_SESSION")
                await gets(a, session, WAIT, terminalId=terminal)
                assert (await gets(a, session, OUTPUT, terminalId=terminal))["output"] == f"{value}\n"

    run(main())


# Nothing is left


@pytest.mark.requirement("5.host-trees")
@pytest.mark.parametrize("ending", ["kill", "release", "close", "delete", "terminate", "exit", "crash"])
def test_the_whole_tree_ends_however_the_terminal_does(server: Server, ending: str, pids: Pids) -> None:
    async def main() -> None:
        # An agent of its own: it dies.
        async with Client(server, "isolated") as a:
            session = await a.new_session()
            terminal = await daemons(a, session, pids)
            match ending:
                case "kill" | "release":
                    await gets(a, session, f"terminal/{ending}", terminalId=terminal)
                case "close" | "delete":
                    await a.result(f"session/{ending}", {"sessionId": session})
                case "terminate":
                    await a.result("_sandboxagent/session/terminate", {"sessionId": session})
                case "exit":
                    await a.prompt(session, [["exit", 3]])
                case _:
                    await a.prompt(session, [["kill"]])
            pids.gone()

    run(main())


@pytest.mark.requirement("5.host-trees")
def test_a_session_that_ends_leaves_the_terminals_of_others_alone(server: Server, pids: Pids) -> None:
    async def main() -> None:
        async with Client(server) as a:
            ending, staying = await a.new_session(), await a.new_session()
            await daemons(a, ending, pids)
            terminal = await runs(a, staying, "sleep", "3600")
            await a.result("_sandboxagent/session/terminate", {"sessionId": ending})
            pids.gone()
            assert "exitStatus" not in await gets(a, staying, OUTPUT, terminalId=terminal)
            await gets(a, staying, RELEASE, terminalId=terminal)

    run(main())


@pytest.mark.requirement("5.host-trees")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_server_that_ended_once_the_next_one_has_started(
    tmp_path: Path, number: signal.Signals, pids: Pids
) -> None:
    async def main(server: Server) -> None:
        async with Client(server) as a:
            await daemons(a, await a.new_session(), pids)

    server = Server(directory=tmp_path).start()
    run(main(server))
    code = server.stop(number)
    if number == signal.SIGTERM:
        assert code == 0
        pids.gone()
    with Server(directory=tmp_path):
        assert not any(map(alive, pids))


@pytest.mark.requirement("5.host-trees")
def test_a_search_in_an_endless_file_does_not_hold_up_the_end_of_the_server(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with Client(server) as a:
            session = await a.new_session()
            ask = ["ask", READ, {"path": f"{server.work}/endless", "line": 2}]
            await ask_outright(a, session, ask, ["say", "asked"], ["wait_answer"])
            await a.call("x/echo")

    server = Server(directory=tmp_path).start()
    with Path(server.work, "endless").open("wb") as file:
        file.truncate(1 << 40)
    run(main(server))
    assert server.stop() == 0
    assert "Traceback" not in server.stderr
