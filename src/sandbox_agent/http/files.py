"""The file API, but for archives, watching and searching: one table of endpoints.

Knows HTTP; what a path means and what is done there is the host's. File work is done in threads.
"""

import asyncio
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from sandbox_agent.errors import BadRequest
from sandbox_agent.host.entries import MAX_PAGE, PAGE, EntriesPage, Entry, entry_at, page_of
from sandbox_agent.host.refusals import file_problems
from sandbox_agent.http.paths import PATH, PROBLEMS, SESSION, Paths, query_of, switch
from sandbox_agent.http.views import Endpoint, json_response

_WHERE = {"path": PATH, "sessionId": SESSION}


@dataclass(frozen=True, slots=True)
class Files:
    """The handlers."""

    paths: Paths

    def endpoints(self) -> list[Endpoint]:
        page = {"cursor": "`nextCursor` of the page before.", "limit": f"Entries of a page, {PAGE} unless given."}
        follow = {"follow": "`false`: a link itself, and not what it leads to."}
        required = ("path",)
        return [
            Endpoint(
                "GET",
                "/v1/fs/entries",
                self.get_entries,
                "A directory's entries, by name.",
                EntriesPage,
                _WHERE | page,
                PROBLEMS,
                required=required,
            ),
            Endpoint(
                "GET",
                "/v1/fs/stat",
                self.get_stat,
                "A file, a directory or a link.",
                Entry,
                _WHERE | follow,
                PROBLEMS,
                required=required,
            ),
        ]

    async def get_entries(self, request: Request) -> Response:
        path, query = self.paths.wanted(request), query_of(request)
        limit = query.get("limit", str(PAGE))
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_PAGE):
            raise BadRequest(f"limit is a number from 1 to {MAX_PAGE}", parameter="limit")
        with file_problems(path):
            page = await asyncio.to_thread(
                page_of, self.paths.roots.confined, path, query.get("cursor"), int(limit[:9])
            )
        return json_response(page)

    async def get_stat(self, request: Request) -> Response:
        path, query = self.paths.wanted(request), query_of(request)
        follow = switch(query, "follow", default=True)
        with file_problems(path):
            return json_response(await asyncio.to_thread(entry_at, self.paths.roots.confined, path, follow=follow))
