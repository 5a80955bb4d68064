"""Look up sessions that are not in memory, in a table of their own.

The table `cards` has one entry for each session, with the values to find it by. All other facts are in the session's
record. The entry follows from the record, and a session without an entry gets one at the next start. Each query reads a
row or a short range of an index, which the event loop can wait for. This module knows nothing of a record's content.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import cast

from msgspec import Struct
from msgspec.structs import astuple

from sandboxagent.server.log.rows import checksum

SCHEMA = """
create table if not exists cards(
    session_id text primary key, agent text not null, agent_session_id text not null, alias text, cwd text not null,
    holder text, created_at real not null, told_at real) without rowid;
create index if not exists cards_by_age on cards(created_at, session_id);
create index if not exists cards_by_cwd on cards(cwd, created_at, session_id);
create index if not exists cards_by_alias on cards(alias) where alias is not null;
create index if not exists cards_by_agent on cards(agent, agent_session_id);
create index if not exists cards_by_holder on cards(holder, agent_session_id) where holder is not null;
create index if not exists cards_by_told on cards(agent, told_at) where told_at is not null
"""
DELETE = "delete from cards where session_id = ?"
ENDED = "select session_id from cards where holder is null"
_PAGE = (
    "select created_at, session_id from cards where (created_at, session_id) < (?, ?)"
    " order by created_at desc, session_id desc limit ?"
)
_PAGE_OF_CWD = (
    "select created_at, session_id from cards where cwd = ? and (created_at, session_id) < (?, ?)"
    " order by created_at desc, session_id desc limit ?"
)

Rows = list[tuple[object, ...]]
SortKey = tuple[float, str]
"""Creation time and id of a session: the order of lists."""


class IndexEntry(Struct, frozen=True):
    """The values by which a session can be looked up."""

    session_id: str
    agent: str
    agent_session_id: str
    alias: str | None
    cwd: str
    holder: str | None
    """The process that holds the session; None once it has ended."""
    created_at: float
    told_at: float | None
    """Time when the agent last announced its models, modes or options; None when it never has."""

    def row(self) -> tuple[object, ...]:
        return astuple(self)


class SessionIndex:
    """The queries of the index. `ask` runs a query."""

    def __init__(self, ask: Callable[[str, Sequence[object]], Rows]) -> None:
        self._ask = ask

    def records(self, session_ids: Sequence[str]) -> dict[str, bytes | None]:
        """Return the records of some sessions, by their ids. A damaged record is None."""
        query = f"select session_id, record, checksum from sessions where session_id in ({_marks(session_ids)})"
        rows = cast("list[tuple[str, bytes, int | None]]", self._ask(query, session_ids))
        return {id: record if check in (None, checksum(id, record)) else None for id, record, check in rows}

    def has(self, session_id: str) -> bool:
        return bool(self._ask("select 1 from sessions where session_id = ?", (session_id,)))

    def counts_since(self, positions: Mapping[str, int]) -> dict[str, tuple[int, float]]:
        """Return for each session how many events its history has after a position, and the time of the last event.

        Sessions without such events are left out.
        """
        query = (
            f"with asked(id, position) as (values {', '.join(['(?, ?)'] * len(positions))})"
            " select id, sum(last - first + 1), max(at) from asked cross join events"
            " on session_id = id and history = 1 and last > position group by id"
        )
        rows = self._ask(query, [*chain.from_iterable(positions.items())]) if positions else []
        return {id: (count, at) for id, count, at in cast("list[tuple[str, int, float]]", rows)}

    def trimmed(self, channel: str) -> int:
        """Return the last position that was dropped from a channel or a history; 0 for none."""
        rows = self._ask("select through from trims where channel = ?", (channel,))
        return cast(int, rows[0][0]) if rows else 0

    def find_alias(self, alias: str) -> str | None:
        """Return the session that has an alias."""
        return next(iter(_ids(self._ask("select session_id from cards where alias = ?", (alias,)))), None)

    def knows(self, agent: str, name: str) -> bool:
        """Whether any session has this name: as its id, as its alias, or at this agent."""
        query = (
            "select exists(select 1 from sessions where session_id = ?1)"
            " or exists(select 1 from cards where alias = ?1)"
            " or exists(select 1 from cards where agent = ?2 and agent_session_id = ?1)"
        )
        return bool(self._ask(query, (name, agent))[0][0])

    def find_namesakes(self, agent: str, agent_session_id: str) -> list[str]:
        """Return at most two sessions for which an agent used the same id."""
        query = "select session_id from cards where agent = ? and agent_session_id = ? limit 2"
        return _ids(self._ask(query, (agent, agent_session_id)))

    def find_held(self, holder: str, agent_session_id: str) -> str | None:
        """Return the session that a process holds, by the agent's own id of the session."""
        query = "select session_id from cards where holder = ? and agent_session_id = ?"
        return next(iter(_ids(self._ask(query, (holder, agent_session_id)))), None)

    def find_all_held(self, holder: str) -> list[str]:
        """Return all sessions that a process holds."""
        return _ids(self._ask("select session_id from cards where holder = ?", (holder,)))

    def find_not_ended(self) -> list[str]:
        return _ids(self._ask("select session_id from cards where holder is not null", ()))

    def find_newest(self, agent: str) -> str | None:
        """Return the session in which an agent last announced its models, modes or options."""
        query = "select session_id from cards where agent = ? and told_at is not null order by told_at desc limit 1"
        return next(iter(_ids(self._ask(query, (agent,)))), None)

    def page(self, before: SortKey | None, cwd: str | None, limit: int) -> list[SortKey]:
        """Return a page of sessions, newest first, after the session `before`.

        With `cwd`, only those of a directory.
        """
        since = before or (float("inf"), "")
        if cwd is None:
            rows = self._ask(_PAGE, (*since, limit))
        else:
            rows = self._ask(_PAGE_OF_CWD, (cwd, *since, limit))
        return cast(list[SortKey], rows)

    def find_missing(self) -> list[tuple[str, bytes]]:
        """Return the sessions that have a record, and no entry in the index."""
        query = "select session_id, record from sessions where session_id not in (select session_id from cards)"
        return cast("list[tuple[str, bytes]]", self._ask(query, ()))


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))


def _ids(rows: Rows) -> list[str]:
    return [cast(str, row[0]) for row in rows]
