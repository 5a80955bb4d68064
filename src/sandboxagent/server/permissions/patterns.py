"""Match globs, paths and simple regular expressions."""

import re
import unicodedata
import warnings
from enum import IntEnum
from fnmatch import translate
from functools import cached_property, lru_cache
from typing import Protocol

from sandboxagent.server.permissions.spelling import Shape

MAX_TEXT = 1024
"""Maximum number of characters of a text that a regular expression is tried on. The cost grows with their square."""
MAX_PATH = 4096
"""Maximum number of characters of a path: no system accepts longer ones."""

MAX_PAIRS = 1 << 14
"""Maximum number of pairs of characters to compare for two globs. Longer globs count as overlapping."""

_WILD = r"\[[^\]]*\]|[*?\[]"


class Match(IntEnum):
    """The result of a match. Combine several with `max` for any of them, and with `min` for all of them."""

    NO = 0
    MAYBE = 1
    YES = 2


class Pattern(Protocol):
    """A pattern that a text matches or not."""

    def fits(self, text: str) -> Match: ...
    def is_all_of(self, text: str) -> bool: ...
    def steps(self, text: str) -> int: ...


class Glob:
    """A glob: `*` is any text, `?` any character, `[…]` one of several.

    Its cost grows at most linearly with the text.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.wild = is_wild(text)
        # A `*` in the standard library's translation does not backtrack.
        self._compiled = re.compile(translate(text)) if self.wild else None

    def __str__(self) -> str:
        return self.text

    def fits(self, text: str) -> Match:
        return Match.YES if self.is_all_of(text) else Match.NO

    def is_all_of(self, text: str) -> bool:
        return text == self.text if self._compiled is None else self._compiled.match(text) is not None

    def steps(self, text: str) -> int:
        return 1 + len(text) // 64

    @cached_property
    def loose(self) -> "Glob":
        """The glob for texts in lower case."""
        return Glob(self.text.casefold())


class Regex:
    """A regular expression of a restricted form that cannot take exponential time."""

    def __init__(self, text: str) -> None:
        """Compile the expression. Raises ValueError with the reason if it cannot be used."""
        self._text = text
        _check_cost(text)
        try:
            with warnings.catch_warnings():
                # Warnings tell of syntax that changes its meaning in a later version of Python.
                warnings.simplefilter("error")
                self._compiled = re.compile(text)
        except (re.error, Warning, RecursionError, OverflowError) as error:
            raise ValueError(f"is no regular expression: {error}") from None

    def __str__(self) -> str:
        return f"/{self._text}/"

    def fits(self, text: str) -> Match:
        """Return whether the expression matches anywhere in a text."""
        if len(text) > MAX_TEXT:
            return Match.MAYBE
        return Match.YES if self._compiled.search(text) else Match.NO

    def is_all_of(self, text: str) -> bool:
        """Return whether the expression matches a text from its first to its last character."""
        return len(text) <= MAX_TEXT and self._compiled.fullmatch(text) is not None

    def steps(self, text: str) -> int:
        return 1 + min(len(text), MAX_TEXT) ** 2 // 512


def compile_pattern(text: str) -> Pattern:
    """Compile `/…/` as a regular expression and any other text as a glob. Raises ValueError."""
    return Regex(text[1:-1]) if len(text) > 2 and text[0] == text[-1] == "/" else Glob(text)


def is_wild(text: str) -> bool:
    """Return whether a glob can match texts other than itself."""
    return re.search(_WILD, text) is not None


def normalize_name(text: str) -> str:
    """Return one spelling for all texts that a file system may treat as the same name."""
    return unicodedata.normalize("NFC", text).casefold()


def _check_cost(text: str) -> None:
    """Refuse more than two unbounded repetitions, repeated groups and many branches.

    Otherwise a short text could take forever.
    """
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


# Paths


class PathPattern(Protocol):
    """A pattern that a path matches or not, relative to a folder and a home."""

    def fits(self, path: str, folder: str, home: str) -> bool: ...
    def catches(self, path: str, folder: str, home: str) -> Match: ...
    def may_meet(self, shape: Shape, folder: str, home: str) -> bool: ...
    def is_named_in(self, text: str) -> bool: ...
    def steps(self, path: str) -> int: ...
    def meeting_steps(self, shape: Shape) -> int: ...


class Mention:
    """The name in a path glob that identifies it in a text that is no path: `.env` in `-d@.env`."""

    def __init__(self, glob: str) -> None:
        names = [name for name in glob.split("/") if name not in ("", ".", "~")]
        pieces = [[normalize_name(piece) for piece in re.split(_WILD, name) if piece] for name in names]
        last = next((at for at in reversed(range(len(names))) if len("".join(pieces[at])) > 1), None)
        self._pieces = [] if last is None else pieces[last]
        self._name = "" if last is None else normalize_name(names[last])
        # The name `config` alone does not identify `**/.git/config`.
        around = names[last - 1] if last and glob.startswith("**") else ""
        self._folder = "" if is_wild(around) else normalize_name(around)

    def is_in(self, text: str) -> bool:
        """Return whether the name appears in a loosely spelled text.

        A name such as `etc` does not appear in `fetch`.
        """
        if not self._pieces or self._folder not in text:
            return False
        if len(self._pieces) > 1:
            return _in_order(self._pieces, text)
        piece = self._pieces[0]
        # A short option may precede the name directly.
        free = text.startswith("-") or not self._name.startswith(piece) or not piece[0].isalnum()
        # `.env` appears in `.envrc`, but `*.key` does not in `object.keys`, nor `etc` in `/etcetera`.
        is_dotted = self._name.startswith(piece) and not piece[0].isalnum()
        closed = self._name.endswith(piece) and piece[-1].isalnum() and not is_dotted
        at = text.find(piece)
        while at >= 0:
            end = at + len(piece)
            if (free or not text[at - 1 : at].isalnum()) and not (closed and text[end : end + 1].isalnum()):
                return True
            at = text.find(piece, at + 1)
        return False


def _in_order(pieces: list[str], text: str) -> bool:
    at = 0
    for piece in pieces:
        found = text.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return True


class PathGlob:
    """A glob of absolute paths. `*` stays within a folder, `**` does not.

    A glob that begins with `/` is absolute, `~` is the user's home, and `**` is anywhere. Any other glob is relative to
    the folder that is given for the comparison.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._home = text == "~" or text.startswith("~/")
        absolute = text.startswith(("/", "**"))
        names = [name for name in (text[1:] if self._home else text).split("/") if name not in ("", ".")]
        self._beneath = not absolute and not self._home
        self._globs = tuple(None if name == "**" else Glob(name) for name in names)
        self._loose = tuple(None if name == "**" else Glob(normalize_name(name)) for name in names)
        fixed = names[: next((at for at, name in enumerate(names) if is_wild(name)), len(names))]
        self._fixed = tuple(map(normalize_name, fixed))
        self._is_fixed = len(fixed) == len(names)
        self._mention = Mention(text)
        self._length = len(text)

    def fits(self, path: str, folder: str, home: str) -> bool:
        """Return whether an absolute path without links and dots matches exactly."""
        root, names = _names(self._root(folder, home)), _names(path)
        return names[: len(root)] == root and _names_fit(self._globs, names[len(root) :])

    def catches(self, path: str, folder: str, home: str) -> Match:
        """Match a path for a rule that rejects or asks: the folder of `/**` matches too, and a near match is MAYBE."""
        near, near_root = _near(path), _near(self._root(folder, home))
        fixed = near_root + self._fixed
        around = fixed[:-1] if self._is_fixed else fixed
        # Work on a folder that contains the rejected path affects that path too.
        nearly = Match.MAYBE if around[: len(near)] == near else Match.NO
        # A cheap test first, because most paths do not match.
        last = self._loose[-1] if self._loose else None
        if near[: len(fixed)] != fixed or (last is not None and not last.is_all_of(near[-1] if near else "")):
            return nearly
        names, root = _names(path), _names(self._root(folder, home))
        if names[: len(root)] == root and self._contains(self._globs, names[len(root) :]):
            return Match.YES
        return Match.MAYBE if self._contains(self._loose, near[len(root) :]) else nearly

    def may_meet(self, shape: Shape, folder: str, home: str) -> bool:
        """Return whether this glob and another one may match the same path."""
        own = (*map(Glob, _near(self._root(folder, home))), *self._loose)
        at = _open_all({0}, own)
        for name in shape:
            if name is None:
                at = set(range(min(at), len(own) + 1))
            else:
                ahead = {here + 1 for here in at if here < len(own) and _may_be_called(own[here], normalize_name(name))}
                at = _open_all(ahead | {here for here in at if here < len(own) and own[here] is None}, own)
            if not at:
                return False
        return len(own) in at

    def is_named_in(self, text: str) -> bool:
        """Return whether the glob's name appears in a loosely spelled text."""
        return self._mention.is_in(text)

    def steps(self, path: str) -> int:
        """Return the cost of a comparison."""
        return 2 + len(path) * (1 + len(self._globs)) // 64

    def meeting_steps(self, shape: Shape) -> int:
        """Return the cost of a comparison with another glob."""
        return _meeting_steps(self._length, shape)

    @staticmethod
    def _contains(globs: "tuple[Glob | None, ...]", names: tuple[str, ...]) -> bool:
        with_folder = [globs, globs[:-1]] if globs and globs[-1] is None else [globs]
        return any(_names_fit(each, names) for each in with_folder)

    def _root(self, folder: str, home: str) -> str:
        return home if self._home else folder if self._beneath else ""


