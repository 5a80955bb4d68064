"""Find the programs that a command runs, also through other programs.

A part that is not understood is marked as such, never guessed. `programs.toml` lists programs that are known to run or
write more than their name says. After such a program, a rule such as `git log *` allows only words that are known to be
harmless. The module knows nothing of rules. All of it costs steps (`budget.py`).
"""

import re
import shlex
import tomllib
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Literal, cast

from msgspec import Struct, field
from msgspec.structs import replace

from sandboxagent.server.permissions.budget import StepBudget
from sandboxagent.server.permissions.shell import MAX_COMMANDS, MAX_DEPTH, Written, read_script

MAX_COMMAND = 8 << 10
"""Maximum number of characters of a command that is examined; nothing is known about a longer one."""
MAX_STARTS = 30
"""Maximum number of places in a text that is not understood from which reading is tried again."""
MAX_GUESS = 400
"""Number of characters that are examined from each of these places."""

Words = tuple[str | None, ...]

_SEPARATORS = r"[;&|\n]+"
_BARE_WORD = r"[^\s;&|<>(){}`$\"'\\=,]+"


class Simple(Struct, frozen=True):
    """One program with its arguments."""

    words: Words
    """The words without their quotes. None for a word that only the shell can expand."""
    text: str
    """The command as it was written, including the program that runs it."""
    files: Words = ()
    """The files that input or output is redirected to or from."""
    fed: str = ""
    """The input of the program, if it is a part of the command."""
    assigns: bool = False
    """Whether the command sets variables for this program, or for later ones."""
    runs_others: bool = False
    """Whether other commands stand for this one, such as those that it runs. It needs no permission of its own, but a
    rule may reject it."""

    @property
    def literal(self) -> tuple[str, ...] | None:
        """The words, if all of them are known, else None."""
        known = tuple(word for word in self.words if word is not None)
        return known if known and len(known) == len(self.words) else None

    @property
    def bare(self) -> bool:
        """Whether the command is nothing but its words."""
        return not (self.assigns or self.files or self.fed)

    @property
    def line(self) -> str:
        """The words in one canonical form; the command as it was written if a word is unknown."""
        return self.text if self.literal is None else shlex.join(self.literal)


class Unread(Struct, frozen=True):
    """A command, or a part of one, that is not understood."""

    text: str
    reason: str


Part = Simple | Unread


def read_text(text: str, work: StepBudget) -> tuple[Part, ...]:
    """Return the commands that a shell would run for this text: at least one part."""
    if len(text) > MAX_COMMAND:
        return (Unread(text[:MAX_COMMAND], "it is too long"),)
    if not _is_visible(text):
        return (*_recognise(text, 0, work), Unread(text, "it has invisible characters"))
    return _read(text, 0, work)


def read_words(words: Sequence[str], work: StepBudget) -> tuple[Part, ...]:
    """Return the commands that run if these words are a program and its arguments: at least one part."""
    work.spend(1 + sum(1 + len(word) // 16 for word in words))
    text = shlex.join(words)
    if not words or len(text) > MAX_COMMAND:
        return (Unread(text[:MAX_COMMAND], "it is too long" if words else "it is empty"),)
    parts = _with_others(Simple(tuple(words), text), 0, work)
    return tuple(parts) if _is_visible(text) else (*parts, Unread(text, "it has invisible characters"))


@lru_cache(256)
def split_words(text: str) -> tuple[str, ...] | None:
    """Return every possible word in a text, whatever its quotes; None if the text is too long."""
    return tuple(re.findall(_BARE_WORD, text)) if len(text) <= MAX_COMMAND else None


def is_script_of_shell(words: Sequence[str]) -> bool:
    """Return whether the words are a shell with a text to run, and nothing else."""
    return len(words) == 3 and program_name(words[0]) in _SHELLS and re.fullmatch(_SHELL_COMMAND, words[1]) is not None


def program_name(word: str) -> str:
    """Return the name of a program without its folder."""
    return word.rpartition("/")[2]


def _is_visible(text: str) -> bool:
    """Return whether people can see all characters, and no character is a blank for a shell but not here."""
    return text.replace("\n", " ").replace("\t", " ").isprintable()


def _read(text: str, depth: int, work: StepBudget) -> tuple[Part, ...]:
    work.spend(1 + len(text))
    commands, why = read_script(text)
    if why is not None:
        return (*_recognise(text, depth, work), Unread(text, why))
    parts = [part for command in commands for part in _with_others(_simple(command), depth, work)]
    if not parts or len(parts) > MAX_COMMANDS:
        return (*parts[:MAX_COMMANDS], Unread(text, "it has too many parts" if parts else "it is empty"))
    return tuple(parts)


def _recognise(text: str, depth: int, work: StepBudget) -> list[Simple]:
    """Return the commands in a text that is not understood as a whole, from every place where reading can start."""
    starts = [0, *(match.end() for match in re.finditer(_SEPARATORS, text))][:MAX_STARTS]
    pieces = [text[start : start + MAX_GUESS] for start in starts]
    work.spend(sum(1 + len(piece) for piece in pieces))
    found = [_simple(command) for piece in pieces for command in read_script(piece)[0]]
    parts = [part for simple in dict.fromkeys(found) for part in _with_others(simple, depth, work)]
    return [replace(part, runs_others=True) for part in parts if isinstance(part, Simple)][:MAX_COMMANDS]


def _simple(command: Written) -> Simple:
    fed = "\n".join(command.fed)
    return Simple(tuple(command.words), command.text, tuple(command.files), fed, command.assigns)


# Programs that run other programs

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "mksh"})
_SHELL_FLAGS, _SHELL_COMMAND = r"-[eiluvx]+", r"-[eiluvx]*c"
_TRANSPARENT = frozenset({"nohup", "time", "command", "exec", "setsid", "nice", "timeout", "env"})
"""Programs that run another program and add nothing to it, at least without options."""
_ELEVATING = frozenset({"sudo", "doas", "busybox", "toybox"})
_HIDING = frozenset({"source", ".", "trap", "su", "script", "watch", "parallel", "fish", "csh", "tcsh", "pwsh"})
_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_XARGS_FLAGS, _XARGS_VALUES = frozenset({"-0", "-r", "-t", "-x"}), frozenset({"-n", "-P", "-L", "-I"})
_DURATION = r"\d+(?:\.\d+)?[smhd]?"


