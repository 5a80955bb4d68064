"""Translate the parts of OpenCode's prompts to content of ACP, and back.

The ids that a client chose for a prompt's message and parts have no place in ACP. They are in `_meta` of the prompt,
which the log keeps. Pure.
"""

import binascii
import re
from base64 import b64decode, b64encode
from posixpath import basename
from urllib.parse import quote, unquote, unquote_to_bytes, urlsplit

from msgspec import UNSET, Struct

from sandboxagent.adapters.opencode.errors import BridgeError
from sandboxagent.adapters.opencode.ids import is_given_id
from sandboxagent.adapters.opencode.objects import FilePart, Part, TextPart
from sandboxagent.protocol.envelope import META, Object, object_at, text_at

KEY = "opencode"
"""Key of the bridge's own facts in `_meta` of a prompt, and in the metadata of a session."""
_DATA = re.compile(r"data:(?P<mime>[^;,]*)(?P<parameters>(?:;[^;,]*)*?)(?P<base64>;base64)?,", re.IGNORECASE)
_TEXTS = ("application/json", "application/xml", "application/javascript", "application/x-sh", "application/yaml")


class PromptNote(Struct, omit_defaults=True):
    """Facts from an OpenCode program that are kept in `_meta` of its prompt."""

    messageID: str | None = None
    partIDs: list[str | None] = []
    agent: str | None = None
    model: str | None = None
    command: str | None = None
    """The slash command with its arguments, if the prompt is one."""
    compacts: bool = False
    """Whether the prompt asks the agent to shorten its own memory of the conversation."""


def make_meta(note: PromptNote) -> Object:
    """Return the `_meta` of a prompt."""
    return {META: {KEY: note}}


def read_note(params: Object) -> PromptNote:
    """Return the note in a prompt's params; an empty note for a prompt of another client."""
    said = object_at(params, "_meta", META, KEY)
    ids = said.get("partIDs")
    parts = [each if isinstance(each, str) else None for each in ids] if isinstance(ids, list) else []  # pyright: ignore[reportUnknownVariableType]
    return PromptNote(
        text_at(said, "messageID"),
        parts,
        text_at(said, "agent"),
        text_at(said, "model"),
        text_at(said, "command"),
        said.get("compacts") is True,
    )


# Parts as content


def make_blocks(parts: list[Object], *, images: bool, embeds: bool) -> tuple[list[Object], list[str | None]]:
    """Return the content of a prompt, and the ids that its client gave to the parts. Raises BridgeError.

    `images` and `embeds` say whether the agent accepts images, and files that are part of the prompt.
    """
    if not parts:
        raise BridgeError(400, "a prompt needs at least one part")
    blocks: list[Object] = []
    ids: list[str | None] = []
    for part in parts:
        id = part.get("id")
        if id is not None and not (isinstance(id, str) and is_given_id("prt", id)):
            raise BridgeError(400, "the id of a part must begin with prt_ and have only letters, digits, _ and -")
        if part.get("ignored") is True:
            continue
        blocks.append(_make_block(part, images=images, embeds=embeds))
        ids.append(id)
    return blocks, ids


def _make_block(part: Object, *, images: bool, embeds: bool) -> Object:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "file", "url": str(url)}:
            return _make_file_block(part, url, images=images, embeds=embeds)
        case {"type": "agent", "name": str(name)}:
            return {"type": "text", "text": f"@{name}"}
        case {"type": "subtask", "prompt": str(prompt)}:
            agent = text_at(part, "agent")
            return {"type": "text", "text": f"@{agent} {prompt}" if agent else prompt}
        case _:
            raise BridgeError(400, f"a part of type {part.get('type')!r} is not supported, or lacks a member")


