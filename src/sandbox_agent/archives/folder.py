"""A new folder on the disk that takes what an archive holds, each thing where it belongs."""

import os
from io import FileIO
from pathlib import Path

from sandbox_agent.archives.tree import Parts


class Folder:
    """A shelf for a tree. `root` must be new or empty, and used by nothing else: its content is reached by path."""

    def __init__(self, root: Path) -> None:
        self.name = str(root)
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def folder(self, parts: Parts) -> None:
        self._root.joinpath(*parts).mkdir()

    def file(self, parts: Parts, *, runs: bool) -> FileIO:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return FileIO(os.open(self._root.joinpath(*parts), flags, 0o755 if runs else 0o644), "wb")

    def read(self, parts: Parts) -> FileIO:
        return FileIO(self._root.joinpath(*parts), "rb")

    def link(self, parts: Parts, target: str) -> None:
        self._root.joinpath(*parts).symlink_to(target)
