"""The SQLite file: what is written comes back, what is trimmed is known to be gone, what fails is written later."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sandboxagent.server.log.database import Database, DatabaseError
from sandboxagent.server.log.event import NO_CLIENT, Chunk, Direction, connection_channel, session_channel
from sandboxagent.server.log.journal import Group
from sandboxagent.server.log.session_index import IndexEntry, SessionIndex

FOREVER = 1e12
"""An age that nothing reaches."""
ALL = 1 << 62


@pytest.fixture(params=["file", "memory"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "log.db" if request.param == "file" else None)
    yield opened
    opened.close()


def chunk(
    first: int,
    *lines: bytes,
    session: str | None = "s",
    channel: str | None = None,
    at: float = 1.0,
    history: bool = True,
) -> Chunk:
    if channel is None:
        channel = NO_CLIENT if session is None else session_channel(session)
    return Chunk(first, list(lines) or [b"{}"], Direction.FROM_AGENT, session, channel, at, history=history)


def write(database: Database, *chunks: Chunk) -> None:
    database.write(Group(list(chunks)))


def positions(chunks: list[Chunk]) -> list[int]:
    return [position for chunk in chunks for position in range(chunk.first, chunk.last + 1)]


def follow(database: Database, *channels: str, after: int = 0, limit: int = ALL) -> list[int]:
    return positions(database.follow(channels, after, ALL, limit))


def history(database: Database, session: str, after: int = 0, before: int = ALL, limit: int = 1000) -> list[int]:
    return positions(database.history(session, after, before, limit, ALL))


BIG = b"x" * 30_000


def trim_to(database: Database, kept: int, *ended: str) -> dict[str, int]:
    """Drop until at most `kept` bytes stay. Trimming leaves a tenth less than the limit."""
    return database.trim(-(-kept * 10 // 9), FOREVER, ended)


# Writing and reading


def test_a_chunk_comes_back_as_it_was_written(database: Database) -> None:
    written = Chunk(
        7, [b'{"a":1}', '{"b":"ü\u2028"}'.encode()], Direction.FROM_SERVER, "s", "connection:c1", 2.5, "c9", False, 7
    )
    write(database, written)

    assert database.follow(["connection:c1"], 0, ALL, ALL) == [written]


def test_what_is_followed_are_the_channels_asked_for_in_order_of_position(database: Database) -> None:
    write(
        database, chunk(1), chunk(2, session="t"), chunk(3, b"{}", b"{}"), chunk(5, session="u"), chunk(6, session="t")
    )

    assert follow(database, session_channel("s"), session_channel("t")) == [1, 2, 3, 4, 6]


def test_following_begins_in_the_middle_of_a_chunk(database: Database) -> None:
    write(database, chunk(1, b"1", b"2", b"3"), chunk(4, b"4"))

    (part, rest) = database.follow([session_channel("s")], 2, ALL, ALL)

    assert (part.first, part.lines, rest.first) == (3, [b"3"], 4)


def test_following_stops_after_about_the_limit_and_goes_on_from_there(database: Database) -> None:
    write(database, *(chunk(at, b"x" * 100) for at in range(1, 11)))
    pages: list[list[int]] = []
    after = 0
    while page := follow(database, session_channel("s"), after=after, limit=250):
        pages.append(page)
        after = page[-1]

    assert pages == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10]]


def test_following_ends_at_a_position(database: Database) -> None:
    write(database, *(chunk(at) for at in range(1, 8)))

    assert positions(database.follow([session_channel("s")], 2, 5, ALL)) == [3, 4, 5]


def test_a_page_is_never_empty_however_small_the_limit(database: Database) -> None:
    write(database, chunk(1, b"x" * 100))

    assert follow(database, session_channel("s"), limit=0) == [1]


def test_what_no_client_gets_is_history_and_on_no_channel(database: Database) -> None:
    write(database, chunk(1, channel=NO_CLIENT))

    assert history(database, "s") == [1]
    assert follow(database, session_channel("s")) == []


def test_history_is_the_session_without_what_only_repeats_it(database: Database) -> None:
    write(database, chunk(1), chunk(2, channel="connection:c1", history=False), chunk(3, session="t"), chunk(4))

    assert history(database, "s") == [1, 4]


def test_history_lies_between_two_positions(database: Database) -> None:
    write(database, *(chunk(at) for at in range(1, 8)))

    assert history(database, "s", after=2, before=6) == [3, 4, 5]


def test_a_group_is_written_whole_or_not_at_all(database: Database) -> None:
    write(database, chunk(5))

    with pytest.raises(DatabaseError):
        database.write(Group([chunk(4), chunk(5)], {"t": b"{}"}, reserve=99))

    assert history(database, "s") == [5]
    assert database.index.records(["t"]) == {}
    assert database.load().reserved == 0


def test_after_a_group_that_failed_the_next_is_written(database: Database) -> None:
    write(database, chunk(5))
    with pytest.raises(DatabaseError):
        write(database, chunk(5))

    write(database, chunk(6))

    assert history(database, "s") == [5, 6]


# Sessions, outcomes, positions


def test_sessions_and_reserved_positions_outlive_the_server(tmp_path: Path) -> None:
    first = Database(tmp_path / "log.db")
    first.write(Group([chunk(3, b"{}", b"{}", at=5.0)], {"s": b"old"}, reserve=100))
    first.write(Group([], {"s": b"new", "t": b"{}"}))
    first.close()
    second = Database(tmp_path / "log.db")

    assert second.load().reserved == 100
    assert second.index.records(["s", "t", "u"]) == {"s": b"new", "t": b"{}"}
    assert [second.index.counts_since({"s": position}) for position in (0, 4)] == [{"s": (2, 5.0)}, {}]
    assert history(second, "s") == [3, 4]
    second.close()


def test_what_was_only_delivered_to_a_connection_ends_with_the_server(tmp_path: Path) -> None:
    first = Database(tmp_path / "log.db")
    write(first, chunk(1), chunk(2, channel="connection:c1", history=False))
    first.close()
    second = Database(tmp_path / "log.db")

    assert follow(second, "connection:c1", session_channel("s")) == [1]
    second.close()


def test_a_deleted_session_takes_its_events_with_it(database: Database) -> None:
    database.write(Group([chunk(1), chunk(2, session="t")], {"s": b"{}", "t": b"{}"}))

    database.write(Group(deleted={"s": 2}))

    assert (history(database, "s"), history(database, "t")) == ([], [2])
    assert database.index.records(["s", "t"]) == {"t": b"{}"}


def test_a_deleted_session_leaves_what_is_still_to_be_published_to_single_clients(database: Database) -> None:
    channel = connection_channel("g0123456789abcdef")
    own = [chunk(at, channel=channel, history=False) for at in (1, 3, 5)]
    database.write(Group([own[0], chunk(2), own[1], chunk(4), own[2]], {"s": b"{}"}))

    group = Group(deleted={"s": 5}, unpublished_after=4)
    group.merge(Group(unpublished_after=2))
    trims = database.write(group)

    assert [each.first for each in database.since(0, 1 << 20)] == [3, 5]
    assert trims == {channel: 1, session_channel("s"): 4}
    assert history(database, "s") == []


def test_a_session_deleted_and_made_again_in_one_group_begins_empty(database: Database) -> None:
    database.write(Group([chunk(1)], {"s": b"old"}))
    group = Group(deleted={"s": 1})
    group.merge(Group([chunk(2)], {"s": b"new"}))

    database.write(group)

    assert history(database, "s") == [2]
    assert database.index.records(["s"]) == {"s": b"new"}


def test_a_forgotten_channel_loses_its_deliveries_and_keeps_its_history(database: Database) -> None:
    channel = connection_channel("c1")
    write(database, chunk(1, channel=channel, history=False), chunk(2, channel=channel), chunk(3))
    write(database, chunk(4, channel=channel, history=False))

    database.write(Group(forgotten_channels={channel: 3}))

    assert follow(database, channel, session_channel("s")) == [2, 3, 4]


def test_an_outcome_is_kept_under_its_scope_and_key(database: Database) -> None:
    database.write(Group(outcomes={("s", "k"): (b"digest", None), ("t", "k"): (b"other", b"{}")}))
    database.write(Group(outcomes={("s", "k"): (b"digest", b"answer")}))

    assert database.outcome("s", "k") == (b"digest", b"answer")
    assert database.outcome("t", "k") == (b"other", b"{}")
    assert database.outcome("s", "other") is None

    database.write(Group(outcomes={("s", "k"): None}))

    assert database.outcome("s", "k") is None


# Trimming


def test_what_is_too_much_goes_oldest_first(database: Database) -> None:
    write(database, *(chunk(at, BIG) for at in range(1, 11)))

    trims = database.trim(database.size // 2, FOREVER, [])

    kept = history(database, "s")
    assert kept == list(range(kept[0], 11))
    assert 3 <= len(kept) <= 5
    assert trims[session_channel("s")] == kept[0] - 1


def test_what_is_within_the_limits_stays(database: Database) -> None:
    write(database, *(chunk(at) for at in range(1, 11)))

    assert database.trim(database.size, FOREVER, ["s"]) == {}
    assert len(history(database, "s")) == 10


@pytest.mark.requirement("4.max-age")
def test_what_is_too_old_goes_however_little_there_is(tmp_path: Path) -> None:
    now = 0.0
    database = Database(tmp_path / "log.db", ticking=lambda: now, boot="boot")
    write(database, chunk(1), chunk(2, session="t"))
    database.write(Group(outcomes={("s", "old"): (b"", b"")}))
    assert database.trim(ALL, 100.0, []) == {}
    now = 90.0
    write(database, chunk(3))
    database.write(Group(outcomes={("s", "new"): (b"", b"")}))
    assert database.trim(ALL, 100.0, []) == {}
    now = 101.0

    trims = database.trim(ALL, 100.0, [])

    assert follow(database, session_channel("s"), session_channel("t")) == [3]
    assert trims[session_channel("s")] == 1
    assert trims[session_channel("t")] == 2
    assert (database.outcome("s", "old"), database.outcome("s", "new")) == (None, (b"", b""))
    database.close()


@pytest.mark.requirement("4.clock-jump")
@pytest.mark.parametrize("jump", [31 * 86400.0, 1e9, -31 * 86400.0])
def test_a_clock_that_jumps_makes_nothing_older(tmp_path: Path, jump: float) -> None:
    wall, ticks = 1e9, 0.0
    day = 86400.0

    def open_it() -> Database:
        return Database(tmp_path / "log.db", wall=lambda: wall, ticking=lambda: ticks, boot="boot")

    database = open_it()
    write(database, chunk(1))
    database.trim(ALL, 30 * day, [])
    wall += jump
    for _ in range(10):
        ticks += 2 * day
        assert database.trim(ALL, 30 * day, []) == {}
    database.close()

    # Nor does one that has jumped between two servers.
    wall += jump
    database = open_it()
    assert database.trim(ALL, 30 * day, []) == {}
    ticks += 11 * day
    assert database.trim(ALL, 30 * day, []) != {}
    database.close()


def test_ended_sessions_go_first(database: Database) -> None:
    write(database, *(chunk(at, BIG, session="st"[at % 2]) for at in range(1, 11)))

    trims = trim_to(database, database.size * 55 // 100, "s")

    assert (history(database, "s"), history(database, "t")) == ([], [1, 3, 5, 7, 9])
    assert session_channel("t") not in trims


def test_what_was_trimmed_is_still_known_after_a_restart(tmp_path: Path) -> None:
    first = Database(tmp_path / "log.db")
    first.write(Group([chunk(1, BIG), chunk(2, BIG, session="t"), chunk(3, BIG)], {"s": b"{}"}))
    trim_to(first, first.size * 40 // 100)
    assert first.index.trimmed(session_channel("s")) == 1
    first.close()
    second = Database(tmp_path / "log.db")

    assert second.index.trimmed("history:s") == 1
    assert second.index.trimmed(session_channel("s")) == 0, "no connection has outlived the server"
    assert second.index.trimmed("history:t") == 0, "there is no such session"
    second.close()


def test_the_last_trimmed_position_of_a_channel_never_goes_back(database: Database) -> None:
    channel = connection_channel("c1")
    write(database, chunk(1, BIG, session="live", channel=channel), chunk(2, BIG, channel=channel))
    trim_to(database, database.size * 55 // 100, "s")
    assert follow(database, channel) == [1]

    trim_to(database, 0)

    assert follow(database, channel) == []
    assert database.index.trimmed(channel) == 2


def test_deleted_sessions_are_known_to_be_gone_from_every_channel_they_were_on(database: Database) -> None:
    channel = connection_channel("c1")
    database.write(Group([chunk(1), chunk(2), chunk(3, session="t", channel=channel), chunk(4, channel=channel)]))

    trims = database.write(Group(deleted={"s": 4, "t": 4}))

    assert trims == {session_channel("s"): 2, channel: 4}
    assert {name: database.index.trimmed(name) for name in trims} == trims


def test_a_trimmed_log_gives_its_disk_back(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    database = Database(path)
    write(database, *(chunk(at, b"x" * 10_000) for at in range(1, 301)))
    database.trim(0, FOREVER, [])
    database.close()

    assert path.stat().st_size < 1 << 20


@pytest.mark.requirement("4.max-bytes")
@pytest.mark.parametrize("size", [200, 700, 3_000, 6_000, 40_000])
def test_bytes_of_the_log_are_bytes_of_its_file(tmp_path: Path, size: int) -> None:
    """Whatever the size of events: the file stays within its limit, and most of the limit is used."""
    path, limit = tmp_path / "log.db", 2 << 20
    database = Database(path)
    last = 0
    while last < 3 * limit // size:
        chunks = [chunk(at, b"x" * size, session=f"session-{at % 9}") for at in range(last + 1, last + 51)]
        write(database, *chunks)
        last += 50
        if database.size > limit:
            database.trim(limit, FOREVER, [])
    used = database.size
    database.close()

    assert 0.8 * limit <= used <= limit
    assert path.stat().st_size <= 1.15 * limit


# Pages of a long log


def test_a_page_of_a_long_log_costs_as_much_as_one_of_a_short_log(tmp_path: Path) -> None:
    """Counted in steps of SQLite's machine, so that no clock is needed."""
    database = CountingDatabase(tmp_path / "log.db")

    def fill(begin: int, end: int) -> None:
        write(database, *(chunk(at, b"x" * 1000, session="st"[at % 2]) for at in range(begin, end)))

    channels = [session_channel("s"), session_channel("t"), connection_channel("c1")]
    fill(1, 101)
    short = database.steps(lambda: follow(database, *channels, limit=20_000))
    fill(101, 10_001)
    long = database.steps(lambda: follow(database, *channels, limit=20_000))
    database.close()

    assert long < short * 5


