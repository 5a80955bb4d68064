"""Read and write text files for agents, within the directories of a session.

Files are read whole or by lines, and written whole. All functions block, so callers run them in a thread.
"""

import errno
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from io import FileIO

from sandboxagent.protocol.errors import FileFailed, InvalidParams, NoSuchFile, SandboxAgentError
from sandboxagent.server.files.confined import Confined, Outside
from sandboxagent.server.files.descriptors import NotAFile
from sandboxagent.server.files.roots import decode_name


class TextFiles:
    """Reads and writes text for agents.

    `limit` is the maximum number of bytes that one read returns. A read examines at most `scan` bytes to find its line,
    for at most `timeout` seconds, because a file can be too large to be read in time. `within` confines a session's
    directories.
    """

    def __init__(
        self,
        limit: int,
        scan: int = 256 << 20,
        timeout: float = 20.0,
        block: int = 256 * 1024,
        within: Callable[[Iterable[str]], Confined] = Confined,
    ) -> None:
        self._within = within
        self._limit = limit
        self._scan = scan
        self._timeout = timeout
        self._block = block
        self._closed = False

    def close(self) -> None:
        """Stop reading, because the server waits for its threads when it ends."""
        self._closed = True

    def read(self, directories: Iterable[str], path: str, line: int | None, limit: int | None) -> str:
        """Return a file's text, or `limit` lines of it from `line` on, which counts from 1.

        Memory is bounded, whatever the size of the file. Raises InvalidParams, NoSuchFile or FileFailed.
        """
        with as_agent_errors(path), self._within(directories).open(decode_name(path)) as file:
            if (line or 0) <= 1 and limit is None and os.fstat(file.fileno()).st_size > self._limit:
                raise self._too_large(path)
            skipped, content = self._part(self._blocks(file, path), path, max(line or 1, 1) - 1, limit)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            at = skipped + error.start
            raise InvalidParams(f"{path} is not UTF-8 text: byte {at} cannot be decoded", path=path, byte=at) from None

    def write(self, directories: Iterable[str], path: str, content: str) -> None:
        """Make or replace a file, with its missing folders, as a whole or not at all.

        Raises InvalidParams, NoSuchFile or FileFailed.
        """
        with as_agent_errors(path), self._within(directories).replace(decode_name(path), parents=True) as file:
            file.write(content.encode())

    def _blocks(self, file: FileIO, path: str) -> Iterator[bytes]:
        deadline = time.monotonic() + self._timeout
        while block := file.read(self._block):
            yield block
            if self._closed or time.monotonic() > deadline:
                raise FileFailed(f"{path} takes longer than {self._timeout:g} s to read; stopped", path=path)

    def _part(self, blocks: Iterator[bytes], path: str, skip: int, count: int | None) -> tuple[int, bytes]:
        """Return lines of a file, and the number of bytes before them."""
        content, skipped = bytearray(), 0
        for block in blocks if count != 0 else ():
            if skip > (breaks := block.count(b"\n")):
                skip, skipped = skip - breaks, skipped + len(block)
                if skipped >= self._scan:
                    raise self._too_far(path)
                continue
            start = _after(block, skip)
            skipped += start
            count = None if count is None else count - (breaks - skip)
            # Negative if the block has more lines than requested.
            end = len(block) if count is None or count > 0 else _after(block, breaks + count)
            content += block[start:end]
            skip = 0
            if len(content) > self._limit:
                raise self._too_large(path)
            if count is not None and count <= 0:
                break
        return skipped, bytes(content)

    def _too_large(self, path: str) -> InvalidParams:
        message = f"{path} has more than {self._limit} bytes there; read a part of it with line and limit"
        return InvalidParams(message, path=path, limit=self._limit)

    def _too_far(self, path: str) -> InvalidParams:
        message = f"the line is not in the first {self._scan} bytes of {path}; look for it with a command"
        return InvalidParams(message, path=path, limit=self._scan)


@contextmanager
def as_agent_errors(path: str) -> Generator[None]:
    """Convert every OSError of the block to an error for the agent."""
    try:
        yield
    except OSError as error:
        raise _refusal(error, path) from error


def _refusal(error: OSError, path: str) -> SandboxAgentError:
    match error:
        case Outside():
            rule = "only files inside the session's cwd and additionalDirectories, and --fs-root, can be used"
            message = f"{path} leads out of the session's directories; {rule}"
            # Agents that look for this word (Qwen) then read their own files themselves.
            return InvalidParams(message, path=path, errorKind="path_outside_workspace")
        case NotAFile():
            return InvalidParams(f"{path} is not a regular file", path=path)
        case FileNotFoundError():
            return NoSuchFile(f"No such file or directory: {path}", path=path)
        case IsADirectoryError() | NotADirectoryError():
            return InvalidParams(f"{path}: {error.strerror}", path=path)
        case OSError(errno=errno.EINVAL | errno.ENAMETOOLONG | errno.ELOOP):
            return InvalidParams(f"{path!r:.200}: {error.strerror}", path=path)
        case _:
            code = errno.errorcode.get(error.errno or 0, "unknown")
            return FileFailed(f"{path}: {error.strerror or os.strerror(errno.EIO)}", path=path, errno=code)


def _after(block: bytes, breaks: int) -> int:
    """Return the offset of the text after a number of line breaks."""
    return len(block) - len(block.split(b"\n", breaks)[breaks]) if breaks else 0


DIRECTORY, UNKNOWN = "inode/directory", "application/octet-stream"
