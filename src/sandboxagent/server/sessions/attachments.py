"""Read the files that a prompt names in `_meta`, and add them to the prompt as content.

An attached file becomes a content block that the agent accepts, or the text mentions its path. `server/files/attached`
reads files and finds their types.
"""

import asyncio
import errno
import os
import re
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.envelope import META, Object, param, with_param
from sandboxagent.protocol.errors import FileFailed, InvalidParams, SandboxAgentError
from sandboxagent.protocol.views import Attaching
from sandboxagent.server.files.attached import Attached, AttachedFiles, locate
from sandboxagent.server.files.confined import MAX_PATH, Outside
from sandboxagent.server.files.descriptors import NotAFile
from sandboxagent.server.sessions.session import Process

_UNREADABLE = "[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"
"""Characters that a path in a text may not have."""

KEY = META.encode()
"""The server's key in `_meta`. A prompt whose line does not contain it has no members for the server."""
MAX_IMAGE_BYTES, MAX_IMAGES = 10 << 20, 20
"""Maximum bytes of an image in a prompt, and the maximum number of images. Others are attached like any file."""
MAX_TEXT_BYTES = 128 << 10
"""Maximum bytes of a text file that an agent may insert whole into its model's context."""
MAX_NAME = 255
_MIME = r"(?a)[\w!#$&^.+-]{1,127}/[\w!#$&^.+-]{1,127}(?: *;[ -~]{0,255})?"
_NAME = f"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{{1,{MAX_NAME}}}"


class AcceptedContent(Struct, frozen=True):
    """The content that an agent accepts in a prompt."""

    style: Attaching = "link"
    images: bool = False
    plain_uris: bool = False
    mixes: bool = True
    """Whether one prompt may have both images and links."""

    def images_beside(self, kinds: Collection[str]) -> bool:
        """Return whether images can be added to blocks of these kinds."""
        return self.images and (self.mixes or {"resource_link", "resource"}.isdisjoint(kinds))

    def links(self, file: Attached) -> bool:
        """Return whether the agent reads a link to this file."""
        match self.style:
            case "link":
                return True
            case "file-link":
                return not file.directory
            case "text-link":
                return file.text
            case "text":
                return False


def read_takes(running: Process) -> AcceptedContent:
    """Return the content that an agent accepts, according to its manifest and its handshake."""
    features, images = running.agent.features, running.handshake.offers("promptCapabilities", "image")
    if features is None:
        return AcceptedContent(running.agent.attachments, images)
    return AcceptedContent(
        running.agent.attachments, images and features.images, features.uris == "plain", features.mixes
    )


def parse_blocks(line: bytes) -> list[Raw]:
    """Return the content blocks of a prompt. Raises InvalidParams."""
    prompt = param(line, "prompt")
    if prompt is None or prompt[:1] != b"[":
        raise InvalidParams("prompt must be an array of content blocks")
    return msgspec.json.decode(prompt, type=list[Raw])


def kind_of(block: Raw) -> str:
    """Return the `type` of a content block; an empty text if it has none."""
    try:
        kind = msgspec.json.decode(block, type=_Block).type
    except msgspec.ValidationError:
        return ""
    return kind if isinstance(kind, str) else ""


def add_files(given: Sequence[Raw], files: Sequence[Attached], takes: AcceptedContent) -> list[object]:
    """Return a prompt's blocks with blocks for its files. The text mentions files that cannot be blocks."""
    images = any(file.image is not None for file in files) or "image" in map(kind_of, given)
    blocks: list[object] = []
    mentioned: list[str] = []
    for file in files:
        if file.image is not None:
            blocks.append(_image(file, takes))
        elif takes.links(file) and (takes.mixes or not images):
            blocks.append(_link(file, takes))
        else:
            mentioned.append(file.path)
    return [*(_mention_paths(given, mentioned) if mentioned else given), *blocks]


class _Block(Struct):
    type: object = None