def test_a_start_on_a_long_log_costs_as_much_as_one_on_a_short_log(tmp_path: Path) -> None:
    database = CountingDatabase(tmp_path / "log.db")
    delivery = chunk(1, session="s", history=False)
    write(database, delivery)
    short = database.steps(database.drop_deliveries)
    write(database, delivery, *(chunk(at, session="s") for at in range(2, 10_001)))
    long = database.steps(database.drop_deliveries)
    assert [each.first for each in database.history("s", 0, 3, 10, 1 << 20)] == [2]
    database.close()

    assert long < short * 2 + 10


class CountingDatabase(Database):
    """Counts the steps of SQLite's machine, in hundreds."""

    def steps(self, query: Callable[[], object]) -> int:
        count = 0

        def step() -> int:
            nonlocal count
            count += 1
            return 0

        self._sqlite.set_progress_handler(step, 10)
        query()
        self._sqlite.set_progress_handler(None, 0)
        return count


# Failing


def test_a_full_disk_is_reported_as_such_and_the_group_can_be_written_later(tmp_path: Path) -> None:
    database = SmallDatabase(tmp_path / "log.db")
    database.allow(0)
    big = chunk(1, b"x" * 1_000_000)

    for _ in range(2):
        with pytest.raises(DatabaseError, match="full"):
            write(database, big)
    database.allow(1 << 20)
    write(database, big)

    assert history(database, "s") == [1]
    database.close()


