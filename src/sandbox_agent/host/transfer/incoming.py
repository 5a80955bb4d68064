"""A file that comes in parts: counted, digested, and in its place when it is whole. Everything here blocks."""

import hashlib
from collections.abc import Iterable
from contextlib import ExitStack

from sandbox_agent.errors import FileTooLarge
from sandbox_agent.host.paths.names import shown
from sandbox_agent.host.paths.refusals import file_problems
from sandbox_agent.host.paths.roots import Roots
from sandbox_agent.host.transfer.conditions import Condition, etag
from sandbox_agent.host.transfer.replacement import Replacement
from sandbox_agent.wire.files import Written


class IncomingFile:
    """One file on its way; raises FileProblem from the start on. Its methods are called one after the other."""

    def __init__(self, roots: Roots, path: str, condition: Condition, limit: int | None) -> None:
        self._roots = roots
        self._path = path
        self._condition = condition
        self._limit = limit
        self._size = 0
        self._digest = hashlib.sha256()
        self._stack = ExitStack()
        with file_problems(path), ExitStack() as stack:
            # For what cannot be a file no directories are made.
            parents = not condition.match and not path.endswith("/")
            place = stack.enter_context(roots.confined.reach(path, parents=parents))
            self._file = Replacement(place)
            stack.callback(self._file.close)
            condition.check(shown(path), self._file.old)
            self._stack = stack.pop_all()

    def write(self, parts: Iterable[bytes]) -> None:
        """Add to its end."""
        with file_problems(self._path):
            for part in parts:
                self._size += len(part)
                if self._limit is not None and self._size > self._limit:
                    raise too_large(self._path, self._limit)
                self._file.write(part)
                self._digest.update(part)

    def finish(self) -> Written:
        """It is whole: let it take its place."""
        path, condition = shown(self._path), self._condition
        with file_problems(self._path), self._roots.turn:
            try:
                facts = self._file.commit(lambda old: condition.check(path, old), new=condition.new)
            except FileExistsError:
                condition.check(path, self._file.present())
                raise
        return Written(path, self._size, self._digest.hexdigest(), etag(facts))

    def close(self) -> None:
        """Let go; what was not finished is gone."""
        self._stack.close()


def too_large(path: str, limit: int) -> FileTooLarge:
    """The problem of a file over `--max-file`."""
    return FileTooLarge(shown(path), f"larger than {limit} bytes; --max-file sets the limit", limit=limit)
