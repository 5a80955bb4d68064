"""List other readings of a text that names a file: other names, several names, a glob, no file.

An agent's own tool reads the text, and tools differ: one decodes `%2e`, one expands `{a,b}`, one takes `~root` for a
folder. Every possible reading counts. If the readings cannot be known, the text is not certain. The module knows
nothing of rules.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import unquote

from msgspec import Struct

MAX_OTHERS = 16
"""Maximum number of other names of a text that are examined. A text with more names is not certain."""

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*:.*"
_ELSEWHERE = r"`|\$[\w{(]|%[A-Za-z_]\w*%|&#?\w+;|[<>]\(|://"
"""Text that another program fills in, or a link."""
_GLUE = r"[^\w./~+%*?-]+"
_BETWEEN = r"[,;|=&]|(?<=\s)(?=[/~.])"
"""Separators between the names of a list. A name may have blanks: the text after one counts if it leads elsewhere."""
_WILD = r"[*?\[]"
_CHOICE = r"\{[^{}]*(?:,|\.\.)|[@!+?*]\(|\|"
"""Braces that stand for several texts, and other forms of a choice in any shell."""
_OUTWARD = r"(?:^|[{(,|/])(?:\.\.(?:[/},)|]|$)|~|/)"
"""The beginning of an alternative that may lead elsewhere."""


class Spelling(Struct, frozen=True):
    """The readings of a text besides the file of that name."""

    others: tuple[str, ...]
    """Other names that a tool may take it for."""
    listed: tuple[str, ...]
    """The names in it, if it may be a list of names."""
    pieces: tuple[str, ...]
    """All parts of it that may be names."""
    is_certain: bool
    """Whether it is a path on this machine for every tool."""
    is_glob: bool
    """Whether it is more likely a glob than a name, so that it stands for unknown files."""
    is_wild: bool
    """Whether it may be a glob."""


@lru_cache(1024)
def read_spelling(text: str) -> Spelling:
    """Return all readings of a text."""
    others, certain = _find_others(text)
    listed = [name for piece in re.split(_BETWEEN, text) if (name := piece.strip())]
    choice = re.search(_CHOICE, text) is not None
    return Spelling(
        others=tuple(others),
        listed=tuple(listed) if len(listed) > 1 else (),
        pieces=tuple(piece for piece in dict.fromkeys(re.split(_GLUE, text)) if piece and piece != text),
        is_certain=certain and not choice and all(map(_is_local, (text, *others))),
        is_glob=choice or re.search(r"[*?]", text) is not None,
        is_wild=choice or re.search(_WILD, text) is not None,
    )


def _is_local(text: str) -> bool:
    far = re.fullmatch(_SCHEME, text, re.DOTALL) or re.search(_ELSEWHERE, text)
    home = text.startswith("~") and text[1:2] not in ("", "/")
    return text.isprintable() and not far and not home


def _find_others(text: str) -> tuple[list[str], bool]:
    """Return the other spellings, including spellings of those, and whether these are all."""
    found, ahead = {text: None}, [text]
    while ahead:
        for other in _respell(ahead.pop()):
            if other and other not in found:
                found[other] = None
                ahead.append(other)
        if len(found) > MAX_OTHERS:
            return list(found)[1:MAX_OTHERS], False
    return list(found)[1:], True


def _respell(text: str) -> Iterator[str]:
    yield text.strip()
    # Without quotes, and without signs that precede a mentioned name or redirect it into a program.
    yield text.strip("'\"").lstrip("@<>!")
    # On Windows, no name ends in a dot.
    yield text.rstrip(". ") if text.strip("./ ") else text
    # With characters that are normalized to others, and without invisible ones.
    yield unicodedata.normalize("NFKC", text)
    yield "".join(letter for letter in text if letter.isprintable())
    yield text.partition("\0")[0]
    if "%" in text:
        yield unquote(text)
    if "{" in text:
        yield text.replace("{", "").replace("}", "")
    if "\\" in text:
        yield text.replace("\\", "/")
        yield text.replace("\\", "")
    for sign in "#?:":
        if sign in text[1:]:
            # The text before a line number, a fragment, a query or a stream name.
            yield text[: text.index(sign, 1)]


Shape = tuple[str | None, ...]
"""The names of a path that may be a glob.

In each name, `*` is any text and `?` any character. None is any number of names, also zero.
"""


def split_fixed(path: str) -> tuple[str, str]:
    """Split an absolute path after the last folder whose name is certain."""
    wild = re.search(rf"{_WILD}|\{{|[@!+]\(|\|", path)
    end = len(path) if wild is None else path.rfind("/", 0, wild.start()) + 1
    return path[:end] or "/", path[end:]


def shape_of(folder: str, rest: str) -> Shape | None:
    """Return the paths that a glob in a folder may match; None for any path anywhere."""
    names = tuple(name for name in folder.split("/") if name)
    if re.search(_CHOICE, rest):
        return None if re.search(_OUTWARD, rest) else (*names, None)
    shape: list[str | None] = [*names]
    for name in rest.split("/"):
        if name == "..":
            return None
        shape += _name_shapes(name) if name not in ("", ".") else []
    return tuple(shape)


def _name_shapes(name: str) -> list[str | None]:
    single = re.sub(r"\[!?\]?[^\]]*\]", "?", name)
    if "*" not in single:
        return [single]
    # Some tools let a star match several names.
    before, after = single.partition("*")[0], single.rpartition("*")[2]
    return [None, f"*{after}"] if after else [f"{before}*", None] if before else [None]
