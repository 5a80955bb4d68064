"""Every command and group: help with examples, mistakes on one line, and an offer for a word that is nearly right."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxagent.cli.main import COMMANDS, main
from sandboxagent.cli.parser import Command, CommandGroup, ParsedArguments, Parser, Subcommand


def everything(below: Command | CommandGroup = COMMANDS) -> Iterator[Command | CommandGroup]:
    yield below
    if isinstance(below, CommandGroup):
        for word in below.words.values():
            yield from everything(word.load())


def name(of: Command | CommandGroup) -> str:
    return of.name if isinstance(of, CommandGroup) else of.parser.prog


ROOT = Path(__file__).resolve().parents[2]
EVERYTHING = {name(each).removeprefix("sandbox-agent").strip(): each for each in everything()}


def test_promised_commands_exist() -> None:
    assert {
        *(f"agents {word}" for word in ("list", "show", "install", "uninstall", "instructions")),
        *(f"api v1 agents {word}" for word in ("list", "get", "install")),
        "api v1 rpc",
        *(f"sessions {word}" for word in ("list", "show", "events", "rename", "set", "terminate", "delete")),
        *(f"fs {word}" for word in ("ls", "cat", "get", "put", "mkdir", "mv", "rm", "stat", "search", "watch")),
        "credentials check",
        "server",
    } <= set(EVERYTHING)


@pytest.mark.parametrize("words", EVERYTHING)
def test_help_has_a_description_and_examples_that_begin_alike(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), "--help"])

    text = capsys.readouterr().out
    _, _, examples = text.partition("\nexamples:\n")
    assert ended.value.code == 0
    assert text.startswith(f"usage: {name(EVERYTHING[words])} ")
    assert f"  sandbox-agent {words}".rstrip() in examples


@pytest.mark.parametrize("words", [words for words, each in EVERYTHING.items() if isinstance(each, CommandGroup)])
def test_a_group_without_a_command_shows_its_help_as_a_mistake(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2

    told = capsys.readouterr()
    assert told.out == ""
    assert "commands:" in told.err


def test_help_fits_into_a_narrow_terminal() -> None:
    probe = (
        "from tests.cli.test_commands import EVERYTHING, CommandGroup\n"
        "for each in EVERYTHING.values():\n"
        "    print((each.parser() if isinstance(each, CommandGroup) else each.parser).format_help())\n"
    )
    environment = {**os.environ, "COLUMNS": "60"}

    text = subprocess.run(
        [sys.executable, "-c", probe],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout

    long = [line for line in text.splitlines() if len(line) > 60 and len(line.split()) > 1]
    shown = ("usage: ", "  sandbox-agent ", "  eval ", "  source ")  # What is to be typed stays whole.
    assert [line for line in long if not line.startswith(shown)] == []
    assert len(text.splitlines()) > 500


def test_help_is_also_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["help", "agents", "list"], ["agents", "help", "list"], ["agents", "list", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(line)

        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith("usage: sandbox-agent agents list ")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("agent", "unknown command agent; did you mean agents?"),
        ("agents instal claude", "unknown command instal; did you mean install?"),
        ("agents dance", "unknown command dance; try: sandbox-agent agents --help"),
        ("agents --registry", "unknown flag --registry; try: sandbox-agent agents --help"),
        ("agents list --jsn", "unknown flag --jsn; did you mean --json?"),
        ("agents list --json=hush", "--json takes no value; try: sandbox-agent agents list --help"),
        ("agents list claude", "unexpected argument 'claude'; try: sandbox-agent agents list --help"),
        ("agents install x --port 1", "unknown flag --port; "),
        ("api v2", "unknown command v2; try: sandbox-agent api --help"),
        ("api v1 agents lst", "unknown command lst; did you mean list?"),
        (
            "api v1 agents get",
            "the following arguments are required: AGENT; try: sandbox-agent api v1 agents get --help",
        ),
        ("credentials chek", "unknown command chek; did you mean check?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(line: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())

    told = capsys.readouterr()
    assert (ended.value.code, told.out) == (2, "")
    assert told.err.startswith(f"sandbox-agent: {complaint}")
    assert told.err.count("\n") == 1
    assert "hush" not in told.err


def test_a_word_is_loaded_only_when_it_is_there() -> None:
    loaded: list[str] = []

    def load(which: str) -> Command:
        loaded.append(which)
        return Command(Parser(f"x {which}", "", ""), lambda arguments: 7)

    group = CommandGroup("x", "", "", {"a": Subcommand("", lambda: load("a")), "b": Subcommand("", lambda: load("b"))})

    assert group.run(["b"]) == 7
    assert loaded == ["b"]


def test_arguments_are_read_by_kind() -> None:
    arguments = ParsedArguments({"word": "a", "none": None, "words": ["a", "b"], "on": True})

    assert (arguments.word("word"), arguments.word("none"), arguments.word("other")) == ("a", None, None)
    assert (arguments.words("words"), arguments.words("none")) == (["a", "b"], [])
    assert (arguments.switch("on"), arguments.switch("none")) == (True, False)