class FlatPathGlob:
    """A glob of absolute paths in which `*` also matches across folders. One that begins with `*` is anywhere."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"^\$(HOME\b|\{HOME\})", "~", text)
        self._home = text == "~" or text.startswith("~/")
        self._anywhere = text.startswith(("/", "*"))
        rest = text[1:] if self._home else text if self._anywhere else f"/{text}"
        self._glob, self._loose = Glob(rest), Glob(normalize_name(rest))
        self._mention = Mention(text)
        self._length = len(text)

    def fits(self, path: str, folder: str, home: str) -> bool:
        """Return whether an absolute path matches."""
        root = self._root(folder, home)
        return path.startswith(root) and self._glob.is_all_of(path[len(root) :])

    def catches(self, path: str, folder: str, home: str) -> Match:
        """Match a path like `fits`; MAYBE if only upper and lower case differ."""
        if self.fits(path, folder, home):
            return Match.YES
        root, path = normalize_name(self._root(folder, home)), normalize_name(path)
        return Match.MAYBE if path.startswith(root) and self._loose.is_all_of(path[len(root) :]) else Match.NO

    def may_meet(self, shape: Shape, folder: str, home: str) -> bool:
        """Return whether this glob and another one may match the same path."""
        text = "".join("*" if name is None else f"/{normalize_name(name)}" for name in shape)
        return _have_common(
            normalize_name(self._root(folder, home)) + re.sub(r"\[[^\]]*\]", "?", self._loose.text), text
        )

    def is_named_in(self, text: str) -> bool:
        """Return whether the glob's name appears in a loosely spelled text."""
        return self._mention.is_in(text)

    def steps(self, path: str) -> int:
        """Return the cost of a comparison."""
        return 2 + len(path) // 32

    def meeting_steps(self, shape: Shape) -> int:
        """Return the cost of a comparison with another glob."""
        return _meeting_steps(self._length, shape)

    def _root(self, folder: str, home: str) -> str:
        return home if self._home else "" if self._anywhere else folder.rstrip("/")


