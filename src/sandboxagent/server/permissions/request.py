"""Read what an agent asks permission for: the tool, its command, the files it names.

Files are named under keys, as keys, in links, and in the texts of patches. Every text that may be a path counts as one.
An unreadable part is marked as unknown. The module knows nothing of rules. All of it costs steps (`budget.py`).
"""

import posixpath
import re
import shlex
from collections.abc import Iterator
from typing import cast
from urllib.parse import unquote, urlsplit

from msgspec import Struct, field

from sandboxagent.protocol.envelope import Object, object_at, objects_at, text_at
from sandboxagent.server.permissions.budget import StepBudget
from sandboxagent.server.permissions.commands import (
    MAX_COMMAND,
    Part,
    Simple,
    Unread,
    is_script_of_shell,
    program_name,
    read_text,
    read_words,
)

MAX_DEPTH = 20
"""Maximum depth to which the arguments of a tool are examined."""

_CONTENT_KEYS = frozenset(
    {
        *("content", "contents", "text", "filetext", "oldstring", "newstring", "oldstr", "newstr", "oldtext"),
        *("newtext", "before", "after", "diff", "patch", "unifieddiff", "newsource", "oldcontent", "newcontent"),
    }
)
"""Arguments with the content of a file. They are no paths, even if they look like one, but a patch names some."""
_PATCH_KEYS = frozenset({"diff", "patch", "unifieddiff"})
_TALK_KEYS = frozenset(
    {
        *("description", "instruction", "prompt", "query", "title", "reason", "format", "mode", "encoding"),
        *("language", "type", "kind", "outputmode"),
    }
)
_MEMBERS = frozenset(
    {
        *("edits", "edit", "changes", "change", "files", "add", "update", "delete", "move", "rename", "operations"),
        *("items", "replaceall", "expectedreplacements", "line", "lines", "range", "start", "end", "character"),
        *("offset", "limit", "version", "id", "uri", "url", "name", "old", "new", "overwrite", "create", "options"),
        *("value", "status", "arguments", "input", "raw", "meta"),
    }
)
"""Names of members of arguments that are no files."""
_URL_KEYS = frozenset({"url", "uri", "href", "link", "address"})
_PATH_WORDS = ("path", "file", "dir", "folder", "cwd")
_PLACE_KEYS = _URL_KEYS | {"from", "to", "source", "src", "dest", "destination", "dst", "target", "glob", "include"}
"""Arguments that may be paths."""
_GLOB_KEYS = _PLACE_KEYS | {"globs", "includes", "pattern", "patterns", "match", "matches"}
"""Arguments that select files. In a search, `_SEARCHED` are the text to find instead."""
_SEARCHED = frozenset({"pattern", "patterns", "match", "matches"})
_CHANGING_KEYS = _PATCH_KEYS | {
    *("diffs", "patches", "edits", "edit", "changes", "hunk", "hunks", "oldstring", "newstring", "oldstr", "newstr"),
    *("oldtext", "newtext", "oldcontent", "newcontent", "newsource", "content", "contents", "filetext", "replacement"),
    *("filecontent", "filecontents", "newcontents", "newfilecontent", "newcode", "newvalue"),
    *("replacements", "replacewith", "replaceall", "insert", "insertline", "inserttext", "append", "rename", "renames"),
    *("write", "delete", "remove", "moveto", "movepath", "overwrite"),
}
"""Arguments of tools that change a file."""
_MODE_KEYS = frozenset({"mode", "openmode", "access", "flags"})
_WRITING = r"(?is)\s*(?:r?[bt]?\+[bt]?|b?[wax]x?[bt+]*|.*(?:writ|append|edit|modif|creat|delet|remov|trunc|rdwr).*)\s*"
"""A mode that opens a file for a change."""
_SHOWING_KEYS = frozenset({"content", "contents"})
"""Names of `_CHANGING_KEYS` that mean no change in the shown content of a call."""
_CHANGE_START = r"\s*(?:\*\*\* Begin Patch|diff --git |Index: |--- |@@ -|<<<<<<< )"
_PLAIN = r"[\w@%+=:,./~-]*"
"""Texts of characters that are usual in paths."""
_NAMING = (
    r"(?m)^(?:Index: |\*\*\* (?:Add|Update|Delete) File: |\*\*\* Move to: |(?:rename|copy) (?:from|to) |[-+]{3} )(.+)$"
)
_GIT_NAMING = r"(?m)^diff --git (.+)$"
_PATCH_START = r"\s*(?:\*\*\* Begin Patch|diff --git |Index: |--- )"

