"""Turn Amp's tools into tool calls of ACP, and tell which tools only read files."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from sandboxagent.adapters.stdio import Object

MAX_TITLE = 200
MAX_FILE_BYTES = 1 << 20
"""Maximum bytes of a file that is shown as the old side of a diff."""


KINDS = {
    **dict.fromkeys(("Bash", "shell_command"), "execute"),
    **dict.fromkeys(("create_file", "edit_file", "undo_edit", "format_file", "apply_patch"), "edit"),
    "delete_file": "delete",
    **dict.fromkeys(("Read", "look_at", "read_mcp_resource", "read_thread"), "read"),
    **dict.fromkeys(("Grep", "glob", "Glob", "finder", "find_thread"), "search"),
    **dict.fromkeys(("read_web_page", "web_search", "librarian"), "fetch"),
    **dict.fromkeys(("oracle", "task_list"), "think"),
}


LOOKING_AT_FILES = frozenset({"Read", "look_at", "Grep", "glob", "Glob"})
"""Tools that only read the files whose paths are in their arguments."""
HARMLESS = frozenset({"finder", "oracle", "Task", "task_list", "mermaid", "skill"})
"""Tools that have no effects themselves. Amp asks again about the tools that their helpers use."""
_PATHS = ("path", "filePattern", "glob", "referenceFiles")


def tool_call(id: str, tool: str, arguments: Object) -> Object:
    """Return the update for a new tool call."""
    paths = [path for key in ("path", "file_path") if isinstance(path := arguments.get(key), str)]
    return {
        "sessionUpdate": "tool_call",
        "toolCallId": id,
        "title": _title(tool, arguments),
        "kind": KINDS.get(tool, "other"),
        "status": "pending",
        "rawInput": arguments,
        "locations": [_location(path, tool, arguments) for path in paths],
        "content": _diff(tool, arguments),
        "_meta": {"amp": {"toolName": tool}},
    }


def tool_result(id: str, result: object, *, failed: bool) -> Object:
    """Return the update for the result of a tool call. `result` is Amp's, decoded."""
    text = _result_text(result)
    shown: Object = {"content": [{"type": "content", "content": {"type": "text", "text": text}}]} if text else {}
    status = "failed" if failed else "completed"
    # The diff was sent with the call. The result of an edit would replace it.
    content = {} if isinstance(result, dict) and "diff" in result and not failed else shown
    return {"sessionUpdate": "tool_call_update", "toolCallId": id, "status": status, "rawOutput": result, **content}


def decoded(content: object) -> object:
    """Decode a result from the stream if it is a JSON object or array; else return the text."""
    if isinstance(content, str) and content.startswith(("{", "[")):
        try:
            return cast("object", json.loads(content))
        except (ValueError, RecursionError):
            return content
    return content


def is_read_only(tool: str, arguments: Object, directories: Sequence[str]) -> bool:
    """Return whether a tool only reads files inside the session's directories, or has no effects itself."""
    if tool in HARMLESS:
        return True
    if tool not in LOOKING_AT_FILES:
        return False
    roots = [os.path.realpath(directory) for directory in directories]
    texts = [text for key in _PATHS for text in _texts(arguments.get(key))]
    return all(_is_inside(text, roots) for text in texts)


def _texts(value: object) -> list[str]:
    if isinstance(value, list):
        return [text for each in cast("list[object]", value) for text in _texts(each)]
    return [] if value is None else [value if isinstance(value, str) else ".."]


def _is_inside(path: str, roots: Sequence[str]) -> bool:
    # A relative path or pattern starts in the first directory. The target of one with ".." is unknown.
    if ".." in path.split("/") or path.startswith(("~", "file:")):
        return False
    real = os.path.realpath(Path(roots[0]) / path)
    return any(real == root or real.startswith(root.rstrip("/") + "/") for root in roots)


def _title(tool: str, arguments: Object) -> str:
    command = arguments.get("cmd") or arguments.get("command")
    if KINDS.get(tool) == "execute" and isinstance(command, str):
        return command
    about = next((text for key in ("path", "query", "pattern", "url") if (text := arguments.get(key))), None)
    return f"{tool} {about}"[:MAX_TITLE] if isinstance(about, str) else tool


def _diff(tool: str, arguments: Object) -> list[Object]:
    path = arguments.get("path")
    if not isinstance(path, str):
        return []
    if tool == "create_file" and isinstance(content := arguments.get("content"), str):
        return [{"type": "diff", "path": path, "oldText": _content(path), "newText": content}]
    old, new = arguments.get("old_str"), arguments.get("new_str")
    if tool == "edit_file" and isinstance(old, str) and isinstance(new, str):
        return [{"type": "diff", "path": path, "oldText": old, "newText": new}]
    return []


def _location(path: str, tool: str, arguments: Object) -> Object:
    """Return where a tool works, with the line at which the texts of its diff begin if that is known."""
    line = 1 if tool == "create_file" else None
    old, new = arguments.get("old_str"), arguments.get("new_str")
    if tool == "edit_file" and isinstance(old, str) and isinstance(new, str) and old:
        # Amp may have made the change already. The old text is then at its place only if the new one begins with it.
        moves = old in new and not new.startswith(old)
        content = None if moves else _content(path)
        if content is not None and content.count(old) == 1:
            line = content[: content.index(old)].count("\n") + 1
    return {"path": path} if line is None else {"path": path, "line": line}


def _content(path: str) -> str | None:
    """Return a file's content; None if it is missing, too large or not text."""
    file = Path(path)
    try:
        if not file.is_file() or file.stat().st_size > MAX_FILE_BYTES:
            return None
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def _result_text(result: object) -> str:
    if isinstance(result, str):
        return result
    if isinstance(result, dict):
        facts = cast("Object", result)
        for key in ("output", "diff", "content", "message"):
            if isinstance(text := facts.get(key), str):
                return text
    if isinstance(result, list):
        texts = [cast("Object", each).get("text") for each in cast("list[object]", result) if isinstance(each, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return "" if result is None else json.dumps(result)
