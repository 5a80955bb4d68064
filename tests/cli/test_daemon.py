"""`sandbox-agent daemon …`: a server in the background, found by its data directory."""

import fcntl
import json
import os
import signal
import socket
import subprocess
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandboxagent import __version__
from sandboxagent.cli.daemon_log import begin_log, read_lines
from sandboxagent.core.data_directory import find_lock_owner
from tests.cli.in_process import run_here
from tests.cli.place import PROGRAM, Place
from tests.support.client import NO_CERTIFICATES
from tests.support.on_terminal import OnTerminal
from tests.support.program import Program
from tests.support.running import BOUND, TOKEN, Server, alive, eventually

START, STATUS, STOP = ("daemon", "start"), ("daemon", "status"), ("daemon", "stop")
RESTART, LOGS = ("daemon", "restart"), ("daemon", "logs")
NOT_RUNNING = 3


@pytest.fixture(autouse=True)
def nothing_left(place: Place) -> Generator[None]:
    """Whatever a test leaves running is ended."""
    yield
    pid = find_lock_owner(place.data)
    if pid:
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not alive(pid), "the end of the server")


def started(place: Place, *flags: str, **environ: str) -> Any:
    return place.json(*START, "--port", "0", "--json", *flags, **environ)


def health(told: Any) -> int:
    token = Path(told["tokenFile"]).read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.get(
        f"{told['url']}/v1/health", headers=headers, trust_env=False, timeout=BOUND, verify=NO_CERTIFICATES
    ).status_code


# --- one life ---------------------------------------------------------------------------------------------------------


def test_it_starts_is_found_and_stops(place: Place) -> None:
    told = started(place)
    assert health(told) == 200
    assert alive(told["pid"])
    assert os.getsid(told["pid"]) == told["pid"]
    log = Path(told["logFile"])
    assert Path(told["tokenFile"]).read_text().strip() not in log.read_text()
    assert told["url"] in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    assert place.data.stat().st_mode & 0o777 == 0o700

    status = place.json(*STATUS, "--json")
    assert status["uptimeMs"] >= 0
    facts = ("url", "pid", "startedAt", "tokenFile", "logFile", "dataDirectory")
    assert {name: status[name] for name in facts} == {name: told[name] for name in facts}
    assert (status["running"], status["version"], status["health"]) == (True, __version__, "ok")
    assert (status["agents"], status["dataDirectory"]) == ([], str(place.data))

    stopped = place.run(*STOP)
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert stopped.stdout == f"stopped {told['url']} (process {told['pid']})\n"
    assert not alive(told["pid"])
    after = place.json(*STATUS, "--json", code=NOT_RUNNING)
    assert after == {"running": False, "dataDirectory": str(place.data), "logFile": told["logFile"]}


def test_people_are_shown_where_it_is_and_where_the_token_is(place: Place) -> None:
    begun = place.run(*START, "--port", "0")
    again = place.run(*STATUS)

    assert (begun.returncode, begun.stderr) == (0, "")
    for shown, state in ((begun, "started"), (again, "runs")):
        facts = dict(line.split(maxsplit=1) for line in shown.stdout.splitlines())
        assert (facts["server"], facts["health"], facts["agents"]) == (state, "ok", "none runs")
        assert facts["url"].startswith("http://127.0.0.1:")
        assert Path(facts["token"]).read_text().strip() not in shown.stdout
        assert facts["log"] == str(place.data / "logs" / "server.log")


@pytest.mark.server_alone("the data directory of a server on this machine has its address and its token")
def test_a_second_start_says_that_one_runs_and_changes_nothing(place: Place) -> None:
    with Server(directory=place.directory) as first:
        second = place.run(*START, "--port", "1")

        assert (second.returncode, second.stderr) == (0, "")
        assert "runs already" in second.stdout
        assert first.url in second.stdout
        assert find_lock_owner(place.data) == first.process.pid


def test_starts_at_the_same_time_end_with_one_server(place: Place) -> None:
    with ThreadPoolExecutor() as threads:
        told = list(threads.map(lambda _: started(place), range(2)))

    assert len({one["pid"] for one in told}) == 1
    assert health(told[0]) == 200


def test_without_a_server_status_says_so_and_stop_is_content(place: Place) -> None:
    status = place.run(*STATUS)
    stop = place.run(*STOP)

    assert (status.returncode, status.stderr) == (NOT_RUNNING, "")
    assert "does not run" in status.stdout
    assert (stop.returncode, stop.stdout, stop.stderr) == (0, "no server runs\n", "")
    assert not place.data.exists()


def test_it_outlives_the_terminal_that_it_was_started_from(place: Place) -> None:
    code, text = place.on_a_terminal(*START, "--port", "0")

    assert code == 0, text
    status = place.json(*STATUS, "--json")
    assert (status["running"], status["health"]) == (True, "ok")


