"""`sandbox-agent api v1 agents …`: calls of a running server, its token, and what is said when there is none."""

import json
import socket
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.cli.place import Place, interrupt
from tests.support.running import TOKEN, Server

LIST = ("api", "v1", "agents", "list")
GET = ("api", "v1", "agents", "get")
INSTALL = ("api", "v1", "agents", "install")


@pytest.fixture
def server(place: Place) -> Generator[Server]:
    """A server with the made-up registry."""
    with Server("--acp-registry-url", str(place.registry), environment={"HOME": str(place.home)}) as running:
        yield running


def reach(server: Server) -> dict[str, str]:
    """The variables with which it is reached."""
    return {"SANDBOX_AGENT_ENDPOINT": server.url, "SANDBOX_AGENT_TOKEN": TOKEN}


# --- calls ------------------------------------------------------------------------------------------------------------


def test_list_and_get_print_what_the_server_answers(place: Place, server: Server) -> None:
    listed = place.json(*LIST, **reach(server))["agents"]
    more = place.json(*LIST, "--registry", **reach(server))["agents"]
    one = place.json(*GET, "mock", **reach(server))

    assert "scripted" in [agent["id"] for agent in listed]
    assert {agent["id"] for agent in more} - {agent["id"] for agent in listed} == {"works", "dies"}
    same = next(agent for agent in listed if agent["id"] == "mock")
    # The request for one agent begins to ask it what it offers.
    assert one == {**same, "offers": "asking"}


def test_a_flag_wins_over_the_variables(place: Place, server: Server, tmp_path: Path) -> None:
    (tmp_path / "token.txt").write_text(TOKEN + "\n")
    wrong = {"SANDBOX_AGENT_ENDPOINT": "http://127.0.0.1:1", "SANDBOX_AGENT_TOKEN": "wrong"}

    by_token = place.run(*GET, "mock", "--endpoint", server.url + "/", "--token", TOKEN, **wrong)
    by_file = place.run(*GET, "mock", "--endpoint", server.url, "--token-file", str(tmp_path / "token.txt"), **wrong)

    assert (by_token.returncode, by_file.returncode) == (0, 0), by_token.stderr + by_file.stderr


def test_install_shows_progress_on_stderr_and_the_result_on_stdout(place: Place, server: Server) -> None:
    result = place.run(*INSTALL, "works", **reach(server))

    assert result.returncode == 0
    told = json.loads(result.stdout)
    assert (told["agent"], told["alreadyInstalled"], told["version"], told["verified"]) == (
        "works",
        False,
        "1.2.3",
        True,
    )
    assert result.stderr.startswith("works: ")
    again = place.json(*INSTALL, "works", **reach(server))
    assert again["alreadyInstalled"] is True


def test_install_passes_on_what_is_asked_for(place: Place, server: Server) -> None:
    first = place.json(*INSTALL, "works", **reach(server))
    anew = place.json(*INSTALL, "works", "--reinstall", "--agent-process-version", "1.2.3", **reach(server))
    other = place.run(*INSTALL, "works", "--agent-version", "9", **reach(server))

    assert anew["alreadyInstalled"] is False
    assert anew["artifacts"][0]["path"] != first["artifacts"][0]["path"]
    assert other.returncode == 1
    assert "sandbox-agent: Unknown Version: agent works comes as an archive" in other.stderr


def test_a_terminal_gets_a_bar_and_then_the_result(place: Place, server: Server) -> None:
    code, text = place.on_a_terminal(*INSTALL, "works", **reach(server))

    assert code == 0
    assert "━" in text
    assert '"agent": "works"' in text


def test_a_problem_is_one_line_and_the_last_of_what_the_program_wrote(place: Place, server: Server) -> None:
    unknown = place.run(*GET, "nobody", **reach(server))
    dies = place.run(*INSTALL, "dies", **reach(server))

    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr.startswith("sandbox-agent: Unknown Agent: no agent is called 'nobody'; known agents: mock,")
    assert unknown.stderr.count("\n") == 1
    assert (dies.returncode, dies.stdout) == (1, "")
    told = [line for line in dies.stderr.splitlines() if not line.startswith("dies: ")]
    assert told[0].startswith("sandbox-agent: Install Failed: agent dies was fetched but does not work")
    assert told[1:] == ["  | ?[31mcannot find my heart", "  | out of it"]


