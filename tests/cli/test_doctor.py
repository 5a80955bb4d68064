"""`sandbox-agent doctor`: what is in order, what is not, what to do; it changes nothing and tells no secret."""

import json
import os
import re
import resource
import shutil
import socket
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from msgspec import to_builtins

from sandboxagent import __version__
from sandboxagent.cli.doctor import DoctorSubject, Finding, size
from sandboxagent.cli.doctor import command as doctor
from sandboxagent.cli.doctor.command import command, side_by_side
from sandboxagent.cli.doctor.machine import FEW_FILES, LOW_SPACE_BYTES, read_settings
from sandboxagent.cli.parser import ParsedArguments
from sandboxagent.server.agents.install.record import Store
from tests.cli.place import LONGEST, PROGRAM, Place
from tests.support.running import TOKEN, Server, scripted

AREAS = ["program", "directories", "configuration", "server", "agents", "registry", "limits"]
ROOT = os.geteuid() == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@pytest.fixture
def nowhere() -> str:
    """An address where no program listens."""
    return f"http://127.0.0.1:{free_port()}"


def examine(place: Place, *flags: str, **environ: str) -> dict[str, dict[str, Any]]:
    """All findings by area and name."""
    arguments = command().parser.parse(list(flags))
    found, unfinished = doctor.examine(arguments, {**place.environment, "SANDBOX_AGENT_PORT": "0", **environ})
    assert not unfinished
    assert len({(each.area, each.name) for each in found}) == len(found)
    return {f"{each.area}/{each.name}": to_builtins(each) for each in found}


def statuses(found: Mapping[str, dict[str, Any]], *names: str) -> list[str]:
    return [found[name]["status"] for name in names]


# --- as a whole -------------------------------------------------------------------------------------------------------


@pytest.fixture
def healthy(place: Place) -> Place:
    """A place on a machine that nothing is to be said about."""
    if shutil.disk_usage(place.directory).free < LOW_SPACE_BYTES:
        pytest.skip("there is little room on this disk")
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < FEW_FILES:
        pytest.skip("few files may be open on this machine")
    return place


def test_without_a_mistake_everything_is_in_order_and_nothing_is_changed(healthy: Place, nowhere: str) -> None:
    place = healthy
    before = sorted(place.directory.rglob("*"))

    result = place.run("doctor", "--endpoint", nowhere, SANDBOX_AGENT_PORT="0")

    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert [line for line in lines[:-1] if line and not line.startswith(" ")] == AREAS
    assert lines[-1] == "everything is in order"
    assert {line.split()[0] for line in lines if re.match("  [a-z]", line)} == {"ok", "note"}
    assert sorted(place.directory.rglob("*")) == before


def test_the_document_has_all_findings_and_counts_them(healthy: Place, nowhere: str) -> None:
    document = healthy.json("doctor", "--json", "--endpoint", nowhere, SANDBOX_AGENT_PORT="0")

    assert (document["version"], document["status"]) == (__version__, "ok")
    counts = document["counts"]
    assert counts["problem"] == counts["warning"] == 0
    assert sum(counts.values()) == len(document["findings"])
    assert list(dict.fromkeys(each["area"] for each in document["findings"])) == AREAS
    assert all(each["advice"] for each in document["findings"] if each["status"] in ("warning", "problem"))
    found = {each["name"]: each for each in document["findings"]}
    assert found["version"]["sentence"].startswith(f"sandbox-agent {__version__}, Python 3.")
    for tool in ("Node", "uv", "ripgrep"):
        assert re.match(rf"{tool} \d+\.\d+\.\d+.* runs: /", found[tool.lower()]["sentence"])


