"""Which keys may be on disk: none that is there is ever taken for a new one."""

import asyncio
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.protocol.errors import LogUnavailable
from sandboxagent.server.log.database import Database
from sandboxagent.server.log.journal import KeptOutcome
from sandboxagent.server.log.log import SEEN_AT_ONCE, Log
from sandboxagent.server.log.seen import KeyFilter, Name
from tests.support.logs import Limits, opened, run, until
from tests.support.running import BOUND

NAMES = st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=50)


class HangingDatabase(Database):
    """One that hangs while it is asked for an outcome, at the test's word."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path)
        self.go = threading.Event()
        self.go.set()

    def outcome(self, scope: str, key: str) -> KeptOutcome | None:
        assert self.go.wait(BOUND)
        return super().outcome(scope, key)


@given(NAMES)
def test_whatever_was_added_was_seen(names: list[Name]) -> None:
    seen = KeyFilter()
    seen.add_all(names)
    assert all(name in seen for name in names)


def test_few_unseen_keys_look_as_if_seen() -> None:
    seen = KeyFilter(10_000)
    seen.add_all(("scope", str(number)) for number in range(10_000))
    assert seen.room > 0
    assert sum(("other", str(number)) in seen for number in range(10_000)) < 500


def test_keys_of_an_earlier_server_are_never_taken_for_new(tmp_path: Path) -> None:
    """They are not taken for new before they have been read, either."""
    keys = [f"k{number}" for number in range(2 * SEEN_AT_ONCE + 10)]

    async def main() -> None:
        async with opened(Database(tmp_path / "log.db")) as log:
            assert log.is_new("s", "k0")
            for key in keys:
                log.save_outcome("s", key, b"digest", b"answer")
            assert not any(log.is_new("s", key) for key in keys)
            await log.flushed()
        async with opened(Database(tmp_path / "log.db")) as log:
            assert not any(log.is_new("s", key) for key in [*keys, "new"])
            log.save_outcome("s", "meanwhile", b"digest", None)
            await until(lambda: log._seen is not None)
            assert not any(log.is_new("s", key) for key in [*keys, "meanwhile"])
            assert sum(log.is_new("t", key) for key in keys) > len(keys) * 0.9
            assert await log.outcome("s", "k7") == (b"digest", b"answer")

    run(main())


def test_more_keys_than_there_is_room_for_are_read_again_and_none_is_forgotten() -> None:
    async def main() -> None:
        async with opened(Database(None)) as log:
            first = log._seen
            assert first is not None
            first.room = 5
            for number in range(20):
                log.save_outcome("s", str(number), b"digest", None)
            assert not any(log.is_new("s", str(number)) for number in range(20))
            await until(lambda: log._seen_since is None)
            assert log._seen is not first
            assert not any(log.is_new("s", str(number)) for number in range(20))
            assert log.is_new("s", "another")

    run(main())


def test_a_disk_that_hangs_at_a_key_does_not_hold_the_event_loop() -> None:
    async def main() -> None:
        database = HangingDatabase()
        async with opened(database) as log:
            database.go.clear()
            asked = asyncio.ensure_future(log.outcome("s", "key"))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not asked.done()
            # It is begun meanwhile: what the disk says is old by then.
            log.save_outcome("s", "key", b"digest", None)
            database.go.set()
            assert await asked == (b"digest", None)

    run(main())


def test_a_disk_that_hangs_at_a_key_for_too_long_is_an_error() -> None:
    async def main() -> None:
        database = HangingDatabase()
        log = Log(database, Limits(), look_up_timeout=0.01)
        database.go.clear()
        with pytest.raises(LogUnavailable, match="slow"):
            await log.outcome("s", "key")
        database.go.set()
        log.close()

    run(main())