@pytest.mark.server_alone("the data directory of a server on this machine has its address and its token")
def test_running_agents_are_named(place: Place) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    body = {"protocolVersion": 1, "_meta": {"sandboxagent.dev": {"agent": "mock"}}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": body}
    with Server(directory=place.directory) as server:
        assert (
            httpx.post(
                f"{server.url}/v1/rpc",
                json=hello,
                headers=headers,
                trust_env=False,
                timeout=BOUND,
                verify=NO_CERTIFICATES,
            ).status_code
            == 200
        )

        assert place.json(*STATUS, "--json", "--token", TOKEN)["agents"] == ["mock"]


# --- flags and tokens -------------------------------------------------------------------------------------------------


def test_the_servers_own_flags_reach_it_but_a_token_goes_another_way(place: Place) -> None:
    flags = ("--public-health", "--allow-host", "a.example", "--allow-host", "b.example", "--token", "given-token")
    told = started(place, *flags, SANDBOX_AGENT_TOKEN_FILE="/nowhere")

    command = Path(f"/proc/{told['pid']}/cmdline").read_text()
    assert "given-token" not in command
    assert told["tokenFile"] is None
    assert (
        httpx.get(
            f"{told['url']}/v1/health",
            headers={"Host": "b.example"},
            trust_env=False,
            timeout=BOUND,
            verify=NO_CERTIFICATES,
        ).status_code
        == 200
    )
    agents = f"{told['url']}/v1/agents"
    assert (
        httpx.get(
            agents,
            headers={"Authorization": "Bearer given-token"},
            trust_env=False,
            timeout=BOUND,
            verify=NO_CERTIFICATES,
        ).status_code
        == 200
    )
    assert httpx.get(agents, trust_env=False, timeout=BOUND, verify=NO_CERTIFICATES).status_code == 401


@pytest.mark.server_alone("the data directory of a server on this machine has its address and its token")
def test_status_without_the_token_says_what_it_can(place: Place) -> None:
    with Server(directory=place.directory) as server:
        unknown = place.json(*STATUS, "--json")
        assert (unknown["running"], unknown["pid"], unknown["health"], unknown["agents"]) == (
            True,
            server.process.pid,
            "unknown",
            None,
        )
        assert "token" in unknown["detail"]
        known = place.json(*STATUS, "--json", "--token", TOKEN)
        assert (known["health"], known["agents"]) == ("ok", [])


def test_a_large_log_becomes_the_old_one_at_a_start(place: Place) -> None:
    logs = place.data / "logs"
    logs.mkdir(parents=True)
    (logs / "server.log").write_text("small\n")

    def start() -> None:
        log, _ = begin_log(place.data, 1 << 20)
        with open(log, "w") as file:
            file.write("of this start\n")

    start()
    assert (logs / "server.log").read_text() == "small\nof this start\n"
    with (logs / "server.log").open("a") as file:
        file.write("x" * (1 << 20))

    start()

    assert (logs / "server.log.1").read_text().startswith("small\n")
    assert (logs / "server.log").read_text() == "of this start\n"


@pytest.mark.parametrize("flag", ["--embedded", "--no-persist"])
def test_what_is_not_for_the_background_is_refused(place: Place, flag: str) -> None:
    by_flag = place.run(*START, flag)
    by_variable = place.run(*START, **{"SANDBOX_AGENT_" + flag[2:].replace("-", "_").upper(): "1"})

    assert (by_flag.returncode, by_variable.returncode) == (2, 2)
    assert flag in by_flag.stderr
    assert flag in by_variable.stderr
    assert find_lock_owner(place.data) is None


# --- again ------------------------------------------------------------------------------------------------------------


def test_a_restart_keeps_flags_variables_port_and_token(place: Place, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of-the-file")
    first = started(
        place,
        "--public-health",
        "--allow-host",
        "a.example",
        "--rotate-token",
        SANDBOX_AGENT_MAX_BODY="2MiB",
        KEY="old",
    )
    token = Path(first["tokenFile"]).read_text()

    second = place.json(*RESTART, "--json", KEY="new")

    assert second["pid"] != first["pid"]
    assert not alive(first["pid"])
    assert (second["url"], Path(second["tokenFile"]).read_text()) == (first["url"], token)
    flags = Path(f"/proc/{second['pid']}/cmdline").read_text().split("\0")
    assert {"--public-health", "--allow-host=a.example"} <= set(flags)
    assert "--rotate-token" not in flags
    variables = Path(f"/proc/{second['pid']}/environ").read_text().split("\0")
    assert {"SANDBOX_AGENT_MAX_BODY=2MiB", "KEY=new"} <= set(variables)
    third = place.json(*RESTART, "--json", SANDBOX_AGENT_MAX_BODY="3MiB", SANDBOX_AGENT_TOKEN_FILE=f"{tmp_path}/secret")
    assert "SANDBOX_AGENT_MAX_BODY=3MiB" in Path(f"/proc/{third['pid']}/environ").read_text()
    assert (third["tokenFile"], health(third)) == (f"{tmp_path}/secret", 200)


def test_a_restart_with_a_mistake_leaves_the_server_running(place: Place) -> None:
    told = started(place)

    refused = place.run(*RESTART, SANDBOX_AGENT_MAX_BODY="much")

    assert refused.returncode == 2
    assert "SANDBOX_AGENT_MAX_BODY" in refused.stderr
    (place.config / "permissions.toml").write_text('[[rules]]\naction = "perhaps"\n')
    assert place.run(*RESTART).returncode == 2
    assert alive(told["pid"])


def test_a_restart_without_a_server_starts_one(place: Place) -> None:
    assert place.run(*RESTART, SANDBOX_AGENT_PORT="0").returncode == 0
    assert place.run(*STATUS).returncode == 0


def test_a_server_in_the_foreground_is_restarted_in_the_background(place: Place) -> None:
    command = [*PROGRAM, "server", "--port", "0", "--token", TOKEN]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=place.environment, **pipes) as server:
        assert server.stdout is not None
        url = server.stdout.readline().decode().split()[-1]

        again = place.json(*RESTART, "--json")

        assert server.wait(BOUND) == 0
    assert (again["url"], again["logFile"]) == (url, str(place.data / "logs" / "server.log"))
    status = place.json(*STATUS, "--json", SANDBOX_AGENT_TOKEN=TOKEN)
    assert (status["pid"], status["health"]) == (again["pid"], "ok")
    assert TOKEN not in Path(f"/proc/{again['pid']}/cmdline").read_text()


# --- its log ----------------------------------------------------------------------------------------------------------


def test_the_last_lines_of_the_log_are_printed(place: Place) -> None:
    log = place.data / "logs" / "server.log"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {number}\n" for number in range(150)))

    def logs(*flags: str) -> list[str]:
        code, out, _ = run_here([*LOGS, *flags], place.environment)
        assert code == 0
        return out.decode().splitlines()

    assert logs() == [f"line {number}" for number in range(50, 150)]
    assert logs("-n", "2") == ["line 148", "line 149"]
    assert logs("-n", "0") == []
    assert len(logs("--lines", "1000")) == 150


@pytest.mark.parametrize("text", ["", "a", "a\n", "a\nb", "a\nb\n", "\n\n", "x" * 70000 + "\ny\n"])
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_lines_are_counted_from_the_end(tmp_path: Path, text: str, count: int) -> None:
    (tmp_path / "log").write_text(text)

    found = b"".join(read_lines(tmp_path / "log", count, follow=False)).decode()

    lines = text.splitlines(keepends=True)
    assert found == "".join(lines[len(lines) - min(count, len(lines)) :])


def test_following_goes_on_when_the_log_begins_anew(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\n")
    with closing(read_lines(log, 10, follow=True)) as pieces:
        assert next(pieces) == b"one\n"
        with log.open("a") as file:
            file.write("two\n")
        assert next(pieces) == b"two\n"
        log.rename(tmp_path / "log.1")
        log.write_text("three\n")
        assert next(pieces) == b"three\n"


def test_without_a_log_it_is_one_line(place: Place) -> None:
    code, out, err = run_here(LOGS, place.environment)

    assert (code, out) == (1, b"")
    assert err.decode() == f"sandbox-agent: no log at {place.data}/logs/server.log: No such file or directory\n"


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_reported_as_by_the_server(place: Place) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = place.run(*START, "--port", port)

    assert (result.returncode, result.stdout) == (3, "")
    [line] = result.stderr.splitlines()
    assert line.startswith(f"sandbox-agent: port {port} ")
    assert "--port" in line


@pytest.mark.parametrize("way", ["flag", "file"])
def test_a_mistake_is_named_and_nothing_runs(place: Place, way: str) -> None:
    (place.config / "permissions.toml").write_text("[[rules]]\ntool = '*'\n" if way == "file" else "")
    result = place.run(*START, "--port", "0", *(["--max-body", "much"] if way == "flag" else []))

    assert (result.returncode, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("sandbox-agent: ")
    assert ("--max-body" if way == "flag" else "permissions.toml") in line
    assert place.run(*STATUS).returncode == NOT_RUNNING


def test_a_start_that_is_interrupted_leaves_no_server(place: Place) -> None:
    process = place.start(*START, "--port", "0")
    eventually(lambda: find_lock_owner(place.data), "the server that starts")
    pid = find_lock_owner(place.data)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)

    # It was too late, or the server is gone.
    assert pid is not None
    assert process.returncode == 0 or not alive(pid)


def test_a_server_that_was_killed_does_not_run_and_another_can_start(place: Place) -> None:
    Server(directory=place.directory).start().kill()

    assert (place.data / "server.json").exists()
    assert place.run(*STATUS).returncode == NOT_RUNNING
    assert place.run(*STOP).stdout == "no server runs\n"
    assert health(started(place)) == 200


def test_stop_never_ends_another_process(place: Place) -> None:
    """Not even when everything that a crash left points to it."""
    Server(directory=place.directory).start().kill()
    notice = json.loads((place.data / "server.json").read_text())
    with subprocess.Popen(["sleep", "60"]) as stranger:
        (place.data / "server.json").write_text(json.dumps(notice | {"pid": stranger.pid}))
        (place.data / "server.lock").write_text(str(stranger.pid))

        assert place.run(*STOP).stdout == "no server runs\n"
        assert place.run(*STATUS).returncode == NOT_RUNNING
        with (place.data / "server.lock").open() as lock:
            # Another process than the one that is written there holds the lock.
            fcntl.flock(lock, fcntl.LOCK_EX)
            result = place.run(*STOP)
        assert result.returncode == 1
        assert str(stranger.pid) in result.stderr
        assert stranger.poll() is None
        stranger.kill()


# --- servers of another kind ------------------------------------------------------------------------------------------


@pytest.mark.server_alone("the data directory of a server on this machine has its address and its token")
def test_a_server_in_the_foreground_is_found_and_stopped(place: Place, tmp_path: Path) -> None:
    with Server(directory=tmp_path) as server, server.process.stdout or nullcontext():
        status = place.json(*STATUS, "--json", SANDBOX_AGENT_TOKEN=TOKEN)
        assert (status["url"], status["pid"], status["health"]) == (server.url, server.process.pid, "ok")
        assert (status["logFile"], status["tokenFile"]) == (None, None)
        again = place.json(*START, "--json", "--port", "0")
        assert again["pid"] == server.process.pid

        assert place.run(*STOP).returncode == 0
        assert server.process.wait(BOUND) == 0


def test_a_server_that_a_run_has_started_stays_after_a_start(place: Place) -> None:
    assert place.run("run", "mock", "hello").returncode == 0
    pid = find_lock_owner(place.data)

    told = place.run(*START)

    assert "runs already, and now stays until you stop it" in told.stdout
    assert pid == find_lock_owner(place.data)
    log = place.data / "logs" / "server.log"
    eventually(lambda: "staying until it is stopped" in log.read_text(), "the server to learn of it")
    assert "and now stays" not in place.run(*START, "--idle-exit", "1h").stdout


@pytest.mark.parametrize("keys", ["n\r", "y\r"])
def test_you_are_asked_before_turns_are_cut_off(place: Place, keys: str) -> None:
    told = started(place)
    turn = place.start("run", "mock", "slow 600")
    try:
        eventually(
            lambda: any(each["running"] for each in place.json("sessions", "list", "--json")["sessions"]), "the turn"
        )
        with OnTerminal([*PROGRAM, *STOP], place.environment) as terminal:
            terminal.expect("one turn is running, and is cut off")
            terminal.expect("go on? y/n:")
            terminal.type(keys)
            assert terminal.expect_end() == (1 if keys == "n\r" else 0)
        assert alive(told["pid"]) == (keys == "n\r")
        if keys == "n\r":
            # Without a terminal it says so, and ends.
            stopped = place.run(*STOP)
            assert stopped.returncode == 0
            assert "one turn is running, and is cut off" in stopped.stderr
    finally:
        turn.kill()
        turn.__exit__()


def test_a_stop_waits_until_the_server_is_gone(place: Place) -> None:
    told = started(place)
    assert place.run(*STOP).returncode == 0

    assert not alive(told["pid"])
    assert find_lock_owner(place.data) is None
    assert health(started(place)) == 200


def test_a_programs_own_server_is_not_taken_for_one_in_the_background(place: Place) -> None:
    command = ["server", "--embedded", "--data-dir", str(place.data)]
    with Program(command, place.environment, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as own:
        assert own.stdout is not None
        assert own.stdin is not None
        assert own.stdout.readline().startswith(b"sandbox-agent listening on ")
        for line in (START, STOP):
            refused = place.run(*line)
            assert refused.returncode == 1
            assert f"process {own.pid} holds the data directory" in refused.stderr
        assert "runs for one program alone" in place.run(*STATUS).stdout
        assert own.poll() is None
        own.stdin.close()
        assert own.wait(BOUND) == 0
