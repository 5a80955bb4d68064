"""What an agent asks permission for, read from `session/request_permission`, whichever agent it is.

What cannot be read is marked as unknown. Knows nothing of rules. All of it costs steps (`work.py`).
"""

import posixpath
from dataclasses import dataclass
from typing import cast

from sandbox_agent.envelope import Object, object_at, objects_at, text_at
from sandbox_agent.permissions.commands import Part, Simple, Unread, program_name, read_text, read_words
from sandbox_agent.permissions.edits import flat_key, names_in
from sandbox_agent.permissions.work import Work

MOST_FOLDERS = 4

_COMMAND_KEYS = frozenset({"command", "cmd", "commands", "script"})
_FOLDER_KEYS = frozenset({"cwd", "workdir", "workingdirectory", "workingdir", "directory"})
_BESIDE_COMMANDS = _FOLDER_KEYS | {
    *("command", "cmd", "commands", "script", "args", "description", "timeout", "timeoutms"),
    *("isbackground", "runinbackground", "background", "async", "sessionid"),
}
"""Arguments that a command may come with and still be nothing but that command."""
_SHAPE = {"name": str, "kind": str, "title": str, "rawInput": dict, "locations": list, "content": list}
_WITHOUT_COMMAND = frozenset({"read", "edit", "delete", "move", "search", "think", "fetch", "switch_mode"})
_WITHOUT_PATHS = frozenset({"think", "fetch", "switch_mode"})


@dataclass(frozen=True, slots=True)
class Asked:
    """What came from an agent, and the session that it is about."""

    params: Object
    """Of `session/request_permission`."""
    agent: str | None
    cwd: str
    directories: tuple[str, ...] = ()
    """Further ones that the session may use."""
    command_in_title: bool = False
    """Whether this agent tells a command by the title of its call, and nowhere else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """One request, as rules see it."""

    agent: str | None
    tool: str | None
    """Its name; None when the agent does not send it."""
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
    paths_clear: bool
    """Whether none of them may be something that no rule about paths understands."""
    arguments: Object | None
    """`rawInput`; None when there is none that can be read."""
    cwd: str
    """The session's own folder, where relative globs begin."""
    directories: tuple[str, ...]
    """All folders of the session."""
    folder: str
    """Where relative paths begin."""
    folders: tuple[str, ...]
    """Where they may begin, too: the command goes there."""
    folders_known: bool
    is_readable: bool
    """Whether it has the shape of such a request."""
    is_question: bool
    """It asks something else than for permission, in the form of a permission."""


def read_request(asked: Asked, work: Work) -> ToolRequest:
    """The request in the params of `session/request_permission`; raises TooMuch when reading takes too long."""
    call = object_at(asked.params, "toolCall")
    kind, raw = text_at(call, "kind"), call.get("rawInput")
    arguments = cast(Object, raw) if isinstance(raw, dict) and raw else None
    if asked.command_in_title and kind == "execute" and raw is None:
        arguments = {"command": call.get("title")}
    parts = _command(call, kind, arguments, work)
    folder, folder_known = _folder(arguments, asked.cwd) if parts else (asked.cwd, True)
    folders, folders_known = _visited(parts, folder)
    places = [*objects_at(call, "locations"), *objects_at(call, "content")]
    work.spend(len(places))
    stated = [path for place in places if (path := text_at(place, "path"))]
    named = names_in(arguments, _BESIDE_COMMANDS if parts else _BESIDE_COMMANDS - _FOLDER_KEYS, stated, work)
    odd = any("path" in place and not isinstance(place["path"], str) for place in places)
    anything = bool(named.sure or named.perhaps or arguments) or kind in _WITHOUT_PATHS
    return ToolRequest(
        agent=asked.agent,
        tool=_tool(call),
        kind=kind,
        parts=parts,
        only_command=arguments is not None and all(flat_key(key) in _BESIDE_COMMANDS for key in arguments),
        paths=tuple(named.sure),
        perhaps_paths=tuple(named.perhaps),
        paths_known=named.known and not odd and anything,
        paths_clear=named.clear,
        arguments=arguments,
        cwd=asked.cwd,
        directories=(asked.cwd, *asked.directories),
        folder=folder,
        folders=folders,
        folders_known=folders_known and folder_known,
        is_readable=bool(call) and all(isinstance(call.get(key), of | None) for key, of in _SHAPE.items()),
        is_question=_is_question(asked.params) or _is_question(call),
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


def _command(call: Object, kind: str | None, arguments: Object | None, work: Work) -> tuple[Part, ...]:
    by_key = [(flat_key(key), value) for key, value in (arguments or {}).items()]
    commands = [value for key, value in by_key if key in _COMMAND_KEYS]
    if commands:
        further = [value for key, value in by_key if key == "args"]
        # More than one such argument is understood by no rule.
        rest = further[0] if len(further) == 1 else further or None
        return tuple(part for command in commands for part in _parts(command, rest, work))
    if kind == "execute" or (arguments is None and kind not in _WITHOUT_COMMAND):
        # The title may be the command; but it may be what a model calls it, too.
        return (Unread(text_at(call, "title") or "", "the agent does not tell the command"),)
    return ()


def _parts(command: object, further: object, work: Work) -> tuple[Part, ...]:
    match command, further:
        case str(), None:
            return read_text(command, work)
        case str(), list() if _all_texts(cast(list[object], further)):
            return read_words([command, *cast(list[str], further)], work)
        case list(), None if _all_texts(cast(list[object], command)):
            words = cast(list[str], command)
            # One text is a line for a shell, several are a program and its arguments.
            return read_text(words[0], work) if len(words) == 1 else read_words(words, work)
        case _:
            return (Unread(str(command)[:1000], "the command has a form that is not known"),)


def _all_texts(values: list[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _folder(arguments: Object | None, cwd: str) -> tuple[str, bool]:
    """Where a command is run, and whether that is certain."""
    named = [value for key, value in (arguments or {}).items() if flat_key(key) in _FOLDER_KEYS and value is not None]
    texts = [value for value in named if isinstance(value, str)]
    plain = len(texts) == len(named) and not any(text.startswith(("~", "$")) or "://" in text for text in texts)
    folders = dict.fromkeys(posixpath.join(cwd, text) for text in texts)
    return next(iter(folders), cwd), plain and len(folders) < 2


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
