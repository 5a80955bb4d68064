"""The agents we know and the user's own (contract, sections 9 to 12), and what their processes may see."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from sandboxagent.protocol.errors import SettingsError
from sandboxagent.server.agents.environment import allowed_environment, child_environment
from sandboxagent.server.agents.manifest import KEYS, Agent, Manifest, OwnAgent, load_manifest

KNOWN = ["mock", "claude", "codex", "opencode", "gemini", "qwen", "copilot", "pi", "goose", "amp"]
ECHO = '[agents.echo]\ncommand = ["python3", "echo_agent.py"]\n'

LoadFile = Callable[[str], Manifest]


def found(manifest: Manifest, id: str) -> Agent:
    agent = manifest.find(id)
    assert agent is not None, id
    return agent


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
    mock = found(load_manifest(None), "mock")

    assert (mock.source, mock.installable) == ("bundled", False)
    assert mock.command == (sys.executable, "-m", "sandboxagent.adapters.mock")


@pytest.mark.parametrize("id", KNOWN[1:])
def test_every_other_agent_can_be_installed_from_the_registry_or_by_a_pin(id: str) -> None:
    agent = found(load_manifest(None), id)

    assert agent.installable
    assert agent.registry
    assert agent.credentials
    assert agent.credential_files
    assert agent.features is not None
    if not agent.supported:
        assert (agent.source, agent.packages) == ("registry", ())
        assert agent.unsupported_reason
        return
    assert agent.source == "fallback"
    assert agent.command
    for package in agent.packages:
        assert re.fullmatch(r"\d+(\.\d+)+(-\w+)?", package.version)
        pins = package.integrity.values() if isinstance(package.integrity, dict) else [package.integrity]
        assert all(re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", pin or "") for pin in pins)


def test_no_two_agents_have_the_same_slug() -> None:
    agents = load_manifest(None).agents
    slugs = [slug for agent in agents for slug in agent.registry]

    assert sorted(slugs) == sorted(set(slugs))
    assert not {agent.id for agent in agents if agent.id not in agent.registry} & set(slugs)


def test_how_attachments_are_told_is_known_of_agents_and_may_be_said(load_file: LoadFile) -> None:
    manifest = load_file(
        f'{ECHO}[agents.claude]\nattachments = "text"\n[agents.own]\ncommand = ["x"]\nattachments = "text-link"'
    )

    told = {id: found(manifest, id).attachments for id in ("qwen", "claude", "own", "echo")}
    assert told == {"qwen": "text", "claude": "text", "own": "text-link", "echo": "link"}


def test_an_unknown_agent_is_not_found(load_file: LoadFile) -> None:
    assert load_file(ECHO).find("ehco") is None


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
    assert (echo.echoes_prompts, echo.installable, echo.supported) == (True, False, True)


def test_an_own_agent_needs_no_more_than_a_command(load_file: LoadFile) -> None:
    echo = found(load_file(ECHO), "echo")

    assert (echo.title, echo.isolation, echo.env, echo.credentials) == ("echo", "agent", {}, ())


def test_an_own_command_replaces_the_program_of_a_known_agent_and_keeps_the_rest(load_file: LoadFile) -> None:
    manifest = load_file('[agents.amp]\ncommand = ["my-amp"]\nenv = { A = "b" }')

    amp = found(manifest, "amp")
    assert (amp.source, amp.command, amp.packages, amp.registry) == ("path", ("my-amp",), (), ())
    assert (amp.title, amp.credentials, amp.supported) == ("Amp", ("AMP_API_KEY",), True)
    assert amp.env == {"AMP_SKIP_UPDATE_CHECK": "1", "A": "b"}
    assert [agent.id for agent in manifest.agents] == KNOWN


def test_only_agents_whose_sessions_end_each_other_have_a_process_for_each(load_file: LoadFile) -> None:
    apart = [agent.id for agent in load_manifest(None).agents if agent.isolation == "session"]
    pi = found(load_file('[agents.pi]\nisolation = "agent"'), "pi")

    assert apart == ["pi"]
    assert pi.isolation == "agent"


def test_a_known_agent_can_be_changed_without_a_command(load_file: LoadFile) -> None:
    mock = found(load_file('[agents.mock]\ntitle = "Puppet"\nisolation = "session"'), "mock")

    assert (mock.title, mock.isolation, mock.source) == ("Puppet", "session", "bundled")
    assert mock.command == (sys.executable, "-m", "sandboxagent.adapters.mock")


def test_an_own_agent_may_name_a_slug_of_the_registry_instead_of_a_command(load_file: LoadFile) -> None:
    mine = found(load_file('[agents.mine]\nregistry = "some-agent"\nenv = { A = "b" }'), "mine")

    assert (mine.source, mine.registry, mine.command, mine.installable) == ("registry", ("some-agent",), (), True)
    assert mine.env == {"A": "b"}


def test_an_own_slug_replaces_the_pins_of_a_known_agent(load_file: LoadFile) -> None:
    pi = found(load_file('[agents.pi]\nregistry = "another-pi"'), "pi")

    assert (pi.source, pi.registry, pi.packages, pi.native) == ("registry", ("another-pi",), (), None)
    assert pi.credentials == found(load_manifest(None), "pi").credentials
    amp = found(load_file('[agents.amp]\nregistry = "my-amp"'), "amp")
    assert (amp.supported, amp.packages, amp.adapter) == (True, (), None)


def test_an_empty_list_of_slugs_keeps_our_pins_whatever_the_registry_has(load_file: LoadFile) -> None:
    amp, pinned = found(load_file("[agents.amp]\nregistry = []"), "amp"), found(load_manifest(None), "amp")

    assert (amp.registry, amp.source) == ((), "fallback")
    assert (amp.packages, amp.adapter) == (pinned.packages, pinned.adapter)
    with pytest.raises(SettingsError, match="agent mine has neither a command"):
        load_file("[agents.mine]\nregistry = []")


def test_a_command_is_not_expanded(load_file: LoadFile) -> None:
    assert found(load_file('[agents.mock]\ncommand = ["{python}", "~/x", "$HOME"]'), "mock").command == (
        "{python}",
        "~/x",
        "$HOME",
    )


def test_values_of_the_environment_are_not_in_the_representation(load_file: LoadFile) -> None:
    assert "hush" not in repr(found(load_file(ECHO + 'env = { KEY = "hush" }'), "echo"))


# --- what is wrong is named -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("# mine\n\n[agent.echo]\n", 3, "unknown key agent; an agent is a table [agents.<id>]"),
        ("agents = 3", 1, "expected tables [agents.<id>]"),
        ("[agents]\necho = 3", 2, "expected a table [agents.echo]"),
        ('[agents.echo]\ntitle = "Echo"', 1, "agent echo has neither a command, which is "),
        (f'{ECHO}tilte = "Echo"', 3, "unknown key tilte of agent echo (known: command, registry, env, title, "),
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
        (f'{ECHO}attachments = "words"', 3, 'attachments of agent echo: expected "link", "file-link", "text-link" or'),
        (f"{ECHO}supported = false", 3, "unknown key supported"),
        (f'{ECHO}registry = "x"', 3, "agent echo has both a command and a registry slug"),
        (
            "[agents.echo]\nregistry = 3",
            2,
            "registry of agent echo: expected a slug of the ACP registry, or [] for none, got 3",
        ),
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
    assert found(load_file(f'[agents."{id}"]\ncommand = ["x"]'), id).id == id


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
    table = 'env = { GREETING = "hello", LANG = "C" }\ncredentials = ["ECHO_KEY"]\nvariables = ["ECHO_OPTION_*"]\n'
    return found(load_file(ECHO + table), "echo")


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
    greedy = found(load_file(ECHO + 'credentials = ["SANDBOX_AGENT_TOKEN"]\nvariables = ["*"]'), "echo")
    environ = {"SANDBOX_AGENT_TOKEN": "t", "SANDBOX_AGENT_PORT": "1", "ANY": "x"}

    assert child_environment(greedy, environ, {"SANDBOX_AGENT_OWNER": "7"}) == {
        "ANY": "x",
        "SANDBOX_AGENT_OWNER": "7",
    }


def test_a_secret_is_dropped_under_whatever_name_it_comes(load_file: LoadFile) -> None:
    agent = found(load_file(ECHO + 'env = { MINE = "t0ken", OTHER = "x" }\ncredentials = ["KEY"]'), "echo")

    environment = child_environment(agent, {"KEY": "t0ken", "HOME": "/h"}, {"EXTRA": "t0ken"}, secrets={"t0ken"})

    assert environment == {"HOME": "/h", "OTHER": "x"}


def test_random_variable_is_new_for_each_process_unless_given() -> None:
    opencode = found(load_manifest(None), "opencode")
    name = "OPENCODE_SERVER_PASSWORD"

    first, second = child_environment(opencode, {}, {})[name], child_environment(opencode, {}, {})[name]

    assert len(first) >= 32
    assert first != second
    assert child_environment(opencode, {name: "mine"}, {})[name] == "mine"


def test_an_agent_sees_its_own_credentials_and_not_those_of_others() -> None:
    manifest = load_manifest(None)
    everybodys = {name: "x" for agent in manifest.agents for name in agent.credentials}

    for agent in manifest.agents:
        seen = set(child_environment(agent, everybodys, {})) & everybodys.keys()
        assert seen >= set(agent.credentials)
        assert "AMP_API_KEY" not in seen or agent.id == "amp"
        assert "ANTHROPIC_API_KEY" not in seen or agent.id in ("claude", "opencode", "pi", "goose")


def test_more_names_may_be_allowed_but_never_the_servers_own_settings() -> None:
    environ = {"HOME": "/h", "npm_config_registry": "r", "NPM_TOKEN": "t", "KEY": "k", "SANDBOX_AGENT_TOKEN": "s"}

    assert allowed_environment(environ, ()) == {"HOME": "/h"}
    assert set(allowed_environment(environ, ("npm_config_*", "NPM_*"))) == {"HOME", "npm_config_registry", "NPM_TOKEN"}
    assert "SANDBOX_AGENT_TOKEN" not in allowed_environment(environ, ("*",))
