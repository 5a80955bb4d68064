"""Read Amp's threads from its data directory, and turn them into the history of a session.

Newer threads may be only on Amp's server. Sessions can continue them, but their history cannot be read here.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from sandboxagent.adapters.amp.stream import chunk, objects
from sandboxagent.adapters.amp.tools import tool_call, tool_result
from sandboxagent.adapters.stdio import Object

MAX_FILE_BYTES = 256 << 20
"""Maximum bytes of a thread's file that is read."""
_ID = re.compile(r"T-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FAILED = frozenset({"error", "cancelled", "rejected-by-user", "cancellation-requested"})


def is_thread_id(text: str) -> bool:
    """Return whether a text is a thread's id, and so safe as an argument of Amp's and as a file name."""
    return _ID.fullmatch(text) is not None


def data_directory(environ: Mapping[str, str]) -> Path:
    """Return Amp's data directory."""
    home = environ.get("HOME") or Path.home()
    return Path(environ.get("XDG_DATA_HOME") or f"{home}/.local/share") / "amp"


def read_thread(environ: Mapping[str, str], id: str) -> Object | None:
    """Read a thread from this machine; None if it is not here, too large or damaged."""
    path = data_directory(environ) / "threads" / f"{id}.json"
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        parsed: object = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return cast("Object", parsed) if isinstance(parsed, dict) else None


def history(thread: Object) -> Iterator[Object]:
    """Yield the messages and tool calls of a thread as updates."""
    for message in objects(thread.get("messages")):
        for block in objects(message.get("content")):
            yield from _update(str(message.get("role")), block)


def _update(role: str, block: Object) -> Iterator[Object]:
    match block:
        case {"type": "text", "text": str(text)} if text:
            yield chunk("user_message_chunk" if role == "user" else "agent_message_chunk", text)
        case {"type": "image", "source": {"mediaType": str(kind), "data": str(data)}}:
            image = {"type": "image", "mimeType": kind, "data": data}
            yield {"sessionUpdate": "user_message_chunk", "content": image}
        case {"type": "thinking", "thinking": str(thought)} if thought:
            yield chunk("agent_thought_chunk", thought)
        case {"type": "tool_use", "id": str(id), "name": str(tool)}:
            arguments = block.get("input")
            call = tool_call(id, tool, cast("Object", arguments) if isinstance(arguments, dict) else {})
            # Drop diffs of other tools: their old text would be the file's content at this time.
            old = [each for each in cast("list[Object]", call["content"]) if tool == "edit_file"]
            yield {**call, "content": old}
        case {"type": "tool_result", "toolUseID": str(id), "run": {"status": str(status)}}:
            run = cast("Object", block["run"])
            yield tool_result(id, run.get("result") or run.get("error"), failed=status in _FAILED)
        case _:
            pass
