"""The log in front of its file: positions, followers, the tail in memory, and groups on disk."""

import asyncio
from pathlib import Path

import pytest

from sandboxagent.protocol.errors import LogUnavailable
from sandboxagent.server.log.database import Database
from sandboxagent.server.log.event import NO_CLIENT, Chunk, Direction, connection_channel
from sandboxagent.server.log.journal import Group
from sandboxagent.server.log.log import RESERVE, Limits, Log
from sandboxagent.server.log.recovery import open_database
from tests.support.logs import Follower, FragileDatabase, S, T, opened, page, positions, run, say
from tests.support.running import BOUND

# Appending


def test_positions_are_one_sequence_over_all_sessions() -> None:
    async def main() -> None:
        async with opened() as log:
            start = log.position
            chunks = [say(log, "s"), say(log, "t", b"1", b"2", b"3"), say(log, "s", channel=NO_CLIENT), say(log, "s")]

            assert positions(chunks) == list(range(start + 1, start + 7))
            assert log.position == start + 6

    run(main())


def test_a_follower_hears_of_its_channel_at_once_and_of_no_other() -> None:
    async def main() -> None:
        async with opened() as log:
            follower = Follower()
            before = say(log)
            log.follow(S, follower)
            mine = say(log)
            say(log, "t")
            say(log, channel=NO_CLIENT)
            log.unfollow(S, follower)
            say(log)

            assert follower.positions == [mine.first]
            assert mine.first == before.first + 1

    run(main())


def test_a_follower_may_leave_while_it_is_called() -> None:
    class Leaver(Follower):
        def appended(self, chunk: Chunk) -> None:
            super().appended(chunk)
            log.unfollow(S, self)

    async def main() -> None:
        nonlocal log
        async with opened() as log:
            leavers = [Leaver(), Leaver()]
            for leaver in leavers:
                log.follow(S, leaver)
            first = say(log)
            say(log)

            assert [leaver.positions for leaver in leavers] == [[first.first], [first.first]]

    log: Log
    run(main())


class Failing(Follower):
    """Raises at every chunk."""

    def appended(self, chunk: Chunk) -> None:
        super().appended(chunk)
        raise ZeroDivisionError("injected")


def test_a_follower_that_fails_leaves_no_hole_on_disk_and_keeps_nothing_from_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with opened(Database(tmp_path / "log.db")) as log:
            start, failing, other, historian = log.position, Failing(), Follower(), Failing()
            log.follow(S, failing)
            log.follow(S, other)
            log.follow_history(historian)
            log.follow_history(other)
            chunks = [say(log, "s") for _ in range(3)]
            await log.committed(log.position)

            expected = [chunk.first for chunk in chunks]
            assert await page(log, S, after=start) == expected
            assert failing.positions == historian.positions == expected
            assert other.positions == sorted([*expected, *expected])
            assert log.position == expected[-1]

    run(main())
    assert len([one for one in caplog.records if "follower failed" in one.message]) == 6


def test_what_a_follower_appends_comes_after_what_it_was_told_of_on_disk_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(Database(tmp_path / "log.db")) as log:

            class Answering(Follower):
                def appended(self, chunk: Chunk) -> None:
                    super().appended(chunk)
                    if len(self.chunks) == 1:
                        say(log, "s", b"{}")

            start, answering = log.position, Answering()
            log.follow(S, answering)
            say(log, "s", b"{}")
            group = [chunk.first for chunk in log._writer.group.chunks]
            assert group == sorted(group) == [start + 1, start + 2]
            await log.committed(log.position)
            assert await page(log, S, after=start) == [start + 1, start + 2]

    run(main())


def test_followers_share_frames_which_memory_does_not_keep() -> None:
    class Reader(Follower):
        def appended(self, chunk: Chunk) -> None:
            read.append(chunk.frames())

    async def main() -> None:
        async with opened() as log:
            for _ in range(2):
                log.follow(S, Reader())
            chunk = say(log)
            first, second = read
            assert first is second
            late = chunk.frames()
            assert late == first
            assert late is not first
            await log.history("s", 0, chunk.last + 1, 1)
            assert chunk.frames() is not late

    read: list[bytes] = []
    run(main())


def test_the_time_of_an_event_is_the_clock_s() -> None:
    async def main() -> None:
        async with opened(clock=lambda: 1234.5) as log:
            assert say(log).at == 1234.5

    run(main())


# Reading


def test_a_page_has_everything_that_is_on_disk() -> None:
    async def main() -> None:
        async with opened() as log:
            expected = [say(log, "st"[at % 2]).first for at in range(50)]

            assert await page(log, S, T) == expected

    run(main())


