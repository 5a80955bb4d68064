"""Find and open the files that a client attaches to a prompt, and detect their types.

All functions block, so callers run them in a thread. `confined` keeps paths inside the allowed directories.
"""

import errno
import os
import time
from io import FileIO
from pathlib import PurePosixPath
from urllib.parse import unquote

from msgspec import Struct

from sandboxagent.server.files.confined import Confined
from sandboxagent.server.files.text import DIRECTORY, UNKNOWN

_SCHEME = "file://"
_HEAD_BYTES = 32
"""Number of bytes that identify an image."""
_BLOCK_BYTES = 256 << 10
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_TYPES = {".md": "text/markdown", ".toml": "application/toml", ".yaml": "application/yaml", ".yml": "application/yaml"}
"""Media types that Python does not know."""


class Attached(Struct, frozen=True):
    """An attached file or directory."""

    path: str
    """The absolute path, without `..`."""
    name: str
    mime: str
    directory: bool = False
    text: bool = False
    """Whether the file was small enough to be read, and is UTF-8 text."""
    image: bytes | None = None
    """The content of an image that was small enough to be read. `mime` is then the type of the content."""


class AttachedFiles:
    """Inspects files beneath some directories, or anywhere. `timeout` is the time limit for one file, in seconds."""

    def __init__(self, confined: Confined | None = None, timeout: float = 20.0) -> None:
        self._confined = confined or Confined(["/"])
        self._timeout = timeout
        self._closed = False

    def close(self) -> None:
        """Stop reading, because the server waits for its threads when it ends."""
        self._closed = True

    def look(
        self, path: str, name: str | None, mime: str | None, *, image_room: int = 0, text_room: int = 0
    ) -> Attached:
        """Inspect the file or directory at an absolute path.

        The client's name and type count, but the content of an image decides its type. `image_room` and `text_room` are
        the maximum numbers of bytes to read of an image and of a text. Raises the OSErrors of `confined`, and
        TimeoutError.
        """
        exact = str(PurePosixPath(path))
        shown = name or _as_text(PurePosixPath(path).name or exact)
        try:
            file = self._confined.open(path)
        except IsADirectoryError:
            return Attached(exact, shown, mime or DIRECTORY, directory=True)
        with file:
            deadline = time.monotonic() + self._timeout
            head = self._read(file, _HEAD_BYTES, deadline)
            image = image_type(head) if mime is None or mime.startswith("image/") else None
            if image is not None:
                content = self._whole(file, head, image_room, deadline)
                return Attached(exact, shown, (mime or image) if content is None else image, image=content)
            content = self._whole(file, head, text_room, deadline)
        return Attached(exact, shown, mime or type_by_name(exact), text=content is not None and is_text(content))

    def _whole(self, file: FileIO, head: bytes, room: int, deadline: float) -> bytes | None:
        """Return the content; None if there is more than `room`, by the file's size or while reading."""
        if not 0 < os.fstat(file.fileno()).st_size <= room:
            return b"" if not head and room else None
        content = head + self._read(file, room + 1 - len(head), deadline)
        return content if len(content) <= room else None

    def _read(self, file: FileIO, count: int, deadline: float) -> bytes:
        content = bytearray()
        while len(content) < count and (block := file.read(min(_BLOCK_BYTES, count - len(content)))):
            content += block
            if self._closed or time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, "takes too long to read")
        return bytes(content)


def locate(path: str, directory: str) -> str:
    """Return the absolute path for an absolute path, a relative one, or a `file://` URI.

    A slash at the end stays, because it marks a directory. Raises OSError if the text cannot be a path.
    """
    if path[: len(_SCHEME)].lower() == _SCHEME:
        path = _from_uri(path)
    if not path.startswith("/"):
        path = f"{directory}/{path}"
    parts = PurePosixPath(path).parts
    # Many programs drop `x/..`, which is wrong if x is a link.
    exact = os.path.realpath(path) if ".." in parts and "\0" not in path else "/" + "/".join(parts[1:])
    return f"{exact}/" if path.endswith("/") and exact != "/" else exact


def _from_uri(uri: str) -> str:
    host, slash, rest = uri[len(_SCHEME) :].partition("/")
    if host.lower() not in ("", "localhost") or not slash:
        raise OSError(errno.EINVAL, "a file:// URI that names no file of this host")
    if "?" in rest or "#" in rest:
        raise OSError(errno.EINVAL, "a file:// URI must have ? and # percent-encoded")
    return unquote(f"/{rest}", errors="surrogateescape")


def image_type(head: bytes) -> str | None:
    """Return the type of an image that models accept, by the first bytes of its content."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((type for magic, type in _MAGIC if head.startswith(magic)), None)


def type_by_name(path: str) -> str:
    """Return the media type for a file's name."""
    from mimetypes import MimeTypes

    # The machine's own tables are not used, so that a file has the same type on every machine.
    type, packed = MimeTypes().guess_type(PurePosixPath(path).name)
    known = type or _TYPES.get(PurePosixPath(path).suffix.lower())
    return known if known is not None and packed is None else UNKNOWN


def is_text(content: bytes) -> bool:
    """Return whether the content is UTF-8 without NUL characters."""
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


def _as_text(name: str) -> str:
    """Return a file's name as text, even if some of its bytes are not UTF-8."""
    return os.fsencode(name).decode(errors="replace")
