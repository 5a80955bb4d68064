"""Find the programs that a command runs, also through other programs.

What is not understood is marked as such, never guessed. Where a program is known to run or write more than its name
says (`programs.toml`), a rule such as `git log *` opens only words that are known to be harmless after it. Knows
nothing of rules. All of it costs steps (`work.py`).
"""

import re
import shlex
import tomllib
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Literal, cast

from msgspec import Struct, field
from msgspec.structs import replace

from sandboxagent.server.permissions.budget import Work
from sandboxagent.server.permissions.shell import MAX_COMMANDS, MAX_DEPTH, Written, read_script

MAX_COMMAND = 8 << 10
"""Characters of a command that are looked at; of a longer one nothing is known."""
MAX_STARTS = 30
"""Places in a text that is not understood from which it is tried to understand what follows."""
MAX_GUESS = 400
"""Characters that are looked at from each of them."""

Words = tuple[str | None, ...]

_SEPARATORS = r"[;&|\n]+"
_BARE_WORD = r"[^\s;&|<>(){}`$\"'\\=,]+"


class Simple(Struct, frozen=True):
    """One program with its arguments."""

    words: Words
    """None for a word of which only the shell knows what it becomes."""
    text: str
    """As it was written, including the program that runs it."""
    files: Words = ()
    """What it is redirected to or from."""
    fed: str = ""
    """What it reads as its input, where that is part of the command."""
    assigns: bool = False
    """Whether variables are set for it, or for what follows."""
    runs_others: bool = False
    """It needs no leave of its own, but may be forbidden: others stand for it, those that it runs, say."""

    @property
    def literal(self) -> tuple[str, ...] | None:
        """The words, when all of them are known."""
        known = tuple(word for word in self.words if word is not None)
        return known if known and len(known) == len(self.words) else None

    @property
    def bare(self) -> bool:
        """Whether its words are all there is to it."""
        return not (self.assigns or self.files or self.fed)

    @property
    def line(self) -> str:
        """Its words in one way of writing them; as it was written when not all are known."""
        return self.text if self.literal is None else shlex.join(self.literal)


class Unread(Struct, frozen=True):
    """A command, or a part of one, that is not understood."""

    text: str
    reason: str


Part = Simple | Unread


def read_text(text: str, work: Work) -> tuple[Part, ...]:
    """What a shell would run that is given this text: one part at least."""
    if len(text) > MAX_COMMAND:
        return (Unread(text[:MAX_COMMAND], "it is too long"),)
    if not _is_visible(text):
        return (*_recognise(text, 0, work), Unread(text, "it has invisible characters"))
    return _read(text, 0, work)


def read_words(words: Sequence[str], work: Work) -> tuple[Part, ...]:
    """What is run when these words are a program and its arguments: one part at least."""
    work.spend(1 + sum(1 + len(word) // 16 for word in words))
    text = shlex.join(words)
    if not words or len(text) > MAX_COMMAND:
        return (Unread(text[:MAX_COMMAND], "it is too long" if words else "it is empty"),)
    parts = _with_others(Simple(tuple(words), text), 0, work)
    return tuple(parts) if _is_visible(text) else (*parts, Unread(text, "it has invisible characters"))


@lru_cache(256)
def split_words(text: str) -> tuple[str, ...] | None:
    """What could be a word in a text, however it is quoted; None when there is too much of it."""
    return tuple(re.findall(_BARE_WORD, text)) if len(text) <= MAX_COMMAND else None


def is_script_of_shell(words: Sequence[str]) -> bool:
    """Whether it is a shell with a text to run, and nothing else."""
    return len(words) == 3 and program_name(words[0]) in _SHELLS and re.fullmatch(_SHELL_COMMAND, words[1]) is not None


def program_name(word: str) -> str:
    """A program without its folder."""
    return word.rpartition("/")[2]


def _is_visible(text: str) -> bool:
    """Whether people see all of it, and nothing in it may be a blank to a shell that is none to us."""
    return text.replace("\n", " ").replace("\t", " ").isprintable()


def _read(text: str, depth: int, work: Work) -> tuple[Part, ...]:
    work.spend(1 + len(text))
    commands, why = read_script(text)
    if why is not None:
        return (*_recognise(text, depth, work), Unread(text, why))
    parts = [part for command in commands for part in _with_others(_simple(command), depth, work)]
    if not parts or len(parts) > MAX_COMMANDS:
        return (*parts[:MAX_COMMANDS], Unread(text, "it has too many parts" if parts else "it is empty"))
    return tuple(parts)


def _recognise(text: str, depth: int, work: Work) -> list[Simple]:
    """Commands in a text that is not understood as a whole, wherever one can begin to read."""
    starts = [0, *(match.end() for match in re.finditer(_SEPARATORS, text))][:MAX_STARTS]
    pieces = [text[start : start + MAX_GUESS] for start in starts]
    work.spend(sum(1 + len(piece) for piece in pieces))
    found = [_simple(command) for piece in pieces for command in read_script(piece)[0]]
    parts = [part for simple in dict.fromkeys(found) for part in _with_others(simple, depth, work)]
    return [replace(part, runs_others=True) for part in parts if isinstance(part, Simple)][:MAX_COMMANDS]


def _simple(command: Written) -> Simple:
    fed = "\n".join(command.fed)
    return Simple(tuple(command.words), command.text, tuple(command.files), fed, command.assigns)


# Programs that run others

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "mksh"})
_SHELL_FLAGS, _SHELL_COMMAND = r"-[eiluvx]+", r"-[eiluvx]*c"
_TRANSPARENT = frozenset({"nohup", "time", "command", "exec", "setsid", "nice", "timeout", "env"})
"""They run something else and add nothing to it, at least where no flags are given."""
_ELEVATING = frozenset({"sudo", "doas", "busybox", "toybox"})
_HIDING = frozenset({"source", ".", "trap", "su", "script", "watch", "parallel", "fish", "csh", "tcsh", "pwsh"})
_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_XARGS_FLAGS, _XARGS_VALUES = frozenset({"-0", "-r", "-t", "-x"}), frozenset({"-n", "-P", "-L", "-I"})
_DURATION = r"\d+(?:\.\d+)?[smhd]?"


