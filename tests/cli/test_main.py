"""The command line (contract, section 11): help, version, and a user's mistakes, which end with exit code 2."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxagent import __version__
from sandboxagent.core.settings import OPTIONS
from tests.support.program import run_program
from tests.support.running import BOUND


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own, without any setting of this one's environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_AGENT_")}
    return run_program(arguments, {**clean, **environ}, text=True, timeout=120)


@pytest.mark.parametrize(("typed", "meant"), [("--modle", "--model"), ("--mod", "--mode"), ("--qiuet", "--quiet")])
def test_a_flag_that_is_nearly_right_is_offered(typed: str, meant: str) -> None:
    assert f"did you mean {meant}?" in run("run", "mock", typed, "x").stderr


# --- help and version -------------------------------------------------------------------------------------------------


def test_the_version_is_printed() -> None:
    result = run("--version")

    assert (result.returncode, result.stdout) == (0, f"sandbox-agent {__version__}\n")


def test_the_version_needs_neither_the_settings_nor_the_server() -> None:
    probe = (
        "import sys\nfrom sandboxagent.cli.main import main\n"
        "try: main(['--version'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    )

    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120).stdout.split()

    heavy = {
        "asyncio",
        "msgspec",
        "platformdirs",
        "sandboxagent.server.main",
        "sandboxagent.core.settings",
        "tomllib",
    }
    assert "sandboxagent.cli.main" in loaded
    assert heavy & set(loaded) == set()


def test_what_draws_and_edits_is_loaded_when_a_terminal_needs_it() -> None:
    probe = "import sys, sandboxagent.server.main, sandboxagent.cli.chat.run, sandboxagent.cli.chat.run\n"

    loaded = subprocess.run(
        [sys.executable, "-c", probe + "print(*sys.modules)"], capture_output=True, text=True, timeout=BOUND
    ).stdout.split()

    assert "sandboxagent.cli.chat.run" in loaded
    assert {"prompt_toolkit", "rich.markdown"} & set(loaded) == set()


def test_the_grammar_of_a_command_needs_no_network() -> None:
    probe = (
        "import sys\nfrom sandboxagent.cli.main import COMMANDS\n"
        "def load(group):\n"
        "    for word in group.words.values():\n"
        "        found = word.load()\n"
        "        hasattr(found, 'words') and load(found)\n"
        "load(COMMANDS)\nprint(*sys.modules)"
    )

    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120).stdout.split()

    assert "sandboxagent.cli.commands.rpc" in loaded
    assert {"acp", "asyncio", "httpx", "pydantic", "rich", "sandboxagent.server.main"} & set(loaded) == set()


def test_help_lists_the_commands() -> None:
    result = run("--help")

    assert result.returncode == 0
    assert re.search(r"^  server +run the server$", result.stdout, re.MULTILINE)


def test_without_a_command_the_help_comes_as_a_mistake() -> None:
    result = run()

    assert (result.returncode, result.stdout) == (2, "")
    assert "commands:" in result.stderr


def test_help_of_the_server_has_every_flag_with_its_default_and_two_examples() -> None:
    result = run("server", "--help", COLUMNS="400")

    assert result.returncode == 0
    words = " ".join(result.stdout.split())
    for option in OPTIONS:
        assert f"{option.flag} {option.kind.metavar} {option.text}".replace("  ", " ") in words
        assert option.kind.switch or option.default is None or f"{option.text} (default: {option.default})" in words
    assert len(re.findall(r"^  sandbox-agent server ", result.stdout, re.MULTILINE)) == 2


# --- a user's mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["serv"], "unknown command serv; did you mean server?"),
        (["dance"], "unknown command dance; try: sandbox-agent --help"),
        (["--port", "1", "server"], "unknown flag --port; try: sandbox-agent --help"),
        (["server", "--prot", "1"], "unknown flag --prot; did you mean --port?"),
        (["server", "--tokn=hush"], "unknown flag --tokn; did you mean --token?"),
        (["server", "--max-bod", "1"], "unknown flag --max-bod; did you mean --max-body?"),
        (["server", "--xyzzy"], "unknown flag --xyzzy; try: sandbox-agent server --help"),
        (["server", "now"], "unexpected argument 'now'; try: sandbox-agent server --help"),
        (["server", "--port"], "argument --port: expected one argument; try: sandbox-agent server --help"),
        (["server", "--port=x"], "--port: expected a port number from 0 to 65535, got 'x'"),
        (["server", "--port", "1", "--port", "x"], "--port: expected a port number from 0 to 65535, got 'x'"),
        (["server", "--token", "a b"], "--token: expected printable ASCII characters without spaces"),
        (["server", "--no-token", "--token=x"], "--no-token and --token contradict each other; give one of them"),
        (["server", "--allow-host=a", "--allow-host=b c"], "--allow-host: expected a host name or address"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    result = run(*arguments, SANDBOX_AGENT_CONFIG_DIR=str(tmp_path))

    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"sandbox-agent: {complaint}")
    assert result.stderr.count("\n") == 1
    assert "hush" not in result.stderr


def test_wrong_variable_or_config_file_ends_the_program_without_traceback(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("\nprot = 1\n")

    variable = run("server", SANDBOX_AGENT_PORT="x", SANDBOX_AGENT_CONFIG_DIR=str(tmp_path / "none"))
    key = run("server", "--config-dir", str(tmp_path))

    assert (variable.returncode, key.returncode) == (2, 2)
    assert variable.stderr == "sandbox-agent: SANDBOX_AGENT_PORT: expected a port number from 0 to 65535, got 'x'\n"
    assert key.stderr == f"sandbox-agent: {config}, line 2: unknown key prot; did you mean port?\n"