def is_inside(path: str, folder: str) -> bool:
    """Return whether an absolute path is a folder or is beneath it. Both must be without links and dots."""
    names, around = _names(path), _names(folder)
    return names[: len(around)] == around


@lru_cache(1024)
def _names(path: str) -> tuple[str, ...]:
    return tuple(name for name in path.split("/") if name)


@lru_cache(1024)
def _near(path: str) -> tuple[str, ...]:
    return tuple(map(normalize_name, _names(path)))


def _names_fit(globs: tuple[Glob | None, ...], names: tuple[str, ...]) -> bool:
    """Compare name by name, and track all possible positions in the glob, so that no path takes long.

    None is `**`; at the end of the glob it matches at least one name.
    """
    at = _open({0}, globs)
    for name in names:
        ahead = {here + 1 for here in at if here < len(globs) and _is_called(globs[here], name)}
        stay = {here for here in at if here < len(globs) and globs[here] is None}
        at = _open(ahead | stay, globs) | ({len(globs)} if len(globs) - 1 in stay else set[int]())
        if not at:
            return False
    return len(globs) in at


def _is_called(glob: Glob | None, name: str) -> bool:
    return glob is not None and glob.is_all_of(name)


def _meeting_steps(length: int, shape: Shape) -> int:
    letters = sum(1 + len(name or "") for name in shape)
    return 2 + letters + letters * length // 8


def _may_be_called(glob: Glob | None, name: str) -> bool:
    """Return whether a glob and a name with wildcards may match the same name."""
    return glob is not None and _have_common(re.sub(r"\[[^\]]*\]", "?", glob.text), name)


def _have_common(one: str, other: str) -> bool:
    """Return whether two globs, with `*` as any text and `?` as any character, match a common text."""
    if len(one) * len(other) > MAX_PAIRS:
        return True
    seen, ahead = {(0, 0)}, [(0, 0)]
    while ahead:
        here, there = ahead.pop()
        first, second = one[here : here + 1], other[there : there + 1]
        if not first and not second:
            return True
        ways: list[tuple[int, int]] = []
        if first == "*":
            ways += [(here + 1, there), *([(here, there + 1)] if second else [])]
        if second == "*":
            ways += [(here, there + 1), *([(here + 1, there)] if first else [])]
        if first and second and (first == second or "?" in (first, second)):
            ways.append((here + 1, there + 1))
        ahead += [way for way in ways if way not in seen]
        seen.update(ways)
    return False


def _open_all(at: set[int], globs: "tuple[Glob | None, ...]") -> set[int]:
    """Return the reachable positions like `_open`, but `**` may also match nothing at the end."""
    for here in range(len(globs)):
        if here in at and globs[here] is None:
            at.add(here + 1)
    return at


def _open(at: set[int], globs: tuple[Glob | None, ...]) -> set[int]:
    """Return the reachable positions if `**` may match nothing."""
    for here in range(len(globs) - 1):
        if here in at and globs[here] is None:
            at.add(here + 1)
    return at