class _Hidden(Exception):
    """The reason why the commands that a program runs are not known."""


def _with_others(part: Simple, depth: int, work: StepBudget) -> list[Part]:
    """Return a command and all commands that it runs."""
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
            # The shell may also run a file or its input, and a variable may change what its text does.
            others += [] if part.bare else [Unread(part.text, f"{program} also gets variables, files or input")]
        else:
            runs = _runs(program, arguments)
            inner = [replace(part, words=words) for words in runs]
            others = [other for each in inner for other in _with_others(each, depth + 1, work)]
    except _Hidden as why:
        return [part, Unread(part.text, str(why))]
    return [replace(part, runs_others=bool(others) and _adds_nothing(part.words[0])), *others]


def _adds_nothing(word: str) -> bool:
    """Return whether a word is a program of the system that does nothing but run others."""
    program = program_name(word)
    known = program in _SHELLS or program in _TRANSPARENT or program == "eval"
    return known and word in (program, f"/bin/{program}", f"/usr/bin/{program}")


def _script(program: str, arguments: Words) -> str:
    """Return the text that a shell is told to run."""
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
    raise _Hidden(f"the commands that {program} runs are not visible")


def _runs(program: str, arguments: Words) -> list[Words]:
    """Return the commands that a command runs. Raises _Hidden if they cannot be known."""
    if program in _HIDING:
        raise _Hidden(f"the commands that {program} runs are not visible")
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
    """Return the commands that find runs, on files with unknown names."""
    runs: list[Words] = []
    rest = list(arguments)
    while rest:
        if rest.pop(0) in _FIND_RUNS:
            end = next((at for at, word in enumerate(rest) if word in (";", "+")), len(rest))
            runs.append((*(None if word is not None and "{}" in word else word for word in rest[:end]), None))
            rest = rest[end:]
    return runs


Arity = Literal["none", "one", "perhaps"]
"""Whether an option takes a value: never, always, or only if the value is attached to it."""

_VERSION = r"[0-9.]+$"
_NUMBER = r"-[0-9]+"


class Program(Struct, frozen=True):
    """The words that are harmless after the name of a program, or of one of its commands."""

    options: dict[str, Arity] = field(default_factory=dict[str, Arity])
    long: bool = False
    """Whether `-name` is one option, and not four."""
    numbers: bool = False
    """Whether `-5` is an option."""
    operands: re.Pattern[str] | None = None
    """The form of harmless words that are no options; None if there is none."""
    first: re.Pattern[str] | None = None
    """The form of the first word that is no option, if it differs."""
    reads: bool = False
    """Whether this command changes nothing, so that a rule for the whole program covers it too."""
    runs: bool = False
    """Whether its first operand is a program. The following words belong to that program, if the rule names it."""
    passes: bool = False
    """Whether the words behind `--` belong to a program that it runs. A rule that names the `--` allows all of them."""
    commands: "dict[str, Program]" = field(default_factory=dict[str, "Program"])


def find_closed_word(words: tuple[str, ...], spelled: tuple[bool, ...]) -> str | None:
    """Return why a rule does not allow the words of a command, naming the first such word; None if it allows all.

    `spelled` says for each word whether the rule spells it out: such a word is always allowed.
    """
    if all(spelled):
        return None
    program = known_program(words[0])
    return None if program is None else _Walk(words, spelled, program).find_closed_word()


def known_program(word: str) -> Program | None:
    """Return the facts about a program by its name, for any folder and version."""
    name, programs = program_name(word).casefold(), _programs()
    return programs.get(name) or programs.get(re.sub(_VERSION, "", name))


class _Walk:
    """A single pass over the words of a command."""

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
                # The rest are the words of another program.
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
        """Return how many words an option takes, including itself; None if it is not known to be harmless."""
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
        """Return how many words a cluster of short options takes. The last option may have a value."""
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
                # The command is spelled out but unknown, so all words after it are unknown too.
                self._operands, self._program = int(spelled), Program() if spelled else program
                self._called = f"{self._called} {word}"
                return spelled
            self._program, self._called = command, f"{self._called} {word}"
            return True
        wanted = program.first if program.first is not None and not self._operands else program.operands
        self._operands += 1
        # Many programs read their arguments from a file that is named with a leading @.
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
