"""Searching the files of a server and watching them: a line for each thing, as it comes."""

import sys
from collections.abc import Iterator

import httpx
import msgspec
from msgspec import Raw, Struct

from sandbox_agent.cli.arguments import Arguments, complain
from sandbox_agent.cli.failures import EXIT_FAILED
from sandbox_agent.cli.output import one_line, paint, write_json
from sandbox_agent.cli.remote import EVENT_STREAM, Refused, events, is_stream, understood
from sandbox_agent.cli.remote_files import Files, working

NDJSON = "application/x-ndjson"
LONGEST = 16 << 20
"""Bytes of a line that can still be one of ours."""

_MORE = {
    "results": "that are most results; --limit, or --search-results of the server, sets how many",
    "bytes": "that is as much as the server tells",
    "time": "the time was up",
    "lines": "very long lines were passed over",
}
_ENDED = {
    "gone": "it was deleted or moved",
    "exhausted": "the kernel watches no more directories",
    "stopping": "the server stops",
}
_STYLES = {"added": "green", "modified": "yellow", "deleted": "red"}


class _Match(Struct):
    path: str = ""
    line: int | None = None
    text: str | None = None
    truncated: bool | None = None
    """Of the last line, which is no match."""
    reason: str | None = None


class _Change(Struct):
    kind: str
    path: str


class _Changes(Struct):
    changes: list[Raw]


class _Reason(Struct):
    reason: str = ""


def search(arguments: Arguments) -> int:
    """Print what is found; gives the exit code, 1 when that is nothing."""
    query = {
        "path": arguments.word("path"),
        "text": arguments.word("text") or None,
        "name": arguments.word("name"),
        "case": arguments.word("case"),
        "limit": arguments.number("limit"),
        **{name: arguments.switch(name) or None for name in ("regex", "hidden", "ignored")},
    }

    def work(files: Files) -> int:
        count = 0
        route, headers = "/v1/fs/search", {"Accept": NDJSON}
        with files.remote.stream("GET", route, {**query, **files.where}, headers=headers) as response:
            for line in _lines(response):
                found = understood(line, _Match)
                if found.truncated is None:
                    count += 1
                    _print_match(found, line, as_json=arguments.switch("json"))
                elif found.truncated:
                    sys.stdout.flush()
                    complain(f"there may be more: {_MORE.get(found.reason or '', found.reason)}")
        if not count:
            complain("nothing is found")
        return 0 if count else EXIT_FAILED

    return working(arguments, work)


def _print_match(found: _Match, line: bytes, *, as_json: bool) -> None:
    if as_json:
        write_json(line)
        return
    parts = [paint(one_line(found.path), "magenta")]
    parts += [] if found.line is None else [paint(str(found.line), "green")]
    parts += [] if found.text is None else [one_line(found.text)]
    print(":".join(parts))


def watch(arguments: Arguments) -> int:
    """Print changes until interrupted; gives the exit code when the server ends it."""
    path, as_json = arguments.word("path") or ".", arguments.switch("json")
    query = {"path": path, "recursive": not arguments.switch("no_recursive")}

    def work(files: Files) -> int:
        route, headers = "/v1/fs/watch", {"Accept": EVENT_STREAM}
        with files.remote.stream("GET", route, {**query, **files.where}, headers=headers) as response:
            if not is_stream(response):
                raise Refused(f"{files.remote.server.url} does not answer with a stream of events")
            # From here on nothing is missed.
            complain(f"watching {one_line(path)}; Ctrl-C ends it")
            for event in events(response):
                _print_event(event.event, event.data.encode(), as_json=as_json)
        raise Refused("the server has ended the watch")

    return working(arguments, work)


def _print_event(kind: str, data: bytes, *, as_json: bool) -> None:
    match kind:
        case "changes":
            for raw in understood(data, _Changes).changes:
                _print_change(bytes(raw), as_json=as_json)
            sys.stdout.flush()
        case "overflow":
            if as_json:
                write_json(msgspec.json.encode({"kind": "overflow"}))
                sys.stdout.flush()
            complain("more has changed than can be told; look at the directory again")
        case "ended":
            reason = understood(data, _Reason).reason
            raise Refused(f"the watch has ended: {_ENDED.get(reason, reason)}")
        case _:
            pass  # Of a newer server.


def _print_change(raw: bytes, *, as_json: bool) -> None:
    if as_json:
        write_json(raw)
        return
    change = understood(raw, _Change)
    kind = f"{change.kind:<8}"
    print(f"{paint(kind, _STYLES[change.kind]) if change.kind in _STYLES else kind}  {one_line(change.path)}")


def _lines(response: httpx.Response) -> Iterator[bytes]:
    """Lines of JSON. Not as httpx cuts them, which takes U+2028 inside a text for the end of a line."""
    rest = b""
    for piece in response.iter_bytes():
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
        if len(rest) > LONGEST:
            break
    if rest:
        raise Refused("what the server answers does not end")