def _mention_paths(given: Sequence[Raw], paths: Iterable[str]) -> list[Raw]:
    """Add paths at the end of the last text block, or in a new text block if there is none."""
    shown = [_encoded(path) if re.search(_UNREADABLE, path) else path for path in paths]
    words = "\n\nAttachments:\n" + "".join(f"- {path}\n" for path in shown)
    for index in range(len(given) - 1, -1, -1):
        if kind_of(given[index]) == "text":
            block = msgspec.json.decode(given[index], type=dict[str, Raw])
            text = msgspec.json.decode(block["text"]) if "text" in block else ""
            changed = msgspec.json.encode(block | {"text": f"{text}{words}"})
            return [*given[:index], Raw(changed), *given[index + 1 :]]
    return [*given, Raw(msgspec.json.encode({"type": "text", "text": words}))]


def _image(file: Attached, takes: AcceptedContent) -> Object:
    assert file.image is not None
    # With the URI, an agent can name the image's place to its model instead of making a copy.
    data = b64encode(file.image).decode()
    return {"type": "image", "mimeType": file.mime, "data": data, "uri": _uri(file.path, takes)}


def _link(file: Attached, takes: AcceptedContent) -> Object:
    # Agents that read only links to text files check the type, and know few types.
    known = takes.style != "text-link" or file.mime.startswith("text/")
    mime = file.mime if known else "text/plain"
    return {"type": "resource_link", "uri": _uri(file.path, takes), "name": file.name, "mimeType": mime}


def _uri(path: str, takes: AcceptedContent) -> str:
    return f"file://{path}" if takes.plain_uris and not re.search(_UNREADABLE, path) else _encoded(path)


def _encoded(path: str) -> str:
    return f"file://{quote(os.fsencode(path))}"


class Attachment(Struct, frozen=True):
    """One validated entry of `attachments`."""

    path: str
    mime: str | None = None
    filename: str | None = None


class AttachmentLimits(Struct, frozen=True):
    """Maximum number of attachments and maximum bytes of images of one prompt."""

    count: int
    image_bytes: int


class Attachments:
    """Adds attachments to prompts. Prompts of a session keep their order, even if reading files is slow."""

    def __init__(self, files: AttachedFiles, limits: AttachmentLimits, pool: Pool) -> None:
        self._pool = pool
        self._files = files
        self._limits = limits
        self._locks: dict[str, asyncio.Lock] = {}
        self._coming: Counter[str] = Counter()

    def read_asked(self, line: bytes) -> list[Attachment]:
        """Return the attachments that a prompt names. Raises InvalidParams, which names the bad entry."""
        raw, limit = _attachments(line), self._limits.count
        if raw is None:
            return []
        if raw[:1] != b"[":
            raise InvalidParams("attachments must be an array of objects")
        entries = msgspec.json.decode(raw, type=list[Raw])
        if len(entries) > limit:
            message = f"attachments[{limit}]: a prompt may have at most {limit} attachments"
            raise InvalidParams(message, index=limit, limit=limit)
        return [_parse_attachment(index, entry) for index, entry in enumerate(entries)]

    def is_busy(self, session_id: str) -> bool:
        """Return whether a prompt of this session waits for its files. Later prompts must then wait, too."""
        return session_id in self._coming

    def queue(self, session_id: str) -> AbstractAsyncContextManager[None]:
        """Queue a prompt behind those of its session that wait for their files.

        The prompt is queued at once. The caller must enter the returned context, which waits for its turn.
        """
        self._coming[session_id] += 1
        return self._wait_turn(session_id)

    @asynccontextmanager
    async def _wait_turn(self, session_id: str) -> AsyncGenerator[None]:
        try:
            async with self._locks.setdefault(session_id, asyncio.Lock()):
                yield
        finally:
            self._coming[session_id] -= 1
            if not self._coming[session_id]:
                del self._coming[session_id], self._locks[session_id]

    async def add(self, line: bytes, asked: Sequence[Attachment], directory: str, takes: AcceptedContent) -> bytes:
        """Add the attachments to a prompt. Their paths are relative to `directory`.

        Raises InvalidParams or FileFailed, which name the entry.
        """
        return await self._pool.run(self._add, line, asked, directory, takes)

    def _add(self, line: bytes, asked: Sequence[Attachment], directory: str, takes: AcceptedContent) -> bytes:
        given = parse_blocks(line)
        images = MAX_IMAGES if takes.images_beside({kind_of(block) for block in given}) else 0
        room = self._limits.image_bytes
        text_room = MAX_TEXT_BYTES if takes.style == "text-link" else 0
        files: dict[str, Attached] = {}
        for index, one in enumerate(asked):
            image_room = min(MAX_IMAGE_BYTES, room) if images else 0
            try:
                place = locate(one.path, directory)
                file = self._files.look(place, one.filename, one.mime, image_room=image_room, text_room=text_room)
            except OSError as error:
                raise _refusal(error, index, one.path) from error
            if file.path in files:
                message = f"attachments[{index}]: {one.path!r} is attached already"
                raise InvalidParams(message, index=index, path=one.path)
            if file.image is not None:
                images, room = images - 1, room - len(file.image)
            files[file.path] = file
        return with_param(line, "prompt", add_files(given, list(files.values()), takes))