class _Hidden(Exception):
    """Why we cannot know what a command runs."""


def _with_others(part: Simple, depth: int, work: Work) -> list[Part]:
    """A command and all that it runs."""
    work.spend(1 + len(part.words))
    if not part.words or part.words[0] is None:
        return [part]
    if depth > MAX_DEPTH:
        return [part, Unread(part.text, "it is nested too deeply")]
    program, arguments = program_name(part.words[0]), part.words[1:]
    try:
        if program in _SHELLS or program == "eval":
            inside = _script(program, arguments)
            others = list(_read(inside, depth + 1, work))
            # A file or a text may be what it runs, and a variable may change what that does.
            others += [] if part.bare else [Unread(part.text, f"{program} gets more than what is written here")]
        else:
            runs = _runs(program, arguments)
            inner = [replace(part, words=words) for words in runs]
            others = [other for each in inner for other in _with_others(each, depth + 1, work)]
    except _Hidden as why:
        return [part, Unread(part.text, str(why))]
    return [replace(part, runs_others=bool(others) and _adds_nothing(part.words[0])), *others]


def _adds_nothing(word: str) -> bool:
    """Whether a word is one of the system's programs that do nothing but run others."""
    program = program_name(word)
    known = program in _SHELLS or program in _TRANSPARENT or program == "eval"
    return known and word in (program, f"/bin/{program}", f"/usr/bin/{program}")


def _script(program: str, arguments: Words) -> str:
    """The text that a shell is given to run."""
    if program == "eval":
        known = [word for word in arguments if word is not None]
        if len(known) == len(arguments):
            return " ".join(known)
    for number, word in enumerate(arguments):
        if program == "eval" or word is None:
            break
        script = arguments[number + 1] if number + 1 < len(arguments) else None
        if script is not None and re.fullmatch(_SHELL_COMMAND, word):
            return script
        if not re.fullmatch(_SHELL_FLAGS, word):
            break
    raise _Hidden(f"what {program} runs cannot be seen")


def _runs(program: str, arguments: Words) -> list[Words]:
    """The commands that a command runs; raises _Hidden when we cannot know them."""
    if program in _HIDING:
        raise _Hidden(f"what {program} runs cannot be seen")
    if program == "xargs":
        return [(*_after_xargs(arguments), None)]
    if program == "find":
        return _after_find(arguments)
    if not arguments or (program == "command" and arguments[0] in ("-v", "-V")):
        return []
    if program in _TRANSPARENT:
        return [_after_transparent(program, arguments)]
    return [_plain(program, arguments)] if program in _ELEVATING else []


def _after_transparent(program: str, arguments: Words) -> Words:
    if program == "nice" and arguments[0] == "-n":
        arguments = arguments[2:]
    if program == "timeout" and arguments[0] is not None and re.fullmatch(_DURATION, arguments[0]):
        return _plain(program, arguments[1:])
    plain = _plain(program, arguments)
    if program == "timeout" or (program == "env" and plain[0] is not None and "=" in plain[0]):
        raise _Hidden(f"it has {program} with more than a command")
    return plain


def _plain(program: str, arguments: Words) -> Words:
    if not arguments or arguments[0] is None or arguments[0].startswith("-"):
        raise _Hidden(f"it has {program} with more than a command")
    return arguments


def _after_xargs(arguments: Words) -> Words:
    rest = list(arguments)
    while rest and rest[0] is not None and rest[0].startswith("-"):
        flag = rest.pop(0)
        if flag in _XARGS_VALUES and rest:
            rest.pop(0)
        elif flag not in _XARGS_FLAGS:
            raise _Hidden("it has xargs with other flags")
    return tuple(rest) or ("echo",)


def _after_find(arguments: Words) -> list[Words]:
    """What find runs, on files whose names are not known yet."""
    runs: list[Words] = []
    rest = list(arguments)
    while rest:
        if rest.pop(0) in _FIND_RUNS:
            end = next((at for at, word in enumerate(rest) if word in (";", "+")), len(rest))
            runs.append((*(None if word is not None and "{}" in word else word for word in rest[:end]), None))
            rest = rest[end:]
    return runs


Arity = Literal["none", "one", "perhaps"]
"""Whether an option has a value: no, yes, or only when one is glued to it."""

_VERSION = r"[0-9.]+$"
_NUMBER = r"-[0-9]+"


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
    return programs.get(name) or programs.get(re.sub(_VERSION, "", name))


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
        if self._program.numbers and re.fullmatch(_NUMBER, word):
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
    from importlib import resources

    text = resources.files("sandboxagent.server.permissions").joinpath("programs.toml").read_text("utf-8")
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
