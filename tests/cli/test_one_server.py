"""One server per data directory: `run` starts it in the background, and every command finds it with its token."""

import json
import os
import signal
import subprocess
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxagent.core.data_directory import find_lock_owner
from sandboxagent.core.discovery import read_server_record
from tests.cli.cli_call import Ran, ended
from tests.cli.in_process import run_here
from tests.cli.place import LONGEST, Place, runs_here
from tests.support.program import Program, run_program
from tests.support.running import Server, alive, eventually


class Alone:
    """Runs without a server that is named."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.environ = {**place.environment, "MOCK_AGENT_STATE_DIR": str(place.directory / "mock")}

    def __call__(self, *arguments: str, **environ: str) -> Ran:
        if runs_here(*arguments):
            return Ran(*run_here(arguments, {**self.environ, **environ}, cwd=self.place.home))
        done = run_program(arguments, {**self.environ, **environ}, self.place.home, timeout=LONGEST)
        return Ran(done.returncode, done.stdout, done.stderr)

    @property
    def pid(self) -> int | None:
        """The server that holds the data directory."""
        return find_lock_owner(self.place.data)

    def sessions(self) -> list[str]:
        listed = self("sessions", "list", "--json")
        assert listed.code == 0, listed.err
        return [session["sessionId"] for session in listed.json["sessions"]]


@pytest.fixture
def alone(place: Place) -> Generator[Alone]:
    """Whatever a test leaves running is ended."""
    yield Alone(place)
    pid = find_lock_owner(place.data)
    if pid:
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not alive(pid), "the end of the server")


@contextmanager
def holding(place: Place) -> Generator[int]:
    """A program's own server on the data directory; gives its process id."""
    command = ["server", "--embedded", "--data-dir", str(place.data)]
    with Program(command, place.environment, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as own:
        try:
            assert own.stdout is not None
            assert own.stdout.readline().startswith(b"sandbox-agent listening on ")
            yield own.pid
        finally:
            ended(own)


# --- run starts it, and all find it -----------------------------------------------------------------------------------


def test_a_run_starts_a_server_in_the_background_and_every_command_finds_it(alone: Alone) -> None:
    first = alone("run", "mock", "hello", "--json").objects[-1]["result"]
    pid = alone.pid
    assert pid

    second = alone("run", "mock", "and now?", "--session", first["sessionId"][:12], "--json").objects[-1]["result"]
    status = alone("daemon", "status", "--json").json
    doctor = alone("doctor", "--json").json["findings"]

    assert second["sessionId"] == first["sessionId"]
    assert alone.sessions() == [first["sessionId"]]
    assert alone.pid == pid
    assert (status["pid"], status["health"], status["agents"]) == (pid, "ok", ["mock"])
    assert alone("api", "/v1/agents/mock").json["id"] == "mock"
    assert alone("fs", "ls", str(alone.place.home)).code == 0
    assert [each["status"] for each in doctor if each["name"] in ("data-server", "token")] == ["ok", "ok"]
    began = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    assert {"--idle-exit=30m", "--port=0"} <= set(began)
    assert alone("sessions", "terminate", first["sessionId"]).code == 0
    attached = alone("attach", first["sessionId"], "--json")
    assert '"reason":"terminated"' in attached.out, attached.err


def test_runs_at_the_same_time_start_one_server(alone: Alone) -> None:
    with ThreadPoolExecutor() as threads:
        ran = list(threads.map(lambda _: alone("run", "mock", "hello", "--json"), range(2)))

    assert [each.code for each in ran] == [0, 0], [each.err for each in ran]
    assert sorted(alone.sessions()) == sorted(each.objects[-1]["result"]["sessionId"] for each in ran)


@pytest.mark.server_alone("the data directory of a server on this machine has its address and its token")
def test_a_command_that_reads_starts_the_server_of_its_sessions(alone: Alone) -> None:
    with Server(token=None, directory=alone.place.directory):
        id = alone("run", "mock", "hello", "--json").objects[-1]["result"]["sessionId"]

    listed = alone("sessions", "list", "--json")

    assert [each["sessionId"] for each in listed.json["sessions"]] == [id]
    assert listed.err.startswith("sandbox-agent: started a server in the background; it stops after 30m without work")
    shown = alone("sessions", "show", id)
    assert (shown.code, shown.err) == (0, "")


def test_the_users_settings_are_kept_to(alone: Alone) -> None:
    (alone.place.config / "config.toml").write_text('idle_exit = "1h"\nport = 0\n')

    assert alone("sessions", "list").code == 0

    began = Path(f"/proc/{alone.pid}/cmdline").read_text()
    assert "--idle-exit" not in began
    assert "--port" not in began


def test_what_keeps_the_server_from_starting_is_printed(alone: Alone) -> None:
    (alone.place.config / "config.toml").write_text("max_body = 'many'\n")

    for words in (("run", "mock", "hello"), ("sessions", "list")):
        ran = alone(*words)

        assert ran.code == 2
        assert ran.err.count("\n") == 1
        assert "config.toml, line 1" in ran.err
    assert alone.pid is None


# --- a private one ----------------------------------------------------------------------------------------------------


@pytest.mark.server_alone("the data directory of a server on this machine has its address and its token")
def test_a_private_server_ends_with_the_run_and_its_session_stays(alone: Alone) -> None:
    id = alone("run", "mock", "hello", "--json", "--no-daemon").objects[-1]["result"]["sessionId"]

    assert alone.pid is None
    again = alone("run", "mock", "and now?", "--session", id, "--no-daemon")
    assert again.out.startswith("You said: and now?\n"), again.err


@pytest.mark.server_alone("the data directory of a server on this machine has its address and its token")
def test_a_private_server_is_refused_where_another_holds_the_directory(alone: Alone) -> None:
    with Server(token=None, directory=alone.place.directory) as server:
        refused = alone("run", "mock", "hello", "--no-daemon", "--json")

        assert refused.code == 1
        assert (
            f"(process {server.process.pid}) holds the data directory {alone.place.data}; leave --no-daemon out"
            in refused.err
        )
        assert "--data-dir" in refused.err
        assert list(refused.objects[-1]) == ["error"]
        assert alone.sessions() == []


def test_a_programs_own_server_is_named_and_what_to_do(alone: Alone) -> None:
    with holding(alone.place) as pid:
        for words in (("run", "mock", "hello"), ("sessions", "list"), ("attach", "x")):
            ran = alone(*words)

            assert (ran.code, ran.raw) == (1, b"")
            assert f"process {pid} holds the data directory {alone.place.data} for one program alone" in ran.err
            assert "--data-dir" in ran.err


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_the_token_file_of_a_daemon_is_found_from_any_shell(alone: Alone) -> None:
    secret = alone.place.directory / "secret"
    secret.write_text("of-the-daemon\n")
    assert alone("daemon", "start", "--port", "0", "--token-file", str(secret)).code == 0

    id = alone("run", "mock", "hello", "--json").objects[-1]["result"]["sessionId"]

    assert alone.sessions() == [id]
    listed = alone("sessions", "list", "--json", SANDBOX_AGENT_TOKEN="of-another")
    assert listed.code == 0, "what the environment says is about another server"
    assert alone("sessions", "list", "--token", "wrong").code == 1, "but a flag is meant"


@pytest.mark.server_alone("the data directory of a server on this machine has its address and its token")
def test_a_token_that_is_not_found_is_an_error_that_says_where_it_was_looked_for(alone: Alone) -> None:
    with Server(token="hush", directory=alone.place.directory):
        for words in (("run", "mock", "hello"), ("sessions", "list")):
            ran = alone(*words)

            assert (ran.code, ran.raw, ran.err.count("\n")) == (1, b"", 1)
            assert "needs a token that was not found; it was looked for in --token, --token-file" in ran.err
            assert str(alone.place.config / "config.toml") in ran.err
            assert "hush" not in ran.err
        assert alone("run", "mock", "hello", SANDBOX_AGENT_TOKEN="hush").code == 0


def test_a_token_file_that_does_not_count_is_not_in_the_record(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("other-token")
    config = tmp_path / "config"
    config.mkdir()
    (config / "config.toml").write_text(f"token_file = {json.dumps(str(tmp_path / 'other'))}\n")

    with Server(directory=tmp_path):
        record = read_server_record(tmp_path / "data")

    assert record is not None
    assert (record.needs_token, record.token_file) == (True, None)


# --- where it is ------------------------------------------------------------------------------------------------------


def test_paths_are_relative_to_where_you_are_wherever_the_server_was_started(alone: Alone) -> None:
    elsewhere = alone.place.directory / "elsewhere"
    for directory in (elsewhere, alone.place.home):
        directory.mkdir(exist_ok=True)
        (directory / "data.txt").write_text(directory.name)
    started = run_program(["daemon", "start", "--port", "0"], alone.environ, elsewhere, timeout=LONGEST)
    assert started.returncode == 0, started.stderr

    assert alone("fs", "cat", "data.txt").out == alone.place.home.name
    assert alone("fs", "rm", "data.txt").code == 0
    assert (elsewhere / "data.txt").exists()
    assert not (alone.place.home / "data.txt").exists()


def test_a_server_that_was_killed_comes_back_at_the_same_address(alone: Alone) -> None:
    assert alone("run", "mock", "hello").code == 0
    before = alone("daemon", "status", "--json").json
    os.kill(before["pid"], signal.SIGKILL)
    eventually(lambda: not alive(before["pid"]), "the end of the server")

    again = alone("run", "-c", "again")
    log = (alone.place.data / "logs" / "server.log").read_text()
    assert again.code == 0, f"{again.err}\n{before}\n{log}"
    after = alone("daemon", "status", "--json").json
    assert (after["url"], after["pid"] != before["pid"]) == (before["url"], True)
    assert len(alone.sessions()) == 1
