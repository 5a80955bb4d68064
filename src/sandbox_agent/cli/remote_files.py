"""Files of a running server: looking at them, and what is done with their names."""

import stat
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

import httpx
import msgspec
from msgspec import Raw, Struct

from sandbox_agent.cli.arguments import Arguments
from sandbox_agent.cli.failures import EXIT_FAILED
from sandbox_agent.cli.output import one_line, paint, print_facts, print_json
from sandbox_agent.cli.remote import Query, Refused, Remote, calling, understood
from sandbox_agent.cli.session_calls import find, read
from sandbox_agent.envelope import Object

T = TypeVar("T")
_KINDS = {"directory": stat.S_IFDIR, "symlink": stat.S_IFLNK, "file": stat.S_IFREG}
_STYLES = {"directory": "blue", "symlink": "cyan", "other": "yellow"}
_PAGE = 1000
# Bytes of a name that are not UTF-8, as Python has them in an argument, and as the contract spells them in JSON.
_SPELLED = {0xDC00 + byte: 0xEF00 + byte for byte in range(0x80, 0x100)}


class Entry(Struct, rename="camel"):
    """A file, a directory or a link, as the server tells it."""

    name: str
    path: str
    entry_type: str
    size: int = 0
    modified: str = ""
    mode: str = ""
    etag: str = ""
    link_target: str = ""

    @property
    def runs(self) -> bool:
        """Whether somebody may run it."""
        return self.permissions & 0o111 != 0

    @property
    def permissions(self) -> int:
        return int(self.mode, 8) if self.mode and set(self.mode) <= set("01234567") else 0


class _Page(Struct, rename="camel"):
    path: str
    entries: list[Raw]
    next_cursor: str | None = None


class Files:
    """The files of a server, for a session or as they are. Every method may raise Refused."""

    def __init__(self, remote: Remote, session: str | None) -> None:
        self.remote = remote
        self.where: Query = {"sessionId": session}
        """What every query says."""

    def call(self, method: str, route: str, path: str, type: type[T], query: Query | None = None) -> T:
        """What comes of a call about a path."""
        return self.remote.json(method, f"/v1/fs/{route}", type, {"path": path, **self.where, **(query or {})})

    @contextmanager
    def content(self, path: str) -> Generator[httpx.Response]:
        """The content of a file, still to be read."""
        with self.remote.stream("GET", "/v1/fs/file", {"path": path, **self.where}) as response:
            yield response

    def stat(self, path: str, *, follow: bool = True) -> Entry:
        return self.call("GET", "stat", path, Entry, {"follow": follow})

    def target(self, path: str, name: str) -> str:
        """Where something of that name goes: into the directory, if that is what the path leads to."""
        if not path.endswith("/"):
            try:
                if self.stat(path).entry_type != "directory":
                    return path
            except Refused as refused:
                if refused.slug != "file-not-found":
                    raise
                return path
        if name in ("", ".", ".."):
            raise Refused(f"{one_line(path)} is a directory; say what it is to be called there")
        return f"{path.rstrip('/')}/{name}"


def working(arguments: Arguments, work: Callable[[Files], int]) -> int:
    """Do something with files of the server, for the session that is meant; gives the exit code."""

    def begin(remote: Remote) -> int:
        session = arguments.word("session")
        return work(Files(remote, None if session is None else read(find(remote, session)).session_id))

    return calling(arguments, begin)


def base_name(path: str) -> str:
    """The last name of a path of the server; empty when it has none."""
    return path.rstrip("/").rpartition("/")[2]


# --- looking ----------------------------------------------------------------------------------------------------------


def print_entries(arguments: Arguments) -> int:
    """What is in a directory, page by page; gives the exit code."""
    path = arguments.word("path") or "."

    def work(files: Files) -> int:
        pages = _pages(files, path)
        if arguments.switch("json"):
            all = list(pages)
            entries = [entry for page in all for entry in page.entries]
            print_json(msgspec.json.encode({"path": all[0].path, "entries": entries}))
            return 0
        for page in pages:
            _print_page([understood(each, Entry) for each in page.entries], arguments.switch("long"))
        return 0

    return working(arguments, work)


def _pages(files: Files, path: str) -> Iterator[_Page]:
    cursor = None
    while True:
        try:
            page = files.call("GET", "entries", path, _Page, {"cursor": cursor, "limit": _PAGE})
        except Refused as refused:
            if refused.slug != "file-conflict" or files.stat(path).entry_type == "directory":
                raise
            page = _Page(path, [Raw(msgspec.json.encode(files.stat(path)))])
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return


def _print_page(entries: list[Entry], long: bool) -> None:
    width = max((len(str(each.size)) for each in entries), default=0)
    for each in entries:
        style = _STYLES.get(each.entry_type, "green" if each.runs else "")
        name = one_line(each.name)
        name = paint(name, style) if style else name
        if not long:
            print(name)
            continue
        mode = stat.filemode(_KINDS.get(each.entry_type, 0) | each.permissions)
        leads = f" -> {one_line(each.link_target)}" if each.link_target else ""
        print(f"{mode}  {each.size:>{width}}  {_moment(each.modified)}  {name}{leads}")


def _moment(at: str) -> str:
    try:
        return datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return at


def print_stat(arguments: Arguments) -> int:
    """What is known of a file; gives the exit code."""
    path, follow = arguments.word("path") or "", not arguments.switch("no_follow")

    def work(files: Files) -> int:
        if arguments.switch("json"):
            print_json(bytes(files.call("GET", "stat", path, Raw, {"follow": follow})))
            return 0
        entry = files.stat(path, follow=follow)
        print_facts(
            [
                ("path", one_line(entry.path)),
                ("kind", entry.entry_type),
                ("leads to", one_line(entry.link_target)),
                ("size", str(entry.size)),
                ("modified", entry.modified),
                ("mode", entry.mode),
                ("etag", entry.etag),
            ]
        )
        return 0

    return working(arguments, work)


def print_content(arguments: Arguments) -> int:
    """Files as they are; gives the exit code."""

    def show(files: Files, path: str) -> None:
        with files.content(path) as response:
            for piece in response.iter_bytes():
                sys.stdout.buffer.write(piece)

    return _each(arguments, show)


# --- names ------------------------------------------------------------------------------------------------------------


def make_directories(arguments: Arguments) -> int:
    """Make directories; gives the exit code."""
    return _each(arguments, lambda files, path: files.call("POST", "mkdir", path, Object))


def remove(arguments: Arguments) -> int:
    """Delete; gives the exit code."""
    query = {"recursive": arguments.switch("recursive")}
    return _each(arguments, lambda files, path: files.call("DELETE", "entry", path, Object, query))


def move(arguments: Arguments) -> int:
    """Give something another name; gives the exit code."""
    source, wanted = arguments.word("source") or "", arguments.word("target") or ""

    def work(files: Files) -> int:
        target = files.target(wanted, base_name(source))
        body = {"from": source.translate(_SPELLED), "to": target.translate(_SPELLED)}
        asked: Object = {**body, "overwrite": arguments.switch("overwrite")}
        files.remote.json("POST", "/v1/fs/move", Object, files.where, asked)
        return 0

    return working(arguments, work)


def _each(arguments: Arguments, act: Callable[[Files, str], object]) -> int:
    """Do it for every path; what is refused for one does not keep the others from it."""

    def work(files: Files) -> int:
        failed = False
        for path in arguments.words("paths"):
            try:
                act(files, path)
            except Refused as refused:
                refused.tell()
                failed = True
        return EXIT_FAILED if failed else 0

    return working(arguments, work)
