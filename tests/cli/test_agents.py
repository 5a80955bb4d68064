"""`sandbox-agent agents list`, `show` and `instructions`: what is known of agents, without a server."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxagent import __version__
from sandboxagent.server.agents.catalog import write_instructions
from sandboxagent.server.agents.manifest import load_manifest
from tests.cli.place import PROGRAM, Place
from tests.support.running import BOUND, scripted

KNOWN = [agent.id for agent in load_manifest(None).agents]
ESCAPE = "\x1b["


def rows(stdout: str) -> dict[str, list[str]]:
    """The rows of a table in a pipe, by their first cell."""
    lines = [line.split() for line in stdout.splitlines()]
    return {cells[0]: cells[1:] for cells in lines}


# --- list -------------------------------------------------------------------------------------------------------------


def test_the_list_has_every_agent_of_the_manifest_in_its_order(place: Place) -> None:
    result = place.run("agents", "list")

    assert (result.returncode, result.stderr) == (0, "")
    table = rows(result.stdout)
    assert list(table) == ["agent", *KNOWN]
    assert table["agent"] == ["installed", "source", "credentials", "supported"]
    assert table["mock"] == [__version__, "bundled", "-", "yes"]
    assert table["claude"] == ["no", "registry", "no", "yes"]
    assert table["amp"] == ["no", "registry", "no", "yes"]


def test_credentials_of_this_environment_count(place: Place) -> None:
    table = rows(place.run("agents", "list", ANTHROPIC_API_KEY="hush").stdout)

    assert (table["claude"][2], table["codex"][2]) == ("yes", "no")


def test_an_own_agent_is_listed_by_whether_its_program_is_there(place: Place) -> None:
    (place.config / "agents.toml").write_text(
        f'[agents.here]\ncommand = ["{sys.executable}"]\n[agents.gone]\ncommand = ["no-such-program"]\n'
    )

    table = rows(place.run("agents", "list").stdout)

    assert table["here"] == ["yes", "path", "-", "yes"]
    assert table["gone"] == ["no", "path", "-", "yes"]


@pytest.mark.parametrize("flag", ["--registry", "--all"])
def test_the_registry_adds_what_else_it_has(place: Place, flag: str) -> None:
    assert "works" not in rows(place.run("agents", "list").stdout)

    table = rows(place.run("agents", "list", flag).stdout)

    assert list(table)[-2:] == ["works", "dies"]
    assert table["works"] == ["no", "registry", "-", "yes"]


def test_a_registry_that_cannot_be_read_is_said_and_the_others_are_listed(place: Place) -> None:
    place.registry.unlink()

    result = place.run("agents", "list", "--registry")

    assert (result.returncode, list(rows(result.stdout))) == (0, ["agent", *KNOWN])
    assert result.stderr.startswith("sandbox-agent: warning: the ACP registry at ")
    assert result.stderr.count("\n") == 1


def test_the_list_as_json_is_the_same(place: Place) -> None:
    listed = place.json("agents", "list", "--registry", "--json")["agents"]

    assert [agent["id"] for agent in listed] == [*KNOWN, "works", "dies"]
    mock, claude = listed[0], listed[1]
    assert (mock["installed"], mock["version"], mock["install"]["source"]) == (True, __version__, "bundled")
    assert (claude["installed"], claude["supported"], claude["credentialsAvailable"]) == (False, True, False)
    assert "version" not in claude
    assert {"kind": "variable", "name": "ANTHROPIC_API_KEY", "found": False} in claude["credentials"]


def test_a_terminal_gets_a_drawn_table_and_with_no_color_a_plain_one(place: Place) -> None:
    code, drawn = place.on_a_terminal("agents", "list")
    _, plain = place.on_a_terminal("agents", "list", NO_COLOR="1")

    assert code == 0
    assert ESCAPE in drawn
    assert "─" in drawn
    assert ESCAPE not in plain
    assert rows(plain)["mock"] == [__version__, "bundled", "-", "yes"]


def test_a_terminal_gets_json_on_lines(place: Place) -> None:
    _, text = place.on_a_terminal("agents", "show", "mock", "--json")

    assert text.count("\n") > 10
    assert json.loads(text)["id"] == "mock"


def test_a_reader_that_leaves_early_gets_no_traceback(place: Place) -> None:
    process = place.start("agents", "list", "--json")
    assert process.stdout is not None
    process.stdout.close()

    assert process.wait(timeout=120) == 141
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


# --- where they look --------------------------------------------------------------------------------------------------


def test_a_flag_wins_over_the_environment_and_that_over_the_file(place: Place, tmp_path: Path) -> None:
    assert place.run("agents", "install", "works", "--agents-dir", str(tmp_path / "flag")).returncode == 0
    (place.config / "config.toml").write_text('agents_dir = "file"')

    def installed(*flags: str, **environ: str) -> bool:
        return place.run("agents", "list", *flags, **environ).stdout.count("works") == 1

    assert installed("--agents-dir", str(tmp_path / "flag"), SANDBOX_AGENT_AGENTS_DIR="elsewhere")
    assert installed(SANDBOX_AGENT_AGENTS_DIR=str(tmp_path / "flag"))
    assert not installed()
    (tmp_path / "flag").rename(place.config / "file")
    assert installed()


def test_settings_that_only_the_server_needs_do_not_matter(place: Place) -> None:
    (place.config / "config.toml").write_text('token_file = "not-there-yet"\nhost = "0.0.0.0"')

    result = place.run("agents", "list", SANDBOX_AGENT_NO_TOKEN="1", SANDBOX_AGENT_PORT="x")

    assert (result.returncode, result.stderr) == (0, "")


def test_a_mistake_in_a_file_is_one_line_and_exit_code_2(place: Place) -> None:
    (place.config / "agents.toml").write_text("[agents.x]\ncomand = ['x']\n")

    result = place.run("agents", "list")

    assert (result.returncode, result.stdout) == (2, "")
    assert "agents.toml, line 2: unknown key comand" in result.stderr
    assert result.stderr.count("\n") == 1


# --- show -------------------------------------------------------------------------------------------------------------


def test_show_has_everything_of_an_installed_agent(place: Place) -> None:
    place.run("agents", "install", "works")

    result = place.run("agents", "show", "works")
    known = place.json("agents", "show", "works", "--json")

    assert result.returncode == 0
    (artifact,) = known["install"]["artifacts"]
    assert artifact["path"].startswith(known["install"]["folder"])
    assert known["install"]["verified"] is True
    assert known["agentInfo"] == {"name": "made-up", "version": "7"}
    for fact in (
        known["version"],
        known["install"]["folder"],
        known["install"]["verifiedAt"],
        known["install"]["node"],
        artifact["path"],
        artifact["sha256"],
        "sandbox-agent agents install works",
        "none needed",
    ):
        assert fact in result.stdout


def test_show_says_what_a_crash_takes_with_it(place: Place) -> None:
    (place.config / "agents.toml").write_text(f"[agents.apart]\n{scripted(isolation='session')}")

    assert "a crash ends the turns of all" in place.run("agents", "show", "mock").stdout
    assert "a crash ends the turn of that session alone" in place.run("agents", "show", "apart").stdout
    assert place.json("agents", "show", "apart", "--json")["isolation"] == "session"


@pytest.mark.requirement("9.provenance")
def test_show_marks_what_is_only_expected_or_inferred(place: Place) -> None:
    before = place.run("agents", "show", "works").stdout
    place.run("agents", "install", "works")
    after = place.run("agents", "show", "works").stdout
    (artifact,) = place.json("agents", "show", "works", "--json")["install"]["artifacts"]

    assert "registry (expected)" in before
    assert "(expected)" not in after
    assert artifact["versionInferred"] is True, "the registry has it as an archive"
    assert "(inferred)" in after


@pytest.mark.requirement("9.offers-before-sessions")
def test_show_asks_an_agent_for_its_models_when_told_to_and_knows_them_then(place: Place) -> None:
    assert "models" not in place.json("agents", "show", "mock", "--json")

    asked = place.json("agents", "show", "mock", "--models", "--json")
    known = place.json("agents", "show", "mock", "--json")
    current = asked["models"]["currentModelId"]

    assert (known["models"], known["modes"]) == (asked["models"], asked["modes"])
    assert f"{current} (current)" in place.run("agents", "show", "mock").stdout
    refused = place.run("agents", "show", "claude", "--models")
    assert refused.returncode == 1
    assert "agents install claude" in refused.stderr


def test_show_says_which_credentials_are_found_and_none_of_their_values(place: Place) -> None:
    (place.home / ".codex").mkdir()
    (place.home / ".codex" / "auth.json").write_text("hush")

    result = place.run("agents", "show", "codex", OPENAI_API_KEY="hush")

    assert [line.split() for line in result.stdout.splitlines() if "found" in line] == [
        ["credentials", "found", "variable", "OPENAI_API_KEY"],
        ["not", "found", "variable", "CODEX_API_KEY"],
        ["found", "file", "~/.codex/auth.json"],
    ]
    assert "hush" not in result.stdout


def test_an_agent_is_found_by_its_slug_and_one_that_only_the_registry_has_too(place: Place) -> None:
    assert place.json("agents", "show", "claude-acp", "--json")["id"] == "claude"
    assert place.json("agents", "show", "works", "--json")["description"] == "Made up."


def test_an_unknown_agent_is_one_line_that_names_the_known_ones(place: Place) -> None:
    result = place.run("agents", "show", "nobody")

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"sandbox-agent: no agent is called 'nobody'; known agents: {', '.join(KNOWN)}\n"


def test_what_others_wrote_cannot_play_with_the_terminal(place: Place) -> None:
    entry = place.binary("sly", "works") | {"name": "Sly\x1b]0;owned\x07", "description": "\x1b[2Jgone"}
    place.write_registry(entry)

    result = place.run("agents", "show", "sly")

    assert result.returncode == 0
    assert "\x1b" not in result.stdout
    assert "Sly?]0;owned?" in result.stdout


# --- instructions -----------------------------------------------------------------------------------------------------


def test_instructions_are_those_of_the_manifest(place: Place) -> None:
    claude = load_manifest(None).find("claude")
    assert claude is not None

    result = place.run("agents", "instructions", "claude")

    assert (result.returncode, result.stdout) == (0, write_instructions(claude) + "\n")


def test_without_a_name_there_are_instructions_for_all(place: Place) -> None:
    result = place.run("agents", "instructions")
    told = place.json("agents", "instructions", "--json")["agents"]

    assert [each["agent"] for each in told] == KNOWN
    for agent in load_manifest(None).agents:
        assert f"{agent.id} ({agent.title})\n  {write_instructions(agent).splitlines()[0]}\n" in result.stdout


# --- what is imported -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "forbidden"),
    [
        (["agents", "list"], {"rich", "httpx", "uvicorn", "starlette", "sqlite3", "uvloop"}),
        (["agents", "--help"], {"rich", "httpx", "asyncio", "msgspec"}),
        (["server", "--help"], {"rich", "httpx", "asyncio", "uvicorn"}),
        (["credentials", "check"], {"rich", "httpx", "uvicorn", "starlette", "sqlite3", "uvloop"}),
        (["api", "v1", "agents", "list", "--help"], {"rich", "httpx", "asyncio"}),
    ],
    ids=["list", "group", "server", "credentials", "api"],
)
def test_a_command_imports_only_what_it_needs(place: Place, line: list[str], forbidden: set[str]) -> None:
    probe = (
        "import atexit, sys\nfrom sandboxagent.cli.main import main\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        f"sys.exit(main({line!r}))"
    )
    result = subprocess.run(
        [PROGRAM[0], "-c", probe], env=place.environment, capture_output=True, text=True, timeout=BOUND
    )

    assert result.returncode == 0
    assert forbidden & set(result.stderr.split()) == set()


def test_importing_the_server_loads_no_client_and_no_progress_bars() -> None:
    """The server also loads no module that its first request does not need."""
    probe = "import sys, sandboxagent.server.main\nprint(*sys.modules)"

    loaded = subprocess.run([PROGRAM[0], "-c", probe], capture_output=True, text=True, timeout=120).stdout.split()

    assert "sandboxagent.server.agents.install.installer" in loaded
    later = {"http.client", "httpx", "importlib.metadata", "rich", "starlette", "zipfile"}
    assert later & set(loaded) == set()
    rooms = (
        "adapters.opencode.app",
        "adapters.mock",
        "adapters.amp",
        "client",
        "fleet.bus",
        "fleet.gateway",
        "fleet.node",
    )
    rooms += ("server.http.openapi", "server.http.ui", "server.http.views")
    assert [name for name in loaded if name.startswith(tuple(f"sandboxagent.{room}" for room in rooms))] == []


def test_text_is_wrapped_on_a_narrow_terminal_between_words(place: Place) -> None:
    for arguments in (["show", "claude"], ["instructions", "claude"], ["instructions"]):
        code, text = place.on_a_terminal("agents", *arguments, COLUMNS="60")

        assert code == 0
        assert [line for line in text.splitlines() if len(line) > 60] == []
        assert "$CLAUDE_CONFIG_DIR/.credentials.json" in text, "words stay whole"
