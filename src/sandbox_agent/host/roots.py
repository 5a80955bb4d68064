"""The trees that files may be used in, and what a path means there."""

import os
from collections.abc import Iterable, Sequence

from sandbox_agent.host.confined import Confined
from sandbox_agent.host.names import meant


class Roots:
    """`directories` are the trees; none means the whole host. `working` is where the server was started."""

    def __init__(self, directories: Sequence[str], working: str) -> None:
        self.directories = tuple(directories) or ("/",)
        self.base = directories[0] if directories else working
        """What a relative path is relative to, when nobody says otherwise."""
        self.confined = Confined(self.directories)

    def absolute(self, path: str, directory: str | None = None) -> str:
        """The path of what a client calls `path`, from `directory` on; `..` and links in it are left for the walk."""
        path = meant(path)
        return path if path.startswith("/") else f"{directory or self.base}/{path}"

    def within(self, directories: Iterable[str]) -> Confined:
        """Only what is in the trees and in these directories."""
        given = tuple(directories)
        if self.directories == ("/",):
            return Confined(given)
        real = [os.path.realpath(each) for each in self.directories]
        both = [deeper for each in given for root in real if (deeper := _deeper(os.path.realpath(each), root))]
        return Confined([*(each for each in given if os.path.realpath(each) in both), *both], self.confined)

    def protects(self, path: str) -> bool:
        """Whether this is a root, the base, or has one of them inside: nobody may take it away."""
        kept = [os.path.realpath(each) for each in (*self.directories, self.base)]
        return any(_deeper(each, os.path.realpath(path)) == each for each in kept)


def _deeper(one: str, other: str) -> str | None:
    """Of two directories the one inside the other, or None."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    return longer if longer == shorter or longer.startswith(shorter.rstrip("/") + "/") else None