class SmallDatabase(Database):
    """A disk that may be full."""

    def allow(self, pages: int) -> None:
        """How many more pages there may be."""
        (used,) = self._sqlite.execute("pragma page_count").fetchone()
        self._sqlite.execute(f"pragma max_page_count = {used + pages}")


def test_a_file_that_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.write_bytes(b"this is no database" * 100)

    with pytest.raises(DatabaseError, match=r"log\.db"):
        Database(path)


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with sqlite3.connect(path) as other:
        other.execute("pragma user_version = 99")
    other.close()

    with pytest.raises(DatabaseError, match="99"):
        Database(path)


READS: list[Callable[[Database], object]] = [
    lambda database: database.follow(["session:s"], 0, ALL, ALL),
    lambda database: database.history("s", 0, ALL, 10, ALL),
    lambda database: database.outcome("s", "k"),
    lambda database: database.trim(0, FOREVER, []),
]


@pytest.mark.parametrize("read", READS, ids=["follow", "history", "outcome", "trim"])
def test_a_file_that_cannot_be_read_is_a_database_error(tmp_path: Path, read: Callable[[Database], object]) -> None:
    path = tmp_path / "log.db"
    database = Database(path)
    write(database, chunk(1))
    with sqlite3.connect(path) as other:
        for table in ("events", "outcomes", "sessions", "trims", "state"):
            other.execute(f"drop table {table}")
    other.close()

    with pytest.raises(DatabaseError):
        read(database)
    database.close()


