"""`sandbox-agent agents install` and `uninstall`: exit codes, what is printed, and what is left when it is stopped."""

import json
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.cli.place import Place, entry, interrupt
from tests.support.client import NO_CERTIFICATES
from tests.support.running import BOUND, Server, alive, eventually

UNVERIFIED = "; unverified: there was no hash to check it against"

STEPS = [
    "works: looking it up in the ACP registry",
    "works: fetching made-up.tar.gz",
    "works: unpacking made-up.tar.gz",
    "works: starting it to see that it works",
]


def check_steps(lines: str) -> None:
    """Steps are lines, in order. One that was over before it was looked at has none; the last takes long."""
    shown = [line.partition(" (")[0] for line in lines.splitlines()]
    assert shown == [step for step in STEPS if step in shown]
    assert shown[-1] == STEPS[-1]


# --- install ----------------------------------------------------------------------------------------------------------


def test_an_agent_is_installed_and_each_step_is_a_line_on_stderr(place: Place) -> None:
    result = place.run("agents", "install", "works")

    assert (result.returncode, result.stdout) == (0, f"works 1.2.3 is installed (registry){UNVERIFIED}\n")
    check_steps(result.stderr)
    assert len(place.folders("works")) == 1


def test_installed_agent_is_kept_unless_reinstall_is_given(place: Place) -> None:
    place.run("agents", "install", "works")
    before = place.folders("works")

    again = place.run("agents", "install", "works")
    assert (again.returncode, again.stdout) == (0, f"works 1.2.3 is already installed (registry){UNVERIFIED}\n")
    assert place.folders("works") == before

    anew = place.run("agents", "install", "works", "--reinstall")
    assert (anew.returncode, anew.stdout) == (0, f"works 1.2.3 is installed (registry){UNVERIFIED}\n")
    assert len(place.folders("works")) == 1
    assert place.folders("works") != before


def test_one_that_fails_does_not_keep_the_others_from_being_installed(place: Place) -> None:
    result = place.run("agents", "install", "dies", "works", "nobody", "mock")

    assert result.returncode == 1
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["works", "mock"]
    assert place.folders("dies") == []


def test_a_failure_is_one_line_and_the_last_of_what_the_program_wrote(place: Place) -> None:
    result = place.run("agents", "install", "dies")

    assert (result.returncode, result.stdout) == (1, "")
    told = [line for line in result.stderr.splitlines() if not line.startswith("dies: ")]
    assert told[0].startswith("sandbox-agent: agent dies was fetched but does not work: ")
    assert told[1:] == ["  | ?[31mcannot find my heart", "  | out of it"]


def test_the_results_as_one_json_document(place: Place) -> None:
    told = place.json("agents", "install", "works", "dies", "--json", code=1)["agents"]

    works, dies = told
    assert (works["agent"], works["alreadyInstalled"], works["version"], works["verified"]) == (
        "works",
        False,
        "1.2.3",
        True,
    )
    assert works["artifacts"][0]["kind"] == "agent_process"
    assert dies["agent"] == "dies"
    assert dies["error"]["type"] == "urn:sandbox-agent:error:install-failed"
    assert dies["error"]["exitCode"] == 3


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["works", "--agent-version", "9"], "agent works comes as an archive, which the registry has only in version"),
        (["works", "--agent-process-version", "../../x"], "'../../x' is not a version"),
        (["nobody"], "no agent is called 'nobody'; known agents: mock, "),
    ],
)
def test_unavailable_agent_or_version_is_one_line_and_exit_code_1(
    place: Place, arguments: list[str], complaint: str
) -> None:
    result = place.run("agents", "install", *arguments)

    assert (result.returncode, result.stdout) == (1, "")
    *_, line = result.stderr.splitlines()
    assert line.startswith(f"sandbox-agent: {complaint}")
    assert "Traceback" not in result.stderr


def test_the_version_that_is_asked_for_and_flags_between_the_agents_are_understood(place: Place) -> None:
    result = place.run("agents", "install", "works", "--agent-version", "1.2.3", "mock")

    assert (result.returncode, len(result.stdout.splitlines())) == (0, 2)


def test_an_install_by_an_older_copy_of_the_registry_says_so(place: Place) -> None:
    place.run("agents", "install", "works")
    place.registry.unlink()

    result = place.run("agents", "install", "works", "--reinstall")

    assert (result.returncode, result.stdout) == (0, f"works 1.2.3 is installed (registry){UNVERIFIED}\n")
    assert f"\nsandbox-agent: note: the registry at {place.registry} cannot be used: " in result.stderr


