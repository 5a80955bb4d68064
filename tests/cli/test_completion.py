"""`sandbox-agent completion`: what could stand at the end of a line, and real shells that ask for it."""

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from argparse import SUPPRESS
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from sandboxagent.cli.completion import (
    NOTHING,
    SCRIPTS,
    SHELLS,
    TIMEOUT,
    VALUES,
    Candidates,
    Values,
    agents,
    candidates,
    remote_paths,
    sessions,
    split_line,
)
from sandboxagent.cli.main import COMMANDS
from sandboxagent.cli.parser import Command, CommandGroup, Parser, Subcommand
from tests.cli.place import LONGEST, Place
from tests.support.client import Client, run
from tests.support.running import TOKEN, Server, scripted

BREAKS = " \t\n\"'><=;|&(:"
"""Where bash begins a new word."""


def words(found: Candidates) -> list[str]:
    assert found.kind == "words"
    return [word for word, _ in found.words]


# --- the whole tree ---------------------------------------------------------------------------------------------------


def everything(
    below: Command | CommandGroup = COMMANDS, *path: str
) -> Iterator[tuple[tuple[str, ...], Command | CommandGroup]]:
    yield path, below
    if isinstance(below, CommandGroup):
        for name, word in below.words.items():
            yield from everything(word.load(), *path, name)


EVERYTHING = {" ".join(path): each for path, each in everything()}


@pytest.mark.parametrize("path", EVERYTHING)
def test_every_word_and_flag_is_completed(path: str) -> None:
    below = EVERYTHING[path]

    offered = candidates(COMMANDS, [*path.split(), "-"], VALUES)

    parser = below.parser() if isinstance(below, CommandGroup) else below.parser
    shown = [action for action in parser.actions() if action.help is not SUPPRESS]
    assert words(offered) == [*(flag for action in shown for flag in action.option_strings), "-h", "--help"]
    assert all(text for _, text in offered.words)
    if isinstance(below, CommandGroup):
        assert candidates(COMMANDS, [*path.split(), ""], VALUES).words == [
            (name, word.summary) for name, word in below.words.items()
        ]


LOOKED_UP: dict[str, Values] = {metavar: lambda given, current: [("found", "")] for metavar in VALUES}


@pytest.mark.parametrize("path", [path for path, each in EVERYTHING.items() if isinstance(each, Command)])
def test_every_flag_with_a_value_says_what_it_takes(path: str) -> None:
    command = EVERYTHING[path]
    assert isinstance(command, Command)
    for action in command.parser.actions():
        for flag in action.option_strings if action.nargs != 0 else []:
            beside = candidates(COMMANDS, [*path.split(), flag, ""], LOOKED_UP)
            inside = candidates(COMMANDS, [*path.split(), f"{flag}="], LOOKED_UP)

            assert (inside.kind, [word for word, _ in inside.words]) == (
                beside.kind,
                [f"{flag}={word}" for word, _ in beside.words],
            )
            if action.metavar in ("PATH", *VALUES):
                assert beside != NOTHING


# --- one line ---------------------------------------------------------------------------------------------------------


def _parser() -> Parser:
    parser = Parser("x do", "", "")
    parser.add_argument("first", metavar="one|two", help="The first.")
    parser.add_argument("rest", metavar="NAME", nargs="*", help="The rest.")
    parser.add_argument("--level", "-l", choices=["low", "high"], help="100%% or less.")
    parser.add_argument("--on", action="store_true", help="On.")
    parser.add_argument("--also", metavar="NAME", action="append", help="Also.")
    parser.add_argument("--pair", metavar="NAME", nargs=2, help="Two of them.")
    parser.add_argument("--maybe", metavar="NAME", nargs="?", help="One or none.")
    parser.add_argument("--file", metavar="PATH", help="A file.")
    parser.add_argument("--work-dir", metavar="PATH", help="A directory.")
    parser.add_argument("--text", metavar="TEXT", help="Anything.")
    parser.add_argument("--hidden", action="store_true", help=SUPPRESS)
    return parser


