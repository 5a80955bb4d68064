"""Contract, section 11: starting the server, what it says then, how it refuses to, and how it stops."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from sandboxagent import __version__
from tests.support.bytewise import ask
from tests.support.client import NO_CERTIFICATES, Client, run
from tests.support.program import run_program
from tests.support.running import BOUND, TOKEN, Server, alive, scripted
from tests.support.saying import said

SOON = 20.0
"""Seconds that an end may take on a busy machine: far fewer than what could hold it up."""
TIMEOUT = BOUND
"""For a program to start and to end on a busy machine."""


def launch(directory: Path, *flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A server that is expected to end by itself, at once."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_AGENT_")}
    directory.mkdir(exist_ok=True)
    places = ["--data-dir", str(directory / "data"), "--config-dir", str(directory)]
    return run_program(["server", "--port", "0", *places, *flags], {**clean, **environ}, text=True, timeout=TIMEOUT)


def refused(result: subprocess.CompletedProcess[str], *named: str) -> None:
    """It ended with exit code 2 and one last line for people that names these, and was never ready."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    *reports, message = result.stderr.splitlines()
    assert message.startswith("sandbox-agent: ")
    assert [line for line in reports if not re.match(r"\d{4}-\d\d-\d\d \S+ INFO ", line)] == []
    for name in named:
        assert name in message


# --- ready ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("11.ready-line")
def test_the_ready_line_is_the_only_line_on_stdout_and_says_where_it_listens() -> None:
    with Server("--no-persist", anew=True) as server:
        assert re.fullmatch(r"http://127\.0\.0\.1:[1-9][0-9]*", server.url)
        # Ready means ready: the first try succeeds.
        assert ask(server, "/v1/health", token=TOKEN).status == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.stdout is not None
        with server.process.stdout as stdout:
            assert stdout.read() == ""
        assert server.process.wait(BOUND) == 0


@pytest.mark.requirement("11.any-port")
def test_port_zero_takes_a_free_port_and_says_which() -> None:
    with Server("--no-persist") as one, Server("--no-persist") as other:
        assert one.url != other.url
        assert [ask(server, "/v1/health", token=TOKEN).status for server in (one, other)] == [200, 200]


@pytest.mark.requirement("11.ready-line")
@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_an_ipv6_address_is_shown_as_a_url_has_it() -> None:
    with Server("--no-persist", "--host", "::1") as server:
        assert server.url.startswith("http://[::1]:")
        assert httpx.get(f"{server.url}/ui/", trust_env=False, timeout=BOUND, verify=NO_CERTIFICATES).status_code == 200


@pytest.mark.requirement("11.first-call")
def test_the_call_that_is_suggested_at_the_start_works_as_it_stands() -> None:
    with Server("--no-persist", token=None) as server:
        (line,) = [line for line in server.stderr.splitlines() if "curl " in line]
        command = line[line.index("curl ") :]

        shown = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=TIMEOUT)

        assert shown.returncode == 0, shown.stderr
        assert "HTTP/1.1 200 OK" in shown.stdout
        assert "x-acp-connection-id: " in shown.stdout.lower()


# --- the token --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("11.generated-token")
def test_a_token_is_made_printed_to_stderr_and_kept_in_a_file_for_the_user_alone(tmp_path: Path) -> None:
    with Server(token=None, directory=tmp_path) as server:
        place = re.findall(r"\(also in (.+)\)", server.stderr)[-1]
        token = Path(place).read_text().strip()
        assert token in server.stderr
        assert Path(place).stat().st_mode & 0o777 == 0o600
        assert Path(place).stat().st_uid == os.getuid()
        assert ask(server, "/v1/agents").status == 401
        assert ask(server, "/v1/agents", token=token).status == 200
        assert len(token) >= 32


