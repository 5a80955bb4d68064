"""What an agent asks permission for, read from `session/request_permission`, whichever agent it is.

Never raises: what cannot be read is said to be unknown. Knows nothing of rules.
"""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast
from urllib.parse import unquote

from sandbox_agent.envelope import Object, object_at, objects_at, text_at
from sandbox_agent.permissions.commands import Part, Simple, Unread, program_name, read_text, read_words

DEEPEST = 20
"""How deep the arguments of a tool are looked into."""
MOST_FOLDERS = 4

_COMMAND_KEYS = ("command", "cmd", "commands", "script")
_FOLDER_KEYS = frozenset({"cwd", "workdir", "workingdirectory", "workingdir", "directory"})
_BESIDE_COMMANDS = _FOLDER_KEYS | {
    *("command", "cmd", "commands", "script", "args", "description", "timeout", "timeoutms"),
    *("isbackground", "runinbackground", "background", "async", "sessionid"),
}
"""Arguments that a command may come with and still be nothing but that command."""
_TEXT_KEYS = frozenset(
    {
        *("content", "contents", "text", "filetext", "oldstring", "newstring", "oldstr", "newstr", "oldtext"),
        *("newtext", "before", "after", "diff", "patch", "newsource", "description", "instruction", "prompt"),
        *("query", "title", "reason", "format", "mode", "encoding", "language", "type"),
    }
)
"""Arguments that are no paths, even if they look like one."""
_PATH_WORDS = ("path", "file", "dir", "folder", "cwd")
_SHAPE = {"name": str, "kind": str, "title": str, "rawInput": dict, "locations": list, "content": list}
_WITHOUT_COMMAND = frozenset({"read", "edit", "delete", "move", "search", "think", "fetch", "switch_mode"})
_WITHOUT_PATHS = frozenset({"think", "fetch", "switch_mode"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """One request, as rules see it."""

    agent: str | None
    tool: str | None
    """Its name; None when the agent does not tell."""
    kind: str | None
    parts: tuple[Part, ...]
    """The command it runs; empty when it is known to run none."""
    only_command: bool
    """Whether nothing is asked for besides that command."""
    paths: tuple[str, ...]
    perhaps_paths: tuple[str, ...]
    """Texts that may be paths as well."""
    paths_known: bool
    """Whether these are all paths."""
    arguments: Object | None
    """`rawInput`; None when there is none that can be read."""
    folder: str
    """Where relative paths begin."""
    folders: tuple[str, ...]
    """Where they may begin, too: the command goes there."""
    folders_known: bool
    is_readable: bool
    """Whether it has the shape of such a request."""
    is_question: bool
    """It asks something else than for permission, in the form of a permission."""


def read_request(params: Object, agent: str | None, cwd: str, *, command_in_title: bool = False) -> ToolRequest:
    """The request in the params of `session/request_permission`.

    `command_in_title` says that this agent tells a command by the title of its call, and nowhere else.
    """
    call = object_at(params, "toolCall")
    kind, raw = text_at(call, "kind"), call.get("rawInput")
    arguments = cast(Object, raw) if isinstance(raw, dict) and raw else None
    if command_in_title and kind == "execute" and raw is None:
        arguments = {"command": call.get("title")}
    parts = _command(call, kind, arguments)
    folder = _folder(arguments, cwd) if parts else cwd
    folders, folders_known = _visited(parts, folder)
    told = [text_at(place, "path") for place in (*objects_at(call, "locations"), *objects_at(call, "content"))]
    sure, perhaps, known = _paths_in(arguments, but=_FOLDER_KEYS if parts else frozenset())
    paths = (*(path for path in told if path), *sure)
    return ToolRequest(
        agent=agent,
        tool=_tool(call),
        kind=kind,
        parts=parts,
        only_command=arguments is not None and all(_flat(key) in _BESIDE_COMMANDS for key in arguments),
        paths=tuple(map(_without_scheme, paths)),
        perhaps_paths=tuple(map(_without_scheme, perhaps)),
        paths_known=known and (bool(paths or perhaps or arguments) or kind in _WITHOUT_PATHS),
        arguments=arguments,
        folder=folder,
        folders=folders,
        folders_known=folders_known,
        is_readable=bool(call) and all(isinstance(call.get(key), of | None) for key, of in _SHAPE.items()),
        is_question=_is_question(params) or _is_question(call),
    )


def _tool(call: Object) -> str | None:
    meta = object_at(call, "_meta")
    return text_at(call, "name") or next(
        (name for place in (meta, *meta.values()) if (name := text_at(place, "toolName"))), None
    )


def _is_question(holder: Object) -> bool:
    texts = [text for pair in object_at(holder, "_meta").items() for text in pair if isinstance(text, str)]
    return any("question" in text.lower() for text in texts)


# Commands


def _command(call: Object, kind: str | None, arguments: Object | None) -> tuple[Part, ...]:
    commands = [(arguments or {})[key] for key in _COMMAND_KEYS if key in (arguments or {})]
    if commands:
        further = (arguments or {}).get("args")
        parts = tuple(part for command in commands for part in _parts(command, further))
        return parts or (Unread("", "the command is missing"),)
    if kind == "execute" or (arguments is None and kind not in _WITHOUT_COMMAND):
        # The title may be the command; but it may be what a model calls it, too.
        return (Unread(text_at(call, "title") or "", "the agent does not tell the command"),)
    return ()


def _parts(command: object, further: object) -> tuple[Part, ...]:
    match command, further:
        case str(), None:
            return read_text(command)
        case str(), list() if _all_texts(cast(list[object], further)):
            return read_words([command, *cast(list[str], further)])
        case list(), None if _all_texts(cast(list[object], command)):
            words = cast(list[str], command)
            # One text is a line for a shell, several are a program and its arguments.
            return read_text(words[0]) if len(words) == 1 else read_words(words)
        case _:
            return (Unread(str(command)[:1000], "the command has a form that is not known"),)


def _all_texts(values: list[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _folder(arguments: Object | None, cwd: str) -> str:
    named = [value for key, value in (arguments or {}).items() if _flat(key) in _FOLDER_KEYS]
    return next((posixpath.join(cwd, value) for value in named if isinstance(value, str)), cwd)


def _visited(parts: tuple[Part, ...], start: str) -> tuple[tuple[str, ...], bool]:
    """Folders that a command may be in while it runs, and whether that is all of them."""
    folders = [start]
    for part in parts:
        if not isinstance(part, Simple) or not part.words or part.words[0] is None:
            continue
        match part.words:
            case ("cd" | "pushd", str(target)) if not target.startswith(("-", "~", "+")):
                folders += [posixpath.join(folder, target) for folder in folders]
            case (str(program), *_) if program_name(program) in ("cd", "pushd", "popd", "chdir"):
                return tuple(folders), False
            case _:
                pass
        if len(folders) > MOST_FOLDERS:
            return tuple(folders[:MOST_FOLDERS]), False
    return tuple(folders), True


# Paths


def _paths_in(arguments: Object | None, but: frozenset[str]) -> tuple[list[str], list[str], bool]:
    """Paths among the arguments, texts that may be some, and whether all was looked at."""
    texts = (_TEXT_KEYS | _BESIDE_COMMANDS - _FOLDER_KEYS) | but
    sure: list[str] = []
    perhaps: list[str] = []
    known = True
    for key, value, depth in _texts(arguments, "", 0):
        flat = _flat(key)
        if depth > DEEPEST:
            known = False
        elif not value or flat in texts:
            continue
        elif any(word in flat for word in _PATH_WORDS):
            sure.append(value)
        elif "://" not in value or value.startswith("file:"):
            perhaps.append(value)
    return sure, perhaps, known


def _texts(value: object, key: str, depth: int) -> Iterator[tuple[str, str, int]]:
    """Every text with the key that it stands under; those that are keys themselves count, too, where they are paths."""
    if depth > DEEPEST:
        yield key, "", depth
    elif isinstance(value, str):
        yield key, value, depth
    elif isinstance(value, list):
        for item in cast(list[object], value):
            yield from _texts(item, key, depth + 1)
    elif isinstance(value, dict):
        for name, item in cast(Object, value).items():
            if "/" in name:
                yield "path", name, depth
            yield from _texts(item, name, depth + 1)


def _flat(key: str) -> str:
    """One spelling for `file_path`, `filePath` and `filepath`."""
    return key.replace("_", "").replace("-", "").lower()


def _without_scheme(path: str) -> str:
    return unquote(path.removeprefix("file://")) if path.startswith("file://") else path