def test_a_directory_that_cannot_be_is_one_line(place: Place, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    result = place.run("agents", "install", "works", "--agents-dir", str(tmp_path / "file" / "agents"))

    assert (result.returncode, result.stdout) == (1, "")
    assert "Not a directory" in result.stderr
    assert "Traceback" not in result.stderr


def test_without_an_agent_it_is_a_mistake(place: Place) -> None:
    result = place.run("agents", "install")

    assert result.returncode == 2
    assert result.stderr == (
        "sandbox-agent: the following arguments are required: AGENT; try: sandbox-agent agents install --help\n"
    )


def test_a_terminal_gets_a_bar_and_with_no_color_lines(place: Place) -> None:
    code, drawn = place.on_a_terminal("agents", "install", "works")
    _, plain = place.on_a_terminal("agents", "install", "works", "--reinstall", NO_COLOR="1")

    assert code == 0
    assert "━" in drawn
    assert "starting it to see that it works" in drawn
    # The cursor is back, the bar is gone, and the result stays.
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")
    assert drawn.endswith(f"works 1.2.3 is installed (registry){UNVERIFIED}\r\n")
    assert "\x1b" not in plain
    steps, result = plain.removesuffix("\r\n").rsplit("\r\n", 1)
    check_steps(steps)
    assert result.startswith("works 1.2.3 is installed")


# --- beside others ----------------------------------------------------------------------------------------------------


def test_two_at_the_same_time_install_it_once(place: Place) -> None:
    both = [place.start("agents", "install", "works", "--json") for _ in range(2)]

    results = [json.loads(process.communicate(timeout=120)[0]) for process in both]

    assert sorted(result["agents"][0]["alreadyInstalled"] for result in results) == [False, True]
    assert len(place.folders("works")) == 1


def test_a_server_that_runs_sees_what_the_command_line_installs_and_removes(place: Place) -> None:
    flags = ["--agents-dir", str(place.agents), "--acp-registry-url", str(place.registry)]
    with Server(*flags, environment={"HOME": str(place.home)}) as server:

        def installed() -> bool:
            headers = {"Authorization": f"Bearer {server.token}"}
            return httpx.get(
                f"{server.url}/v1/agents/works", headers=headers, timeout=BOUND, verify=NO_CERTIFICATES
            ).json()["installed"]

        assert not installed()
        assert place.run("agents", "install", "works").returncode == 0
        assert installed()
        assert place.run("agents", "uninstall", "works").returncode == 0
        assert not installed()


# --- stopped on the way -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_while_the_agent_is_tried_its_whole_tree_dies_and_nothing_is_left(
    place: Place, number: int, code: int
) -> None:
    place.write_registry(place.binary("hangs", "hangs"))
    process = place.start("agents", "install", "hangs")
    eventually(place.notes.exists, "the agent's start")
    pids = [int(pid) for pid in place.notes.read_text().split()]
    assert all(map(alive, pids))

    ended, stdout, stderr = interrupt(process, number)

    assert (ended, stdout) == (code, "")
    assert stderr.endswith(f"stopped by {signal.Signals(number).name}; the unfinished install was undone\n")
    assert "Traceback" not in stderr
    assert [pid for pid in pids if alive(pid)] == []
    assert place.folders("hangs") == []
    assert place.run("agents", "list").stdout.count("hangs") == 0


def test_stopped_while_npm_fetches_npm_dies_and_nothing_is_left(place: Place) -> None:
    place.write_registry(entry("packaged", {"npx": {"package": "made-up-package@1.0.0"}}))
    with silent_server() as (url, asked):
        process = place.start("agents", "install", "packaged", npm_config_registry=url)
        assert asked.wait(BOUND), "npm asked for nothing"
        tree = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert tree

        ended, stdout, stderr = interrupt(process)

    assert (ended, stdout) == (130, "")
    assert "Traceback" not in stderr
    assert [pid for pid in tree if alive(pid)] == []
    assert place.folders("packaged") == []


def test_what_was_installed_before_stays_when_its_successor_is_stopped(place: Place) -> None:
    place.write_registry(place.binary("works", "works"))
    place.run("agents", "install", "works")
    before = place.folders("works")
    place.write_registry(place.binary("works", "hangs"))
    process = place.start("agents", "install", "works", "--reinstall")
    eventually(place.notes.exists, "the agent's start")

    code, _, _ = interrupt(process)

    assert code == 130
    assert place.folders("works") == before
    assert place.json("agents", "show", "works", "--json")["installed"] is True


@contextmanager
def silent_server() -> Generator[tuple[str, threading.Event]]:
    """A server that takes requests and never answers; its address, and whether a request has come."""
    asked = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            taken.append(connection)
            asked.set()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/", asked
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(BOUND)
        for connection in taken:
            connection.close()


# --- uninstall --------------------------------------------------------------------------------------------------------


def test_an_agent_is_removed_and_one_that_is_not_there_is_no_mistake(place: Place) -> None:
    place.run("agents", "install", "works")

    removed = place.run("agents", "uninstall", "works", "codex")

    assert (removed.returncode, removed.stderr) == (0, "")
    assert removed.stdout == "works is removed\ncodex is not installed\n"
    assert place.folders("works") == []


def test_removals_as_json(place: Place) -> None:
    place.run("agents", "install", "works")

    told = place.json("agents", "uninstall", "works", "claude", "--json")

    assert told == {"agents": [{"agent": "works", "uninstalled": True}, {"agent": "claude", "uninstalled": False}]}


def test_what_we_did_not_install_cannot_be_removed(place: Place) -> None:
    (place.config / "agents.toml").write_text("[agents.own]\ncommand = ['sh']\n")

    result = place.run("agents", "uninstall", "mock", "own", "nobody")

    assert (result.returncode, result.stdout) == (1, "")
    mock, own, nobody = result.stderr.splitlines()
    assert mock == "sandbox-agent: agent mock cannot be removed: it comes with sandbox-agent"
    assert own == "sandbox-agent: agent own cannot be removed: agents.toml names its program"
    assert nobody.startswith("sandbox-agent: no agent is called 'nobody'")