GROUP = CommandGroup("x", "", "", {"do": Subcommand("do it", lambda: Command(_parser(), lambda arguments: 0))})
NAMES: dict[str, Values] = {"NAME": lambda given, current: [("ann", "Ann"), ("bob", f"Bob {given.get('text', '')}")]}
FLAGS = ["--level", "-l", "--on", "--also", "--pair", "--maybe", "--file", "--work-dir", "--text", "-h", "--help"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", ["do"]),
        ("do ", ["one", "two"]),
        ("do one ", ["ann", "bob"]),
        ("do one ann ", ["bob"]),
        ("do --on ", ["one", "two"]),
        ("do --level ", ["low", "high"]),
        ("do -l ", ["low", "high"]),
        ("do --level=", ["--level=low", "--level=high"]),
        ("do --level low ", ["one", "two"]),
        ("do --level=low ", ["one", "two"]),
        ("do --also ", ["ann", "bob"]),
        ("do --pair ann ", ["ann", "bob"]),
        ("do --pair ann bob ", ["one", "two"]),
        ("do --maybe ", ["ann", "bob"]),
        ("do --maybe -", [flag for flag in FLAGS if flag != "--maybe"]),
        ("do -", FLAGS),
        ("do one -", FLAGS),
        ("do --on --also ann -", [flag for flag in FLAGS if flag != "--on"]),
        ("do -l low -", [flag for flag in FLAGS if flag not in ("--level", "-l")]),
        ("do one -- ", ["ann", "bob"]),
        ("do one -- -", ["ann", "bob"]),
        ("do --text ", []),
        ("do --on=", []),
        ("do --unknown=", []),
        ("do --unknown ", ["one", "two"]),
        ("other ", []),
        ("--help ", []),
    ],
)
def test_what_may_follow_is_offered(line: str, expected: list[str]) -> None:
    assert words(candidates(GROUP, line.split(" "), NAMES)) == expected


@pytest.mark.parametrize(
    ("line", "kind", "before"),
    [
        ("do --file ", "files", ""),
        ("do --file=", "files", "--file="),
        ("do --work-dir ", "directories", ""),
        ("do --work-dir=/t", "directories", "--work-dir="),
    ],
)
def test_paths_are_left_to_the_shell(line: str, kind: str, before: str) -> None:
    assert candidates(GROUP, line.split(" "), NAMES) == Candidates(kind=kind, before=before)  # type: ignore[arg-type]


def test_a_command_without_words_left_offers_its_flags() -> None:
    offered = words(candidates(COMMANDS, ["server", "--port", "1", ""], VALUES))

    assert "--host" in offered
    assert "--port" not in offered


def test_values_know_the_flags_that_were_given_and_texts_are_as_in_help() -> None:
    found = candidates(GROUP, ["do", "one", "--text=ross", ""], NAMES)
    flags = dict(candidates(GROUP, ["do", "-"], NAMES).words)

    assert dict(found.words)["bob"] == "Bob ross"
    assert flags["--level"] == "100% or less."


# --- agents -----------------------------------------------------------------------------------------------------------


def test_agents_are_those_of_the_manifest_of_agents_toml_and_installed_ones(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text(f"[agents.mine]\n{scripted()}")
    for folder in ("data/agents/works", "data/agents/.registry", "data/agents/Not an id"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "installed.json").touch()
    entry = {"id": "listed", "name": "Listed", "version": "1", "description": "", "distribution": {}}
    entry["distribution"] = {"npx": {"package": "listed@1"}}
    known = entry | {"id": "claude-acp"}
    registry = {"version": "1.0.0", "agents": [entry, known]}
    (tmp_path / "data/agents/.registry/registry.json").write_text(json.dumps(registry))
    given = {"config_dir": str(tmp_path), "data_dir": str(tmp_path / "data")}

    without = dict(agents(given, ""))
    typed = dict(agents(given, "l"))

    assert without["claude"] == "Claude Code"
    assert {"mock", "mine", "works"} <= without.keys()
    assert "Not an id" not in without
    assert typed == without | {"listed": "Listed"}, "the registry's, but for what is known by another name"


def test_a_mistake_in_agents_toml_leaves_the_built_in_agents(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text("[agents")

    assert "claude" in dict(agents({"config_dir": str(tmp_path)}, ""))


# --- what a server has ------------------------------------------------------------------------------------------------


def reach(server: Server) -> dict[str, str]:
    """How a shell finds it; a busy machine takes longer than a person would wait."""
    return {"SANDBOX_AGENT_ENDPOINT": server.url, "SANDBOX_AGENT_TOKEN": TOKEN, TIMEOUT: "60"}


def furnish(server: Server) -> None:
    (Path(server.work) / "new folder").mkdir()
    for name in ("notes.txt", ".hidden", "new folder/inside.txt"):
        (Path(server.work) / name).touch()


async def one_session(server: Server) -> str:
    async with Client(server) as client:
        return await client.new_session()


def test_sessions_and_files_of_a_server_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TIMEOUT, "60")
    with Server() as server:
        furnish(server)
        session = run(one_session(server))
        given = {"endpoint": server.url, "token": TOKEN}

        listed = sessions(given, "")
        here = remote_paths(given | {"session": session}, "")
        hidden = remote_paths(given | {"session": session}, ".")
        below = remote_paths(given, f"{server.work}/new folder/in")
        nowhere = remote_paths(given, "/nonexistent/")
        refused = sessions(given | {"token": "wrong"}, "")

    assert listed == [(session, f"scripted: {server.work}")]
    assert [path for path, _ in here] == ["new folder/", "notes.txt"]
    assert [path for path, _ in hidden] == [".hidden", "new folder/", "notes.txt"]
    assert [path for path, _ in below] == [f"{server.work}/new folder/inside.txt"]
    assert (nowhere, refused, sessions(given, "")) == ([], [], [])


# --- the answer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected", "quoted"),
    [
        ("x", ["x"], False),
        ("x ", ["x", ""], False),
        ("x a", ["x", "a"], False),
        ('x "a b', ["x", "a b"], True),
        ("x 'a \"b", ["x", 'a "b'], True),
        ("x a\\ b", ["x", "a b"], False),
        ("x a\\", ["x", "a"], False),
        ('x "a b" ', ["x", "a b", ""], False),
    ],
)
def test_a_line_is_split_as_shells_do(line: str, expected: list[str], quoted: bool) -> None:
    assert split_line(line) == (expected, quoted)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sandbox-agent ser", ["words", "server"]),
        ("sandbox-agent server --log-level=d", ["words", "debug"]),
        ('sandbox-agent server "--log-level=d', ["words", "--log-level=debug"]),
        ("sandbox-agent fs put ", ["files"]),
        ("sandbox-agent server --token-file=x", ["files"]),
        ("sandbox-agent xyzzy ", ["words"]),
    ],
)
def test_bash_gets_what_fits_after_its_last_break(place: Place, line: str, expected: list[str]) -> None:
    result = place.run("__complete", "bash", line, BREAKS)

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == expected


