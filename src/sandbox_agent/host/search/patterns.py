"""Names that are searched for: a part of one, or a glob. Pure, and as quick for a bad pattern as for a good one."""

import fnmatch
import re
from collections.abc import Callable

MANY = "**"


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a relative path is meant.

    Without `*`, `?` and `[`, a part of its last name, in any case. A glob without a slash is for the last name, one
    with a slash for the whole path; `**` stands for any number of names.
    """
    if not any(character in pattern for character in "*?["):
        part = pattern.casefold()
        return lambda path: part in path.rpartition("/")[2].casefold()
    if "/" not in pattern:
        whole = re.compile(fnmatch.translate(pattern), re.DOTALL)
        return lambda path: whole.match(path.rpartition("/")[2]) is not None
    globs = [None if part == MANY else re.compile(fnmatch.translate(part)) for part in pattern.strip("/").split("/")]
    return lambda path: _match(globs, path.split("/"))


def _match(globs: "list[re.Pattern[str] | None]", names: list[str]) -> bool:
    """Name by name: `reached` are the places in the pattern that the names so far may have led to."""
    reached = _skip(globs, {0})
    for name in names:
        further: set[int] = set()
        for at in reached:
            if at < len(globs):
                glob = globs[at]
                if glob is None:
                    further.add(at)
                elif glob.match(name):
                    further.add(at + 1)
        reached = _skip(globs, further)
    return len(globs) in reached


def _skip(globs: "list[re.Pattern[str] | None]", places: set[int]) -> set[int]:
    """`**` may also stand for nothing."""
    for at in sorted(places):
        further = at
        while further < len(globs) and globs[further] is None:
            further += 1
            places.add(further)
    return places
