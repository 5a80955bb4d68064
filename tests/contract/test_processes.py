"""Contract, section 10: processes die whole. A tree ends with its agent, session or server, crashes included."""

import ast
import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from sandboxagent.core.process_id import read_process
from tests.support.client import META, Client, run
from tests.support.pids import Pids
from tests.support.running import SCRIPTED, Server, alive, eventually, scripted
from tests.support.saying import said

ESCAPED = {"double_fork": True, "setsid": True, "close_fds": True, "ignore_sigterm": True}
DAEMONS = {
    "a plain child": {},
    "a child in a session of its own": {"setsid": True},
    "a child that ignores SIGTERM": {"ignore_sigterm": True},
    "a daemon": ESCAPED,
    "a daemon that has thrown away all that marks it": ESCAPED | {"clear_env": True, "change_limit": True},
}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": 1, "_meta": {META: {"agent": "slow"}}},
}
NEW = {"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": {"cwd": "/", "mcpServers": []}}
WORST = list(DAEMONS.values())[-2:]


async def start(client: Client, session: str, pids: Pids, *flags: dict[str, bool]) -> int:
    """Let a session's agent start processes that are meant to stay; gives the agent's pid."""
    started = list(map(int, await said(client, session, ["pid"], *(["daemon", each] for each in flags))))
    assert len(started) == 1 + len(flags)
    assert all(map(alive, started))
    pids += started
    return started[0]


@pytest.fixture(scope="module")
def house() -> Generator[Server]:
    """A server whose agents have a process for each session, so that one may end without the others."""
    stubborn = scripted("--ignore-sigterm", "--ignore-eof", isolation="session")
    agents = {"isolated": scripted(isolation="session"), "stubborn": stubborn, "other": scripted()}
    with Server("--no-persist", "--stop-grace", "100ms", agents=agents) as running:
        yield running


@pytest.mark.requirement("10.tree-dies-with-the-agent")
@pytest.mark.parametrize("end", ["exit", "kill"])
def test_nothing_is_left_of_an_agent_that_ends(house: Server, end: str, pids: Pids) -> None:
    async def main() -> None:
        async with Client(house, "isolated") as client:
            session = await client.new_session()
            await start(client, session, pids, *DAEMONS.values())
            step = ["exit", 3] if end == "exit" else ["kill"]
            assert (await client.prompt(session, [step]))["error"]["code"] == -32603

    run(main())
    pids.gone()


@pytest.mark.requirement("10.tree-dies-with-the-agent")
def test_nothing_is_left_of_an_agent_that_ends_while_another_one_works_on(house: Server, pids: Pids) -> None:
    async def main() -> None:
        async with Client(house, "other") as bystander, Client(house, "isolated") as client:
            theirs = await bystander.new_session()
            kept = list(map(int, await said(bystander, theirs, ["pid"], ["daemon", {"setsid": True}])))
            session = await client.new_session()
            await start(client, session, pids, *WORST)
            await client.prompt(session, [["exit", 0]])
            pids.gone()
            assert all(map(alive, kept))
            assert await said(bystander, theirs, ["say", "still here"]) == ["still here"]

    run(main())


@pytest.mark.requirement("10.tree-dies-with-the-agent")
def test_nothing_is_left_of_an_agent_that_another_program_killed(house: Server, pids: Pids) -> None:
    async def main() -> None:
        async with Client(house, "isolated") as client:
            session = await client.new_session()
            os.kill(await start(client, session, pids, *WORST), signal.SIGKILL)

    run(main())
    pids.gone()


@pytest.mark.requirement("10.stopped-reaper")
@pytest.mark.parametrize("end", ["exit", "kill"])
def test_nothing_is_left_of_an_agent_that_stopped_its_reaper(house: Server, end: str, pids: Pids) -> None:
    async def main() -> None:
        async with Client(house, "isolated") as client:
            session = await client.new_session()
            stop_reaper(await start(client, session, pids, *WORST))
            step = ["exit", 3] if end == "exit" else ["kill"]
            assert (await client.prompt(session, [step]))["error"]["code"] == -32603

    run(main())
    pids.gone()


