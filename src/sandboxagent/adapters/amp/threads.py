"""Read Amp's threads from its data directory, and turn them into the history of a session.

Amp's server alone may keep newer threads: you can continue those, but not read them here.
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
"""Bytes of a thread's file that is read."""
_ID = re.compile(r"T-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FAILED = frozenset({"error", "cancelled", "rejected-by-user", "cancellation-requested"})


def is_thread_id(text: str) -> bool:
    """Whether it may be the id of a thread, an argument of Amp's, and the name of a file."""
    return _ID.fullmatch(text) is not None


def data_directory(environ: Mapping[str, str]) -> Path:
    """Where Amp keeps what it knows."""
    home = environ.get("HOME") or Path.home()
    return Path(environ.get("XDG_DATA_HOME") or f"{home}/.local/share") / "amp"


def read_thread(environ: Mapping[str, str], id: str) -> Object | None:
    """A thread as it is kept here; None when it is not."""
    path = data_directory(environ) / "threads" / f"{id}.json"
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        parsed: object = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return cast("Object", parsed) if isinstance(parsed, dict) else None


def history(thread: Object) -> Iterator[Object]:
    """What was said in a thread, as updates."""
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
            # The old text of a diff would be what the file holds today.
            old = [each for each in cast("list[Object]", call["content"]) if tool == "edit_file"]
            yield {**call, "content": old}
        case {"type": "tool_result", "toolUseID": str(id), "run": {"status": str(status)}}:
            run = cast("Object", block["run"])
            yield tool_result(id, run.get("result") or run.get("error"), failed=status in _FAILED)
        case _:
            pass