MAX_FOLDERS = 4
_COMMAND_KEYS = frozenset({"command", "cmd", "commands", "script"})
_FOLDER_KEYS = frozenset({"cwd", "workdir", "workingdirectory", "workingdir", "directory"})
_BESIDE_COMMANDS = _FOLDER_KEYS | {
    *("command", "cmd", "commands", "script", "args", "description", "timeout", "timeoutms"),
    *("isbackground", "runinbackground", "background", "async", "sessionid"),
}
"""Arguments that may accompany a command without a further effect."""
_SHAPE = {"name": str, "kind": str, "title": str, "rawInput": dict, "locations": list, "content": list}
_WITHOUT_COMMAND = frozenset({"read", "edit", "delete", "move", "search", "think", "fetch", "switch_mode"})
_WITHOUT_PATHS = frozenset({"think", "fetch", "switch_mode"})


class Named(Struct):
    """The files that a request names."""

    sure: list[str] = field(default_factory=list[str])
    perhaps: list[str] = field(default_factory=list[str])
    """Texts that may be paths as well."""
    known: bool = True
    """Whether these are all files."""
    places: list[str] = field(default_factory=list[str])
    """The texts of `perhaps` in arguments that select files."""
    clear: bool = True
    """Whether no text may be something that rules about paths do not understand."""


