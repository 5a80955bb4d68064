"""All searches that run, for HTTP and ACP alike: what may be asked, how many run at once, what each may give."""

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace

from msgspec import UNSET

from sandbox_agent.errors import BadRequest, TooMany
from sandbox_agent.host.paths.confined import Confined
from sandbox_agent.host.paths.refusals import file_problems
from sandbox_agent.host.search.search import Query, Search, SearchLimits
from sandbox_agent.pools import Pool
from sandbox_agent.processes.children import Children
from sandbox_agent.wire.files import Found, Match

LONGEST = 4096
"""Characters of a pattern."""


@dataclass(slots=True)
class Searches:
    """Starts searches."""

    confined: Confined
    children: Children
    limits: SearchLimits
    pool: Pool
    running: int = field(default=0, init=False)

    def prepare(self, path: str, query: Query, limit: int | None = None) -> Search:
        """A search beneath a directory, with at most `limit` results. Raises BadRequest."""
        if not query.text and not query.name:
            raise BadRequest("the query needs text or name", parameter="text")
        for label, value in (("text", query.text), ("name", query.name)):
            if value is not None and (len(value) > LONGEST or "\0" in value or not value):
                raise BadRequest(f"{label} has from 1 to {LONGEST} characters, and no NUL", parameter=label)
        results = self.limits.results if limit is None else min(self.limits.results, limit)
        return Search(self.confined, path, query, replace(self.limits, results=results), self.pool)

    async def run(self, search: Search, path: str) -> AsyncGenerator[list[Match]]:
        """What it finds, in no order. To be closed. Raises TooMany, BadRequest and file problems."""
        with self._take_slot(), file_problems(path):
            async with aclosing(search.run(self.children)) as batches:
                async for batch in batches:
                    if batch:
                        yield batch

    async def find(self, search: Search, path: str) -> Found:
        """All that it finds, by path."""
        async with aclosing(self.run(search, path)) as batches:
            matches = [match async for batch in batches for match in batch]
        matches.sort(key=lambda match: (match.path, match.line or 0))
        return Found(matches, search.reason is not None, search.reason or UNSET)

    @contextmanager
    def _take_slot(self) -> Generator[None]:
        if self.running >= self.limits.at_once:
            raise TooMany("searches running", self.limits.at_once, "--searches")
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
