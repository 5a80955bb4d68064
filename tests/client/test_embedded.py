"""A server of the SDK's own: how it starts, that it ends, and what is said when it does not start."""

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine, Generator, Mapping
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvloop

from sandboxagent.client.embedded import MAX_TAIL_BYTES, EmbeddedServer
from sandboxagent.client.errors import StartFailed
from tests.support.client import NO_CERTIFICATES, Client
from tests.support.embedding import Place
from tests.support.fork_server import fork_server
from tests.support.running import BOUND, Server, alive, eventually
from tests.support.saying import said

Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
ESCAPED = {"double_fork": True, "setsid": True, "close_fds": True, "ignore_sigterm": True}
TIMEOUT = 60.0
"""For a program to start and to end on a busy machine."""
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(params=LOOPS)
def run_on(request: pytest.FixtureRequest) -> Generator[Run]:
    """Runs a coroutine on either event loop, for tests of how processes start and end."""
    yield runner_on(request.param)
    # What is not closed complains when it is collected, and a complaint is an error.
    gc.collect()


@pytest.fixture
def run_here() -> Generator[Run]:
    """Runs a coroutine on an event loop of asyncio's own."""
    yield runner_on("asyncio")
    gc.collect()


def runner_on(loop: str) -> Run:
    """Runs a coroutine; nothing may be left of it on its loop."""

    def run_main(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:

            async def bounded() -> None:
                async with asyncio.timeout(TIMEOUT):
                    await main()
                assert asyncio.all_tasks() == {asyncio.current_task()}

            runner.run(bounded())

    return run_main


def variables(place: Place) -> Mapping[str, str]:
    own = place.environment
    return {name: own[name] for name in ("TMPDIR", "XDG_DATA_HOME")}


async def start(
    place: Place, *, command: list[str] | None = None, data_dir: Path | None = None, **options: object
) -> EmbeddedServer:
    return await EmbeddedServer.start(
        command=command or fork_server().stand_in,
        data_dir=data_dir,
        options={"config_dir": place.config, **options},
        env=variables(place),
    )


async def health(server: EmbeddedServer, token: str | None = None) -> int:
    async with httpx.AsyncClient(trust_env=False, timeout=BOUND, verify=NO_CERTIFICATES) as http:
        headers = {"Authorization": f"Bearer {token or server.token}"}
        return (await http.get(f"{server.url}/v1/health", headers=headers)).status_code


def words_of(server: EmbeddedServer) -> list[str]:
    """Its command line."""
    return Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND):
        while not condition():  # noqa: ASYNC110 - what happens in another process has no event here
            await asyncio.sleep(0.005)


def program(place: Place, body: str) -> list[str]:
    """A command that is this Python program, and no server."""
    file = place.directory / "program.py"
    file.write_text(textwrap.dedent(body))
    return [sys.executable, str(file)]


# --- starting and ending ----------------------------------------------------------------------------------------------


def test_it_answers_until_it_is_closed_and_then_is_gone_with_all_it_had(run_on: Run, place: Place) -> None:
    async def main() -> None:
        server = await start(place)
        assert len(place.leftovers) == 1
        assert await health(server) == 200
        assert await health(server, "wrong") == 401
        await server.close()
        assert not alive(server.pid)
        assert place.leftovers == []
        await server.close()

    run_on(main)


def test_a_block_closes_it_also_when_something_fails_in_it(run_on: Run, place: Place) -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            async with await start(place) as server:
                raise ZeroDivisionError
        assert not alive(server.pid)

    run_on(main)


def test_the_token_is_private_and_not_on_the_command_line(run_here: Run, place: Place) -> None:
    async def main() -> None:
        async with await start(place) as first, await start(place) as second:
            assert first.token != second.token
            assert len(first.token) >= 32
            assert not any(first.token in word for word in words_of(first))
            assert first.token not in first.stderr
            assert (await health(first), await health(first, second.token)) == (200, 401)

    run_here(main)


