"""What could stand at the end of a command line: words, flags and values, by the tables of commands and their parsers.

A new command needs nothing here. What it takes is known by its parser: `choices`, or the metavar, which for values that
can be completed is one of `bash|zsh|fish`, `AGENT`, `SESSION`, `PATH` and their like. Knows nothing of shells.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from sandbox_agent.cli.grammar import Group, Parser

Pairs = Sequence[tuple[str, str]]
Values = Callable[[Mapping[str, str], str], Pairs]
"""Values and what they mean, by the flags that were given (their values by dest) and what is written so far."""

_FILES = frozenset({"PATH", "FILE", "LOCATION", "LOCAL"})
_DIRECTORIES = frozenset({"DIR", "DIRECTORY", "FOLDER"})
_REMOTE = "REMOTE"
_HELP = "Show this help."


@dataclass(frozen=True, slots=True)
class Candidates:
    """What could stand there, each with a few words about it; or that it is a path, which shells know best.

    A path of another machine is `remote`: its words may end with a slash, and then go on.
    """

    words: Pairs = ()
    kind: Literal["words", "files", "directories", "remote"] = "words"
    before: str = ""
    """What stands before a path in the same word, such as `--token-file=`."""


NOTHING = Candidates()


def candidates(group: Group, words: Sequence[str], values: Mapping[str, Values]) -> Candidates:
    """What the last of the words could become; `values` has those that are looked up, by metavar."""
    *before, current = words or [""]
    while before:
        name = before.pop(0)
        if name not in group.words:
            return NOTHING
        found = group.words[name].load()
        if not isinstance(found, Group):
            return _Line(found.parser, before, values).end(current)
        group = found
    if current.startswith("-"):
        return Candidates(_flags(group.parser().actions()))
    return Candidates([(name, word.summary) for name, word in group.words.items()])


class _Line:
    """The arguments of one command, but for the last: what they have used up, and what may follow."""

    def __init__(self, parser: Parser, words: Sequence[str], values: Mapping[str, Values]) -> None:
        self._actions = [action for action in parser.actions() if action.help is not argparse.SUPPRESS]
        self._by_flag = {flag: action for action in self._actions for flag in action.option_strings}
        self._values = values
        self._words = words
        self._given: dict[str, str] = {}
        """The flags that were given, by dest, with their last values."""
        self._waiting: argparse.Action | None = None
        """The flag whose values come now."""
        self._left: float = 0
        self._placed = 0
        """How many words stood for themselves."""
        self._only_words = False
        for word in words:
            self._take(word)

    def _take(self, word: str) -> None:
        if word.startswith("-") and word != "-" and not self._only_words:
            self._only_words = word == "--"
            flag, equals, value = word.partition("=")
            self._waiting = self._by_flag.get(flag)
            if self._waiting is not None:
                self._given[self._waiting.dest] = value
                self._left = 0 if equals else _most(self._waiting)
        elif self._waiting is not None and self._left > 0:
            self._given[self._waiting.dest] = word
            self._left -= 1
        else:
            self._placed += 1

    def end(self, current: str) -> Candidates:
        """What could stand where `current` is."""
        flag, equals, written = current.partition("=")
        if self._waiting is not None and self._left > 0 and (_least(self._waiting) or not current.startswith("-")):
            return self._of(self._waiting, current)
        if current.startswith("-") and not self._only_words:
            if not equals:
                return Candidates(_flags(self._actions, self._given))
            action = self._by_flag.get(flag)
            return NOTHING if action is None or not _most(action) else self._of(action, written, f"{flag}=")
        action = self._place()
        if action is not None:
            return self._of(action, current)
        return NOTHING if self._only_words else Candidates(_flags(self._actions, self._given))

    def _place(self) -> argparse.Action | None:
        """Which of those without a flag comes now."""
        places = self._placed
        for action in (each for each in self._actions if not each.option_strings):
            if places < _most(action):
                return action
            places -= int(_most(action))
        return None

    def _of(self, action: argparse.Action, current: str, before: str = "") -> Candidates:
        metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        if action.choices is not None or "|" in metavar:
            pairs = [(str(each), "") for each in (metavar.split("|") if action.choices is None else action.choices)]
        elif metavar in self._values:
            pairs = self._values[metavar](self._given, current)
        elif metavar in _DIRECTORIES or (metavar in _FILES and _is_directory(action)):
            return Candidates(kind="directories", before=before)
        elif metavar in _FILES:
            return Candidates(kind="files", before=before)
        else:
            return NOTHING
        # You do not mean the same one twice.
        used = set(self._words) if _most(action) == inf else set[str]()
        kind = "remote" if metavar == _REMOTE else "words"
        return Candidates([(before + word, text) for word, text in pairs if word not in used], kind)


def _flags(actions: Iterable[argparse.Action], given: Mapping[str, str] | None = None) -> Pairs:
    """All flags that may still be given."""
    told = given or {}
    flags = [
        (flag, (action.help or "").replace("%%", "%"))
        for action in actions
        if action.dest not in told or _is_repeated(action)
        for flag in action.option_strings
    ]
    return [*flags, ("-h", _HELP), ("--help", _HELP)]


def _most(action: argparse.Action) -> float:
    """How many values it may take."""
    match action.nargs:
        case int():
            return action.nargs
        case None | "?":
            return 1
        case _:
            return inf


def _least(action: argparse.Action) -> bool:
    """Whether it must have a value."""
    return action.nargs not in ("?", "*")


def _is_repeated(action: argparse.Action) -> bool:
    return type(action).__name__ in ("_AppendAction", "_CountAction", "_ExtendAction")


def _is_directory(action: argparse.Action) -> bool:
    """Settings call every path PATH; what it is stands in their names."""
    return action.dest.endswith(("_dir", "_root", "cwd", "directory"))
