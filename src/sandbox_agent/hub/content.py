"""The content of a prompt: attached files as blocks that its agent takes, or in words. Pure."""

import os
import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from sandbox_agent.envelope import Object, param
from sandbox_agent.errors import InvalidParams
from sandbox_agent.host.attached import Attached
from sandbox_agent.hub.process import Process
from sandbox_agent.wire.agents import Attaching

_UNREADABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""What breaks a path that stands in a text."""


@dataclass(frozen=True, slots=True)
class Takes:
    """What an agent takes in a prompt."""

    style: Attaching = "link"
    images: bool = False
    plain_uris: bool = False
    mixes: bool = True
    """Whether images and links may stand in one prompt."""

    def images_beside(self, kinds: Collection[str]) -> bool:
        """Whether images can be added to blocks of these kinds."""
        return self.images and (self.mixes or {"resource_link", "resource"}.isdisjoint(kinds))

    def links(self, file: Attached) -> bool:
        """Whether it makes something of a link to this."""
        match self.style:
            case "link":
                return True
            case "file-link":
                return not file.directory
            case "text-link":
                return file.text
            case "text":
                return False


def taken_by(running: Process) -> Takes:
    """What an agent takes, as its manifest and its handshake say."""
    features, images = running.agent.features, running.handshake.offers("promptCapabilities", "image")
    if features is None:
        return Takes(running.agent.attachments, images)
    return Takes(running.agent.attachments, images and features.images, features.uris == "plain", features.mixes)


def blocks_of(line: bytes) -> list[Raw]:
    """The blocks of a prompt; raises InvalidParams."""
    prompt = param(line, "prompt")
    if prompt is None or prompt[:1] != b"[":
        raise InvalidParams("prompt must be an array of content blocks")
    return msgspec.json.decode(prompt, type=list[Raw])


def kind_of(block: Raw) -> str:
    """`type` of a block."""
    try:
        kind = msgspec.json.decode(block, type=_Block).type
    except msgspec.ValidationError:
        return ""
    return kind if isinstance(kind, str) else ""


def with_files(given: Sequence[Raw], files: Sequence[Attached], takes: Takes) -> list[object]:
    """The blocks of a prompt and those of its files; what cannot be a block is mentioned in the text."""
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
    return [*(_mentioning(given, mentioned) if mentioned else given), *blocks]


class _Block(Struct):
    type: object = None


def _mentioning(given: Sequence[Raw], paths: Iterable[str]) -> list[Raw]:
    """Paths at the end of the last text, or in a text of their own when there is none."""
    shown = [_encoded(path) if _UNREADABLE.search(path) else path for path in paths]
    words = "\n\nAttachments:\n" + "".join(f"- {path}\n" for path in shown)
    for index in range(len(given) - 1, -1, -1):
        if kind_of(given[index]) == "text":
            block = msgspec.json.decode(given[index], type=dict[str, Raw])
            text = msgspec.json.decode(block["text"]) if "text" in block else ""
            changed = msgspec.json.encode(block | {"text": f"{text}{words}"})
            return [*given[:index], Raw(changed), *given[index + 1 :]]
    return [*given, Raw(msgspec.json.encode({"type": "text", "text": words}))]


def _image(file: Attached, takes: Takes) -> Object:
    assert file.image is not None
    # With the URI, an agent can tell its model where the image is instead of making a copy.
    data = b64encode(file.image).decode()
    return {"type": "image", "mimeType": file.mime, "data": data, "uri": _uri(file.path, takes)}


def _link(file: Attached, takes: Takes) -> Object:
    # Who reads links to texts alone goes by the type, and knows few.
    known = takes.style != "text-link" or file.mime.startswith("text/")
    mime = file.mime if known else "text/plain"
    return {"type": "resource_link", "uri": _uri(file.path, takes), "name": file.name, "mimeType": mime}


def _uri(path: str, takes: Takes) -> str:
    return f"file://{path}" if takes.plain_uris and not _UNREADABLE.search(path) else _encoded(path)


def _encoded(path: str) -> str:
    return f"file://{quote(os.fsencode(path))}"