@pytest.mark.requirement("11.given-token")
def test_a_given_token_is_not_printed(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_text("  from-a-file\n")
    variable = {"SANDBOX_AGENT_TOKEN": "from-the-environment"}

    with Server("--no-persist", "--token-file", str(given), token=None) as server:
        assert ask(server, "/v1/agents", token="from-a-file").status == 200
        assert "from-a-file" not in server.stderr
    with Server("--no-persist", token=None, environment=variable) as server:
        assert ask(server, "/v1/agents", token="from-the-environment").status == 200
        assert "from-the-environment" not in server.stderr
    with Server("--no-persist", environment=variable) as server:
        assert ask(server, "/v1/agents", token=TOKEN).status == 200
        assert ask(server, "/v1/agents", token="from-the-environment").status == 401


@pytest.mark.requirement("11.no-token")
def test_without_a_token_it_serves_this_machine_and_still_checks_host_and_origin() -> None:
    with Server("--no-persist", "--no-token", token=None) as server:
        assert ask(server, "/v1/agents").status == 200
        assert ask(server, "/v1/agents", "Authorization: Bearer whatever").status == 200
        assert ask(server, "/v1/agents", host="evil.example").status == 421
        assert ask(server, "/v1/agents", "Origin: https://evil.example").status == 403


@pytest.mark.requirement("11.no-token")
@pytest.mark.parametrize("host", ["0.0.0.0", "box.example"])
def test_without_a_token_it_refuses_to_serve_others(host: str, tmp_path: Path) -> None:
    refused(launch(tmp_path, "--no-token", "--host", host), "--no-token", host, "--insecure")


@pytest.mark.requirement("11.no-token")
def test_without_a_token_it_serves_others_when_that_is_called_insecure() -> None:
    with Server("--no-persist", "--no-token", "--insecure", "--host", "0.0.0.0", token=None) as server:
        server.url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert ask(server, "/v1/agents").status == 200


@pytest.mark.requirement("11.quiet")
def test_with_quiet_the_token_is_in_its_file_and_nowhere_else(tmp_path: Path) -> None:
    with Server("--quiet", token=None, directory=tmp_path) as server:
        token = (tmp_path / "data" / "token").read_text().strip()
        assert ask(server, "/v1/health", token=token).status == 200
        assert token not in server.stderr
        assert "curl" not in server.stderr


@pytest.mark.requirement("11.kept-token")
def test_the_next_start_uses_the_generated_token_again(tmp_path: Path) -> None:
    path = tmp_path / "data" / "token"
    with Server(token=None, directory=tmp_path) as server:
        first = path.read_text().strip()
        server.kill()
        server.start()
        assert ask(server, "/v1/health", token=first).status == 200
        server.stop()
        assert path.read_text().strip() == first
        server.flags = ["--rotate-token"]
        server.start()
        second = path.read_text().strip()
        assert ask(server, "/v1/health", token=first).status == 401
        assert ask(server, "/v1/health", token=second).status == 200
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.requirement("11.kept-token")
def test_a_link_in_place_of_the_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "other").write_text("of-another-program")
    (tmp_path / "data" / "token").symlink_to(tmp_path / "other")

    refused(launch(tmp_path), "token in it is a link")

    assert (tmp_path / "other").read_text() == "of-another-program"


@pytest.mark.requirement("11.idle-exit")
def test_a_server_stops_by_itself_when_it_has_been_idle(tmp_path: Path) -> None:
    with Server("--idle-exit", "1s", "--idle-timeout", "1s", directory=tmp_path) as server:
        assert server.process.wait(timeout=BOUND) == 0
        assert not (tmp_path / "data" / "server.json").exists()


# --- being found ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("11.notice")
def test_a_server_says_in_its_data_directory_where_it_listens_as_long_as_it_does(tmp_path: Path) -> None:
    place = tmp_path / "data" / "server.json"
    with Server("--host", "0.0.0.0", token=None, directory=tmp_path) as server:
        told = json.loads(place.read_text())
        assert place.stat().st_mode & 0o777 == 0o600
        assert told["url"] == server.url.replace("0.0.0.0", "127.0.0.1")
        assert (told["pid"], told["version"], told["needsToken"]) == (server.process.pid, __version__, True)
        assert datetime.fromisoformat(told["startedAt"]).tzinfo is not None
        server.url = told["url"]
        token = Path(told["tokenFile"]).read_text().strip()
        assert ask(server, "/v1/health", token=token).status == 200
        assert token not in place.read_text()
    assert not place.exists()