def test_a_terminal_gets_marks_and_colours_and_narrow_lines(place: Place, nowhere: str) -> None:
    (place.config / "config.toml").write_text("nonsense = 1\n")
    flags = ("doctor", "--offline", "--endpoint", nowhere)

    code, drawn = place.on_a_terminal(*flags, COLUMNS="60", SANDBOX_AGENT_NONSENSE="1")
    _, plain = place.on_a_terminal(*flags, COLUMNS="60", NO_COLOR="1")

    assert code == 1
    for mark in (
        "\x1b[32m✓\x1b[0m  ",
        "\x1b[31m✗\x1b[0m  ",
        "\x1b[33m!\x1b[0m  ",
        "\x1b[2m·\x1b[0m  ",
        "→ Correct it:",
    ):
        assert mark in drawn
    assert "1 problem, 1 warning" in drawn
    assert "\x1b" not in plain
    assert "\r\n  problem  " in plain
    for line in re.sub("\x1b\\[[0-9]*m", "", drawn).splitlines() + plain.splitlines():
        assert len(line) < 60 or len(line.split()) < 3, "only a path or a command may be longer"


def test_a_terminal_without_the_marks_gets_words(place: Place) -> None:
    _, text = place.on_a_terminal("doctor", "--offline", PYTHONIOENCODING="ascii")

    assert "  ok       sandbox-agent" in text


def test_a_check_that_fails_or_never_ends_keeps_no_other_from_its_findings() -> None:
    found, _ = read_settings(ParsedArguments({}), {})
    assert found is not None
    fine = Finding(area="server", name="fine", status="ok", sentence="fine")
    never = Event()

    def fails(subject: DoctorSubject) -> list[Finding]:
        raise RuntimeError("hush")

    def hangs(subject: DoctorSubject) -> list[Finding]:
        never.wait(LONGEST)
        return []

    def works(subject: DoctorSubject) -> list[Finding]:
        return [fine]

    told, unfinished = side_by_side(
        [hangs, fails, works], DoctorSubject(found, ParsedArguments({}), {}, offline=True), 0.1
    )
    never.set()

    assert told[works] == [fine]
    assert told[fails][0].sentence == "the check fails failed with RuntimeError"
    assert unfinished == [hangs]


def test_another_program_of_that_name_on_the_path_is_reported(place: Place) -> None:
    other = place.directory / "bin" / "sandbox-agent"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)

    found = examine(place, "--offline", PATH=f"{other.parent}:{os.environ['PATH']}")

    assert found["program/path"]["status"] == "note"
    assert str(other) in found["program/path"]["sentence"]


# --- settings ---------------------------------------------------------------------------------------------------------


def test_every_file_with_a_mistake_is_reported_with_its_line(place: Place) -> None:
    (place.config / "config.toml").write_text("host = '127.0.0.1'\nprot = 1\n")
    (place.config / "agents.toml").write_text("[agents.x]\ncomand = ['x']\n")
    (place.config / "permissions.toml").write_text("[[rules]]\ntool = '*'\naction = 'alow'\n")

    found = examine(place)

    names = ("configuration/settings", "configuration/agents-file", "configuration/permissions-file")
    assert statuses(found, *names) == ["problem"] * 3
    lines = [found[name]["sentence"] for name in names]
    assert lines[0] == f"{place.config / 'config.toml'}, line 2: unknown key prot; did you mean port?"
    assert lines[1].startswith(f"{place.config / 'agents.toml'}, line 2")
    assert lines[2].startswith(f"{place.config / 'permissions.toml'}, line 3")
    assert found["server/server"]["sentence"] == "no server was looked for, because the settings are wrong"


def test_files_in_order_are_reported_so(place: Place) -> None:
    (place.config / "config.toml").write_text("log_level = 'info'\n")
    (place.config / "agents.toml").write_text(f"[agents.mine]\n{scripted()}")
    (place.config / "permissions.toml").write_text("[[rules]]\ntool = '*'\naction = 'ask'\n")

    found = examine(place)

    names = ("configuration/settings", "configuration/agents-file", "configuration/permissions-file", "agents/mine")
    assert statuses(found, *names) == ["ok"] * 4
    assert found["configuration/permissions-file"]["sentence"].endswith("is in order: 1 rule")