def _make_file_block(part: Object, url: str, *, images: bool, embeds: bool) -> Object:
    name, mime = text_at(part, "filename"), text_at(part, "mime") or "application/octet-stream"
    if url[:5].lower() != "data:":
        return _make_link(part, url, name, mime)
    found = _DATA.match(url)
    if found is None:
        raise BridgeError(400, "a data: URL needs a comma before its data")
    mime = found["mime"].lower() or mime
    rest = url[found.end() :]
    try:
        # Remove spaces and line breaks, which some programs insert, and add the padding, which some omit.
        compact = "".join(rest.split())
        data = (
            b64decode(compact + "=" * (-len(compact) % 4), validate=True) if found["base64"] else unquote_to_bytes(rest)
        )
    except (binascii.Error, ValueError):
        raise BridgeError(400, "the data of a data: URL is not base64") from None
    # The only place that ACP has for a name. Quoted whole: OpenCode's programs also name files by their paths.
    uri = f"attachment:///{quote(name or 'file', safe='')}"
    if mime.startswith("image/"):
        if not images:
            raise BridgeError(400, "this agent takes no images")
        image: Object = {"type": "image", "mimeType": mime, "data": b64encode(data).decode()}
        return image | {"uri": uri} if name else image
    if mime.startswith("text/") or mime in _TEXTS or mime.endswith(("+json", "+xml")):
        text = data.decode(errors="replace")
        if embeds:
            return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": text}}
        note: Object = {"file": {"filename": name, "mime": mime}}
        return {"type": "text", "text": _make_heading(name) + text, "_meta": {META: {KEY: note}}}
    if not embeds:
        raise BridgeError(400, f"this agent takes no files of type {mime}")
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "blob": b64encode(data).decode()}}


def _make_heading(name: str | None) -> str:
    """Return what stands before the text of a file, for an agent that accepts no files in prompts."""
    return f"{name or 'A file'}:\n\n"


def _make_link(part: Object, url: str, name: str | None, mime: str) -> Object:
    if urlsplit_or_none(url) is None:
        raise BridgeError(400, "a file needs a file:, http: or data: URL")
    block: Object = {"type": "resource_link", "uri": url, "name": name or _name_of(url), "mimeType": mime}
    source = object_at(part, "source")
    return block | {"_meta": {META: {KEY: {"source": source}}}} if source else block


def urlsplit_or_none(url: str) -> str | None:
    """Return the scheme of an address if a file may have it; else None."""
    try:
        scheme = urlsplit(url).scheme.lower()
    except ValueError:
        return None
    return scheme if scheme in ("file", "http", "https") else None


def _name_of(url: str) -> str:
    return unquote(basename(url.partition("?")[0].rstrip("/"))) or url


# Content as parts


def make_part(block: Object, id: str, session_id: str, message_id: str) -> Part:
    """Convert a block of content to a part."""

    def make_file(mime: str | None, url: str, name: str | None) -> FilePart:
        source = object_at(block, "_meta", META, KEY, "source") or UNSET
        kind = mime or "application/octet-stream"
        return FilePart(
            id=id,
            session_id=session_id,
            message_id=message_id,
            mime=kind,
            url=url,
            filename=name or UNSET,
            source=source,
        )

    match block:
        case {"type": "text", "text": str(text)} if file := object_at(block, "_meta", META, KEY, "file"):
            mime = text_at(file, "mime") or "text/plain"
            name = text_at(file, "filename")
            data = b64encode(text.removeprefix(_make_heading(name)).encode()).decode()
            return make_file(mime, f"data:{mime};base64,{data}", name)
        case {"type": "text", "text": str(text)}:
            return TextPart(id=id, session_id=session_id, message_id=message_id, text=text)
        case {"type": "image" | "audio", "data": str(data)}:
            mime = text_at(block, "mimeType") or "application/octet-stream"
            uri = text_at(block, "uri")
            return make_file(mime, f"data:{mime};base64,{data}", None if uri is None else _name_of(uri))
        case {"type": "resource_link", "uri": str(uri)}:
            return make_file(text_at(block, "mimeType") or "text/plain", uri, text_at(block, "name") or _name_of(uri))
        case {"type": "resource", "resource": {"uri": str(uri)}}:
            resource = object_at(block, "resource")
            mime = text_at(resource, "mimeType") or "text/plain"
            data = text_at(resource, "blob") or b64encode((text_at(resource, "text") or "").encode()).decode()
            return make_file(mime, f"data:{mime};base64,{data}", _name_of(uri))
        case _:
            said = f"[{block.get('type')}]"
            return TextPart(id=id, session_id=session_id, message_id=message_id, text=said)


def make_title(text: str) -> str:
    """Return the first line of a prompt, cut to 60 characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= 60 else f"{line[:59].rstrip()}…"
