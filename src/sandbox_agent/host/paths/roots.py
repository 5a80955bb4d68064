"""The trees that files may be used in, and what a path means there."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from sandbox_agent.host.paths.confined import Confined
from sandbox_agent.host.paths.names import decode_name


class Roots:
    """`directories` are the trees; none means the whole host. `working` is where the server was started.

    The trees are pinned from now on: what takes the place of one is not entered. Raises OSError when one is not there.
    """

    def __init__(self, directories: Sequence[str], working: str) -> None:
        self.directories = tuple(directories) or ("/",)
        self.base = directories[0] if directories else working
        """What a relative path is relative to, unless the request names a session."""
        self.confined = Confined(self.directories, pinned=True)
        self._real = [os.path.realpath(each) for each in self.directories]
        self.turn = Lock()
        """Locked while a file takes its place: of two that expect the same old one, one comes second."""
        self.closed = False

    def close(self) -> None:
        """The server ends: threads are waited for, so that nothing long may go on."""
        self.closed = True

    def stopped(self) -> bool:
        return self.closed

    def absolute(self, path: str, directory: str | None = None) -> str:
        """The path of what a client calls `path`, from `directory` on; `..` and links in it are left for the walk."""
        path = decode_name(path)
        path = path if path.startswith("/") else f"{directory or self.base}/{path}"
        names = [name for name in path.split("/") if name not in ("", ".")]
        ending = "/" if names and path.endswith("/") else ""
        return "/" + "/".join(names) + ending

    def within(self, directories: Iterable[str]) -> Confined:
        """Only what is in the trees and in these directories."""
        given = tuple(directories)
        if self.directories == ("/",):
            return Confined(given)
        both = [deeper for each in given for root in self._real if (deeper := _deeper(os.path.realpath(each), root))]
        return Confined([*(each for each in given if os.path.realpath(each) in both), *both], self.confined)

    def protects(self, node: int) -> bool:
        """Whether this is a root, the base, or has one of them inside: clients may neither move nor delete it."""
        facts = os.fstat(node)
        return any((facts.st_dev, facts.st_ino) == kept for kept in self._kept())

    def _kept(self) -> Iterator[tuple[int, int]]:
        for directory in (*self.directories, self.base):
            path = Path(directory).resolve()
            for each in (path, *path.parents):
                with suppress(OSError):
                    facts = each.stat()
                    yield facts.st_dev, facts.st_ino


def _deeper(one: str, other: str) -> str | None:
    """Of two directories the one inside the other, or None."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    return longer if longer == shorter or longer.startswith(shorter.rstrip("/") + "/") else None


def find_working_directory() -> str:
    """Where the server was started; the root of the host when that was deleted meanwhile."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return "/"