@pytest.mark.requirement("11.notice")
def test_record_of_a_server_does_not_hold_a_given_token(tmp_path: Path) -> None:
    place = tmp_path / "data" / "server.json"
    with Server(directory=tmp_path):
        told = json.loads(place.read_text())
        assert (told["tokenFile"], told["needsToken"]) == (None, True)
        assert TOKEN not in place.read_text()
    with Server("--no-token", token=None, directory=tmp_path):
        assert json.loads(place.read_text())["needsToken"] is False
    with Server("--no-persist", directory=tmp_path):
        assert not place.exists()


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("11.three-sources")
def test_a_flag_wins_over_the_environment_and_the_environment_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text('public_health = true\nallow_host = ["file.example"]\n')

    with Server("--no-persist", directory=tmp_path) as server:
        assert ask(server, "/v1/health", host="file.example").status == 200
    variables = {"SANDBOX_AGENT_PUBLIC_HEALTH": "no", "SANDBOX_AGENT_ALLOW_HOST": "variable.example"}
    with Server("--no-persist", directory=tmp_path, environment=variables) as server:
        assert ask(server, "/v1/health").status == 401
        assert ask(server, "/v1/health", host="variable.example", token=TOKEN).status == 200
        assert ask(server, "/v1/health", host="file.example", token=TOKEN).status == 421
    flags = ("--no-persist", "--public-health", "--allow-host", "flag.example")
    with Server(*flags, directory=tmp_path, environment=variables) as server:
        assert ask(server, "/v1/health", host="flag.example").status == 200
        assert ask(server, "/v1/health", host="variable.example").status == 421


@pytest.mark.requirement("11.own-agents")
def test_an_own_agent_has_its_title_its_environment_and_nothing_of_the_servers(tmp_path: Path) -> None:
    table = scripted(title="Echo") + "\nenv = { GREETING = 'hello' }"
    environment = {"PRIVATE_TO_THE_SERVER": "yes", "LC_TEST": "passed on"}

    async def main(server: Server) -> None:
        async with Client(server, "echo") as client:
            assert (await client.http.get("/v1/agents/echo")).json()["title"] == "Echo"
            asked = [["env", "GREETING"], ["env", "PRIVATE_TO_THE_SERVER"], ["env", "LC_TEST"]]
            values = await said(client, await client.new_session(), *asked)
            assert values == ['"hello"', "null", '"passed on"']

    with Server("--no-persist", agents={"echo": table}, environment=environment) as server:
        run(main(server))


@pytest.mark.requirement("11.own-agents")
def test_the_agents_file_can_be_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f"[agents.elsewhere]\n{scripted()}\n")

    with Server("--no-persist", "--agents-file", str(file)) as server:
        assert ask(server, "/v1/agents/elsewhere", token=TOKEN).status == 200
        assert ask(server, "/v1/agents/scripted", token=TOKEN).status == 404


# --- refusing ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("11.exit-port-taken")
@pytest.mark.parametrize("listening", [True, False])
def test_a_taken_port_ends_it_with_exit_code_3_and_a_message(listening: bool, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if listening:
            taken.listen()
        port = taken.getsockname()[1]

        result = launch(tmp_path, "--port", str(port))

    assert (result.returncode, result.stdout) == (3, "")
    assert str(port) in result.stderr
    assert "--port" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.requirement("11.exit-port-taken")
def test_the_port_of_a_running_server_is_taken() -> None:
    with Server("--no-persist") as server:
        result = launch(server.directory / "second", "--port", server.url.rpartition(":")[2])

    assert (result.returncode, result.stdout) == (3, "")


@pytest.mark.requirement("11.exit-wrong-settings")
@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--prot", "1"], ["--prot", "--port"]),
        (["--cors-origin", "*"], ["--cors-origin", "*"]),
        (["--host", "nowhere.invalid"], ["--host", "nowhere.invalid"]),
        (["--host", "192.0.2.1"], ["--host", "192.0.2.1"]),
        (["--agents-file", "/nonexistent/agents.toml"], ["--agents-file", "/nonexistent/agents.toml"]),
        (["--token-file", "/nonexistent/token"], ["--token-file", "/nonexistent/token"]),
        (["--data-dir", "/dev/null/data"], ["--data-dir", "/dev/null/data"]),
        (["--data-dir", "/proc/1/nothing"], ["--data-dir", "/proc/1/nothing"]),
        (["--permissions-file", "/nonexistent/rules.toml"], ["--permissions-file", "/nonexistent/rules.toml"]),
        (["--fs-root", "/nowhere/at/all"], ["--fs-root", "/nowhere/at/all"]),
    ],
)
def test_a_wrong_flag_ends_it_with_exit_code_2_and_is_named(flags: list[str], named: list[str], tmp_path: Path) -> None:
    refused(launch(tmp_path, *flags), *named)


