"""Programs that can run or write more than their names say, and the words that are harmless after each.

A rule such as `git log *` opens what follows. Where a program is known to be dangerous (`programs.toml`), it opens only
words that are known to be harmless there; the others stay a question for people. Knows nothing of rules.
"""

import re
import tomllib
from functools import cache
from importlib import resources
from typing import Literal, cast

from msgspec import Struct, field

from sandbox_agent.permissions.commands import program_name

Arity = Literal["none", "one", "perhaps"]
"""Whether an option has a value: no, yes, or only when one is glued to it."""

_VERSION = re.compile(r"[0-9.]+$")
_NUMBER = re.compile(r"-[0-9]+")


class Program(Struct, frozen=True):
    """What is harmless after the name of a program, or of a command of it."""

    options: dict[str, Arity] = field(default_factory=dict[str, Arity])
    long: bool = False
    """Whether `-name` is one option, and not four."""
    numbers: bool = False
    """Whether `-5` is an option."""
    operands: re.Pattern[str] | None = None
    """What words that are no options look like; None when there may be none."""
    first: re.Pattern[str] | None = None
    """The first of them, where it is something else."""
    reads: bool = False
    """It changes nothing, so that a rule for the whole program is one for this command of it, too."""
    runs: bool = False
    """Its first operand is a program: what follows is that one's, once the rule has named it."""
    passes: bool = False
    """What stands behind `--` is for a program that it runs; all of it is open once the rule has named the `--`."""
    commands: "dict[str, Program]" = field(default_factory=dict[str, "Program"])


def find_closed_word(words: tuple[str, ...], spelled: tuple[bool, ...]) -> str | None:
    """The first word of a command that a rule does not open, and why; None when there is none.

    `spelled` says of each word whether the rule has it letter by letter: such a word is always open.
    """
    if all(spelled):
        return None
    program = known_program(words[0])
    return None if program is None else _Walk(words, spelled, program).find_closed_word()


def known_program(word: str) -> Program | None:
    """What is known of a program by its name, for any folder and version."""
    name, programs = program_name(word).casefold(), _programs()
    return programs.get(name) or programs.get(_VERSION.sub("", name))


class _Walk:
    """Goes through the words of a command once."""

    def __init__(self, words: tuple[str, ...], spelled: tuple[bool, ...], program: Program) -> None:
        self._words = words
        self._spelled = spelled
        self._program = program
        self._called = program_name(words[0])
        self._operands = 0
        self._only_operands = False

    def find_closed_word(self) -> str | None:
        at = 1
        while at < len(self._words):
            word = self._words[at]
            if word == "--" and self._spelled[at] and self._program.passes:
                return None
            if self._is_option(word):
                taken = self._option(word)
                if taken is None and not self._spelled[at]:
                    return f"`{word}` is not known to be harmless after `{self._called}`"
                at += taken or 1
                continue
            if self._spelled[at] and self._program.runs:
                # From here on they are the words of another program.
                return find_closed_word(self._words[at:], self._spelled[at:])
            if not self._operand(word, self._spelled[at]):
                return f"`{word}` is not known to be harmless after `{self._called}`"
            at += 1
        return None

    def _is_option(self, word: str) -> bool:
        if self._only_operands or len(word) < 2 or word[0] not in "-+":
            return False
        if word == "--":
            self._only_operands = not self._program.commands
        return True

    def _option(self, word: str) -> int | None:
        """How many words an option takes, itself included; None when it is not known to be harmless."""
        options = self._program.options
        if word == "--":
            return 1 if "--" in options else None
        if self._program.numbers and _NUMBER.fullmatch(word):
            return 1
        name, glued, _ = word.partition("=")
        arity = options.get(name)
        if arity is not None:
            return {"none": None if glued else 1, "one": 1 if glued else 2, "perhaps": 1}[arity]
        return None if word.startswith(("--", "+")) or self._program.long else self._cluster(word)

    def _cluster(self, word: str) -> int | None:
        """Short options in one word, of which the last may have a value."""
        for at in range(1, len(word)):
            match self._program.options.get(f"-{word[at]}"):
                case None:
                    return None
                case "none":
                    pass
                case "perhaps":
                    return 1
                case "one":
                    return 1 if at + 1 < len(word) else 2
        return 1

    def _operand(self, word: str, spelled: bool) -> bool:
        program = self._program
        if program.commands and not self._operands:
            command = program.commands.get(word)
            if command is None or not (spelled or command.reads):
                # Spelled, but unknown: so is all that may follow.
                self._operands, self._program = int(spelled), Program() if spelled else program
                self._called = f"{self._called} {word}"
                return spelled
            self._program, self._called = command, f"{self._called} {word}"
            return True
        wanted = program.first if program.first is not None and not self._operands else program.operands
        self._operands += 1
        # Many programs read their arguments from a file that is named so.
        return spelled or (wanted is not None and word[:1] != "@" and wanted.fullmatch(word) is not None)


@cache
def _programs() -> dict[str, Program]:
    text = resources.files("sandbox_agent.permissions").joinpath("programs.toml").read_text("utf-8")
    tables = cast("dict[str, dict[str, object]]", tomllib.loads(text))
    opaque = [name for names in cast("dict[str, list[str]]", tables.pop("opaque")).values() for name in names]
    programs = {name: _program(table) for name, table in tables.items()}
    known = {name: Program() for name in opaque} | programs
    also = {other: name for name, table in tables.items() for other in cast("list[str]", table.get("also", []))}
    return known | {other: known[name] for other, name in also.items()}


def _program(table: dict[str, object]) -> Program:
    operands, first = table.get("operands"), table.get("first")
    commands: dict[str, Program] = {}
    for name, each in table.items():
        if isinstance(each, dict):
            inner = cast("dict[str, object]", each)
            commands |= dict.fromkeys([name, *cast("list[str]", inner.get("also", []))], _program(inner))
    return Program(
        options=dict(map(_option, cast(str, table.get("options", "")).split())),
        long=table.get("long") is True,
        numbers=table.get("numbers") is True,
        operands=None if operands is None else re.compile(cast(str, operands)),
        first=None if first is None else re.compile(cast(str, first)),
        reads=table.get("reads") is True,
        runs=table.get("runs") is True,
        passes=table.get("passes") is True,
        commands=commands,
    )


def _option(text: str) -> tuple[str, Arity]:
    if text.endswith("[=]"):
        return text[:-3], "perhaps"
    return (text[:-1], "one") if text.endswith("=") else (text, "none")