def test_zsh_and_fish_get_all_with_descriptions(place: Place) -> None:
    zsh = place.run("__complete", "zsh", "agents", "li").stdout.splitlines()
    fish = place.run("__complete", "fish", "agents", "li").stdout.splitlines()

    assert zsh[:2] == ["words", "list:all agents, and which are installed"]
    assert fish[:2] == ["words", "list\tall agents, and which are installed"]
    assert len(zsh) == len(fish) == 6


def test_the_tab_key_needs_neither_network_nor_processes() -> None:
    probe = (
        "import sys\nfrom sandboxagent.cli.main import main\n"
        "main(['__complete', 'zsh', 'agents', 'install', 'c'])\nprint(*sys.modules)"
    )

    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=LONGEST).stdout

    assert "sandboxagent.cli.completion" in loaded.split()
    assert {"asyncio", "httpx", "psutil", "rich", "subprocess", "sandboxagent.server.main"} & set(
        loaded.split()
    ) == set()


def test_a_script_is_printed_and_another_shell_is_a_mistake(place: Place) -> None:
    for shell in SHELLS:
        assert place.run("completion", shell).stdout == SCRIPTS[shell]
    other = place.run("completion", "tcsh")

    assert (other.returncode, other.stdout) == (2, "")
    assert "invalid choice: 'tcsh'" in other.stderr
    assert other.stderr.count("\n") == 1


# --- real shells ------------------------------------------------------------------------------------------------------


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on this machine")
    return found


@pytest.fixture
def desk(place: Place) -> Place:
    """A place with the program on its PATH, and a few files to name."""
    programs = place.directory / "bin"
    programs.mkdir()
    program = programs / "sandbox-agent"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sandboxagent "$@"\n')
    program.chmod(0o755)
    (place.home / "token.txt").touch()
    (place.home / "toys and more").mkdir()
    (place.home / "toys and more/inside.txt").touch()
    return place


def environment(desk: Place) -> dict[str, str]:
    path = f"{desk.directory / 'bin'}:{desk.environment['PATH']}"
    return {**desk.environment, "PATH": path, "TERM": "dumb", "INPUTRC": "/dev/null", "HISTFILE": "/dev/null"}


@pytest.mark.parametrize("name", SHELLS)
def test_a_script_is_understood_by_its_shell(name: str) -> None:
    result = subprocess.run([shell(name), "-n"], input=SCRIPTS[name], capture_output=True, text=True, timeout=LONGEST)

    assert (result.returncode, result.stderr) == (0, "")


LINES = {
    "sandbox-agent agents instal\tclau\t --js\t": ["agents", "install", "claude", "--json"],
    "sandbox-agent server --log-level=de\t --token-file tok\t": [
        *("server", "--log-level=debug", "--token-file", "token.txt")
    ],
    "sandbox-agent server --token-file=tok\t --no-tok\t": ["server", "--token-file=token.txt", "--no-token"],
    "sandbox-agent server --data-dir to\t": ["server", "--data-dir", "toys and more"],
    "sandbox-agent server --data-dir=to\t": ["server", "--data-dir=toys and more"],
    'sandbox-agent agents show "clau\t': ["agents", "show", "claude"],
    "true; X=1 sandbox-agent creden\tch\t": ["credentials", "check"],
    "sandbox-agent comp\tfi\t": ["completion", "fish"],
}


