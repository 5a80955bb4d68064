"""GET /v1/fs/search: a page of JSON, or a line of it for each match as it is found."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandbox_agent.errors import BadRequest, TooMany
from sandbox_agent.host.paths.refusals import file_problems
from sandbox_agent.host.search.search import Match, Query, Search, SearchLimits
from sandbox_agent.http.downloads import Streamed
from sandbox_agent.http.paths import PATH, PROBLEMS, SESSION, Paths, read_query, read_switch
from sandbox_agent.http.views import Endpoint, json_response
from sandbox_agent.pools import Pool
from sandbox_agent.processes.children import Children

NDJSON = "application/x-ndjson"
LONGEST = 4096
"""Characters of a pattern."""

T = TypeVar("T")
_CASES = ("smart", "sensitive", "ignore")
_QUERY = {
    "path": PATH,
    "sessionId": SESSION,
    "text": "A text in files.",
    "regex": "`true`: the text is a regular expression, of Rust's kind.",
    "case": "`smart`, unless given: capitals in the text make it matter. Or `sensitive`, or `ignore`.",
    "name": "A part of a file's name, or a glob: `*.py`, `src/**/test_*`.",
    "hidden": "`true`: also files whose names begin with a dot.",
    "ignored": "`true`: also what `.gitignore`, `.ignore` and `.rgignore` leave out.",
    "limit": "Most results, up to the server's own limit.",
}


class Found(Struct):
    """What a search found."""

    matches: list[Match]
    """By path."""
    truncated: bool
    """There may be more."""
    reason: str | UnsetType = UNSET
    """Why: `results`, `bytes`, `time` or `lines`."""


class Ending(Struct):
    """The last line of a stream of matches."""

    truncated: bool
    reason: str | UnsetType = UNSET


class Searches:
    """The handler."""

    def __init__(self, paths: Paths, children: Children, limits: SearchLimits, pool: Pool) -> None:
        self._pool = pool
        self._paths = paths
        self._children = children
        self._limits = limits
        self._running = 0

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "GET",
                "/v1/fs/search",
                self.get_search,
                "Files by name, lines by text; `text` or `name` must be there.",
                Found,
                _QUERY,
                (*PROBLEMS, TooMany),
                required=("path",),
                answer="What was found, by path.",
                also={NDJSON: 'A line for each match as it is found, in no order; the last is `{"truncated": …}`.'},
            )
        ]

    async def get_search(self, request: Request) -> Response:
        path, (query, limits) = self._paths.read_path(request), self._asked(request)
        search = Search(self._paths.roots.confined, path, query, limits, self._pool)
        batches = self._batches(search, path)
        if NDJSON in request.headers.get("accept", ""):
            # What is wrong is known before the first match is.
            first = await _unless_gone(request, anext(batches, list[Match]()), list[Match]())
            return _Lines(search, first, batches)
        matches = await _unless_gone(request, _all(batches), list[Match]())
        matches.sort(key=lambda match: (match.path, match.line or 0))
        return json_response(Found(matches, search.reason is not None, search.reason or UNSET))

    async def _batches(self, search: Search, path: str) -> AsyncGenerator[list[Match]]:
        with self._take_slot(), file_problems(path):
            async with aclosing(search.run(self._children)) as batches:
                async for batch in batches:
                    if batch:
                        yield batch

    @contextmanager
    def _take_slot(self) -> Generator[None]:
        if self._running >= self._limits.at_once:
            raise TooMany("searches running", self._limits.at_once, "--searches")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def _asked(self, request: Request) -> tuple[Query, SearchLimits]:
        """Raises BadRequest."""
        query = read_query(request)
        text, name, case = query.get("text"), query.get("name"), query.get("case", "smart")
        if not text and not name:
            raise BadRequest("the query needs text or name", parameter="text")
        for label, value in (("text", text), ("name", name)):
            if value is not None and (len(value) > LONGEST or "\0" in value or not value):
                raise BadRequest(f"{label} has from 1 to {LONGEST} characters, and no NUL", parameter=label)
        if case not in _CASES:
            raise BadRequest(f"case is one of {', '.join(_CASES)}", parameter="case")
        limit = query.get("limit", str(self._limits.results))
        if re.fullmatch("[0-9]{1,9}", limit) is None or not int(limit):
            raise BadRequest("limit is a number from 1 to 999999999", parameter="limit")
        limits = replace(self._limits, results=min(self._limits.results, int(limit)))
        flags = {each: read_switch(query, each) for each in ("regex", "hidden", "ignored")}
        return Query(text, name, case=case, **flags), limits


class _Lines(Streamed):
    """Matches, a line each, and how it ended."""

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
        yield encoder.encode_lines([Ending(reason is not None, reason or UNSET)])


async def _all(batches: AsyncGenerator[list[Match]]) -> list[Match]:
    return [match async for batch in batches for match in batch]


async def _unless_gone(request: Request, work: Awaitable[T], otherwise: T) -> T:
    """The result; cancels the search when the caller stops waiting."""

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
