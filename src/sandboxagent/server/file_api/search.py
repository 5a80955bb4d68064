"""Serve the search route: a page of JSON, or a line of it for each match as it is found."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable
from typing import TypeVar

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandboxagent.protocol.envelope import Object
from sandboxagent.protocol.errors import BadRequest, TooMany
from sandboxagent.protocol.files import Found, Match, SearchEnding
from sandboxagent.server.file_api.routes import PATH, PROBLEMS, SESSION, Paths
from sandboxagent.server.files.search import Query, Search, Searches
from sandboxagent.server.http.downloads import Streamed
from sandboxagent.server.http.views import BOOLEAN, COUNT, Endpoint, json_response, read_query, read_switch

NDJSON = "application/x-ndjson"
T = TypeVar("T")
_CASES = ("smart", "sensitive", "ignore")
_QUERY = {
    "path": PATH,
    "sessionId": SESSION,
    "text": "The text to find in files, within one line.",
    "regex": "`true`: `text` is a regular expression, in the syntax of Rust's crate `regex`.",
    "case": "`smart`, the default: case matters only if `text` has a capital letter. Or `sensitive`, or `ignore`.",
    "name": "A part of a file's name, or a glob: `*.py` for the name alone, `src/**/test_*` for the path below `path`.",
    "hidden": "`true` also searches names that begin with a dot.",
    "ignored": "`true` also searches files that `.gitignore`, `.ignore` and `.rgignore` exclude.",
    "limit": "Maximum number of results, at most the server's own limit.",
}
_SCHEMAS: dict[str, Object] = {
    **dict.fromkeys(("regex", "hidden", "ignored"), BOOLEAN),
    "case": {"type": "string", "enum": list(_CASES)},
    "limit": COUNT,
}


class SearchRoute:
    """The handler of the search route."""

    def __init__(self, paths: Paths, searches: Searches) -> None:
        self._paths = paths
        self._searches = searches

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "GET",
                "/v1/fs/search",
                self.get_search,
                "Search for files by name, or for lines by text. `text` or `name` is required.",
                Found,
                _QUERY,
                (*PROBLEMS, TooMany),
                required=("path",),
                schemas=_SCHEMAS,
                answer="The matches, sorted by path.",
                also={
                    NDJSON: "A line for each match as soon as it is found, in no order. "
                    'The last line is `{"truncated": …}`.'
                },
            )
        ]

    async def get_search(self, request: Request) -> Response:
        path = self._paths.read_path(request)
        search = self._searches.prepare(path, *_asked(request))
        if NDJSON in request.headers.get("accept", ""):
            batches = self._searches.run(search, path)
            # An error of the search comes before its first match.
            first = await _unless_gone(request, anext(batches, list[Match]()), list[Match]())
            return _Lines(search, first, batches)
        nothing = Found([], truncated=False)
        return json_response(await _unless_gone(request, self._searches.find(search, path), nothing))


def _asked(request: Request) -> tuple[Query, int | None]:
    """Return the search in a query, and the requested number of results. Raises BadRequest."""
    query = read_query(request)
    case, limit = query.get("case", "smart"), query.get("limit")
    if case not in _CASES:
        raise BadRequest(f"case is one of {', '.join(_CASES)}", parameter="case")
    if limit is not None and (re.fullmatch("[0-9]{1,9}", limit) is None or not int(limit)):
        raise BadRequest("limit is a number from 1 to 999999999", parameter="limit")
    flags = {each: read_switch(query, each) for each in ("regex", "hidden", "ignored")}
    wanted = Query(query.get("text"), query.get("name"), case=case, **flags)
    return wanted, None if limit is None else int(limit)


class _Lines(Streamed):
    """A response with a line for each match, and a last line with the end of the search."""

    def __init__(self, search: Search, first: list[Match], batches: AsyncGenerator[list[Match]]) -> None:
        self._search = search
        self._first = first
        self._batches = batches
        super().__init__(self._lines(), NDJSON, {"cache-control": "no-store"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._batches.aclose()

    async def _lines(self) -> AsyncGenerator[bytes]:
        encoder = msgspec.json.Encoder()
        if self._first:
            yield encoder.encode_lines(self._first)
        async for batch in self._batches:
            yield encoder.encode_lines(batch)
        reason = self._search.reason
        yield encoder.encode_lines([SearchEnding(reason is not None, reason or UNSET)])


async def _unless_gone(request: Request, work: Awaitable[T], otherwise: T) -> T:
    """Return the result of the search. Cancel it if the client leaves, and return `otherwise`."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, gone = asyncio.ensure_future(work), asyncio.create_task(leave())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else otherwise
    finally:
        gone.cancel()
        working.cancel()
        await asyncio.wait({working})
