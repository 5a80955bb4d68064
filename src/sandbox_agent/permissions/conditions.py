"""The conditions of a rule: what each demands of a request.

A condition can be asked in two ways. `surely`, for a rule that allows: is it met beyond doubt? `catches`, for a rule
that does not: is it met, or could it be? Paths, say, must all fit to be allowed; one that fits is enough to be caught.
"""

import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Protocol, cast

from sandbox_agent.envelope import Object
from sandbox_agent.permissions.commands import Part, Simple, program_name, tokens
from sandbox_agent.permissions.patterns import Match, PathPattern, Pattern
from sandbox_agent.permissions.request import ToolRequest

MOST_WORDS = 500
"""Words of one part that are looked at as paths; when there are more, it is not known what they are."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is judged: a request, or one part of the command in it."""

    request: ToolRequest
    part: Part | None
    cwd: str
    """The session's own folder, where relative globs begin."""
    home: str
    resolve: Callable[[str], str]
    """An absolute path without links; may raise OSError or ValueError."""


class Condition(Protocol):
    """One demand of a rule."""

    def surely(self, subject: Subject) -> bool: ...
    def catches(self, subject: Subject) -> Match: ...


def _any(matches: Iterable[Match]) -> Match:
    return max(matches, default=Match.NO)


@dataclass(frozen=True, slots=True)
class FactIs:
    """One of the facts that are a word: the tool's name, the kind, the agent."""

    patterns: tuple[Pattern, ...]
    fact: Callable[[ToolRequest], str | None]
    everything: bool = False
    """Any value will do, told or not."""

    def surely(self, subject: Subject) -> bool:
        return self.catches(subject) is Match.YES

    def catches(self, subject: Subject) -> Match:
        if self.everything:
            return Match.YES
        value = self.fact(subject.request)
        return Match.MAYBE if value is None else _any(pattern.fits(value) for pattern in self.patterns)


class Unknowable:
    """Something that no agent tells."""

    def surely(self, subject: Subject) -> bool:
        return False

    def catches(self, subject: Subject) -> Match:
        return Match.MAYBE


# Commands


class CommandPattern(Protocol):
    """Something that a simple command fits or not."""

    def surely(self, part: Simple) -> bool: ...
    def catches(self, part: Part) -> Match: ...