def find_names(
    arguments: Object | None, but: frozenset[str], stated: list[str], globs: frozenset[str], work: StepBudget
) -> Named:
    """Return the files that arguments name, without the arguments whose names are in `but`.

    `stated` are paths that are known from elsewhere. `globs` are names of arguments that may select files.
    """
    named = Named(list(stated))
    patches: list[str] = []
    for key, value, depth in _texts(arguments, "", 0, work):
        flat = flat_key(key)
        if depth > MAX_DEPTH:
            named.known = False
        elif value and (flat in _PATCH_KEYS or re.match(_PATCH_START, value)):
            patches.append(value)
        elif value and flat not in _CONTENT_KEYS and flat not in _TALK_KEYS and (depth > 1 or flat not in but):
            _take(named, flat, value)
            named.places += [value] if flat in globs else []
    # A patch of a file that is named elsewhere adds no further file.
    seen = {*named.sure, *named.perhaps}
    for patch in patches:
        work.spend(len(patch) // 16)
        named.perhaps += [name for names in _names_in_patch(patch) if seen.isdisjoint(names) for name in names]
    links = [path for path in (*named.sure, *named.perhaps) if _is_link(path)]
    named.known = named.known and all(_local_path(link) is not None for link in links)
    named.sure = list(dict.fromkeys(map(_without_scheme, named.sure)))
    named.places = list(dict.fromkeys(map(_without_scheme, named.places)))
    named.perhaps = list(dict.fromkeys(path for path in map(_without_scheme, named.perhaps) if path not in named.sure))
    return named


def flat_key(key: str) -> str:
    """Return one spelling for `file_path`, `filePath` and `filepath`."""
    return key.replace("_", "").replace("-", "").lower()


def _take(named: Named, flat: str, value: str) -> None:
    if any(word in flat for word in _PATH_WORDS):
        named.sure.append(value)
    elif flat in _URL_KEYS and value.lower().startswith(("http://", "https://")):
        # Data that a tool sends to a URL, or fetches from it, is no concern of rules about paths.
        named.clear = False
    else:
        named.perhaps.append(value)
        named.clear = named.clear and flat in _PLACE_KEYS and re.fullmatch(_PLAIN, value) is not None


def _texts(value: object, key: str, depth: int, work: StepBudget) -> Iterator[tuple[str, str, int]]:
    """Yield each text with its key and depth. Keys that may name files are yielded too."""
    if depth > MAX_DEPTH:
        yield key, "", depth
    elif isinstance(value, str):
        work.spend(1 + len(value) // 64)
        yield key, value, depth
    elif isinstance(value, list):
        items = cast(list[object], value)
        work.spend(len(items))
        for item in items:
            yield from _texts(item, key, depth + 1, work)
    elif isinstance(value, dict):
        members = cast(Object, value)
        work.spend(len(members))
        for name in _files_among(list(members), depth):
            yield "path", name, depth
        for name, item in members.items():
            yield from _texts(item, name, depth + 1, work)


def _files_among(names: list[str], depth: int) -> list[str]:
    """Return the names of members that may be files. If one name is unknown, all of its neighbours may be files."""
    if depth == 0:
        # At the top are the arguments of a tool, each with a name of its own.
        return [name for name in names if not name.replace("_", "").replace("-", "").isalnum()]
    return names if any(not _is_member(flat_key(name)) for name in names) else []


def _is_member(flat: str) -> bool:
    known = flat in _CONTENT_KEYS or flat in _TALK_KEYS or flat in _MEMBERS or flat in _URL_KEYS
    return known or (flat.isalnum() and flat.endswith(("path", "filename", "folder", "cwd")))


# Patches and links


def _names_in_patch(patch: str) -> Iterator[list[str]]:
    """Yield the possible paths of each name in a patch."""
    both = [half for line in re.findall(_GIT_NAMING, patch) for half in _split_rename(line)]
    for raw in dict.fromkeys([*(name.split("\t")[0].strip() for name in re.findall(_NAMING, patch)), *both]):
        if raw and raw != "/dev/null":
            # Git puts a letter in front of names, and in front of the slash of absolute ones.
            bare = raw[2:] if raw[:2] in ("a/", "b/") else None
            if bare != "dev/null":
                yield [raw] if bare is None else [bare, f"/{bare}"]


def _split_rename(line: str) -> list[str]:
    """Return the two names of `a/x b/x`, or the text itself if they cannot be separated."""
    before, found, after = line.partition(" b/")
    return [before, f"b/{after}"] if found and " b/" not in after else [line]


def _is_link(path: str) -> bool:
    return path[:5].lower() == "file:"


def _local_path(link: str) -> str | None:
    """Return the path of a link to a file of this machine; None for any other link."""
    try:
        parts = urlsplit(link)
    except ValueError:
        return None
    plain = parts.netloc.lower() in ("", "localhost") and not parts.query and not parts.fragment
    if not plain or not link[5:].startswith("//") or not parts.path.startswith("/") or "%2f" in parts.path.lower():
        return None
    return unquote(parts.path)


def _without_scheme(path: str) -> str:
    if not _is_link(path):
        return path
    # An invalid link is read in the worst way; it is known to be unclear.
    return _local_path(path) or unquote(path[5:].removeprefix("//"))


class Asked(Struct, frozen=True):
    """A request of an agent, and its session."""

    params: Object
    """The params of `session/request_permission`."""
    agent: str | None
    cwd: str
    directories: tuple[str, ...] = ()
    """Further directories that the session may use."""
    command_in_title: bool = False
    """Whether this agent sends a command only in the title of its call."""


class ToolRequest(Struct, frozen=True, kw_only=True):
    """A request as rules see it."""

    agent: str | None
    tool: str | None
    """The tool's name; None if the agent does not send it."""
    kind: str | None
    """The kind that the agent states."""
    deeds: tuple[str, ...]
    """Further kinds that follow from the content of the call: `edit`, `execute`."""
    parts: tuple[Part, ...]
    """The parts of its command; empty if it is known to run none."""
    only_command: bool
    """Whether the request is for nothing but that command."""
    paths: tuple[str, ...]
    perhaps_paths: tuple[str, ...]
    """Texts that may be paths as well."""
    places: tuple[str, ...]
    """The texts of `perhaps_paths` that select files, perhaps by a glob."""
    paths_known: bool
    """Whether all paths are known."""
    paths_clear: bool
    """Whether no text may be something that rules about paths do not understand."""
    arguments: Object | None
    """The `rawInput` of the call; None if there is none that can be read."""
    cwd: str
    """The session's directory, to which relative globs refer."""
    directories: tuple[str, ...]
    """All directories of the session."""
    folder: str
    """The folder to which relative paths refer."""
    folders: tuple[str, ...]
    """All folders to which relative paths may refer, because the command may go there."""
    folders_known: bool
    is_readable: bool
    """Whether the call has the form of a permission request."""
    is_question: bool
    """Whether it is a question to a person in the form of a permission."""


def read_request(asked: Asked, work: StepBudget) -> ToolRequest:
    """Read the params of `session/request_permission`. Raises TooMuch if that takes too long."""
    call = object_at(asked.params, "toolCall")
    kind, raw = text_at(call, "kind"), call.get("rawInput")
    arguments = cast(Object, raw) if isinstance(raw, dict) and raw else None
    if asked.command_in_title and kind == "execute" and raw is None:
        arguments = {"command": call.get("title")}
    parts = _command(call, kind, arguments, work)
    folder, folder_known = _folder(arguments, asked.cwd) if parts else (asked.cwd, True)
    folders, folders_known = _find_visited(parts, folder)
    places = [*objects_at(call, "locations"), *objects_at(call, "content")]
    work.spend(len(places))
    stated = [path for place in places if (path := text_at(place, "path"))]
    globs = _GLOB_KEYS - _SEARCHED if kind == "search" else _GLOB_KEYS
    named = find_names(arguments, _BESIDE_COMMANDS if parts else _BESIDE_COMMANDS - _FOLDER_KEYS, stated, globs, work)
    deeds = _find_deeds(call, kind, arguments, parts, work)
    odd = any("path" in place and not isinstance(place["path"], str) for place in places)
    anything = bool(named.sure or named.perhaps or arguments) or kind in _WITHOUT_PATHS
    return ToolRequest(
        agent=asked.agent,
        tool=_tool(call),
        kind=kind,
        deeds=tuple(deeds),
        parts=parts,
        only_command=_is_only_command(arguments) and "edit" not in deeds,
        paths=tuple(named.sure),
        perhaps_paths=tuple(named.perhaps),
        places=tuple(named.places),
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


def _find_deeds(
    call: Object, kind: str | None, arguments: Object | None, parts: tuple[Part, ...], work: StepBudget
) -> list[str]:
    """Return the effects of a call, whatever its kind: a read that carries a change is an edit."""
    changes = _changes(arguments, "", 0, _CHANGING_KEYS, work) or _changes(
        call.get("content"), "", 0, _CHANGING_KEYS - _SHOWING_KEYS, work
    )
    changing = ["edit"] if changes and kind not in ("edit", "delete", "move") else []
    return [*changing, *(["execute"] if parts and arguments is not None and kind != "execute" else [])]


def _changes(value: object, key: str, depth: int, keys: frozenset[str], work: StepBudget) -> bool:
    """Return whether a value describes a change of a file, in arguments or in the shown content of a call."""
    named = flat_key(key) in keys
    if depth > MAX_DEPTH or (named and value and isinstance(value, bool | str | list | dict)):
        return True
    if isinstance(value, str):
        work.spend(1 + len(value) // 64)
        writes = flat_key(key) in _MODE_KEYS and re.fullmatch(_WRITING, value[:100]) is not None
        return writes or re.match(_CHANGE_START, value) is not None
    if isinstance(value, list):
        items = cast(list[object], value)
        work.spend(1 + len(items))
        return any(_changes(item, "", depth + 1, keys, work) for item in items)
    if isinstance(value, dict):
        members = cast(Object, value)
        work.spend(1 + len(members))
        shown = members.get("type") == "diff"
        return shown or any(_changes(item, name, depth + 1, keys, work) for name, item in members.items())
    return False


def _is_question(holder: Object) -> bool:
    texts = [text for pair in object_at(holder, "_meta").items() for text in pair if isinstance(text, str)]
    return any("question" in text.lower() for text in texts)


# Commands


def _is_only_command(arguments: Object | None) -> bool:
    return arguments is not None and all(flat_key(key) in _BESIDE_COMMANDS for key in arguments)


def _command(call: Object, kind: str | None, arguments: Object | None, work: StepBudget) -> tuple[Part, ...]:
    by_key = [(flat_key(key), value) for key, value in (arguments or {}).items()]
    commands = [value for key, value in by_key if key in _COMMAND_KEYS]
    if commands:
        further = [value for key, value in by_key if key == "args"]
        # No rule understands several such arguments.
        rest = further[0] if len(further) == 1 else further or None
        several = any(key == "commands" for key, _ in by_key)
        return tuple(part for command in commands for part in _parts(command, rest, work, several=several))
    if kind == "execute" or (arguments is None and kind not in _WITHOUT_COMMAND):
        # The title may be the command, but it may also be a model's description of it.
        return (Unread(text_at(call, "title") or "", "the agent does not send the command"),)
    return ()


def _parts(command: object, further: object, work: StepBudget, *, several: bool) -> tuple[Part, ...]:
    match command, further:
        case str(), None:
            return read_text(command, work)
        case str(), list() if _all_texts(cast(list[object], further)):
            return _read_words([command, *cast(list[str], further)], work)
        case list(), None if _all_texts(cast(list[object], command)):
            words = cast(list[str], command)
            if several:
                return tuple(part for word in words for part in read_text(word, work)) or read_words(words, work)
            # A single text is a line for a shell, several are a program and its arguments.
            return read_text(words[0], work) if len(words) == 1 else _read_words(words, work)
        case _:
            return (Unread(str(command)[:1000], "the command has a form that is not known"),)


def _read_words(words: list[str], work: StepBudget) -> tuple[Part, ...]:
    """Read a program and its arguments, and also the line that they are to a tool that joins them for a shell."""
    parts = read_words(words, work)
    joined = " ".join(words)
    if is_script_of_shell(words) or shlex.join(words) == joined:
        return parts
    return (*parts, Unread(joined[:MAX_COMMAND], "a tool may join its words for a shell"))


def _all_texts(values: list[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _folder(arguments: Object | None, cwd: str) -> tuple[str, bool]:
    """Return the folder in which a command runs, and whether that is certain."""
    named = [value for key, value in (arguments or {}).items() if flat_key(key) in _FOLDER_KEYS and value is not None]
    texts = [value for value in named if isinstance(value, str)]
    plain = len(texts) == len(named) and not any(text.startswith(("~", "$")) or "://" in text for text in texts)
    folders = dict.fromkeys(posixpath.join(cwd, text) for text in texts)
    return next(iter(folders), cwd), plain and len(folders) < 2


def _find_visited(parts: tuple[Part, ...], start: str) -> tuple[tuple[str, ...], bool]:
    """Return the folders in which a command may be while it runs, and whether these are all."""
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
        if len(folders) > MAX_FOLDERS:
            return tuple(folders[:MAX_FOLDERS]), False
    return tuple(folders), True
