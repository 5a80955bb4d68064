"""The names of files in the arguments of a tool: under keys, as keys, in links, and in the texts of patches.

What may be a path counts as one, and what is unclear is marked as unknown. Knows nothing of commands and rules.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import unquote, urlsplit

from sandbox_agent.envelope import Object
from sandbox_agent.permissions.work import Work

DEEPEST = 20
"""How deep the arguments of a tool are looked into."""

_CONTENT_KEYS = frozenset(
    {
        *("content", "contents", "text", "filetext", "oldstring", "newstring", "oldstr", "newstr", "oldtext"),
        *("newtext", "before", "after", "diff", "patch", "unifieddiff", "newsource", "oldcontent", "newcontent"),
    }
)
"""Arguments that are the content of a file. They are no paths, even if they look like one; but a patch names some."""
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
"""What members of arguments are called that are no files."""
_URL_KEYS = frozenset({"url", "uri", "href", "link", "address"})
_PATH_WORDS = ("path", "file", "dir", "folder", "cwd")
_PLACE_KEYS = _URL_KEYS | {"from", "to", "source", "src", "dest", "destination", "dst", "target", "glob", "include"}
"""Arguments that may be paths."""
_PLAIN = re.compile(r"[\w@%+=:,./~-]*")
"""Of letters that paths are made of."""
_NAMING = re.compile(
    r"^(?:Index: |\*\*\* (?:Add|Update|Delete) File: |\*\*\* Move to: |(?:rename|copy) (?:from|to) |[-+]{3} )(.+)$",
    re.MULTILINE,
)
_GIT_NAMING = re.compile(r"^diff --git (.+)$", re.MULTILINE)
_PATCH_START = re.compile(r"\s*(?:\*\*\* Begin Patch|diff --git |Index: |--- )")


@dataclass(slots=True)
class Named:
    """What is named."""

    sure: list[str] = field(default_factory=list[str])
    perhaps: list[str] = field(default_factory=list[str])
    """Texts that may be paths as well."""
    known: bool = True
    """Whether that is all."""
    clear: bool = True
    """Whether each of them is known to be a path, or would be one if it were anything."""


def names_in(arguments: Object | None, but: frozenset[str], stated: list[str], work: Work) -> Named:
    """The files that are named in arguments, but for arguments that are called as in `but`.

    `stated` are paths that are known from elsewhere.
    """
    named = Named(list(stated))
    patches: list[str] = []
    for key, value, depth in _texts(arguments, "", 0, work):
        flat = flat_key(key)
        if depth > DEEPEST:
            named.known = False
        elif value and (flat in _PATCH_KEYS or _PATCH_START.match(value)):
            patches.append(value)
        elif value and flat not in _CONTENT_KEYS and flat not in _TALK_KEYS and (depth > 1 or flat not in but):
            _take(named, flat, value)
    # What a patch says of a file that is named anyway is about no other file.
    seen = {*named.sure, *named.perhaps}
    for patch in patches:
        work.spend(len(patch) // 16)
        named.perhaps += [name for names in _names_in_patch(patch) if seen.isdisjoint(names) for name in names]
    links = [path for path in (*named.sure, *named.perhaps) if _is_link(path)]
    named.known = named.known and all(_local(link) is not None for link in links)
    named.sure = list(dict.fromkeys(map(_without_scheme, named.sure)))
    named.perhaps = list(dict.fromkeys(path for path in map(_without_scheme, named.perhaps) if path not in named.sure))
    return named


def flat_key(key: str) -> str:
    """One spelling for `file_path`, `filePath` and `filepath`."""
    return key.replace("_", "").replace("-", "").lower()


def _take(named: Named, flat: str, value: str) -> None:
    if any(word in flat for word in _PATH_WORDS):
        named.sure.append(value)
    elif flat not in _URL_KEYS or not value.lower().startswith(("http://", "https://")):
        named.perhaps.append(value)
        named.clear = named.clear and flat in _PLACE_KEYS and _PLAIN.fullmatch(value) is not None


def _texts(value: object, key: str, depth: int, work: Work) -> Iterator[tuple[str, str, int]]:
    """Every text with the key that it stands under. Keys count themselves where they name files."""
    if depth > DEEPEST:
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
    """The names of members that may be files: where one is no word that we know, none of its neighbours is one."""
    if depth == 0:
        # The arguments of a tool: each has its own.
        return [name for name in names if not name.replace("_", "").replace("-", "").isalnum()]
    return names if any(not _is_member(flat_key(name)) for name in names) else []


def _is_member(flat: str) -> bool:
    known = flat in _CONTENT_KEYS or flat in _TALK_KEYS or flat in _MEMBERS or flat in _URL_KEYS
    return known or (flat.isalnum() and flat.endswith(("path", "filename", "folder", "cwd")))


# Patches and links


def _names_in_patch(patch: str) -> Iterator[list[str]]:
    """Of each name in a patch, what it may mean."""
    both = [half for line in _GIT_NAMING.findall(patch) for half in _halves(line)]
    for raw in dict.fromkeys([*(name.split("\t")[0].strip() for name in _NAMING.findall(patch)), *both]):
        if raw and raw != "/dev/null":
            # Git puts a letter in front of names, and in front of the slash of absolute ones.
            bare = raw[2:] if raw[:2] in ("a/", "b/") else None
            if bare != "dev/null":
                yield [raw] if bare is None else [bare, f"/{bare}"]


def _halves(line: str) -> list[str]:
    """The two names of `a/x b/x`, or the text as it is when they cannot be told apart."""
    before, found, after = line.partition(" b/")
    return [before, f"b/{after}"] if found and " b/" not in after else [line]


def _is_link(path: str) -> bool:
    return path[:5].lower() == "file:"


def _local(link: str) -> str | None:
    """The path that a link to a file of this machine means; None when it is another kind of link."""
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
    # What is no proper link is read as badly as possible; it is known to be unclear.
    return _local(path) or unquote(path[5:].removeprefix("//"))