def test_memory_and_disk_give_the_same_events() -> None:
    async def main() -> None:
        async with opened() as log:
            for at in range(20):
                say(log, "stu"[at % 3], *[b"{}"] * (at % 4 + 1))
            start, end = log.evicted, log.position
            for after in range(start, end + 1):
                in_memory = log.in_memory([S, T], after, 1 << 30)
                assert in_memory is not None
                assert in_memory[1] is True
                assert positions(in_memory[0]) == await page(log, S, T, after=after)

    run(main())


def test_memory_is_read_in_parts_when_there_is_more_than_the_limit() -> None:
    async def main() -> None:
        async with opened() as log:
            expected = [say(log).first for _ in range(10)]
            read: list[int] = []
            after, parts, complete = log.evicted, 0, False
            while not complete:
                in_memory = log.in_memory([S], after, say(log, "t").size * 3)
                assert in_memory is not None
                chunks, complete = in_memory
                read += positions(chunks)
                after, parts = read[-1], parts + 1

            assert read == expected
            assert parts > 2

    run(main())


def test_memory_says_so_when_it_does_not_reach_back_far_enough() -> None:
    async def main() -> None:
        async with opened(limits=Limits(tail_bytes=500)) as log:
            start = log.position
            for _ in range(50):
                say(log)
            await log.committed(log.position)

            assert log.in_memory([S], start, 1 << 30) is None
            assert log.evicted > start
            kept = log.in_memory([S], log.evicted, 1 << 30)
            assert kept is not None
            assert positions(kept[0]) == list(range(log.evicted + 1, log.position + 1))
            assert await page(log, S, after=start) == list(range(start + 1, log.position + 1))

    run(main())


def test_what_is_not_on_disk_yet_is_never_dropped_from_memory() -> None:
    async def main() -> None:
        database = FragileDatabase()
        async with opened(database, Limits(tail_bytes=100)) as log:
            start = log.position
            database.go.clear()
            for _ in range(100):
                say(log)
            kept = log.in_memory([S], start, 1 << 30)
            assert kept is not None
            assert len(positions(kept[0])) == 100
            database.go.set()
            await log.committed(log.position)

            assert log.in_memory([S], start, 1 << 30) is None

    run(main())


def test_history_is_a_session_without_what_only_repeats_it() -> None:
    async def main() -> None:
        async with opened() as log:
            first = say(log)
            say(log, channel=connection_channel("c1"), history=False)
            say(log, "t")
            recorded = say(log, channel=NO_CLIENT)

            read = await log.history("s", 0, log.position + 1, 100)

            assert positions(read) == [first.first, recorded.first]

    run(main())


def test_forgetting_a_channel_drops_its_deliveries_from_disk() -> None:
    async def main() -> None:
        async with opened() as log:
            channel = connection_channel("c1")
            say(log, channel=channel, history=False)
            kept = say(log, channel=channel)
            log.forget(channel)
            await log.flushed()

            assert await page(log, channel) == [kept.first]

    run(main())


# Committing


