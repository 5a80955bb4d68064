"""The agents we know and the user's own (contract, sections 9 to 12), and what their processes may see."""

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from sandbox_agent import __version__
from sandbox_agent.agents.manifest import KEYS, Agent, Manifest, OwnAgent, child_environment, load_manifest
from sandbox_agent.errors import SettingsError, UnknownAgent

KNOWN = ["mock", "claude", "codex", "opencode", "gemini", "qwen", "copilot", "pi", "goose", "amp"]
ECHO = '[agents.echo]\ncommand = ["python3", "echo_agent.py"]\n'

LoadFile = Callable[[str], Manifest]


@pytest.fixture
def agents_file(tmp_path: Path) -> Path:
    return tmp_path / "agents.toml"


@pytest.fixture
def load_file(agents_file: Path) -> LoadFile:
    def load_file(text: str) -> Manifest:
        agents_file.write_text(text)
        return load_manifest(agents_file)

    return load_file


# --- the agents we know -----------------------------------------------------------------------------------------------


def test_the_agents_are_those_of_the_contract_in_order() -> None:
    assert [agent.id for agent in load_manifest(None).agents] == KNOWN


def test_the_mock_agent_comes_with_the_package_and_can_be_run() -> None:
    mock = load_manifest(None).find("mock")

    assert (mock.source, mock.installed, mock.version) == ("bundled", True, __version__)
    assert mock.command == (sys.executable, "-m", "sandbox_agent.agents.mock")
    assert mock.path == sys.executable


@pytest.mark.parametrize("id", KNOWN[1:])
def test_every_other_agent_is_pinned_not_installed_and_says_what_to_do(id: str) -> None:
    agent = load_manifest(None).find(id)

    assert (agent.source, agent.installed, agent.command) == ("fallback", False, None)
    assert re.fullmatch(r"\d+(\.\d+)+(-\w+)?", agent.version or "")
    assert agent.credentials
    if agent.supported:
        assert f"npm install --prefix DIR {agent.packages[0].name}@{agent.version}" in agent.instructions
        line = agent.instructions.rpartition("agents.toml: ")[2]
        assert tomllib.loads(line)["agents"][id]["command"]
    else:
        assert agent.unsupported_reason is not None
        assert agent.unsupported_reason in agent.instructions


def test_an_unknown_agent_is_refused_with_the_known_ones(load_file: LoadFile) -> None:
    with pytest.raises(UnknownAgent) as unknown:
        load_file(ECHO).find("ehco")

    assert unknown.value.fields == {"agent": "ehco", "known": [*KNOWN, "echo"]}


# --- own agents -------------------------------------------------------------------------------------------------------


def test_a_missing_file_adds_nothing(agents_file: Path) -> None:
    assert [agent.id for agent in load_manifest(agents_file).agents] == KNOWN


def test_an_own_agent_comes_after_the_known_ones_with_all_that_its_table_says(load_file: LoadFile) -> None:
    manifest = load_file(
        ECHO
        + 'env = { GREETING = "hello" }\ntitle = "Echo"\ndescription = "Repeats."\nisolation = "session"\n'
        + 'credentials = ["ECHO_KEY"]\nvariables = ["ECHO_*"]\nechoes_prompts = true\n'
    )

    echo = manifest.agents[-1]
    assert (echo.id, echo.title, echo.description) == ("echo", "Echo", "Repeats.")
    assert (echo.source, echo.command, echo.env) == ("path", ("python3", "echo_agent.py"), {"GREETING": "hello"})
    assert (echo.isolation, echo.credentials, echo.variables) == ("session", ("ECHO_KEY",), ("ECHO_*",))
    assert (echo.echoes_prompts, echo.version, echo.supported) == (True, None, True)


def test_an_own_agent_needs_no_more_than_a_command(load_file: LoadFile) -> None:
    echo = load_file(ECHO).find("echo")

    assert (echo.title, echo.isolation, echo.env, echo.credentials) == ("echo", "agent", {}, ())