class _Ours(Struct):
    attachments: Raw | UnsetType = UNSET


class _Meta(Struct, rename={"ours": META}):
    ours: _Ours | UnsetType = UNSET


def has_attachments(line: bytes) -> bool:
    """Return whether a prompt names attachments."""
    return _attachments(line) is not None


def _attachments(line: bytes) -> bytes | None:
    """Return the JSON of `_meta["sandboxagent.dev"].attachments`; None if it is missing or null."""
    meta = param(line, "_meta")
    try:
        ours = UNSET if meta is None else msgspec.json.decode(meta, type=_Meta).ours
    except msgspec.ValidationError:
        # Do not refuse it: the agent may understand it.
        return None
    if ours is UNSET or ours.attachments is UNSET or bytes(ours.attachments) == b"null":
        return None
    return bytes(ours.attachments)


def _parse_attachment(index: int, raw: Raw) -> Attachment:
    try:
        entry = msgspec.json.decode(raw, type=dict[str, object])
    except msgspec.DecodeError:
        raise InvalidParams(f"attachments[{index}] must be an object with a path", index=index) from None
    path, mime, filename = entry.get("path"), entry.get("mime"), entry.get("filename")
    # A URI may encode each byte as three characters.
    if not isinstance(path, str) or not 0 < len(path) <= 3 * MAX_PATH or "\0" in path:
        message = f"attachments[{index}].path must be a path of at most {MAX_PATH} bytes, without NUL"
        raise InvalidParams(message, index=index)
    if mime is not None and not (isinstance(mime, str) and re.fullmatch(_MIME, mime)):
        raise InvalidParams(f"attachments[{index}].mime must be a media type, such as text/plain", index=index)
    if filename is not None and not (isinstance(filename, str) and re.fullmatch(_NAME, filename)):
        message = (
            f"attachments[{index}].filename must have 1 to {MAX_NAME} characters, none of them a control character"
        )
        raise InvalidParams(message, index=index)
    return Attachment(path, mime, filename)


def _refusal(error: OSError, index: int, path: str) -> SandboxAgentError:
    """Convert a file system error about an attachment to an error for the client."""
    which = f"attachments[{index}]: {path!r:.1000}"
    match error:
        case Outside():
            message = f"{which} is not beneath a directory that --fs-root allows"
        case NotAFile():
            message = f"{which} is neither a file nor a directory"
        case FileNotFoundError():
            message = f"{which} does not exist"
        case PermissionError():
            message = f"{which} may not be read"
        case OSError(errno=errno.EINVAL | errno.ENAMETOOLONG | errno.ELOOP | errno.ENOTDIR):
            message = f"{which}: {error.strerror}"
        case _:
            code = errno.errorcode.get(error.errno or 0, "unknown")
            return FileFailed(f"{which}: {error.strerror or 'cannot be read'}", index=index, path=path, errno=code)
    return InvalidParams(message, index=index, path=path)
