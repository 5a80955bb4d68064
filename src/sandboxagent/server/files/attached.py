"""Find and open the files that a client attaches to a prompt, and tell their types.

Everything here blocks: it runs in a thread. Knows nothing of how a path is kept inside: see `confined`.
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
_HEAD = 32
"""Bytes that tell an image from other files."""
_BLOCK = 256 << 10
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_TYPES = {".md": "text/markdown", ".toml": "application/toml", ".yaml": "application/yaml", ".yml": "application/yaml"}
"""What Python does not know yet."""


class Attached(Struct, frozen=True):
    """A file or a directory, as it was found."""

    path: str
    """Absolute, with nothing in it that leads back."""
    name: str
    mime: str
    directory: bool = False
    text: bool = False
    """Whether it was short enough to be read, and is UTF-8."""
    image: bytes | None = None
    """The content of an image that was small enough to be read; `mime` is then what it really is."""


class AttachedFiles:
    """Looks at files beneath some directories, or anywhere. `patience` is how long one may take, in seconds."""

    def __init__(self, confined: Confined | None = None, patience: float = 20.0) -> None:
        self._confined = confined or Confined(["/"])
        self._patience = patience
        self._closed = False

    def close(self) -> None:
        """Stop reading: the server waits for its threads when it ends."""
        self._closed = True

    def look(
        self, path: str, name: str | None, mime: str | None, *, image_room: int = 0, text_room: int = 0
    ) -> Attached:
        """What has this absolute path. Its owner's word on name and type counts, but an image is what it really is.

        The rooms are the most that may be read of it, in bytes. Raises OSError: of `confined`, or TimeoutError.
        """
        exact = str(PurePosixPath(path))
        shown = name or _as_text(PurePosixPath(path).name or exact)
        try:
            file = self._confined.open(path)
        except IsADirectoryError:
            return Attached(exact, shown, mime or DIRECTORY, directory=True)
        with file:
            deadline = time.monotonic() + self._patience
            head = self._read(file, _HEAD, deadline)
            image = image_type(head) if mime is None or mime.startswith("image/") else None
            if image is not None:
                content = self._whole(file, head, image_room, deadline)
                return Attached(exact, shown, (mime or image) if content is None else image, image=content)
            content = self._whole(file, head, text_room, deadline)
        return Attached(exact, shown, mime or type_by_name(exact), text=content is not None and is_text(content))

    def _whole(self, file: FileIO, head: bytes, room: int, deadline: float) -> bytes | None:
        """The content; None when there is more than there is room for, by its size or after all."""
        if not 0 < os.fstat(file.fileno()).st_size <= room:
            return b"" if not head and room else None
        content = head + self._read(file, room + 1 - len(head), deadline)
        return content if len(content) <= room else None

    def _read(self, file: FileIO, count: int, deadline: float) -> bytes:
        content = bytearray()
        while len(content) < count and (block := file.read(min(_BLOCK, count - len(content)))):
            content += block
            if self._closed or time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, "takes too long to read")
        return bytes(content)


def locate(path: str, directory: str) -> str:
    """The absolute path that is meant by an absolute one, a relative one, or a `file://` URI.

    A slash at its end stays: it says that this is a directory. Raises OSError when it cannot be any path.
    """
    if path[: len(_SCHEME)].lower() == _SCHEME:
        path = _from_uri(path)
    if not path.startswith("/"):
        path = f"{directory}/{path}"
    parts = PurePosixPath(path).parts
    # Programs take `x/..` for nothing at all, which is wrong where x is a link.
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
    """The type of an image that models take, by how its content begins."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((type for magic, type in _MAGIC if head.startswith(magic)), None)


def type_by_name(path: str) -> str:
    """The media type that a file's name promises."""
    from mimetypes import MimeTypes

    # Not the machine's own tables: the same file is the same everywhere.
    type, packed = MimeTypes().guess_type(PurePosixPath(path).name)
    known = type or _TYPES.get(PurePosixPath(path).suffix.lower())
    return known if known is not None and packed is None else UNKNOWN


def is_text(content: bytes) -> bool:
    """Whether it is UTF-8, with nothing in it that no text has."""
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


def _as_text(name: str) -> str:
    """A file's name, even if it has bytes in it that are not text."""
    return os.fsencode(name).decode(errors="replace")