@pytest.mark.requirement("11.exit-wrong-settings")
def test_a_wrong_variable_ends_it_with_exit_code_2_and_is_named(tmp_path: Path) -> None:
    refused(launch(tmp_path, SANDBOX_AGENT_MAX_BODY="much"), "SANDBOX_AGENT_MAX_BODY", "much")


@pytest.mark.requirement("11.exit-wrong-settings", "7.rules-file")
@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("config.toml", "\n\nprot = 1", ["line 3", "prot", "did you mean port"]),
        ("config.toml", "port =\n", ["line 1"]),
        ("agents.toml", "[agents.x]\ntitle = 'X'", ["line 1", "agent x", "command"]),
        ("agents.toml", "[agents.x]\ncomand = ['a']", ["line 2", "comand", "command"]),
        ("agents.toml", "not toml at all", ["line 1"]),
        (
            "permissions.toml",
            "[[rules]]\ntool = '*'\naction = 'ask'\n\n[[rules]]\ncomand = 'a'",
            ["line 6", "rule 2", "comand"],
        ),
        ("permissions.toml", "[[rules]]\ntool = '*'\n", ["line 1", "rule 1", "action"]),
    ],
)
def test_a_wrong_file_ends_it_with_exit_code_2_and_is_named_with_its_line(
    name: str, content: str, named: list[str], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)

    refused(launch(tmp_path), str(tmp_path / name), *named)


@pytest.mark.requirement("11.exit-wrong-settings")
@pytest.mark.parametrize("name", ["config.toml", "agents.toml"])
def test_a_file_that_is_a_directory_or_no_text_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / name).mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / name).write_bytes(b"\xff\xfe\x00")

    refused(launch(tmp_path / "a"), str(tmp_path / "a" / name))
    refused(launch(tmp_path / "b"), str(tmp_path / "b" / name))


@pytest.mark.requirement("11.exit-wrong-settings")
def test_a_wrong_value_of_env_is_named_and_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text("[agents.x]\ncommand = ['a']\nenv = { KEY = ['very-secret'] }")

    result = launch(tmp_path)

    refused(result, "line 3", "env")
    assert "very-secret" not in result.stderr


@pytest.mark.requirement("11.exit-locked")
def test_a_data_directory_in_use_ends_it_with_exit_code_2_and_says_by_whom(tmp_path: Path) -> None:
    with Server(directory=tmp_path) as server:
        second = launch(tmp_path)

        refused(second, "--data-dir", str(tmp_path / "data"), str(server.process.pid))
        # The first one does not notice.
        assert ask(server, "/v1/health", token=TOKEN).status == 200
    with Server(directory=tmp_path) as server:
        assert ask(server, "/v1/health", token=TOKEN).status == 200


@pytest.mark.requirement("11.exit-locked")
def test_the_directory_of_a_server_that_was_killed_is_free(tmp_path: Path) -> None:
    Server(directory=tmp_path).start().kill()

    with Server(directory=tmp_path) as server:
        assert ask(server, "/v1/health", token=TOKEN).status == 200


@pytest.mark.requirement("11.exit-locked")
def test_servers_that_keep_nothing_can_share_a_directory(tmp_path: Path) -> None:
    with Server("--no-persist", token=None, directory=tmp_path) as first:
        token = re.findall(r"token: (\S+)", first.stderr)[-1]
        with Server("--no-persist", token=None, directory=tmp_path) as second:
            assert first.url != second.url
            (place,) = set(re.findall(rf"{token}\s+\(also in (.+)\)", first.stderr))
            assert Path(place).read_text().strip() == token
            assert ask(first, "/v1/agents", token=token).status == 200


