"""What rules compare with: globs, simple regular expressions, and globs of paths."""

import re
import unicodedata
import warnings
from enum import IntEnum
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from typing import Protocol

LONGEST = 4096
"""Characters of a text that a regular expression is tried on: what it costs grows with the square of them."""

_WILD = re.compile(r"[*?\[]")


class Match(IntEnum):
    """Whether something fits. Several are joined with `max` for any of them, and with `min` for all."""

    NO = 0
    MAYBE = 1
    YES = 2


class Pattern(Protocol):
    """Something that a text fits or not."""

    def fits(self, text: str) -> Match: ...


class Glob:
    """`*` is any text, `?` any character, `[…]` one of some."""

    def __init__(self, text: str) -> None:
        self._compiled = re.compile(translate(text))

    def fits(self, text: str) -> Match:
        return Match.YES if self._compiled.match(text) else Match.NO


class Regex:
    """A regular expression of a kind that cannot take for ever."""

    def __init__(self, text: str) -> None:
        """Raises ValueError with the reason why it cannot be used."""
        _check_cost(text)
        try:
            with warnings.catch_warnings():
                # What will mean something else in another version of Python.
                warnings.simplefilter("error")
                self._compiled = re.compile(text)
        except (re.error, Warning, RecursionError, OverflowError) as error:
            raise ValueError(f"is no regular expression: {error}") from None

    def fits(self, text: str) -> Match:
        if len(text) > LONGEST:
            return Match.MAYBE
        return Match.YES if self._compiled.search(text) else Match.NO


def pattern(text: str) -> Pattern:
    """`/…/` is a regular expression, all else a glob; raises ValueError."""
    return Regex(text[1:-1]) if len(text) > 2 and text[0] == text[-1] == "/" else Glob(text)


def is_wild(text: str) -> bool:
    """Whether a glob can stand for more than itself."""
    return _WILD.search(text) is not None


def loosely(text: str) -> str:
    """One spelling for all that a file system may take for the same name."""
    return unicodedata.normalize("NFC", text).casefold()


def _check_cost(text: str) -> None:
    """Little that goes on without end, no group that repeats, few branches: else a short text could take for ever."""
    bare = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", text, flags=re.DOTALL)
    if re.search(r"\\[0-9]", text) or "(?" in bare:
        raise ValueError("has a kind of group or reference that is not supported")
    if re.search(r"\)[*+{]", bare):
        raise ValueError("repeats a group, which is not supported")
    anchored = bare.startswith("^") and "|" not in re.sub(r"\([^()]*\)", "", bare)
    if len(re.findall(r"[*+{]", bare)) + (not anchored) > 2:
        raise ValueError("repeats too much: begin it with ^, and use *, + and {…} at most twice")
    if len(re.findall(r"[?(]", bare)) > 8:
        raise ValueError("has more than eight groups and ?")


class PathPattern(Protocol):
    """Something that a path fits or not, seen from a folder and a home."""

    def fits(self, path: str, folder: str, home: str) -> bool: ...
    def catches(self, path: str, folder: str, home: str) -> Match: ...


class PathGlob:
    """A glob of absolute paths. `*` stays within a folder, `**` does not.

    One that begins with `/` is absolute, `~` is the user's home, `**` is anywhere; all others are beneath a folder that
    is given when they are compared.
    """

    def __init__(self, text: str) -> None:
        self._home = text == "~" or text.startswith("~/")
        absolute = text.startswith(("/", "**"))
        names = [name for name in (text[1:] if self._home else text).split("/") if name not in ("", ".")]
        self._beneath = not absolute and not self._home
        self._names = tuple(names)
        end = next((at for at, name in enumerate(names) if is_wild(name)), len(names))
        self._fixed = self._names[:end]
        self._last = loosely(names[-1]) if names and names[-1] != "**" else None

    def fits(self, path: str, folder: str, home: str) -> bool:
        """Whether an absolute path without links and dots fits exactly."""
        return _names_fit(self._whole(folder, home), _names(path))

    def catches(self, path: str, folder: str, home: str) -> Match:
        """The same for a prohibition: the folder of `/**` counts too, and nearly is perhaps."""
        names, near = _names(path), _near(path)
        fixed = (*_near(self._root(folder, home)), *map(loosely, self._fixed))
        around = fixed[:-1] if self._fixed == self._names else fixed
        # A folder around what is forbidden: whoever works on all of it works on that, too.
        nearly = Match.MAYBE if around[: len(near)] == near else Match.NO
        # Most paths are quickly seen to be something else.
        if near[: len(fixed)] != fixed or (self._last is not None and not _fits(near[-1] if near else "", self._last)):
            return nearly
        whole = self._whole(folder, home)
        wholes = [whole] if self._last is not None else [whole, whole[:-1]]
        if any(_names_fit(globs, names) for globs in wholes):
            return Match.YES
        return Match.MAYBE if any(_names_fit(tuple(map(loosely, globs)), near) for globs in wholes) else nearly

    def _root(self, folder: str, home: str) -> str:
        return home if self._home else folder if self._beneath else ""

    def _whole(self, folder: str, home: str) -> tuple[str, ...]:
        return (*map(_escaped, _names(self._root(folder, home))), *self._names)


class FlatPathGlob:
    """A glob of absolute paths in which `*` is any text, folders included; one that begins with it is anywhere."""

    def __init__(self, text: str) -> None:
        self._text = re.sub(r"^\$(HOME\b|\{HOME\})", "~", text)

    def fits(self, path: str, folder: str, home: str) -> bool:
        """Whether an absolute path fits."""
        return fnmatchcase(path, self._whole(folder, home))

    def catches(self, path: str, folder: str, home: str) -> Match:
        """The same, and perhaps when only the case differs."""
        if self.fits(path, folder, home):
            return Match.YES
        return Match.MAYBE if fnmatchcase(loosely(path), loosely(self._whole(folder, home))) else Match.NO

    def _whole(self, folder: str, home: str) -> str:
        if self._text == "~" or self._text.startswith("~/"):
            return _escaped(home) + self._text[1:]
        return self._text if self._text.startswith(("/", "*")) else f"{_escaped(folder)}/{self._text}"


@lru_cache(1024)
def _names(path: str) -> tuple[str, ...]:
    return tuple(name for name in path.split("/") if name)


@lru_cache(1024)
def _near(path: str) -> tuple[str, ...]:
    return tuple(map(loosely, _names(path)))


def _escaped(name: str) -> str:
    """A name as a glob that only that name fits."""
    return _WILD.sub(lambda match: f"[{match[0]}]", name)


def _names_fit(globs: tuple[str, ...], names: tuple[str, ...]) -> bool:
    """Name by name, with all that globs could stand for, so that no path takes long. `**` at the end is something."""
    at = _open({0}, globs)
    for name in names:
        ahead = {here + 1 for here in at if here < len(globs) and globs[here] != "**" and _fits(name, globs[here])}
        stay = {here for here in at if here < len(globs) and globs[here] == "**"}
        at = _open(ahead | stay, globs) | ({len(globs)} if len(globs) - 1 in stay else set[int]())
    return len(globs) in at


def _open(at: set[int], globs: tuple[str, ...]) -> set[int]:
    """Where else one is when `**` may stand for nothing."""
    for here in range(len(globs) - 1):
        if here in at and globs[here] == "**":
            at.add(here + 1)
    return at


@lru_cache(4096)
def _fits(name: str, glob: str) -> bool:
    return fnmatchcase(name, glob)