def test_options_are_flags(run_here: Run, place: Place) -> None:
    options = {"public_health": True, "no_persist": False, "allow_host": ["a.example", "b.example"], "max_file": 5}

    async def main() -> None:
        async with await start(place, **options) as server:
            command = words_of(server)
            expected = ["--public-health", "--allow-host=a.example", "--allow-host=b.example", "--max-file=5"]
            assert [
                word for word in command if word.split("=")[0] in {each.split("=")[0] for each in expected}
            ] == expected
            assert "--no-persist" not in command
            async with httpx.AsyncClient(trust_env=False, timeout=BOUND, verify=NO_CERTIFICATES) as http:
                answer = await http.get(f"{server.url}/v1/health", headers={"Host": "b.example"})
                assert answer.status_code == 200

    run_here(main)


@pytest.mark.parametrize("name", ["token", "no_token", "data_dir", "data-dir", "embedded"])
def test_options_that_start_sets_itself_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        asyncio.run(EmbeddedServer.start(options={name: "x"}))


def test_a_users_own_token_file_does_not_matter(run_here: Run, place: Place) -> None:
    env = {**variables(place), "SANDBOX_AGENT_TOKEN_FILE": "/nowhere", "SANDBOX_AGENT_NO_TOKEN": "1"}

    async def main() -> None:
        async with await EmbeddedServer.start(options={"config_dir": place.config}, env=env) as server:
            assert await health(server) == 200

    run_here(main)


def test_a_server_for_all_addresses_is_reached_on_this_machine(run_here: Run, place: Place) -> None:
    async def main() -> None:
        async with await start(place, host="0.0.0.0") as server:
            assert server.url.startswith("http://127.0.0.1:")
            assert await health(server) == 200

    run_here(main)


def test_sessions_are_kept_in_a_data_directory_that_is_given(run_here: Run, place: Place) -> None:
    data = place.directory / "data"

    async def main() -> None:
        for _ in range(2):
            async with await start(place, data_dir=data) as server:
                assert await health(server) == 200
        assert (data / "log.db").exists()
        assert place.leftovers == []

    run_here(main)


# --- ending against resistance ----------------------------------------------------------------------------------------

STUBBORN = """
    import signal, sys, time
    for name in {ignored}:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    print("sandbox-agent listening on http://127.0.0.1:1", flush=True)
    while True:
        time.sleep(60)
    """


def test_one_that_does_not_end_with_its_stdin_is_ended(run_on: Run, place: Place) -> None:
    async def main() -> None:
        server = await start(place, command=program(place, STUBBORN.format(ignored=["SIGINT"])))
        await server.close(0.1)
        assert not alive(server.pid)

    run_on(main)


def test_one_that_ignores_everything_is_killed(run_on: Run, place: Place) -> None:
    async def main() -> None:
        server = await start(place, command=program(place, STUBBORN.format(ignored=["SIGINT", "SIGTERM"])))
        await server.close(0.1)
        assert not alive(server.pid)

    run_on(main)


def test_a_close_that_is_cancelled_ends_it_all_the_same(run_on: Run, place: Place) -> None:
    async def main() -> None:
        server = await start(place)
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        await server.close()
        assert not alive(server.pid)
        assert place.leftovers == []

    run_on(main)


def test_a_loop_that_ends_while_it_closes_leaves_nothing(place: Place) -> None:
    pids: list[int] = []

    async def main() -> None:
        server = await start(place, command=program(place, STUBBORN.format(ignored=["SIGINT", "SIGTERM"])))
        pids.append(server.pid)
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0)
        closing.cancel()

    asyncio.run(main())
    gc.collect()
    assert not any(map(alive, pids))


def test_a_start_that_is_cancelled_leaves_nothing(run_on: Run, place: Place) -> None:
    file = place.directory / "pid"
    command = program(
        place,
        f"""
        import os, pathlib, sys
        pathlib.Path({str(file)!r}).write_text(str(os.getpid()))
        sys.stdin.read()
        """,
    )

    async def main() -> None:
        starting = asyncio.create_task(start(place, command=command))
        await until(lambda: file.exists() and bool(file.read_text()))
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        assert not alive(int(file.read_text()))

    run_on(main)


