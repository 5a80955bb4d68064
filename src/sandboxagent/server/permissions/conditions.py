"""Decide whether a request surely or perhaps meets the conditions of a rule.

A condition has two tests. Rules that allow use `surely`: is the condition met beyond doubt? Rules that reject or ask
use `catches`: is it met, or could it be? For example, an allow needs that all paths match, while a reject needs only
one.
"""

import posixpath
import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Protocol, cast

from msgspec import Struct, field

from sandboxagent.protocol.envelope import Object
from sandboxagent.server.permissions.budget import StepBudget
from sandboxagent.server.permissions.commands import Part, Simple, find_closed_word, program_name, split_words
from sandboxagent.server.permissions.patterns import (
    MAX_PATH,
    Glob,
    Match,
    PathGlob,
    PathPattern,
    Pattern,
    is_inside,
    normalize_name,
)
from sandboxagent.server.permissions.request import ToolRequest
from sandboxagent.server.permissions.spelling import read_spelling, shape_of, split_fixed

MAX_WORDS = 500
"""Maximum number of words of one part that are examined as paths. With more words, the paths are unknown."""

_ANY_FILE = ("\ue000", "\ue000", "\ue000")
"""A file whose name and place no rule would name."""
_GLUE = r"[^\w./~+%-]+"
"""The characters that may separate a path from the rest of a word."""


class Subject(Struct, frozen=True):
    """The subject of a judgement: a request, or one part of its command."""

    request: ToolRequest
    part: Part | None
    home: str
    work: StepBudget
    notes: list[str] = field(default_factory=list[str])
    """The reasons why allow rules that name the subject do not apply."""


class Condition(Protocol):
    """One condition of a rule."""

    def surely(self, subject: Subject) -> bool: ...
    def catches(self, subject: Subject) -> Match: ...


def _any(matches: Iterable[Match]) -> Match:
    return max(matches, default=Match.NO)


class FactIs(Struct, frozen=True):
    """A condition about a fact that is one word: the tool's name, the kind, or the agent."""

    patterns: tuple[Pattern, ...]
    fact: Callable[[ToolRequest], str | None]
    everything: bool = False
    """Whether any value matches, even an unknown one."""

    def surely(self, subject: Subject) -> bool:
        return self.catches(subject) is Match.YES

    def catches(self, subject: Subject) -> Match:
        if self.everything:
            return Match.YES
        value = self.fact(subject.request)
        if value is None:
            return Match.MAYBE
        subject.work.spend(sum(pattern.steps(value) for pattern in self.patterns))
        return _any(pattern.fits(value) for pattern in self.patterns)


_VAGUE = (None, "other", "execute")
"""Kinds that do not exclude any effect of a call."""


class KindIs(Struct, frozen=True):
    """A condition about the kind of a call. The content of the call counts more than the kind that the agent states."""

    kind: FactIs

    def surely(self, subject: Subject) -> bool:
        request = subject.request
        deeds = () if request.kind in _VAGUE else request.deeds
        return self.kind.surely(subject) and all(self._has(deed) for deed in deeds)

    def catches(self, subject: Subject) -> Match:
        done = any(self._has(deed) for deed in subject.request.deeds)
        return Match.YES if done else self.kind.catches(subject)

    def _has(self, kind: str) -> bool:
        return self.kind.everything or any(pattern.is_all_of(kind) for pattern in self.kind.patterns)


class Unknowable:
    """A condition about a fact that no agent reports."""

    def surely(self, subject: Subject) -> bool:
        return False

    def catches(self, subject: Subject) -> Match:
        return Match.MAYBE


# Folders


