"""What Amp says on its stream of JSON, as ACP's updates, and what it used. Pure.

Knows nothing of processes. A message comes whole: Amp does not tell of one before it is complete.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import cast

from sandbox_agent.agents.amp.tools import decoded, tool_call, tool_result
from sandbox_agent.agents.stdio import Object

_STOPS = {"max_tokens": "max_tokens", "refusal": "refusal"}
"""Reasons of the model for which ACP has a name. All others are the end of a turn."""


@dataclass(slots=True)
class Usage:
    """Tokens that a turn has taken so far."""

    read: int = 0
    written: int = 0
    cache_read: int = 0
    cache_written: int = 0

    def add(self, usage: Object) -> Object | None:
        """Count a message; gives the update on how full the context is."""
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
    """One turn, as it has been told so far."""

    stop_reason: str = "end_turn"
    error: str | None = None
    """What Amp says went wrong."""
    finished: bool = False
    """Whether Amp has told how it ended."""
    usage: Usage = field(default_factory=Usage)
    open_calls: dict[str, str] = field(default_factory=dict[str, str])
    """Tool calls whose result is not known yet, and their tools."""
    _announced: set[str] = field(default_factory=set[str])

    def updates(self, message: Object) -> Iterator[Object]:
        """A line of the stream as updates."""
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
        """A tool call, the first time that it is heard of."""
        if id not in self._announced:
            self._announced.add(id)
            self.open_calls[id] = tool
            yield tool_call(id, tool, arguments)

    def settle(self, id: str, result: object, failed: bool) -> Iterator[Object]:
        """The result of a tool call."""
        self.open_calls.pop(id, None)
        yield tool_result(id, result, failed=failed)

    def close(self, permitted: Container[str]) -> Iterator[Object]:
        """The turn is over: what has no result will never have one. Of what its helpers did, Amp tells none."""
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
    """The tool calls that a line of the stream has results of, but for those that came to nothing."""
    said = message.get("message")
    blocks = objects(cast("Object", said).get("content")) if isinstance(said, dict) else []
    results = [block for block in blocks if block.get("type") == "tool_result"]
    return {str(block.get("tool_use_id")) for block in results if not block.get("is_error")}


def chunk(kind: str, text: str) -> Object:
    """A piece of text as an update."""
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}


def objects(listed: object) -> list[Object]:
    """The objects in a list; none when it is no list."""
    entries = cast("list[object]", listed) if isinstance(listed, list) else []
    return [cast("Object", each) for each in entries if isinstance(each, dict)]


def _number(facts: Object, key: str) -> int:
    value = facts.get(key)
    return value if isinstance(value, int) else 0