def test_committed_returns_when_the_event_is_on_disk(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(Database(tmp_path / "log.db")) as log:
            chunk = say(log, "s", b'{"a":1}')
            await log.committed(chunk.last)
            other = Database(tmp_path / "log.db")

            assert other.follow([S], 0, 1 << 30, 1 << 30) == [chunk]
            other.close()

    run(main())


def test_committed_does_not_return_before() -> None:
    async def main() -> None:
        database = FragileDatabase()
        async with opened(database) as log:
            database.go.clear()
            chunk = say(log)
            waiting = asyncio.create_task(log.committed(chunk.last))
            follower = Follower()
            log.follow(S, follower)
            later = say(log)
            await asyncio.sleep(0)

            assert follower.positions == [later.first], "delivery does not wait for the disk"
            assert not waiting.done()
            database.go.set()
            await waiting
            assert any(chunk in group.chunks for group in database.groups)

    run(main())


def test_what_is_already_on_disk_is_committed_at_once() -> None:
    async def main() -> None:
        database = FragileDatabase()
        async with opened(database) as log:
            chunk = say(log)
            await log.committed(chunk.last)
            database.go.clear()

            await asyncio.wait_for(log.committed(chunk.last), BOUND)
            database.go.set()

    run(main())


def test_events_that_come_together_are_written_together() -> None:
    async def main() -> None:
        database = FragileDatabase()
        async with opened(database) as log:
            written = len(database.groups)
            for _ in range(500):
                say(log)
            await log.committed(log.position)

            assert len(database.groups) - written < 50
            assert positions([chunk for group in database.groups for chunk in group.chunks]) == await page(log, S)

    run(main())


class Publisher:
    """Takes what is safe, a group at a time."""

    published, full, failure_reason, is_idle = 0, False, None, True

    def __init__(self) -> None:
        self.groups: asyncio.Queue[Group] = asyncio.Queue()

    def committed(self, group: Group) -> None:
        self.groups.put_nowait(group)

    async def drained(self, position: int) -> None:
        pass


def test_a_publisher_with_nothing_to_do_gets_an_event_at_once() -> None:
    async def main() -> None:
        log = Log(Database(None), Limits(), gather=3600)
        log.publisher = publisher = Publisher()
        chunk = say(log)
        assert (await publisher.groups.get()).chunks == [chunk]
        log.close()

    run(main())


def test_what_comes_while_a_publisher_is_busy_is_gathered_until_it_asks() -> None:
    async def main() -> None:
        log = Log(Database(None), Limits(), gather=3600)
        log.publisher = publisher = Publisher()
        publisher.is_idle = False
        start = log.position
        chunks = [say(log), say(log)]
        assert await log.since(start) == []
        assert (await publisher.groups.get()).chunks == chunks
        assert await log.since(start) == chunks
        log.close()

    run(main())


def test_gateway_clients_response_outlives_its_session_until_published() -> None:
    async def main() -> None:
        # No event stays in memory.
        log = Log(Database(None), Limits(tail_bytes=0))
        start = log.position
        own = connection_channel("g0123456789abcdef")
        log.publisher = publisher = Publisher()
        publisher.is_idle = False
        published = log.append([b"{}"], Direction.FROM_SERVER, "s", own, history=False)
        publisher.published = published.last
        response = log.append([b"{}"], Direction.FROM_SERVER, "s", own, history=False)
        say(log)
        log.delete_session("s")
        say(log, channel=T)
        await log.committed(log.position)
        found = await log.since(start)
        assert positions(found)[:1] == [response.first]
        assert published.first not in positions(found)
        log.close()

    run(main())


def test_what_can_wait_goes_to_an_idle_publisher_with_what_follows_it() -> None:
    async def main() -> None:
        log = Log(Database(None), Limits(), gather=3600)
        log.publisher = publisher = Publisher()
        start = log.position
        prompt = say(log, channel=NO_CLIENT)
        started = log.append([b"{}"], Direction.FROM_SERVER, "s", S, can_wait=True)
        assert await log.since(start) == []
        await asyncio.sleep(0)
        assert publisher.groups.empty()
        update = say(log)
        assert (await publisher.groups.get()).chunks == [prompt, started, update]
        log.close()

    run(main())


def test_what_can_wait_goes_to_a_publisher_at_once_when_a_caller_waits_for_it() -> None:
    async def main() -> None:
        log = Log(Database(None), Limits(), gather=3600)
        log.publisher = publisher = Publisher()
        prompt = say(log, channel=NO_CLIENT)
        await log.published(prompt.last)
        assert publisher.groups.get_nowait().chunks == [prompt]
        log.close()

    run(main())


def test_a_publisher_gets_what_is_safe_also_before_it_has_seen_anything_of_this_run(tmp_path: Path) -> None:
    """The positions of a new run begin beyond those that the last one may have given out."""

    async def main() -> None:
        log = Log(open_database(tmp_path / "log.db").database, Limits())
        old = say(log)
        log.close()
        log = Log(open_database(tmp_path / "log.db").database, Limits())
        assert positions(await log.since(old.first - 1)) == [old.first]
        new = say(log)
        await log.committed(new.last)
        assert await log.since(old.last) == [new]
        log.close()

    run(main())


def test_a_log_begins_where_it_is_told_to_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        log = Log(Database(tmp_path / "log.db"), Limits(), beginning=1 << 30)
        chunk = say(log)
        await log.committed(chunk.last)
        assert chunk.first == (1 << 30) + 1
        assert await log.since(0) == [chunk]
        log.close()
        log = Log(Database(tmp_path / "log.db"), Limits(), beginning=1 << 40)
        assert chunk.last < log.position < 1 << 40
        assert positions(await log.since(0)) == [chunk.first]
        log.close()

    run(main())


def test_a_session_s_record_and_outcomes_are_kept_with_the_events_before_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(Database(tmp_path / "log.db")) as log:
            say(log)
            log.save_session("s", b"{}")
            log.save_outcome("s", "key", b"digest", None)
            assert await log.outcome("s", "key") == (b"digest", None)
            log.save_outcome("s", "key", b"digest", b"answer")
            assert await log.outcome("s", "key") == (b"digest", b"answer")
            await log.flushed()
            other = Database(tmp_path / "log.db")

            assert other.index.records(["s"]).get("s") == b"{}"
            other.close()

    run(main())


def test_closing_writes_what_is_left(tmp_path: Path) -> None:
    async def main() -> None:
        log = Log(Database(tmp_path / "log.db"), Limits())
        expected = [say(log).first for _ in range(100)]
        log.save_session("s", b"{}")
        log.close()
        other = Database(tmp_path / "log.db")

        assert positions(other.follow([S], 0, 1 << 30, 1 << 30)) == expected
        assert other.index.records(["s"]).get("s") == b"{}"
        other.close()

    run(main())


def test_a_closed_log_refuses_to_be_read() -> None:
    async def main() -> None:
        async with opened() as log:
            say(log)
        with pytest.raises(LogUnavailable):
            await log.page([S], 0, log.position)

    run(main())


# Positions over restarts and crashes


def test_positions_go_on_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        last = 0
        for _ in range(3):
            async with opened(Database(tmp_path / "log.db")) as log:
                assert log.position >= last
                last = say(log, "s", b"{}", b"{}").last
        async with opened(Database(tmp_path / "log.db")) as log:
            assert len(await page(log, S)) == 6

    run(main())


def test_a_position_that_a_crash_lost_is_never_given_out_again(tmp_path: Path) -> None:
    async def main() -> None:
        database = FragileDatabase(tmp_path / "log.db")
        async with opened(database) as crashed:
            database.go.clear()
            seen = say(crashed, "s", *[b"{}"] * 1000).last
            async with opened(Database(tmp_path / "log.db")) as log:
                assert say(log).first > seen
            database.go.set()

    run(main())


def test_more_positions_are_reserved_before_the_reserved_ones_are_used_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(Database(tmp_path / "log.db"), Limits(tail_bytes=1 << 20)) as log:
            lines = [b"{}"] * 200_000
            first_block = log.position + RESERVE
            while log.position < first_block * 2:
                seen = say(log, "s", *lines, channel=NO_CLIENT).last
                found_after_a_crash = Database(tmp_path / "log.db")
                assert found_after_a_crash.load().reserved >= seen
                found_after_a_crash.close()
                await log.committed(seen)

    run(main())


def test_forgetting_a_channel_keeps_what_is_not_published_yet() -> None:
    async def main() -> None:
        async with opened(limits=Limits(tail_bytes=0)) as log:
            log.publisher = publisher = Publisher()
            channel = connection_channel("c1")
            gone, kept = say(log, channel=channel, history=False), say(log, channel=channel, history=False)
            publisher.published = gone.last
            log.forget(channel)
            await log.flushed()

            assert await page(log, channel) == [kept.first]

    run(main())


def test_what_was_held_is_safe_when_others_have_had_their_turn(tmp_path: Path) -> None:
    async def main() -> None:
        log = Log(open_database(tmp_path / "log.db").database, Limits(), gather=3600)
        safe: list[Exception | None] = []
        assert log.hold(join=False)
        assert not log.hold(join=True), "what is inside belongs to it"
        log.when_committed(say(log).last, safe.append)
        await asyncio.sleep(0)
        assert safe == [], "it is held"
        log.let_go(at_once=False)
        assert safe == []
        await log.committed(log.position)
        assert safe == [None]
        log.close()

    run(main())


def test_what_was_held_is_safe_at_once_when_nothing_else_comes(tmp_path: Path) -> None:
    async def main() -> None:
        log = Log(open_database(tmp_path / "log.db").database, Limits(), gather=3600)
        safe: list[Exception | None] = []
        # A disk that is slow may make it wait, now and then.
        while not safe:
            await log.committed(log.position)
            log.hold(join=False)
            log.when_committed(say(log).last, safe.append)
            assert safe == []
            log.let_go(at_once=True)
        log.close()

    run(main())


def test_what_no_caller_waits_for_is_written_after_a_while(tmp_path: Path) -> None:
    async def main() -> None:
        log = Log(open_database(tmp_path / "log.db").database, Limits(), gather=0.001)
        log.publisher = publisher = Publisher()
        publisher.is_idle = False
        for _ in range(20):
            # One that a caller waits for is written before its time is up; the next one still has a time.
            await log.committed(say(log).last)
            log.hold(join=True)
            last = say(log)
            log.let_go(at_once=True)
            while (await publisher.groups.get()).chunks[-1:] != [last]:
                pass
        log.close()

    run(main())