def stop_reaper(agent: int) -> None:
    process = read_process(agent)
    assert process
    os.kill(process.parent, signal.SIGSTOP)


@pytest.mark.requirement("10.tree-dies-with-the-session")
def test_a_terminated_session_takes_its_own_process_with_it(house: Server, pids: Pids) -> None:
    async def main() -> None:
        async with Client(house, "stubborn") as client:
            other = await client.new_session()
            (kept,) = await said(client, other, ["pid"])
            session = await client.new_session()
            await start(client, session, pids, *WORST)
            ended = await client.result("_sandboxagent/session/terminate", {"sessionId": session})
            assert ended["terminated"] is True
            pids.gone()
            assert await said(client, other, ["pid"]) == [kept]

    run(main())


@pytest.mark.requirement("10.tree-dies-with-the-server")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_a_server_that_was_stopped(number: int, pids: Pids) -> None:
    agents = {"stubborn": scripted("--ignore-sigterm", "--ignore-eof"), "isolated": scripted(isolation="session")}

    async def main(server: Server) -> None:
        for agent in ("scripted", "stubborn", "isolated"):
            async with Client(server, agent) as client:
                await start(client, await client.new_session(), pids, *WORST)

    with Server("--no-persist", agents=agents) as server:
        run(main(server))
        assert len(pids) == 9
        assert server.stop(number) == 0
        # Not "eventually": a server that has ended has nothing left to end them later.
        assert [pid for pid in pids if alive(pid)] == []


@pytest.mark.requirement("10.tree-dies-with-the-server")
@pytest.mark.parametrize("isolation", ["agent", "session"])
def test_nothing_is_left_of_an_agent_that_was_still_starting_when_the_server_stopped(
    isolation: str, pids: Pids, tmp_path: Path
) -> None:
    facts = tmp_path / "facts"
    # The first process shakes hands, the second never does: `session/new` is what waits with isolation.
    silent = ["--bad-handshake", "silent", "--ignore-sigterm", "--ignore-eof"]
    slow = scripted(*silent, "--state", str(facts), isolation=isolation)
    if isolation == "session":
        slow = second_is(slow, tmp_path)

    def started() -> list[int]:
        return [json.loads(line)["started"] for line in facts.read_text().splitlines()] if facts.exists() else []

    async def main(server: Server) -> None:
        client = Client(server, "slow")
        async with client.http:
            if isolation == "session":
                await client.initialize()
                waiting = asyncio.create_task(client.post(NEW))
            else:
                waiting = asyncio.create_task(client.post(INITIALIZE))
            await asyncio.to_thread(eventually, started, "the start of the agent")
            pids.extend(started())
            assert await asyncio.to_thread(server.stop) == 0
            assert [pid for pid in pids if alive(pid)] == []
            # No client is left without an answer.
            assert (await waiting).status_code == 503

    with Server("--no-persist", agents={"slow": slow}) as server:
        run(main(server))


def second_is(table: str, directory: Path) -> str:
    """An agent whose first process is honest and whose later ones are what `table` runs."""
    command, *rest = table.splitlines()
    other = shlex.join(ast.literal_eval(command.partition("=")[2].strip()))
    honest = shlex.join([sys.executable, "-I", "-S", str(SCRIPTED)])
    once = shlex.quote(str(directory / "once"))
    shell = f"if mkdir {once} 2>/dev/null; then exec {honest}; else exec {other}; fi"
    return "\n".join([f"command = {['sh', '-c', shell]!r}", *rest])