@dataclass(frozen=True, slots=True)
class CommandIs:
    """The command, or the part of it that is judged, fits one of some patterns."""

    patterns: tuple[CommandPattern, ...]

    def surely(self, subject: Subject) -> bool:
        part = subject.part
        if not isinstance(part, Simple) or part.literal is None or not part.bare or not subject.request.only_command:
            return False
        return any(pattern.surely(part) for pattern in self.patterns)

    def catches(self, subject: Subject) -> Match:
        part = subject.part
        return Match.NO if part is None else _any(pattern.catches(part) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first words of a command, each a glob."""

    words: tuple[str, ...]

    def surely(self, part: Simple) -> bool:
        return self._begins(part.literal or ())

    def catches(self, part: Part) -> Match:
        if not isinstance(part, Simple):
            found, length = tokens(part.text) or (), len(self.words)
            begins = any(self._begins(found[at : at + length]) for at in range(len(found)))
            return Match.YES if begins else Match.MAYBE
        front = self._front(part)
        return front if front or not self._holds(part) else Match.MAYBE

    def _begins(self, words: tuple[str, ...]) -> bool:
        return len(words) >= len(self.words) and all(map(fnmatchcase, words, self.words))

    def _front(self, part: Simple) -> Match:
        """By the program's name, whatever folder it is in."""
        if len(part.words) < len(self.words):
            return Match.MAYBE if None in part.words and self._front_fits(part) else Match.NO
        if not self._front_fits(part):
            return Match.NO
        return Match.MAYBE if None in part.words[: len(self.words)] else Match.YES

    def _front_fits(self, part: Simple) -> bool:
        """Whether the words that are known fit as far as it can be told."""
        for number, (word, glob) in enumerate(zip(part.words, self.words, strict=False)):
            if word is None:
                # It may become several words, or none.
                return True
            if not (_is_called(word, glob) if number == 0 else fnmatchcase(word, glob)):
                return False
        return True

    def _holds(self, part: Simple) -> bool:
        """Whether all its words stand in a command, in their order, but not at its front: something may run them."""
        known = " ".join(word for word in part.words if word is not None)
        found = tokens(f"{known} {part.fed}".casefold())
        if found is None:
            return True
        left = iter(found)
        return all(any(_is_called(word, glob) for word in left) for glob in map(str.casefold, self.words))


def _is_called(word: str, glob: str) -> bool:
    """Whether a program is meant, whatever folder it is in."""
    return fnmatchcase(word, glob) or fnmatchcase(program_name(word), glob)


@dataclass(frozen=True, slots=True)
class Line:
    """A glob or a regular expression of a whole simple command."""

    pattern: Pattern

    def surely(self, part: Simple) -> bool:
        return self.pattern.fits(part.line) is Match.YES

    def catches(self, part: Part) -> Match:
        if not isinstance(part, Simple) or part.literal is None:
            return max(self.pattern.fits(part.text), Match.MAYBE)
        nearly = max(self.pattern.fits(part.text), self.pattern.fits(part.fed) if part.fed else Match.NO)
        return max(self.pattern.fits(part.line), min(nearly, Match.MAYBE))


# Paths


@dataclass(frozen=True, slots=True)
class PathIs:
    """The paths that are worked on fit one of some globs."""

    globs: tuple[PathPattern, ...]

    def surely(self, subject: Subject) -> bool:
        request = subject.request
        paths = (*request.paths, *request.perhaps_paths)
        # What a command works on is not told by its words.
        if request.parts or not paths or not request.paths_known:
            return False
        return all(self._fits(subject, path) for path in paths)

    def catches(self, subject: Subject) -> Match:
        request, part = subject.request, subject.part
        found = [_any(self._caught(subject, path) for path in request.paths)]
        found += [min(self._caught(subject, path), Match.MAYBE) for path in request.perhaps_paths]
        if part is None:
            return max(*found, Match.NO if request.paths_known else Match.MAYBE)
        if not isinstance(part, Simple):
            words = dict.fromkeys(tokens(part.text) or ())
            return max(*found, Match.MAYBE, _any(self._caught(subject, word) for word in islice(words, MOST_WORDS)))
        words = dict.fromkeys((*part.words, *part.files))
        looked_at = [word for word in islice(words, MOST_WORDS) if word]
        found += [self._caught(subject, piece) for word in looked_at for piece in (word, *word.split("=")[1:2])]
        fed = islice(dict.fromkeys(tokens(part.fed) or ()), MOST_WORDS)
        found += [min(self._caught(subject, word), Match.MAYBE) for word in fed]
        unseen = (
            None in words
            or len(words) > MOST_WORDS
            or (not request.folders_known and any(word and word[0] not in "/-" for word in words))
        )
        return max(*found, Match.MAYBE if unseen else Match.NO)

    def _fits(self, subject: Subject, path: str) -> bool:
        real = _resolved(subject, _joined(subject, subject.request.folder, path))
        cwd = _resolved(subject, subject.cwd)
        if real is None or cwd is None:
            return False
        return any(glob.fits(real, cwd, subject.home) for glob in self.globs)

    def _caught(self, subject: Subject, path: str) -> Match:
        """With links and without, from every folder that it may be meant from."""
        best = Match.NO
        places = {subject.cwd, _resolved(subject, subject.cwd) or subject.cwd}
        for folder in subject.request.folders:
            whole = _joined(subject, folder, path)
            real = _resolved(subject, whole)
            best = max(best, Match.MAYBE if real is None else Match.NO)
            for seen in {posixpath.normpath(whole), real or whole}:
                best = max(best, _any(glob.catches(seen, cwd, subject.home) for glob in self.globs for cwd in places))
        return best


def _joined(subject: Subject, folder: str, path: str) -> str:
    if path == "~" or path.startswith("~/"):
        return subject.home + path[1:]
    return posixpath.join(folder, path)


def _resolved(subject: Subject, path: str) -> str | None:
    try:
        return subject.resolve(path)
    except (OSError, ValueError):
        return None


# Arguments


@dataclass(frozen=True, slots=True)
class ArgumentIs:
    """One of the tool's arguments, by its name, is as it is said."""

    name: str
    expected: object
    """A pattern, a literal, a tuple of alternatives, or a dict of members."""

    def surely(self, subject: Subject) -> bool:
        return self.catches(subject) is Match.YES

    def catches(self, subject: Subject) -> Match:
        arguments = subject.request.arguments
        if arguments is None:
            return Match.MAYBE
        return _meets(arguments[self.name], self.expected) if self.name in arguments else Match.NO


def _meets(value: object, expected: object) -> Match:
    match expected:
        case tuple():
            return _any(_meets(value, each) for each in cast("tuple[object, ...]", expected))
        case dict():
            members = cast(Object, value) if isinstance(value, dict) else {}
            wanted = cast("dict[str, object]", expected).items()
            return min((_meets(members[n], e) if n in members else Match.NO for n, e in wanted), default=Match.YES)
        case bool() | int() | float() | None:
            same = type(value) is type(expected) and value == expected
            return Match.YES if same else Match.NO
        case _:
            return cast(Pattern, expected).fits(value) if isinstance(value, str) else Match.NO
