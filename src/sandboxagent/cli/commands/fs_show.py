"""Show, search, watch, move and delete the files of a server."""

import stat
import sys
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal, cast

import msgspec
from msgspec import Raw, Struct

from sandboxagent.cli.call import CalledServer, attempt, call
from sandboxagent.cli.output import (
    EXIT_FAILED,
    complain,
    one_line,
    paint,
    print_facts,
    print_json,
    visible,
    write_json,
)
from sandboxagent.cli.parser import ParsedArguments
from sandboxagent.cli.session_lookup import find_session, read_session
from sandboxagent.client.errors import ClientError, ServerProblem

if TYPE_CHECKING:
    from sandboxagent.client.files import Change, Entry, Files, Match

_KINDS = {"directory": stat.S_IFDIR, "symlink": stat.S_IFLNK, "file": stat.S_IFREG}
_STYLES = {"directory": "blue", "symlink": "cyan", "other": "yellow"}
_CHANGES = {"added": "green", "modified": "yellow", "deleted": "red"}
_MORE = {
    "results": "the limit of results was reached; set it with --limit, or --search-results of the server",
    "bytes": "the server's limit of output was reached",
    "time": "the server's time limit was reached",
    "lines": "very long lines were skipped",
}
_ENDED = {"gone": "it was deleted or moved", "exhausted": "the kernel's limit of watches was reached"}


class _Page(Struct, rename="camel"):
    path: str
    entries: list[Raw]
    next_cursor: str | None = None


def call_files(arguments: ParsedArguments, work: "Callable[[CalledServer, Files], Awaitable[int]]") -> int:
    """Call `work` with the server's files, for the session that the arguments name. Return the exit code."""

    async def begin(remote: CalledServer) -> int:
        from sandboxagent.client.files import Files

        name = arguments.word("session")
        id = None if name is None else read_session(await find_session(remote.api, name)).session_id
        node = arguments.word("node")
        return await work(replace(remote, session=id, node=node), Files(remote.api, id, node))

    return call(arguments, begin)


def base_name(path: str) -> str:
    """Return the last name of a path; empty when it has none."""
    return path.rstrip("/").rpartition("/")[2]


async def target_of(files: "Files", path: str, name: str) -> str:
    """Return the target path of a move or copy: in the directory under its name, if the path is a directory."""
    if not path.endswith("/"):
        try:
            if (await files.stat(path)).entry_type != "directory":
                return path
        except ServerProblem as problem:
            if problem.slug != "file-not-found":
                raise
            return path
    if name in ("", ".", ".."):
        raise ClientError(f"{one_line(path)} is a directory; add the new name to the path")
    return f"{path.rstrip('/')}/{name}"


def permissions_of(entry: "Entry") -> int:
    """Return the permissions of a file as a number; 0 if they are unknown."""
    return int(entry.mode, 8) if entry.mode and set(entry.mode) <= set("01234567") else 0


# --- showing ----------------------------------------------------------------------------------------------------------


def print_entries(arguments: ParsedArguments) -> int:
    """List a directory, or show a single file. Return the exit code."""
    path = arguments.word("path") or "."

    async def work(remote: CalledServer, files: "Files") -> int:
        if arguments.switch("json"):
            pages = [page async for page in _pages(remote, files, path)]
            entries = [entry for page in pages for entry in page.entries]
            print_json(msgspec.json.encode({"path": pages[0].path, "entries": entries}))
            return 0
        from sandboxagent.client.files import Entry

        async for page in _pages(remote, files, path):
            _print_page([msgspec.json.decode(each, type=Entry) for each in page.entries], arguments.switch("long"))
        return 0

    return call_files(arguments, work)


async def _pages(remote: CalledServer, files: "Files", path: str) -> AsyncGenerator[_Page]:
    """Yield the pages of a directory as the server sends them. A file is a page of one entry."""
    cursor = None
    while True:
        try:
            page = await remote.api.json(
                "GET", "/v1/fs/entries", params={**_query(remote, path), "cursor": cursor, "limit": 1000}, type=_Page
            )
        except ServerProblem as problem:
            if problem.slug != "file-conflict" or (await files.stat(path)).entry_type == "directory":
                raise
            page = _Page(path, [await _stat(remote, path, follow=True)])
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return


async def _stat(remote: CalledServer, path: str, *, follow: bool) -> Raw:
    return await remote.api.json("GET", "/v1/fs/stat", params={**_query(remote, path), "follow": follow}, type=Raw)


def _query(remote: CalledServer, path: str) -> dict[str, str | None]:
    from sandboxagent.client.files import encode_path

    return {"path": encode_path(path), "sessionId": remote.session, "node": remote.node}


def _print_page(entries: "list[Entry]", long: bool) -> None:
    width = max((len(str(each.size)) for each in entries), default=0)
    for each in entries:
        style = _STYLES.get(each.entry_type, "green" if permissions_of(each) & 0o111 else "")
        name = one_line(each.name)
        name = paint(name, style) if style else name
        if not long:
            print(name)
            continue
        mode = stat.filemode(_KINDS.get(each.entry_type, 0) | permissions_of(each))
        leads = f" -> {one_line(each.link_target)}" if each.link_target else ""
        print(f"{mode}  {each.size:>{width}}  {_moment(each.modified)}  {name}{leads}")


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M")