def typed(desk: Place, command: list[str], setup: str, lines: Collection[str], **more: str) -> list[list[str]]:
    """What the program would have been called with, for each of the lines typed into a shell."""
    # The script asks the file of that name; the function is what the lines call.
    setup += " sandbox-agent() { printf 'CALLED'; printf '\\037%s' \"$@\"; echo; }"
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, env={**environment(desk), **more}, cwd=desk.home, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, "".join(f"{line}\n" for line in (setup, *lines, "exit")).encode())
    text = ""
    end = time.monotonic() + LONGEST
    try:
        while time.monotonic() < end and text.count("CALLED\x1f") < len(lines):
            if select.select([ours], [], [], 0.1)[0]:
                text += os.read(ours, 65536).decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    calls = [line.split("\x1f")[1:] for line in text.replace("\r", "").splitlines() if line.startswith("CALLED\x1f")]
    return [[word.removesuffix("/") for word in call] for call in calls]


BASH = ["bash", "--norc", "--noprofile", "-i"], 'PS1=; eval "$(sandbox-agent completion bash)";'
ZSH = ["zsh", "-f", "-i"], "PS1=; autoload -Uz compinit; compinit -D -u; source <(sandbox-agent completion zsh);"
FOUND = ["zsh", "-f", "-i"], "PS1=; fpath=(~ $fpath); autoload -Uz compinit; compinit -D -u;"


@pytest.mark.parametrize(("command", "setup"), [BASH, ZSH, FOUND], ids=["bash", "zsh", "zsh-by-fpath"])
def test_a_shell_completes_what_is_typed(desk: Place, command: list[str], setup: str) -> None:
    (desk.home / "_sandbox-agent").write_text(SCRIPTS["zsh"])

    called = typed(desk, [shell(command[0]), *command[1:]], setup, LINES)

    assert called == list(LINES.values())


@pytest.mark.parametrize(("command", "setup"), [BASH, ZSH], ids=["bash", "zsh"])
def test_a_shell_completes_paths_by_its_own_rules(desk: Place, command: list[str], setup: str) -> None:
    lines = {
        "sandbox-agent server --token-file ~/tok\t": f"{desk.home}/token.txt",
        "sandbox-agent server --token-file $HOME/tok\t": f"{desk.home}/token.txt",
        "sandbox-agent server --data-dir ~/to\t": f"{desk.home}/toys and more",
    }

    called = typed(desk, [shell(command[0]), *command[1:]], setup, lines)

    assert [path for *_, path in called] == list(lines.values())


@pytest.mark.parametrize(("command", "setup"), [BASH, ZSH], ids=["bash", "zsh"])
def test_a_shell_completes_what_a_server_has(desk: Place, command: list[str], setup: str) -> None:
    with Server() as server:
        furnish(server)
        session = run(one_session(server))
        lines = {
            f"sandbox-agent fs cat --session {session} no\t": ["fs", "cat", "--session", session, "notes.txt"],
            f"sandbox-agent fs cat {server.work}/new\tins\t": ["fs", "cat", f"{server.work}/new folder/inside.txt"],
            f"sandbox-agent sessions show {session[:-2]}\t": ["sessions", "show", session],
        }
        called = typed(desk, [shell(command[0]), *command[1:]], setup, lines, **reach(server))

    assert called == list(lines.values())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sandbox-agent agents sho", ["show\tdetails of one agent"]),
        ("sandbox-agent agents show clau", ["claude\tClaude Code"]),
        ("sandbox-agent server --log-level=deb", ["--log-level=debug"]),
        ("sandbox-agent server --token-file tok", ["token.txt"]),
        ("sandbox-agent server --token-file=tok", ["--token-file=token.txt"]),
        ("sandbox-agent server --token-file ~/tok", ["~/token.txt"]),
        ("sandbox-agent server --token-file=$HOME/tok", ["--token-file=$HOME/token.txt"]),
        ("sandbox-agent server --token-file 'toys and more/in", ["toys and more/inside.txt"]),
        ("sandbox-agent server --token-file toys\\ and\\ more/in", ["toys and more/inside.txt"]),
        ("sandbox-agent server --data-dir to", ["toys and more/"]),
        ("sandbox-agent server --data-dir ~/t", ["~/toys and more/"]),
        ("sandbox-agent server --data-dir=to", ["--data-dir=toys and more/"]),
        ("bin/sandbox-agent comp", ["completion\tset up completion in a shell"]),
    ],
)
def test_fish_completes_what_is_typed(desk: Place, line: str, expected: list[str]) -> None:
    setup = "sandbox-agent completion fish | source; complete -C $argv[1]"

    result = subprocess.run(
        [shell("fish"), "--no-config", "-c", setup, line],
        env=environment(desk),
        cwd=desk.home,
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )

    assert (result.returncode, result.stdout.splitlines()) == (0, expected), result.stderr