@pytest.mark.requirement("10.tree-dies-after-a-crash")
def test_nothing_is_left_of_a_server_that_crashed(pids: Pids, tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with Client(server) as client:
            await start(client, await client.new_session(), pids, *WORST)

    server = Server(directory=tmp_path).start()
    run(main(server))
    server.kill()
    pids.gone()


@pytest.mark.requirement("10.stopped-reaper")
def test_nothing_is_left_of_a_server_that_crashed_while_a_reaper_was_stopped(pids: Pids, tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with Client(server) as client:
            stop_reaper(await start(client, await client.new_session(), pids, *WORST))

    server = Server(directory=tmp_path).start()
    run(main(server))
    server.kill()
    pids.gone()


@pytest.mark.requirement("10.next-server-sweeps")
def test_leftovers_of_a_server_killed_with_its_reapers_end_at_the_next_start(pids: Pids, tmp_path: Path) -> None:
    async def main(server: Server) -> int:
        async with Client(server) as client:
            return await start(client, await client.new_session(), pids, ESCAPED | {"clear_env": True})

    server = Server(directory=tmp_path).start()
    agent = run(main(server))
    reaper = read_process(agent)
    assert reaper
    above = read_process(reaper.parent)
    assert above
    # The server must not see it, and its own death would have the reaper end everything first.
    os.kill(above.parent, signal.SIGSTOP)
    os.kill(above.pid, signal.SIGKILL)
    server.kill()
    eventually(lambda: not alive(agent), "the end of the agent itself")
    assert alive(pids[-1])
    with Server(directory=tmp_path):
        # The ready line has been printed: what is to be swept has been swept.
        pids.gone()


@pytest.mark.requirement("10.tree-dies-after-a-crash")
def test_an_agent_itself_does_not_outlive_a_crashed_server(pids: Pids, tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        for agent in ("scripted", "stubborn"):
            async with Client(server, agent) as client:
                pids.extend(map(int, await said(client, await client.new_session(), ["pid"])))

    agents = {"stubborn": scripted("--ignore-sigterm", "--ignore-eof")}
    server = Server("--no-persist", agents=agents, directory=tmp_path).start()
    run(main(server))
    server.kill()
    pids.gone()


@pytest.mark.requirement("10.tree-dies-after-a-crash")
def test_a_new_server_leaves_the_processes_of_other_servers_alone(pids: Pids) -> None:
    async def main(server: Server) -> None:
        async with Client(server) as client:
            await start(client, await client.new_session(), pids, ESCAPED)
            with Server():
                assert all(map(alive, pids))

    with Server() as server:
        run(main(server))
        assert all(map(alive, pids))


@pytest.mark.requirement("10.own-group")
def test_an_agent_has_a_session_and_a_group_of_its_own(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            (pid,) = map(int, await said(client, await client.new_session(), ["pid"]))
            assert os.getsid(pid) == os.getpgid(pid) == pid
            assert os.getsid(pid) != os.getsid(server.process.pid)

    run(main())


@pytest.mark.requirement("6.isolation")
@pytest.mark.parametrize("known", [False, True], ids=["an unknown session", "a session of ours"])
@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_a_load_that_the_agent_does_not_offer_leaves_no_process(tmp_path: Path, method: str, known: bool) -> None:
    def processes() -> list[int]:
        facts = map(json.loads, state.read_text().splitlines())
        return [fact["started"] for fact in facts if "started" in fact]

    async def main(server: Server) -> None:
        async with Client(server, "bare") as client:
            (shared,) = processes()
            session = "unknown"
            if known:
                session = await client.new_session()
                assert "error" in await client.prompt(session, [["exit", 0]])
            params = {"sessionId": session, "cwd": server.work, "mcpServers": []}
            assert (await client.error(method, params))["code"] == -32601
            assert len(processes()) == 2 + known
            eventually(lambda: [pid for pid in processes() if alive(pid)] == [shared], "the end of the others")

    state = tmp_path / "state"
    bare = scripted("--capabilities", "{}", "--state", str(state), isolation="session")
    with Server("--no-persist", agents={"bare": bare}) as server:
        run(main(server))