def print_stat(arguments: ParsedArguments) -> int:
    """Show the facts about a file. Return the exit code."""
    path, follow = arguments.word("path") or "", not arguments.switch("no_follow")

    async def work(remote: CalledServer, files: "Files") -> int:
        if arguments.switch("json"):
            print_json(bytes(await _stat(remote, path, follow=follow)))
            return 0
        entry = await files.stat(path, follow=follow)
        modified = "" if entry.modified is None else entry.modified.isoformat(timespec="milliseconds")
        print_facts(
            [
                ("path", one_line(entry.path)),
                ("kind", entry.entry_type),
                ("leads to", one_line(entry.link_target or "")),
                ("size", str(entry.size)),
                ("modified", modified.replace("+00:00", "Z")),
                ("mode", entry.mode),
                ("etag", entry.etag or ""),
            ]
        )
        return 0

    return call_files(arguments, work)


def print_content(arguments: ParsedArguments) -> int:
    """Write files to stdout. Return the exit code."""
    return _for_each(arguments, write_content)


async def write_content(files: "Files", path: str) -> bool:
    """Write a file to stdout byte for byte; to a terminal, with control characters as escapes."""
    decode = getincrementaldecoder("utf-8")("backslashreplace").decode
    is_shown = sys.stdout.isatty()
    async with aclosing(files.stream(path)) as pieces:
        async for piece in pieces:
            if is_shown:
                sys.stdout.write(visible(decode(piece)))
            else:
                sys.stdout.buffer.write(piece)
    if is_shown:
        sys.stdout.write(visible(decode(b"", final=True)))
    return True


# --- names ------------------------------------------------------------------------------------------------------------


def make_directories(arguments: ParsedArguments) -> int:
    """Make directories. Return the exit code."""
    return _for_each(arguments, lambda files, path: files.mkdir(path))


def remove(arguments: ParsedArguments) -> int:
    """Delete files and directories. Return the exit code."""

    async def delete(files: "Files", path: str) -> bool:
        await files.delete(path, recursive=arguments.switch("recursive"))
        return True

    return _for_each(arguments, delete)


def move(arguments: ParsedArguments) -> int:
    """Move or rename a file or directory. Return the exit code."""
    source, wanted = arguments.word("source") or "", arguments.word("target") or ""

    async def work(remote: CalledServer, files: "Files") -> int:
        target = await target_of(files, wanted, base_name(source))
        await files.move(source, target, overwrite=arguments.switch("overwrite"))
        return 0

    return call_files(arguments, work)


def _for_each(arguments: ParsedArguments, act: "Callable[[Files, str], Awaitable[object]]") -> int:
    """Call `act` for every path, also after one has failed. Return the exit code."""

    async def work(remote: CalledServer, files: "Files") -> int:
        done = [await attempt(remote, act(files, path)) for path in arguments.words("paths")]
        return EXIT_FAILED if None in done else 0

    return call_files(arguments, work)


# --- searching and watching -------------------------------------------------------------------------------------------


def search(arguments: ParsedArguments) -> int:
    """Print all matches. Return the exit code: 1 when there are none."""

    async def work(remote: CalledServer, files: "Files") -> int:
        matches = files.search(
            arguments.word("path") or ".",
            text=arguments.word("text") or None,
            name=arguments.word("name"),
            regex=arguments.switch("regex"),
            case=cast('Literal["smart", "sensitive", "ignore"]', arguments.word("case") or "smart"),
            hidden=arguments.switch("hidden"),
            ignored=arguments.switch("ignored"),
            limit=arguments.number("limit"),
        )
        count = 0
        async for match in matches:
            count += 1
            _print_match(match, as_json=arguments.switch("json"))
        if matches.truncated:
            sys.stdout.flush()
            complain(f"there may be more: {_MORE.get(matches.reason or '', matches.reason)}")
        if not count:
            complain("nothing found")
        return 0 if count else EXIT_FAILED

    return call_files(arguments, work)


def _print_match(match: "Match", *, as_json: bool) -> None:
    if as_json:
        facts = {"path": match.path, "line": match.line, "column": match.column, "text": match.text}
        facts["textTruncated"] = match.text_truncated or None
        write_json(msgspec.json.encode({name: fact for name, fact in facts.items() if fact is not None}))
        return
    parts = [paint(one_line(match.path), "magenta")]
    parts += [] if match.line is None else [paint(str(match.line), "green")]
    parts += [] if match.text is None else [one_line(match.text)]
    print(":".join(parts))


def watch(arguments: ParsedArguments) -> int:
    """Print changes until interrupted. Raises ClientError when the server ends the watch."""
    path = arguments.word("path") or "."

    async def work(remote: CalledServer, files: "Files") -> int:
        async with files.watch(path, recursive=not arguments.switch("no_recursive")) as changes:
            # From here on, the server reports every change.
            complain(f"watching {one_line(path)}; Ctrl-C ends it")
            async for change in changes:
                _print_change(change, as_json=arguments.switch("json"))
                sys.stdout.flush()
        raise ClientError(f"the watch has ended: {_ENDED.get(changes.ended or '', changes.ended)}")

    return call_files(arguments, work)


def _print_change(change: "Change", *, as_json: bool) -> None:
    overflow = change.kind == "overflow"
    if as_json:
        write_json(msgspec.json.encode({"kind": change.kind} if overflow else change))
    if overflow:
        complain("too many changes to report; scan the directory again")
    elif not as_json:
        kind = f"{change.kind:<8}"
        shown = paint(kind, _CHANGES[change.kind]) if change.kind in _CHANGES else kind
        print(f"{shown}  {one_line(change.path)}")