def test_variables_that_mean_nothing_or_contradict_are_reported(place: Place) -> None:
    found = examine(place, SANDBOX_AGENT_TOKN="hush", SANDBOX_AGENT_TOKEN="a", SANDBOX_AGENT_NO_TOKEN="1")

    assert found["configuration/variable"]["status"] == "warning"
    assert found["configuration/variable"]["sentence"].endswith("did you mean SANDBOX_AGENT_TOKEN?")
    assert found["configuration/settings"]["status"] == "problem"
    assert "contradict each other" in found["configuration/settings"]["sentence"]
    assert "SANDBOX_AGENT_DATA_DIR" in found["configuration/variables"]["sentence"]


def test_a_place_that_cannot_be_understood_ends_it_with_that_one_problem(place: Place) -> None:
    found = examine(place, SANDBOX_AGENT_CONFIG_DIR="~nobody-of-that-name/x")

    assert list(found) == ["configuration/settings"]
    assert found["configuration/settings"]["status"] == "problem"


def test_a_root_that_is_not_there_is_a_problem(place: Place) -> None:
    found = examine(place, SANDBOX_AGENT_FS_ROOT=str(place.directory / "nowhere"))

    assert statuses(found, "configuration/fs-root", "configuration/settings") == ["problem", "ok"]


def test_a_token_that_others_can_read_is_a_warning(place: Place) -> None:
    config = place.config / "config.toml"
    config.write_text('token = "hush"\n')
    config.chmod(0o644)
    public = examine(place)
    config.chmod(0o600)
    private = examine(place)

    assert public["configuration/token-private"]["status"] == "warning"
    assert public["configuration/token-private"]["advice"] == f"chmod 600 {config}"
    assert "configuration/token-private" not in private


# --- directories ------------------------------------------------------------------------------------------------------


def test_a_directory_that_is_none_is_a_problem(place: Place) -> None:
    place.data.touch()
    shutil.rmtree(place.config)
    place.config.touch()

    found = examine(place, SANDBOX_AGENT_AGENTS_DIR=str(place.data / "agents"))

    # A configuration directory that is a file is the first thing that any command stumbles over.
    assert statuses(found, "directories/data", "directories/agents", "directories/config") == ["problem"] * 3
    assert found["directories/data"]["sentence"] == f"the data directory is not a directory: {place.data}"


def test_directories_are_reported_with_owner_and_room(place: Place) -> None:
    place.agents.mkdir(parents=True)

    found = examine(place)

    assert statuses(found, "directories/data", "directories/agents", "directories/config") == ["ok"] * 3
    assert found["directories/data"]["sentence"].endswith(f"can be written: {place.data}")
    assert re.match(r"[\d.]+ [KMGT]iB are free where", found["directories/data-room"]["sentence"])


@pytest.mark.skipif(not ROOT, reason="only root can give a directory away")
def test_another_users_directory_is_a_warning(place: Place) -> None:
    place.data.mkdir()
    os.chown(place.data, 54321, 54321)

    found = examine(place)

    assert found["directories/data"]["status"] == "warning"
    assert found["directories/data"]["sentence"].startswith("the data directory belongs to user 54321, and this is ")