class AllowedFolders(Struct, frozen=True):
    """The folders in which a command may run and work: the session's directories, or the folders that a rule names."""

    globs: tuple[PathGlob, ...] | None = None
    """The patterns of the folders that a rule names; None for the session's directories."""
    anywhere: bool = False

    def has(self, subject: Subject, path: str) -> bool:
        """Return whether a path, with its links resolved, is in one of these folders or is one itself."""
        if self.anywhere:
            return True
        real = subject.work.real(path)
        return real is not None and subject.work.once((self, real), lambda: self._has(subject, real))

    def _has(self, subject: Subject, real: str) -> bool:
        work, request = subject.work, subject.request
        if self.globs is None:
            roots = [work.real(folder) for folder in request.directories]
            return any(root is not None and is_inside(real, root) for root in roots)
        cwd = work.real(request.cwd)
        if cwd is None:
            return False
        around: str = real
        while True:
            work.spend(sum(glob.steps(around) for glob in self.globs))
            if any(glob.fits(around, cwd, subject.home) for glob in self.globs):
                return True
            if around == "/":
                return False
            around = around.rpartition("/")[0] or "/"


class FolderIs(Struct, frozen=True):
    """A condition about the folder in which a command runs."""

    where: AllowedFolders

    def surely(self, subject: Subject) -> bool:
        request = subject.request
        if self.where.anywhere:
            return True
        return request.folders_known and all(self.where.has(subject, folder) for folder in request.folders)

    def catches(self, subject: Subject) -> Match:
        request = subject.request
        if any(self.where.has(subject, folder) for folder in request.folders):
            return Match.YES
        unresolved = any(subject.work.real(folder) is None for folder in request.folders)
        return Match.NO if request.folders_known and not unresolved else Match.MAYBE


# Commands


class CommandPattern(Protocol):
    """A pattern that a simple command matches or not."""

    def spells(self, part: Simple, work: StepBudget) -> tuple[bool, ...] | None: ...
    def catches(self, part: Part, work: StepBudget) -> Match: ...


class CommandIs(Struct, frozen=True):
    """The command, or its judged part, matches one of several patterns."""

    patterns: tuple[CommandPattern, ...]
    where: AllowedFolders = field(default_factory=AllowedFolders)
    """The folders in which an allowed command must run. Words that the rule does not spell out must not lead out of
    them."""

    def surely(self, subject: Subject) -> bool:
        part = subject.part
        if not isinstance(part, Simple) or part.literal is None or not part.bare or not subject.request.only_command:
            return False
        return any(self._allows(subject, pattern, part, part.literal) for pattern in self.patterns)

    def _allows(self, subject: Subject, pattern: CommandPattern, part: Simple, words: tuple[str, ...]) -> bool:
        spelled = pattern.spells(part, subject.work)
        if spelled is None:
            return False
        if not FolderIs(self.where).surely(subject):
            subject.notes.append("it may run outside the directories in which it is allowed")
            return False
        subject.work.spend(len(words))
        closed = find_closed_word(words, spelled) or self._stranger(subject, words, spelled)
        if closed is not None:
            subject.notes.append(closed)
        return closed is None

    def _stranger(self, subject: Subject, words: tuple[str, ...], spelled: tuple[bool, ...]) -> str | None:
        """Return why the command may leave its folders, naming the first such word; None if it cannot."""
        if self.where.anywhere:
            return None
        for word, known in zip(words[1:], spelled[1:], strict=True):
            if not known and not all(self._is_near(subject, piece) for piece in _pieces(word)):
                return f"`{word}` may lead out of the directories in which it is allowed"
        return None

    def _is_near(self, subject: Subject, piece: str) -> bool:
        if piece == "/dev/null":
            return True
        if len(piece) > MAX_PATH or piece.startswith("~"):
            return False
        request = subject.request
        return all(self.where.has(subject, posixpath.join(folder, piece)) for folder in request.folders)

    def catches(self, subject: Subject) -> Match:
        part = subject.part
        if part is None:
            return Match.NO
        return _any(pattern.catches(part, subject.work) for pattern in self.patterns)


def _pieces(word: str) -> list[str]:
    """Return the parts of a word that may be paths: the word, and the text after `=`, `:`, `@` or a short option."""
    pieces = [word, *re.split(_GLUE, word)]
    if word.startswith("-"):
        pieces += [word[2:], *(word[at:] for at in (word.find(sign) for sign in ("/", "~", "..")) if at > 0)]
    return list(dict.fromkeys(piece for piece in pieces if piece))