def test_one_that_reports_a_lot_never_waits_for_us(run_on: Run, place: Place) -> None:
    command = program(
        place,
        """
        import sys
        print("sandbox-agent listening on http://127.0.0.1:1", flush=True)
        for number in range(20000):
            print(f"report {number} " + "x" * 100, file=sys.stderr)
        print("more on stdout " * 100000, flush=True)
        print("the last", file=sys.stderr, flush=True)
        sys.stdin.read()
        """,
    )

    async def main() -> None:
        async with await start(place, command=command) as server:
            await until(lambda: server.stderr.endswith("the last\n"))
            assert len(server.stderr) <= MAX_TAIL_BYTES

    run_on(main)


def test_one_that_ends_by_itself_is_reported(run_on: Run, place: Place, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with await start(place) as server:
            os.kill(server.pid, signal.SIGKILL)
            await until(lambda: "has ended" in caplog.text)
            assert "was ended by SIGKILL" in caplog.text

    with caplog.at_level(logging.WARNING):
        run_on(main)
    assert len(caplog.records) == 1


# --- not starting -----------------------------------------------------------------------------------------------------


def failure(place: Place, run_on: Run, **how: Any) -> StartFailed:
    found: list[StartFailed] = []

    async def main() -> None:
        with pytest.raises(StartFailed) as failed:
            await start(place, **how)
        found.append(failed.value)

    run_on(main)
    assert place.leftovers == []
    return found[0]


def test_a_server_that_refuses_to_start_is_quoted(run_on: Run, place: Place) -> None:
    failed = failure(place, run_on, max_body="much")

    assert "exit code 2" in str(failed)
    assert "--max-body" in str(failed)
    assert "--max-body" in failed.stderr


def test_a_data_directory_in_use_is_an_error(run_here: Run, place: Place) -> None:
    data = place.directory / "data"

    async def main() -> None:
        async with await start(place, data_dir=data):
            with pytest.raises(StartFailed, match="in use by another sandbox-agent"):
                await start(place, data_dir=data)

    run_here(main)


@pytest.mark.parametrize("command", [["/nowhere/sandbox-agent"], ["sandbox-agent\0"]])
def test_a_program_that_is_not_there_is_named(run_here: Run, place: Place, command: list[str]) -> None:
    assert "cannot be started" in str(failure(place, run_here, command=command))


def test_another_program_is_not_taken_for_a_server(run_on: Run, place: Place) -> None:
    command = program(place, "import sys\nprint('hello', flush=True)\nsys.stdin.read()")

    assert "does not run sandbox-agent: it says b'hello'" in str(failure(place, run_on, command=command))


# --- the host ---------------------------------------------------------------------------------------------------------

HOST = """
import asyncio, sys
from pathlib import Path
from sandboxagent.client.embedded import EmbeddedServer

async def main():
    async with await EmbeddedServer.start(options={"config_dir": sys.argv[1]}) as server:
        print(server.url, server.token, server.pid, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_however_the_host_ends_nothing_is_left(place: Place, number: signal.Signals) -> None:
    class Found:
        url, token, work = "", "", place.work

    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(place.config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=place.environment,
    )
    assert host.stdout is not None
    with host.stdout, cast("Any", host.stderr):
        Found.url, Found.token, pid = host.stdout.readline().split()

        async def main() -> list[int]:
            async with Client(cast("Server", Found())) as client:
                session = await client.new_session()
                return [int(text) for text in await said(client, session, ["pid"], ["daemon", ESCAPED])]

        pids = [int(pid), *asyncio.run(main())]
        assert all(map(alive, pids))
        host.send_signal(number)
        host.wait(BOUND)
    eventually(lambda: not any(map(alive, pids)), f"the end of {pids}")
    eventually(lambda: place.leftovers == [], "the end of the temporary directory")