@pytest.mark.skipif(ROOT, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_a_problem(place: Place) -> None:
    place.data.mkdir(mode=0o500)

    found = examine(place)

    assert statuses(found, "directories/data", "directories/agents") == ["problem", "problem"]
    assert "cannot be written by" in found["directories/data"]["sentence"]


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 bytes"), (2048, "2.0 KiB"), (300 << 20, "300 MiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes_are_for_people(count: int, told: str) -> None:
    assert size(count) == told


# --- the server -------------------------------------------------------------------------------------------------------


@pytest.mark.server_alone("the data directory of a server on this machine has its address and its token")
def test_a_server_that_runs_and_takes_the_token_is_in_order(place: Place) -> None:
    with Server(token=None) as server:
        data = server.directory / "data"
        token = (data / "token").read_text().strip()
        result = place.run("doctor", "--json", "--endpoint", server.url, "--data-dir", str(data))

    found = {each["name"]: each for each in json.loads(result.stdout)["findings"] if each["area"] == "server"}
    assert found["server"]["sentence"].startswith(f"sandbox-agent {__version__} answers at {server.url}, up for ")
    assert found["token"]["sentence"] == "that server accepts the token that was found"
    port = server.url.rpartition(":")[2]
    assert found["data-server"]["sentence"].endswith(f"and listens on port {port}")
    assert f"(process {server.process.pid})" in found["data-server"]["sentence"]
    assert token not in result.stdout + result.stderr


def test_refused_token_is_a_problem_that_names_its_source(place: Place) -> None:
    with Server("--public-health") as server:
        none = examine(place, "--endpoint", server.url)
        flag = examine(place, "--endpoint", server.url, "--token", "hush-flag")
        variable = examine(place, SANDBOX_AGENT_ENDPOINT=server.url, SANDBOX_AGENT_TOKEN="hush-variable")
        right = examine(place, "--endpoint", server.url, "--token", TOKEN)
        (place.config / "config.toml").write_text('token = "hush-file"')
        file = examine(place, "--endpoint", server.url)

    told = [each["server/token"]["sentence"] for each in (none, flag, variable, file)]
    assert told == [
        f"the server at {server.url} needs a token, and none was found",
        f"the server at {server.url} does not accept the token from --token",
        f"the server at {server.url} does not accept the token from SANDBOX_AGENT_TOKEN",
        f"the server at {server.url} does not accept the token from config.toml",
    ]
    assert none["server/token"]["status"] == "problem"
    assert "SANDBOX_AGENT_TOKEN or --token-file" in none["server/token"]["advice"]
    assert right["server/token"]["status"] == "ok"
    assert "hush" not in str([none, flag, variable, file])


def test_a_server_without_a_token_is_reported_so(place: Place) -> None:
    with Server("--no-token", token=None) as server:
        found = examine(place, "--endpoint", server.url)

    assert found["server/token"]["sentence"] == "that server needs no token"


@pytest.mark.server_alone("the data directory of a server on this machine has its address and its token")
def test_a_server_of_this_data_directory_that_commands_would_not_call_is_a_warning(place: Place, nowhere: str) -> None:
    with Server() as server:
        found = examine(place, "--endpoint", nowhere, "--data-dir", str(server.directory / "data"))

    assert statuses(found, "server/server", "server/data-server") == ["note", "warning"]
    assert found["server/data-server"]["advice"] == f"To call that one: export SANDBOX_AGENT_ENDPOINT={server.url}"


def test_without_a_server_the_port_is_free_or_taken_by_a_process_that_is_named(place: Place, nowhere: str) -> None:
    port = int(nowhere.rpartition(":")[2])
    free = examine(place, "--endpoint", nowhere, "--port", str(port))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        other = taken.getsockname()[1]
        busy = examine(place, "--endpoint", nowhere, "--port", str(other))

    assert statuses(free, "server/server", "server/port") == ["note", "ok"]
    assert free["server/server"]["advice"] == "Start one with: sandbox-agent daemon start"
    assert busy["server/port"]["status"] == "problem"
    assert f"port {other} on 127.0.0.1 is taken by " in busy["server/port"]["sentence"]
    assert f"(process {os.getpid()})" in busy["server/port"]["sentence"]


def test_an_address_of_another_machine_cannot_be_listened_on(place: Place, nowhere: str) -> None:
    found = examine(place, "--endpoint", nowhere, "--host", "192.0.2.1", "--port", "2468")

    assert found["server/port"]["status"] == "problem"
    assert found["server/port"]["sentence"].startswith("a server cannot listen on 192.0.2.1: ")


def test_without_a_server_that_is_named_commands_start_one(place: Place) -> None:
    found = examine(place, SANDBOX_AGENT_PORT=str(free_port()))

    assert statuses(found, "server/server", "server/port") == ["note", "ok"]
    assert str(place.data) in found["server/server"]["sentence"]
    assert found["server/server"]["advice"].startswith("Commands start one when they need it. ")


def test_an_endpoint_that_is_no_address_is_a_problem(place: Place) -> None:
    found = examine(place, SANDBOX_AGENT_ENDPOINT="box")

    assert found["server/endpoint"]["status"] == "problem"
    assert found["server/endpoint"]["sentence"].startswith("SANDBOX_AGENT_ENDPOINT: expected an address such as")


@contextmanager
def answering(**pages: tuple[int, object]) -> Generator[str]:
    """Something that answers by the last part of the path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, document = pages.get(self.path.rpartition("/")[2], (404, {}))
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_of_another_version_or_that_is_not_well_is_reported(place: Place) -> None:
    health = {"status": "degraded", "version": "0.0.1", "uptimeMs": 7_300_000, "detail": "the disk is full"}
    with answering(health=(200, health), mock=(200, {})) as url:
        found = examine(place, "--endpoint", url)

    assert statuses(found, "server/server", "server/server-version", "server/server-health") == [
        *("ok", "warning", "problem")
    ]
    assert found["server/server"]["sentence"].endswith("up for 2 hours")
    assert found["server/server-health"]["sentence"] == "that server is degraded: the disk is full"


@pytest.mark.parametrize("page", [(200, b"<h1>hello</h1>"), (200, {"hello": 1}), (404, {}), (401, b"no")])
def test_something_else_at_that_address_is_a_problem_and_named(place: Place, page: tuple[int, object]) -> None:
    with answering(health=page) as url:
        found = examine(place, "--endpoint", url)

    assert found["server/server"]["status"] == "problem"
    assert f"(process {os.getpid()}) answers at {url}, but not like sandbox-agent" in found["server/server"]["sentence"]


def test_a_server_that_does_not_serve_the_name_is_a_problem(place: Place) -> None:
    with answering(health=(421, {"title": "Misdirected Request"})) as url:
        found = examine(place, "--endpoint", url)

    assert "--allow-host" in found["server/server"]["advice"]


def test_a_server_that_says_nothing_is_a_problem(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        found = examine(place, "--endpoint", url)

    assert found["server/server"]["status"] == "problem"
    assert f"takes connections at {url}, but did not answer" in found["server/server"]["sentence"]


# --- agents and registry ----------------------------------------------------------------------------------------------


def test_an_installed_agent_is_reported_with_its_version_and_credentials_by_name(place: Place) -> None:
    own = scripted() + "\ncredentials = ['MINE_KEY', 'OTHER_KEY']"
    (place.config / "agents.toml").write_text(f"[agents.mine]\n{own}")
    assert place.run("agents", "install", "works").returncode == 0

    without = examine(place)
    found = examine(place, MINE_KEY="hush", ANTHROPIC_API_KEY="hush")

    assert re.fullmatch(
        r"works 1\.2\.3 is installed \(registry, verified [\d-]{10}\)", found["agents/works"]["sentence"]
    )
    assert found["agents/mine"]["status"] == "ok"
    assert found["agents/mine"]["sentence"].endswith("; credentials: variable MINE_KEY")
    assert without["agents/mine"]["status"] == "warning"
    assert without["agents/mine"]["advice"].startswith("sandbox-agent agents instructions mine")
    assert "claude (credentials are there), codex, " in found["agents/not-installed"]["sentence"]
    assert "hush" not in str(found)


def test_what_a_crash_takes_with_it_is_told_of_each_installed_agent(place: Place) -> None:
    own = scripted(isolation="session")
    (place.config / "agents.toml").write_text(f"[agents.apart]\n{own}\n[agents.together]\n{scripted()}")

    found = examine(place)
    shared, apart = found["agents/shared-processes"], found["agents/own-processes"]

    assert (shared["status"], apart["status"]) == ("note", "note")
    assert ": mock, together. A crash ends the turns of all these sessions" in shared["sentence"]
    assert ": apart. A crash ends the turn of that session alone" in apart["sentence"]
    assert 'isolation = "session"' in shared["advice"]


def test_doctor_does_not_tell_of_processes_that_no_agent_has(place: Place) -> None:
    (place.config / "agents.toml").write_text('[agents.mock]\nisolation = "session"')

    found = examine(place)

    assert "agents/shared-processes" not in found
    assert ": mock. " in found["agents/own-processes"]["sentence"]


def test_what_is_broken_or_left_over_is_reported_with_what_to_do(place: Place) -> None:
    place.write_registry(*(place.binary(id, "works") for id in ("works", "empty", "other", "moved")))
    assert place.run("agents", "install", "works", "empty", "other", "moved").returncode == 0
    (place.agents / "works" / "installed.json").write_text("{")
    next((place.agents / "empty").rglob("made-up")).unlink()
    (place.agents / "other" / "1-00000000").mkdir()
    moved = place.agents / "moved" / "installed.json"
    moved.write_text(re.sub(r'"platform": "[^"]*"', '"platform": "plan9-mips"', moved.read_text()))
    (place.config / "agents.toml").write_text("[agents.mine]\ncommand = ['no-such-program', 'hush']\n")

    found = examine(place)

    assert statuses(found, "agents/works", "agents/empty", "agents/moved", "agents/mine") == ["problem"] * 4
    assert found["agents/works"]["advice"] == "sandbox-agent agents install works --reinstall"
    assert "its program is gone" in found["agents/empty"]["sentence"]
    assert "was installed for plan9-mips" in found["agents/moved"]["sentence"]
    assert found["agents/other"]["status"] == "ok"
    assert found["agents/left-over"]["status"] == "note"
    assert found["agents/left-over"]["sentence"].endswith("still used by running agents: other, works")
    assert "hush" not in str(found)


def test_an_install_that_is_under_way_is_not_taken_for_a_left_over(place: Place) -> None:
    (place.agents / "works" / "1-00000000").mkdir(parents=True)
    with Store(place.agents).locked("works") as ours:
        assert ours
        found = examine(place, "--offline")

    assert found["agents/installing"]["sentence"] == "works is being installed or removed now"
    assert "agents/left-over" not in found


def test_the_registry_is_reached_or_there_is_a_copy(place: Place) -> None:
    live = examine(place)
    offline = examine(place, "--offline")
    assert place.run("agents", "list", "--registry").returncode == 0
    place.registry.unlink()
    copied = examine(place)
    gone = examine(place, SANDBOX_AGENT_ACP_REGISTRY_URL=f"http://me:hush@127.0.0.1:{free_port()}/r.json?key=hush")

    told = [each["registry/registry"] for each in (live, offline, copied, gone)]
    assert [each["status"] for each in told] == ["ok", "note", "warning", "warning"]
    assert told[0]["sentence"] == f"the ACP registry has 2 agents: {place.registry}"
    assert told[1]["sentence"].startswith("the ACP registry was not asked (--offline); there is no copy of it")
    assert "there is a copy, of today" in told[2]["sentence"]
    assert "there is no copy of it" in told[3]["sentence"]
    assert "hush" not in str(told)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_few_open_files_are_a_warning(place: Place) -> None:
    line = ["sh", "-c", 'ulimit -n 256 && exec "$@"', "sh", *PROGRAM, "doctor", "--offline", "--json"]

    result = subprocess.run(line, env=place.environment, capture_output=True, text=True, timeout=LONGEST)

    found = {each["name"]: each for each in json.loads(result.stdout)["findings"]}
    assert found["open-files"]["status"] == "warning"
    assert found["open-files"]["advice"] == "Where the server is started: ulimit -n 256"


def test_watches_are_reported_where_the_kernel_has_them(place: Place) -> None:
    found = examine(place, "--offline")

    assert ("limits/watches" in found) == Path("/proc/sys/fs/inotify/max_user_watches").exists()