class Words(Struct, frozen=True):
    """The words of a command, each a glob. An allow needs exactly these words, unless the last one is `*`."""

    globs: tuple[Glob, ...]
    is_open: bool

    def spells(self, part: Simple, work: StepBudget) -> tuple[bool, ...] | None:
        """Return for each word of a command whether it is spelled out here; None if the command does not match."""
        words = part.literal or ()
        work.spend(1 + sum(glob.steps(word) for glob, word in zip(self.globs, words, strict=False)))
        if len(words) < len(self.globs) or (len(words) > len(self.globs) and not self.is_open):
            return None
        if not all(map(stands_for, self.globs, words)):
            return None
        return tuple(at < len(self.globs) and not self.globs[at].wild for at in range(len(words)))

    def catches(self, part: Part, work: StepBudget) -> Match:
        work.spend(1 + len(part.text) // 8)
        if not isinstance(part, Simple):
            found, length = split_words(part.text) or (), len(self.globs)
            begins = any(self._begins(found[at : at + length]) for at in range(len(found)))
            return Match.YES if begins else Match.MAYBE
        front = self._front(part)
        return front if front or not self._contains(part, work) else Match.MAYBE

    def _begins(self, words: tuple[str, ...]) -> bool:
        return len(words) >= len(self.globs) and all(map(Glob.is_all_of, self.globs, words))

    def _front(self, part: Simple) -> Match:
        """Compare the first words, with the program in any folder."""
        if len(part.words) < len(self.globs):
            return Match.MAYBE if None in part.words and self._front_fits(part) else Match.NO
        if not self._front_fits(part):
            return Match.NO
        return Match.MAYBE if None in part.words[: len(self.globs)] else Match.YES

    def _front_fits(self, part: Simple) -> bool:
        """Return whether the known words match."""
        for number, (word, glob) in enumerate(zip(part.words, self.globs, strict=False)):
            if word is None:
                # The word may expand to several words, or to none.
                return True
            if not (_is_called(word, glob) if number == 0 else glob.is_all_of(word)):
                return False
        return True

    def _contains(self, part: Simple, work: StepBudget) -> bool:
        """Return whether a command has all words of the pattern in order.

        It may run them even if they are not first.
        """
        known = " ".join(word for word in part.words if word is not None)
        found = split_words(f"{known} {part.fed}".casefold())
        if found is None:
            return True
        work.spend(1 + len(found))
        left = iter(found)
        return all(any(_is_called(word, glob) for word in left) for glob in self._loose)

    @property
    def _loose(self) -> tuple[Glob, ...]:
        return tuple(glob.loose for glob in self.globs)


def stands_for(glob: Glob, word: str) -> bool:
    """A star does not match an option, unless the text before the star begins with a dash."""
    return glob.is_all_of(word) and (not word.startswith("-") or glob.text.startswith("-"))


def _is_called(word: str, glob: Glob) -> bool:
    """Return whether a word is a program that matches, in any folder."""
    return glob.is_all_of(word) or glob.is_all_of(program_name(word))


class Line(Struct, frozen=True):
    """A glob or a regular expression for a whole simple command."""

    pattern: Pattern

    def spells(self, part: Simple, work: StepBudget) -> tuple[bool, ...] | None:
        """Like `Words.spells`.

        A regular expression spells out every word, and a glob only the words before its first star.
        """
        work.spend(self.pattern.steps(part.line))
        if not self.pattern.is_all_of(part.line):
            return None
        words = part.literal or ()
        if not isinstance(self.pattern, Glob) or not self.pattern.wild:
            return (True,) * len(words)
        front = re.split(r"[*?\[]", self.pattern.text, maxsplit=1)[0].split(" ")[:-1]
        return tuple(at < len(front) and front[at] == word for at, word in enumerate(words))

    def catches(self, part: Part, work: StepBudget) -> Match:
        work.spend(2 * self.pattern.steps(part.text))
        if not isinstance(part, Simple) or part.literal is None:
            return max(self.pattern.fits(part.text), Match.MAYBE)
        work.spend(self.pattern.steps(part.fed))
        nearly = max(self.pattern.fits(part.text), self.pattern.fits(part.fed) if part.fed else Match.NO)
        return max(self.pattern.fits(part.line), min(nearly, Match.MAYBE))


# Paths


class PathIs(Struct, frozen=True):
    """The paths of a request match one of several globs."""

    globs: tuple[PathPattern, ...]

    def surely(self, subject: Subject) -> bool:
        request = subject.request
        paths = (*request.paths, *request.perhaps_paths)
        # The words of a command do not show which files it uses.
        if request.parts or not paths or not (request.paths_known and request.paths_clear):
            return False
        return all(self._surely_fits(subject, path) for path in paths)

    def _surely_fits(self, subject: Subject, path: str) -> bool:
        """Return whether every possible reading of the text matches."""
        if len(path) > MAX_PATH:
            return False
        subject.work.spend(1 + len(path) // 4)
        spelling = read_spelling(path)
        if not spelling.is_certain or not all(
            self._fits(subject, each) for each in (path, *spelling.others, *spelling.listed)
        ):
            return False
        if not spelling.is_glob:
            return True
        # The glob may match any file in its folder, at any depth.
        folder, rest = split_fixed(_join_path(subject, subject.request.folder, path))
        return ".." not in rest.split("/") and self._fits(subject, posixpath.join(folder, *_ANY_FILE))

    def catches(self, subject: Subject) -> Match:
        request, part = subject.request, subject.part
        stated = subject.work.once((self, None), lambda: self._match_stated_paths(subject))
        if part is None:
            return max(stated, Match.NO if request.paths_known else Match.MAYBE)
        if not isinstance(part, Simple):
            words = dict.fromkeys(split_words(part.text) or ())
            named = _any(self._caught(subject, word) for word in islice(words, MAX_WORDS))
            return max(stated, Match.MAYBE, named)
        return max(stated, self._in_part(subject, part))

    def _match_stated_paths(self, subject: Subject) -> Match:
        """Return how the paths that the request states match, apart from its command."""
        request = subject.request
        sure = _any(self._caught(subject, path) for path in request.paths)
        perhaps = _any(self._caught(subject, path) for path in request.perhaps_paths)
        glued = any(self._is_named(subject, text) for text in request.perhaps_paths)
        meant = any(self._may_mean(subject, path) for path in (*request.paths, *request.places))
        return max(sure, min(perhaps, Match.MAYBE), Match.MAYBE if glued or meant else Match.NO)

    def _may_mean(self, subject: Subject, path: str) -> bool:
        """Return whether some tool may read the text as a path that matches."""
        if len(path) > MAX_PATH:
            return True
        subject.work.spend(1 + len(path) // 4)
        spelling = read_spelling(path)
        texts = (*spelling.others, *spelling.listed, *spelling.pieces)
        if any(self._caught(subject, text) for text in texts):
            return True
        if not spelling.is_wild:
            return not spelling.is_certain
        return any(self._meets(subject, text) for text in (path, *spelling.others))

    def _meets(self, subject: Subject, path: str) -> bool:
        """Return whether the text, read as a glob, may match the same path as the rule."""
        request, work = subject.request, subject.work
        for start in request.folders:
            folder, rest = split_fixed(_join_path(subject, start, path))
            for seen in {posixpath.normpath(folder), work.real(folder) or folder}:
                shape = shape_of(seen, rest)
                if shape is None:
                    return True
                for glob in self.globs:
                    work.spend(glob.meeting_steps(shape))
                    if glob.may_meet(shape, request.cwd, subject.home):
                        return True
        return False

    def _in_part(self, subject: Subject, part: Simple) -> Match:
        words, plain, glued = subject.work.once(("words", part), lambda: _words_of(part, subject.work))
        found = _any(self._caught(subject, word) for word in islice(plain, MAX_WORDS))
        nearly = _any(self._caught(subject, piece) for piece in islice(glued, MAX_WORDS))
        unseen = (
            None in (*part.words, *part.files)
            or max(len(plain), len(glued)) > MAX_WORDS
            or (not subject.request.folders_known and any(word[0] not in "/-" for word in words))
            or any(self._is_named(subject, text) for text in (*words, part.text, part.fed))
        )
        return max(found, min(nearly, Match.MAYBE), Match.MAYBE if unseen else Match.NO)

    def _is_named(self, subject: Subject, text: str) -> bool:
        """Return whether a name that the rule is about appears anywhere in the text."""

        def find() -> bool:
            subject.work.spend(1 + len(text) * (1 + len(self.globs)) // 64)
            loose = normalize_name(text)
            return any(glob.is_named_in(loose) for glob in self.globs)

        return bool(text) and subject.work.once((self, "named", text), find)

    def _fits(self, subject: Subject, path: str) -> bool:
        request, work = subject.request, subject.work
        if len(path) > MAX_PATH:
            return False
        real, cwd = work.real(_join_path(subject, request.folder, path)), work.real(request.cwd)
        if real is None or cwd is None:
            return False
        work.spend(sum(glob.steps(real) for glob in self.globs))
        return any(glob.fits(real, cwd, subject.home) for glob in self.globs)

    def _caught(self, subject: Subject, path: str) -> Match:
        return subject.work.once((self, path), lambda: self._look(subject, path))

    def _look(self, subject: Subject, path: str) -> Match:
        """Compare a path with and without links, from every folder to which it may be relative."""
        request, work = subject.request, subject.work
        if len(path) > MAX_PATH:
            return Match.MAYBE
        best = Match.NO
        places = {request.cwd, work.real(request.cwd) or request.cwd}
        for folder in request.folders:
            whole = _join_path(subject, folder, path)
            real = work.real(whole)
            best = max(best, Match.MAYBE if real is None else Match.NO)
            for seen in {posixpath.normpath(whole), real or whole}:
                work.spend(len(places) * sum(glob.steps(seen) for glob in self.globs))
                best = max(best, _any(glob.catches(seen, cwd, subject.home) for glob in self.globs for cwd in places))
        return best


def _words_of(part: Simple, work: StepBudget) -> tuple[list[str], list[str], list[str]]:
    """Return the words of a command, the texts that are paths if any are, and the texts that may contain paths."""
    work.spend(1 + (len(part.text) + len(part.fed)) // 4)
    words = list(dict.fromkeys(word for word in (*part.words, *part.files) if word))
    # A whole word, or the text behind a `=`, is the path itself.
    plain = [piece for word in words for piece in (word, *word.split("=")[1:2])]
    glued = [*(piece for word in words for piece in _pieces(word)), *(split_words(part.fed) or ())]
    return words, list(dict.fromkeys(plain)), list(dict.fromkeys(glued))


def _join_path(subject: Subject, folder: str, path: str) -> str:
    if path == "~" or path.startswith("~/"):
        return subject.home + path[1:]
    return posixpath.join(folder, path)


# Arguments


class ArgumentIs(Struct, frozen=True):
    """A named argument of the tool has the expected value."""

    name: str
    expected: object
    """A pattern, a literal, a tuple of alternatives, or a dict of members."""

    def surely(self, subject: Subject) -> bool:
        return self.catches(subject) is Match.YES

    def catches(self, subject: Subject) -> Match:
        arguments = subject.request.arguments
        if arguments is None:
            return Match.MAYBE
        if self.name not in arguments:
            return Match.NO
        return _meets(arguments[self.name], self.expected, subject.work)


def _meets(value: object, expected: object, work: StepBudget) -> Match:
    match expected:
        case tuple():
            return _any(_meets(value, each, work) for each in cast("tuple[object, ...]", expected))
        case dict():
            members = cast(Object, value) if isinstance(value, dict) else {}
            wanted = cast("dict[str, object]", expected).items()
            met = (_meets(members[name], each, work) if name in members else Match.NO for name, each in wanted)
            return min(met, default=Match.YES)
        case bool() | int() | float() | None:
            same = type(value) is type(expected) and value == expected
            return Match.YES if same else Match.NO
        case _:
            if not isinstance(value, str):
                return Match.NO
            work.spend(cast(Pattern, expected).steps(value))
            return cast(Pattern, expected).fits(value)