def test_records_and_counts_of_many_sessions_are_those_of_each() -> None:
    database = Database(None)
    group = Group()
    for number in range(5):
        group.sessions[f"s{number}"] = b"record %d" % number
        for at in range(number):
            position = len(group.chunks) * 10 + 1
            lines = [b"{}"] * (at + 1)
            group.chunks.append(Chunk(position, lines, Direction.FROM_AGENT, f"s{number}", NO_CLIENT, float(position)))
    database.write(group)
    index, names = database.index, [f"s{number}" for number in range(7)]

    assert index.records(names) == {name: b"record %d" % number for number, name in enumerate(names[:5])}
    for position in (0, 1, 31, 42, 1000):
        later = [each for each in group.chunks if each.last > position]
        expected = {
            name: (sum(len(each.lines) for each in own), max(each.at for each in own))
            for name in names
            if (own := [each for each in later if each.session_id == name])
        }
        assert index.counts_since(dict.fromkeys(names, position)) == expected
    assert index.counts_since({}) == {}


def test_what_sqlite_does_for_a_page_of_sessions_does_not_grow_with_their_events(tmp_path: Path) -> None:
    def steps(events: int) -> int:
        """Of SQLite's machine, for what a page of a list asks."""
        path, group, taken = tmp_path / f"{events}.db", Group(), 0
        names = [f"s{number}" for number in range(20)]
        for number, name in enumerate(names):
            group.sessions[name] = b"{}"
            group.index[name] = IndexEntry(name, "a", name, None, "/", None, float(number), None)
            group.chunks += [chunk(number * events + at + 1, session=name) for at in range(events)]
        database = Database(path)
        database.write(group)
        database.close()

        def count() -> None:
            nonlocal taken
            taken += 1

        with closing(sqlite3.connect(path)) as disk:
            index = SessionIndex(lambda query, values: disk.execute(query, values).fetchall())
            disk.set_progress_handler(count, 1)
            page = [session_id for _, session_id in index.page(None, None, 11)]
            assert len(index.records(page)) == 11
            assert index.counts_since(dict.fromkeys(page, 20 * events)) == {}
        return taken

    assert steps(500) == steps(5)


def test_a_damaged_record_among_many_is_named_and_hides_no_other() -> None:
    database = Database(None)
    database.write(Group(sessions={"a": b"1", "b": b"2"}))
    database._sqlite.execute("update sessions set record = ? where session_id = 'b'", (b"3",))

    assert database.index.records(["a", "b", "c"]) == {"a": b"1", "b": None}