def test_an_own_agent_is_installed_when_its_program_can_be_found_now(load_file: LoadFile, tmp_path: Path) -> None:
    program = tmp_path / "echo-agent"
    by_path = load_file(f'[agents.echo]\ncommand = ["{program}"]').find("echo")
    by_name = load_file(f'[agents.echo]\ncommand = ["echo-agent"]\nenv = {{ PATH = "{tmp_path}" }}').find("echo")
    assert (by_path.installed, by_name.installed) == (False, False)
    assert "must be on PATH" in by_path.instructions

    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    assert (by_path.path, by_name.path) == (str(program), str(program))


def test_an_own_command_replaces_the_program_of_a_known_agent_and_keeps_the_rest(load_file: LoadFile) -> None:
    manifest = load_file('[agents.amp]\ncommand = ["my-amp"]\nenv = { A = "b" }')

    amp = manifest.find("amp")
    assert (amp.source, amp.command, amp.version, amp.packages) == ("path", ("my-amp",), None, ())
    assert (amp.title, amp.credentials, amp.supported) == ("Amp", ("AMP_API_KEY",), True)
    assert amp.env == {"AMP_SKIP_UPDATE_CHECK": "1", "A": "b"}
    assert [agent.id for agent in manifest.agents] == KNOWN


def test_a_known_agent_can_be_changed_without_a_command(load_file: LoadFile) -> None:
    mock = load_file('[agents.mock]\ntitle = "Puppet"\nisolation = "session"').find("mock")

    assert (mock.title, mock.isolation, mock.source, mock.installed) == ("Puppet", "session", "bundled", True)


def test_a_command_is_not_expanded(load_file: LoadFile) -> None:
    assert load_file('[agents.mock]\ncommand = ["{python}", "~/x", "$HOME"]').find("mock").command == (
        "{python}",
        "~/x",
        "$HOME",
    )


def test_values_of_the_environment_are_not_in_the_representation(load_file: LoadFile) -> None:
    assert "hush" not in repr(load_file(ECHO + 'env = { KEY = "hush" }').find("echo"))


