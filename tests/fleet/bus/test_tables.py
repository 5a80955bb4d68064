"""A table: values by key, compare-and-set, a time to live, and watching."""

import asyncio

import pytest

from sandboxagent.fleet.bus.interface import Conflict, TableEntry
from tests.fleet.bus.conftest import Members
from tests.support.client import run


def test_a_value_is_replaced_only_by_the_one_who_knows_it(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(2) as [bus, other]:
            table, same = await bus.table(unique), await other.table(unique)
            assert await table.get("k") is None
            first = await table.put("k", b"1", expected=0)
            with pytest.raises(Conflict):
                await same.put("k", b"2", expected=0)
            second = await same.put("k", b"2", expected=first)
            assert await table.get("k") == TableEntry("k", b"2", second)
            third = await table.put("k", b"3")
            with pytest.raises(Conflict):
                await same.delete("k", expected=second)
            await same.delete("k", expected=third)
            assert await table.get("k") is None

    run(main())


def test_a_value_goes_when_its_time_has_passed_unless_it_is_renewed(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(1) as [bus]:
            table = await bus.table(unique)
            changes: asyncio.Queue[TableEntry] = asyncio.Queue()
            watching = await table.watch(changes.put_nowait)
            revision = await table.put("node", b"a", expected=0, ttl=1)
            revision = await table.put("node", b"b", expected=revision, ttl=1)
            seen = [(await changes.get()).value]
            while seen[-1] is not None:
                seen.append((await changes.get()).value)
            # A watcher may not come to see a value that was replaced at once.
            assert seen[-2:] == [b"b", None]
            assert await table.get("node") is None
            await watching.close()

    run(main())


def test_a_watcher_knows_all_values_when_it_begins_and_every_change(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(2) as [bus, other]:
            table, same = await bus.table(unique), await other.table(unique)
            for place in range(20):
                await table.put(f"k{place % 5}", b"%d" % place)
            known: dict[str, bytes | None] = {}
            changed = asyncio.Event()

            def take(entry: TableEntry) -> None:
                known[entry.key] = entry.value
                changed.set()

            watching = await same.watch(take)
            assert known == {f"k{place}": b"%d" % (15 + place) for place in range(5)}
            changed.clear()
            await table.delete("k0")
            await changed.wait()
            assert known["k0"] is None
            await watching.close()

    run(main())


def test_an_empty_table_can_be_watched(members: Members, unique: str) -> None:
    async def main() -> None:
        async with members(1) as [bus]:
            watching = await (await bus.table(unique)).watch(lambda _: None)
            await watching.close()

    run(main())
