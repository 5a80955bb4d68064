"""List how else a text that names a file may be read: other names, several names, a glob, no file.

An agent's own tool reads the text, and tools differ: one decodes `%2e`, one expands `{a,b}`, one takes `~root` for a
folder. What a text may be taken for counts, too; where that cannot be known, the text is not certain. Knows nothing of
rules.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import unquote

from msgspec import Struct

MAX_OTHERS = 16
"""Other names of one text that are looked at; with more of them nothing is certain."""

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*:.*"
_ELSEWHERE = r"`|\$[\w{(]|%[A-Za-z_]\w*%|&#?\w+;|[<>]\(|://"
"""What some other program fills in, or a link."""
_GLUE = r"[^\w./~+%*?-]+"
_BETWEEN = r"[,;|=&]|(?<=\s)(?=[/~.])"
"""Between the names of a list. A name may have blanks: what comes after one counts if it leads elsewhere."""
_WILD = r"[*?\[]"
_CHOICE = r"\{[^{}]*(?:,|\.\.)|[@!+?*]\(|\|"
"""Braces that stand for several texts, and what else is a choice in some shell."""
_OUTWARD = r"(?:^|[{(,|/])(?:\.\.(?:[/},)|]|$)|~|/)"
"""In a choice: what may begin elsewhere."""


class Spelling(Struct, frozen=True):
    """What a text may be read as, besides the name of a file that it is."""

    others: tuple[str, ...]
    """Other names that it may be taken for."""
    listed: tuple[str, ...]
    """Names in it, where it may be a list of some."""
    pieces: tuple[str, ...]
    """Everything in it that may be a name."""
    is_certain: bool
    """Whether it is a path on this machine at all, for any tool."""
    is_glob: bool
    """Whether it is more likely a glob than a name, and stands for files that are not known."""
    is_wild: bool
    """Whether it may be a glob."""


@lru_cache(1024)
def read_spelling(text: str) -> Spelling:
    """What there is to know about a text."""
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
    """Other spellings, and spellings of those; and whether these are all."""
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
    # Quotes, and what stands before a name that is mentioned, or goes into a program.
    yield text.strip("'\"").lstrip("@<>!")
    # Windows has no name that ends in a dot.
    yield text.rstrip(". ") if text.strip("./ ") else text
    # Letters that look different and are taken for these; and those that cannot be seen.
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
            # A place in the file, or in a link; a stream of it.
            yield text[: text.index(sign, 1)]


Shape = tuple[str | None, ...]
"""The names of a path that may be a glob.

In each, `*` is any text and `?` any letter; None is any names, or no name at all.
"""


def split_fixed(path: str) -> tuple[str, str]:
    """An absolute path up to the last folder whose name is certain, and the rest."""
    wild = re.search(rf"{_WILD}|\{{|[@!+]\(|\|", path)
    end = len(path) if wild is None else path.rfind("/", 0, wild.start()) + 1
    return path[:end] or "/", path[end:]


def shape_of(folder: str, rest: str) -> Shape | None:
    """What a glob in a folder may stand for; None for anything anywhere."""
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
    # To some tools a star is more than one name.
    before, after = single.partition("*")[0], single.rpartition("*")[2]
    return [None, f"*{after}"] if after else [f"{before}*", None] if before else [None]