@pytest.mark.requirement("11.exit-wrong-settings")
def test_a_log_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "log.db").write_bytes(b"this is not a database" * 1000)

    refused(launch(tmp_path), "log", "--data-dir")


# --- stopping ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("11.clean-stop")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_within_two_seconds_whatever_is_open_and_leaves_no_client_waiting(number: int) -> None:
    agents = {"stubborn": scripted("--ignore-sigterm", "--ignore-eof"), "isolated": scripted(isolation="session")}

    async def main(server: Server) -> None:
        clients = [Client(server, agent) for agent in ("scripted", "stubborn", "isolated")]
        pids: list[int] = []
        waiting: list[asyncio.Task[httpx.Response]] = []
        async with AsyncExitStack() as stack:
            for client in clients:
                await stack.enter_async_context(client)
            streams = [await stack.enter_async_context(client.stream()) for client in clients]
            for client in clients:
                session = await client.new_session()
                pids.extend(map(int, await said(client, session, ["pid"])))
                program = [["say", "working"], ["stop_reading"], ["wait_cancel"]]
                params = client.prompt_params(session, program)
                prompt = {"jsonrpc": "2.0", "id": "p", "method": "session/prompt", "params": params}
                waiting.append(asyncio.create_task(client.post(prompt)))
            hanging = {"jsonrpc": "2.0", "id": "h", "method": "x/hang", "params": {}}
            waiting.append(asyncio.create_task(clients[2].post(hanging)))
            # All of them have arrived: what comes after the signal may find nobody.
            for stream in streams:
                await stream.until(lambda event: event.text == "working")
            async with asyncio.timeout(BOUND):
                while not any("x/hang" in line for line in (await clients[2].result("x/received"))["lines"]):
                    pass

            begun = time.monotonic()
            code = await asyncio.to_thread(server.stop, number)
            took = time.monotonic() - begun

            assert code == 0
            assert took < SOON
            assert [pid for pid in pids if alive(pid)] == []
            for stream in streams:
                await stream.ended()
            for response in await asyncio.gather(*waiting):
                # The agent ended, or the server is about to: either way the client is told.
                assert response.status_code == 503 or "error" in response.json(), response.text

    with Server("--no-persist", "--stop-grace", "10m", agents=agents) as server:
        run(main(server))


@pytest.mark.requirement("11.clean-stop")
def test_a_client_that_does_not_read_does_not_hold_up_the_end() -> None:
    async def main(server: Server) -> None:
        async with Client(server) as client:
            session = await client.new_session()
            head = (
                f"GET /v1/rpc HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nX-ACP-Connection-Id: {client.id}"
            )
            address = httpx.URL(server.url)
            with socket.create_connection((address.host, address.port)) as link:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                link.sendall(head.replace("Host: x", "Host: localhost").encode() + b"\r\n\r\n")
                await client.prompt(session, [["flood", 2000, 4096]])
                begun = time.monotonic()
                assert await asyncio.to_thread(server.stop) == 0
                assert time.monotonic() - begun < SOON

    with Server("--no-persist") as server:
        run(main(server))


@pytest.mark.requirement("11.clean-stop")
def test_being_told_twice_to_stop_is_as_good_as_once() -> None:
    with Server("--no-persist", agents={"stubborn": scripted("--ignore-sigterm", "--ignore-eof")}) as server:

        async def main() -> None:
            async with Client(server, "stubborn") as client:
                await client.new_session()

        run(main())
        server.process.send_signal(signal.SIGINT)
        assert server.stop(signal.SIGINT) == 0


# --- the program ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("11.program")
def test_the_program_and_the_module_are_the_same() -> None:
    program = Path(sysconfig.get_path("scripts")) / "sandbox-agent"

    for command in ([str(program)], [sys.executable, "-m", "sandboxagent"]):
        shown = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=TIMEOUT)
        assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"sandbox-agent {__version__}\n", "")
    helped = subprocess.run([str(program), "server", "--help"], capture_output=True, text=True, timeout=TIMEOUT)
    assert helped.returncode == 0
    assert helped.stdout.startswith("usage: sandbox-agent server")