# --- what is wrong is named -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("# mine\n\n[agent.echo]\n", 3, "unknown key agent; an agent is a table [agents.<id>]"),
        ("agents = 3", 1, "expected tables [agents.<id>]"),
        ("[agents]\necho = 3", 2, "expected a table [agents.echo]"),
        ('[agents.echo]\ntitle = "Echo"', 1, "agent echo has no command"),
        (f'{ECHO}tilte = "Echo"', 3, "unknown key tilte of agent echo (known: command, env, title, "),
        (f'{ECHO}tilte = "Echo"', 3, "; did you mean title?"),
        (f'{ECHO}[agents.other]\ncomand = ["x"]', 4, "unknown key comand of agent other"),
        ('[agents.a.b]\ncommand = ["x"]', 1, 'an id with a dot is quoted: [agents."a.b"]'),
        (
            '[agents.echo]\ncommand = "x y"',
            2,
            "command of agent echo: expected a list of texts, the program first, got",
        ),
        ("[agents.echo]\ncommand = []", 2, "command of agent echo: expected a list of texts"),
        (f'{ECHO}isolation = "turn"', 3, 'isolation of agent echo: expected "agent" or "session", got \'turn\''),
        (f"{ECHO}[agents.echo.env]\nA = 3", 3, "env of agent echo: expected a table of texts"),
        (f'{ECHO}env = {{ "A=B" = "x" }}', 3, "env of agent echo: expected a table of texts"),
        (f'{ECHO}credentials = "KEY"', 3, "credentials of agent echo: expected a list of names"),
        (f"{ECHO}supported = false", 3, "unknown key supported"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_key(
    load_file: LoadFile, agents_file: Path, text: str, line: int, complaint: str
) -> None:
    with pytest.raises(SettingsError) as wrong:
        load_file(text)

    assert str(wrong.value).startswith(f"{agents_file}, line {line}: ")
    assert complaint in str(wrong.value)


@pytest.mark.parametrize("id", ["Echo", "-echo", ".echo", "_echo", "e cho", "é", "", "a" * 65, "a/b", "a\\n"])
def test_an_id_of_other_characters_is_refused(load_file: LoadFile, id: str) -> None:
    with pytest.raises(SettingsError, match=r"line 1: .* cannot be the id of an agent"):
        load_file(f'[agents."{id}"]\ncommand = ["x"]')


@pytest.mark.parametrize("id", ["0", "a" * 64, "my-agent_2", "a.b"])
def test_an_id_may_have_dots_dashes_and_underscores(load_file: LoadFile, id: str) -> None:
    assert load_file(f'[agents."{id}"]\ncommand = ["x"]').find(id).id == id


def test_a_file_that_is_not_toml_is_named_with_the_line(load_file: LoadFile, agents_file: Path) -> None:
    with pytest.raises(SettingsError, match="line 2") as wrong:
        load_file("[agents.echo]\ncommand = python3\n")

    assert str(wrong.value).startswith(f"{agents_file}: is not TOML")


def test_values_of_the_environment_are_not_in_a_complaint(load_file: LoadFile) -> None:
    with pytest.raises(SettingsError) as wrong:
        load_file(ECHO + 'env = { KEY = "hush", PORT = 80 }')

    assert "hush" not in str(wrong.value)


def test_every_key_is_documented() -> None:
    assert list(KEYS) == [info.name for info in structs.fields(OwnAgent)]


# --- what a process may see -------------------------------------------------------------------------------------------


@pytest.fixture
def agent(load_file: LoadFile) -> Agent:
    return load_file(
        ECHO + 'env = { GREETING = "hello", LANG = "C" }\ncredentials = ["ECHO_KEY"]\nvariables = ["ECHO_OPTION_*"]\n'
    ).find("echo")


def test_a_process_sees_what_is_listed_and_nothing_else(agent: Agent) -> None:
    listed = ["PATH", "HOME", "USER", "SHELL", "LC_ALL", "TZ", "TERM", "TMPDIR", "XDG_CACHE_HOME", "SSL_CERT_FILE"]
    listed += ["NODE_EXTRA_CA_CERTS", "https_proxy", "HTTPS_PROXY", "NO_PROXY", "ECHO_KEY", "ECHO_OPTION_A"]
    unlisted = ["AWS_SECRET_ACCESS_KEY", "ANTHROPIC_API_KEY", "LD_PRELOAD", "DISPLAY", "SSH_AUTH_SOCK", "path"]

    environment = child_environment(agent, dict.fromkeys([*listed, *unlisted], "x"), {})

    assert environment == {**dict.fromkeys(listed, "x"), "GREETING": "hello", "LANG": "C"}


def test_the_agents_own_variables_win_over_the_servers_and_the_callers_over_both(agent: Agent) -> None:
    environment = child_environment(agent, {"LANG": "de", "TZ": "UTC"}, {"GREETING": "bye"})

    assert environment == {"LANG": "C", "TZ": "UTC", "GREETING": "bye"}


def test_the_servers_own_settings_are_never_passed_on_even_when_an_agent_lists_them(load_file: LoadFile) -> None:
    greedy = load_file(ECHO + 'credentials = ["SANDBOX_AGENT_TOKEN"]\nvariables = ["*"]').find("echo")
    environ = {"SANDBOX_AGENT_TOKEN": "t", "SANDBOX_AGENT_PORT": "1", "ANY": "x"}

    assert child_environment(greedy, environ, {"SANDBOX_AGENT_PROCESS": "7"}) == {
        "ANY": "x",
        "SANDBOX_AGENT_PROCESS": "7",
    }


def test_a_secret_is_dropped_under_whatever_name_it_comes(load_file: LoadFile) -> None:
    agent = load_file(ECHO + 'env = { MINE = "t0ken", OTHER = "x" }\ncredentials = ["KEY"]').find("echo")

    environment = child_environment(agent, {"KEY": "t0ken", "HOME": "/h"}, {"EXTRA": "t0ken"}, secrets={"t0ken"})

    assert environment == {"HOME": "/h", "OTHER": "x"}
