"""Translate prompts of ACP into Amp's messages, and Amp's messages into updates of ACP.

Amp itself reads the files that a prompt mentions. It sends each message only when the message is complete. Pure, except
for paths. `run.py` runs the process and asks for permissions.
"""

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import unquote, urlsplit

from sandboxagent.adapters.amp.tools import decoded, tool_call, tool_result
from sandboxagent.adapters.stdio import INVALID_PARAMS, Object, RpcError

IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""Media types of images that Amp accepts."""
_SPECIAL = re.compile(r"[\s@\\,;]")
"""Characters that end a mention, unless a backslash precedes them."""
_CUT = (*".,;:!?)}]",)
"""Characters at the end of a path that Amp would read as the end of a sentence."""


def message(prompt: Sequence[Object]) -> Object:
    """Return a prompt as a message for Amp's stdin. Raises RpcError if Amp does not accept a block."""
    content = [block for each in prompt for block in _blocks(each)]
    return {"type": "user", "message": {"role": "user", "content": content}}


def mention(uri: str) -> str:
    """Return a link in the form that Amp reads in a text: `@path` for a file of this machine, else the address."""
    parts = urlsplit(uri)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return uri
    path = unquote(parts.path)
    if "\n" in path or path.endswith(_CUT):
        return path
    escaped = _SPECIAL.sub(r"\\\g<0>", path)
    # The model sees the mention unchanged, so add the path without escapes.
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


_STOPS = {"max_tokens": "max_tokens", "refusal": "refusal"}
"""The model's stop reasons for which ACP has a name. All others become `end_turn`."""


@dataclass(slots=True)
class Usage:
    """Tokens that a turn has used so far."""

    read: int = 0
    written: int = 0
    cache_read: int = 0
    cache_written: int = 0

    def add(self, usage: Object) -> Object | None:
        """Count the tokens of a message; return an update about the context's size, or None without a size."""
        read, written = _number(usage, "input_tokens"), _number(usage, "output_tokens")
        from_cache, to_cache = _number(usage, "cache_read_input_tokens"), _number(usage, "cache_creation_input_tokens")
        self.read += read
        self.written += written
        self.cache_read += from_cache
        self.cache_written += to_cache
        size = _number(usage, "max_tokens")
        used = read + written + from_cache + to_cache
        return {"sessionUpdate": "usage_update", "used": used, "size": size} if size else None

    def total(self) -> Object:
        return {
            "totalTokens": self.read + self.written + self.cache_read + self.cache_written,
            "inputTokens": self.read,
            "outputTokens": self.written,
            "cachedReadTokens": self.cache_read,
            "cachedWriteTokens": self.cache_written,
        }


@dataclass(slots=True)
class Stream:
    """The state of one turn, as far as Amp has reported it."""

    stop_reason: str = "end_turn"
    error: str | None = None
    """Amp's own error message."""
    finished: bool = False
    """Whether Amp has reported the turn's result."""
    usage: Usage = field(default_factory=Usage)
    open_calls: dict[str, str] = field(default_factory=dict[str, str])
    """Tool calls without a result: id → tool."""
    _announced: set[str] = field(default_factory=set[str])

    def updates(self, message: Object) -> Iterator[Object]:
        """Yield the updates for a line of the stream."""
        inner = message.get("message")
        said = cast("Object", inner) if isinstance(inner, dict) else {}
        match message:
            case {"type": "assistant"}:
                yield from self._assistant(said, helper=bool(message.get("parent_tool_use_id")))
            case {"type": "user"}:
                for block in objects(said.get("content")):
                    if block.get("type") == "tool_result":
                        failed = bool(block.get("is_error"))
                        yield from self.settle(str(block.get("tool_use_id")), decoded(block.get("content")), failed)
            case {"type": "result"}:
                self.finished = True
                if message.get("is_error"):
                    self.error = str(message.get("error") or message.get("result") or "Amp failed and does not say why")
            case _:
                pass

    def announce(self, id: str, tool: str, arguments: Object) -> Iterator[Object]:
        """Yield the update for a new tool call; nothing for a known one."""
        if id not in self._announced:
            self._announced.add(id)
            self.open_calls[id] = tool
            yield tool_call(id, tool, arguments)

    def settle(self, id: str, result: object, failed: bool) -> Iterator[Object]:
        """Yield the update for the result of a tool call."""
        self.open_calls.pop(id, None)
        yield tool_result(id, result, failed=failed)

    def close(self, permitted: Container[str]) -> Iterator[Object]:
        """Yield updates that end the tool calls without a result, because the turn is over.

        Amp does not report the results of its helpers.
        """
        went_well = self.finished and self.error is None
        for id in list(self.open_calls):
            del self.open_calls[id]
            status = "completed" if went_well and id in permitted else "failed"
            yield {"sessionUpdate": "tool_call_update", "toolCallId": id, "status": status}

    def _assistant(self, said: Object, *, helper: bool) -> Iterator[Object]:
        for block in objects(said.get("content")):
            match block:
                case {"type": "thinking", "thinking": str(thought)} if thought and not helper:
                    yield chunk("agent_thought_chunk", thought)
                case {"type": "text", "text": str(text)} if text and not helper:
                    yield chunk("agent_message_chunk", text)
                case {"type": "tool_use", "id": str(id), "name": str(tool)}:
                    arguments = block.get("input")
                    yield from self.announce(id, tool, cast("Object", arguments) if isinstance(arguments, dict) else {})
                case _:
                    pass
        if helper:
            return
        self.stop_reason = _STOPS.get(str(said.get("stop_reason")), "end_turn")
        usage = said.get("usage")
        if isinstance(usage, dict) and (update := self.usage.add(cast("Object", usage))):
            yield update


def used_tools(message: Object) -> set[str]:
    """Return the ids of the tool calls whose results are in a line of the stream, without those that failed."""
    said = message.get("message")
    blocks = objects(cast("Object", said).get("content")) if isinstance(said, dict) else []
    results = [block for block in blocks if block.get("type") == "tool_result"]
    return {str(block.get("tool_use_id")) for block in results if not block.get("is_error")}


def chunk(kind: str, text: str) -> Object:
    """Return an update for a piece of text."""
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}


def objects(listed: object) -> list[Object]:
    """Return the objects in a list; an empty list for any other value."""
    entries = cast("list[object]", listed) if isinstance(listed, list) else []
    return [cast("Object", each) for each in entries if isinstance(each, dict)]


def _number(facts: Object, key: str) -> int:
    value = facts.get(key)
    return value if isinstance(value, int) else 0
