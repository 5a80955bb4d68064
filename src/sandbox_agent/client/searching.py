"""A search on the server: each match as it is found."""

from collections.abc import AsyncGenerator, AsyncIterator

from msgspec import Struct

from sandbox_agent.client.api import Api, Params
from sandbox_agent.client.errors import ConnectionLost
from sandbox_agent.client.light_httpx import httpx

_NDJSON = "application/x-ndjson"


class Match(Struct, rename="camel", kw_only=True, frozen=True):
    """A file, or a line of it: `line` and `column` count from 1, the column in characters."""

    path: str
    line: int | None = None
    column: int | None = None
    text: str | None = None
    text_truncated: bool = False
    """The line is longer than the text shown here."""


class _Line(Struct, rename="camel", kw_only=True):
    """A match, or the last line, which has no path."""

    path: str | None = None
    line: int | None = None
    column: int | None = None
    text: str | None = None
    text_truncated: bool = False
    truncated: bool = False
    reason: str | None = None


class Search(AsyncIterator[Match]):
    """The matches, in no order. Begins with the first step, and ends on the server when it is left."""

    def __init__(self, api: Api, params: Params) -> None:
        self.truncated = False
        """Whether there may be more than was found; known at the end."""
        self.reason: str | None = None
        """What ended it early: `results`, `bytes`, `time` or `lines`."""
        self._matches = self._run(api, params)

    async def __anext__(self) -> Match:
        return await anext(self._matches)

    async def close(self) -> None:
        """End it now instead of when it is garbage-collected."""
        await self._matches.aclose()

    async def _run(self, api: Api, params: Params) -> AsyncGenerator[Match]:
        async with api.stream("GET", "/v1/fs/search", params=params, headers={"Accept": _NDJSON}) as response:
            if response.headers.get("content-type", "").partition(";")[0] != _NDJSON:
                raise api.foreign(response, b"")
            async for text in _lines(response):
                line = api.parsed(response, text, _Line)
                if line.path is None:
                    self.truncated, self.reason = line.truncated, line.reason
                    return
                yield Match(
                    path=line.path,
                    line=line.line,
                    column=line.column,
                    text=line.text,
                    text_truncated=line.text_truncated,
                )
        raise ConnectionLost(f"{api.url} ended its answer before the search had ended")


async def _lines(response: httpx.Response) -> AsyncGenerator[bytes]:
    """Lines of JSON. httpx would end one at U+2028, too, which JSON has inside of strings."""
    begun: list[bytes] = []
    async for part in response.aiter_bytes():
        first, *rest = part.split(b"\n")
        begun.append(first)
        for piece in rest:
            yield b"".join(begun)
            begun = [piece]
