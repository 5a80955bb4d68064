"""A prompt of ACP as a message for Amp: texts, images, and mentions of files, which Amp reads itself. Pure."""

import re
from collections.abc import Iterator, Sequence
from urllib.parse import unquote, urlsplit

from sandbox_agent.agents.stdio import INVALID_PARAMS, Object, RpcError

IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""What Amp takes."""
_SPECIAL = re.compile(r"[\s@\\,;]")
"""What would end a mention, unless a backslash stands before it."""
_CUT = (*".,;:!?)}]",)
"""What Amp takes for the end of a sentence and not of a path."""


def message(prompt: Sequence[Object]) -> Object:
    """The line for Amp's stdin; raises RpcError when a block cannot be said in it."""
    content = [block for each in prompt for block in _blocks(each)]
    return {"type": "user", "message": {"role": "user", "content": content}}


def mention(uri: str) -> str:
    """A link as Amp understands it in a text: `@path` for a file of this machine, else the address."""
    parts = urlsplit(uri)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return uri
    path = unquote(parts.path)
    if "\n" in path or path.endswith(_CUT):
        return path
    escaped = _SPECIAL.sub(r"\\\g<0>", path)
    # The model sees the mention as it is: it gets the path without escapes, too.
    return f"@{path}" if escaped == path else f"@{escaped} ({path})"


def _blocks(block: Object) -> Iterator[Object]:
    match block:
        case {"type": "text", "text": str(text)}:
            yield _text(text)
        case {"type": "image", "data": str(data), "mimeType": str(kind)}:
            if kind not in IMAGES:
                raise RpcError(INVALID_PARAMS, f"Amp takes no images of type {kind}", {"known": sorted(IMAGES)})
            yield {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
        case {"type": "resource_link", "uri": str(uri)}:
            yield _text(mention(uri))
        case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
            yield _text(f'<context ref="{uri}">\n{text}\n</context>')
        case {"type": "resource", "resource": {"uri": str(uri)}}:
            yield _text(mention(uri))
        case _:
            raise RpcError(INVALID_PARAMS, f"Amp takes no content of type {block.get('type')}")


def _text(text: str) -> Object:
    return {"type": "text", "text": text}