def test_interrupted_install_goes_on_at_the_server(place: Place, server: Server) -> None:
    place.write_registry(place.binary("hangs", "hangs"))
    process = place.start(*INSTALL, "hangs", **reach(server))
    assert process.stderr is not None
    while (line := process.stderr.readline()) != "hangs: starting it to see that it works\n":
        assert line.startswith("hangs: "), "progress comes while the install is under way"

    code, stdout, stderr = interrupt(process)

    assert (code, stdout) == (130, "")
    assert stderr.endswith("sandbox-agent: interrupted; the server continues to install hangs\n")
    assert "Traceback" not in stderr
    assert place.json(*GET, "hangs", **reach(server))["serverStatus"]["status"] == "installing"


# --- the token --------------------------------------------------------------------------------------------------------


@pytest.mark.server_alone("the data directory of a server on this machine has its address and its token")
@pytest.mark.parametrize("flags", [[], ["--no-persist"]])
def test_the_token_that_a_local_server_made_is_found_by_itself(place: Place, flags: list[str]) -> None:
    with Server(*flags, token=None) as server:
        data = str(server.directory / "data")

        found = place.run(*GET, "mock", "--endpoint", server.url, "--data-dir", data)
        elsewhere = place.run(*GET, "mock", "--endpoint", server.url)

    assert found.returncode == 0, found.stderr
    assert elsewhere.returncode == 1


def test_the_token_of_config_toml_is_found_by_itself(place: Place, server: Server) -> None:
    (place.config / "config.toml").write_text(f'token = "{TOKEN}"')

    assert place.run(*GET, "mock", "--endpoint", server.url).returncode == 0


def test_without_the_right_token_it_says_how_to_give_it(place: Place, server: Server) -> None:
    result = place.run(*LIST, "--endpoint", server.url, "--token", "wrong-hush")

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("sandbox-agent: Unauthorized: ")
    assert result.stderr.endswith("; on the command line: --token, --token-file or SANDBOX_AGENT_TOKEN\n")
    assert "hush" not in result.stderr


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.server_alone("the data directory of a server on this machine has its address and its token")
def test_the_server_on_the_data_directory_is_found_on_whichever_port(place: Place) -> None:
    with Server(token=None) as server:
        found = place.run(*GET, "mock", "--data-dir", str(server.directory / "data"))

    assert found.returncode == 0, found.stderr


def test_without_a_server_it_says_how_to_start_one(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"

    for line in ([*LIST], [*INSTALL, "mock"]):
        result = place.run(*line, "--endpoint", url)

        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.startswith(f"sandbox-agent: no server answers at {url} (")
        assert result.stderr.endswith("; start one with: sandbox-agent server\n")
        assert result.stderr.count("\n") == 1


def test_the_endpoint_is_no_setting_that_the_server_warns_of(place: Place) -> None:
    result = place.run("agents", "list", SANDBOX_AGENT_ENDPOINT="http://box")

    assert (result.returncode, result.stderr) == (0, "")


class _Strange(BaseHTTPRequestHandler):
    """Answers like anything but sandbox-agent."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<h1>hello</h1>")

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b'event: progress\ndata: {"stage": "fetching", "message": "half of it"}\n\n')

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_an_answer_of_something_else_is_one_line(place: Place) -> None:
    with HTTPServer(("127.0.0.1", 0), _Strange) as strange:
        thread = Thread(target=strange.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{strange.server_port}"
        got = place.run(*LIST, "--endpoint", url)
        cut = place.run(*INSTALL, "mock", "--endpoint", url)
        strange.shutdown()
        thread.join()

    assert (got.returncode, cut.returncode) == (1, 1)
    assert got.stderr == (
        f"sandbox-agent: {url} does not answer like sandbox-agent (status 200); name another with --endpoint\n"
    )
    assert cut.stderr == (
        f"mock: half of it\nsandbox-agent: {url} ended its answer before the install of mock had ended; it may go on\n"
    )
