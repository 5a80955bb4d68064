"""Tasks that nobody awaits."""

import asyncio
import gc

import pytest

from sandboxagent.core.tasks import Tasks
from tests.support.client import run


def test_a_task_that_nobody_awaits_is_kept_until_it_ends() -> None:
    async def main() -> None:
        tasks, over, done = Tasks(), asyncio.Event(), list[str]()

        async def work() -> None:
            await over.wait()
            done.append("done")

        tasks.run(work(), "work")
        await asyncio.sleep(0)
        gc.collect()
        assert len(tasks) == 1
        over.set()
        await tasks.settle()
        assert (done, len(tasks)) == (["done"], 0)

    run(main())


def test_what_makes_a_task_fail_is_logged_with_its_name_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        tasks, done = Tasks(), list[str]()

        async def fail() -> None:
            raise ValueError("broken")

        async def work() -> None:
            await asyncio.sleep(0)
            done.append("done")

        tasks.run(fail(), "first")
        tasks.run(work(), "second")
        await tasks.settle()
        assert done == ["done"]

    run(main())
    (record,) = [each for each in caplog.records if each.name == "sandboxagent.core.tasks"]
    assert record.getMessage() == "task failed task='first'"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


def test_closing_cancels_what_runs_and_waits_for_its_end_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        tasks, seen = Tasks(), list[str]()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                seen.append("cleaned up")

        task = tasks.run(work(), "work")
        await asyncio.sleep(0)
        await tasks.close()
        assert task.cancelled()
        assert (seen, len(tasks)) == (["cleaned up"], 0)

    run(main())
    assert not caplog.records


def test_a_task_may_close_its_own_owner() -> None:
    async def main() -> None:
        tasks, done = Tasks(), list[str]()

        async def close() -> None:
            await tasks.close()
            done.append("closed")

        other = tasks.run(asyncio.Event().wait(), "waits")
        await tasks.run(close(), "closes")
        assert other.cancelled()
        assert done == ["closed"]

    run(main())


def test_as_many_run_as_are_allowed() -> None:
    async def main() -> None:
        tasks, over = Tasks(most=2), asyncio.Event()
        for _ in range(2):
            assert not tasks.is_full
            tasks.run(over.wait(), "waits")
        assert tasks.is_full
        over.set()
        await tasks.settle()
        assert not tasks.is_full

    run(main())
