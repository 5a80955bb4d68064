"""Tasks that nobody awaits, and tasks that several callers share."""

import asyncio
import gc

import pytest

from sandboxagent.core.tasks import Shared, Tasks
from sandboxagent.protocol.errors import UnknownAgent
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


def test_an_error_of_the_protocol_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        tasks = Tasks()

        async def fail() -> None:
            raise UnknownAgent("none", [])

        tasks.run(fail(), "first")
        await tasks.settle()

    run(main())
    (record,) = [each for each in caplog.records if each.name == "sandboxagent.core.tasks"]
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("task failed task='first' error=unknown-agent reason=")
    assert record.exc_info is None


def test_joining_tasks_raises_what_one_of_them_raises_and_stops_no_other() -> None:
    async def main() -> None:
        tasks, over = Tasks(), asyncio.Event()

        async def fail() -> None:
            raise ValueError("broken")

        tasks.run(fail(), "fails")
        other = tasks.run(over.wait(), "waits")
        with pytest.raises(ValueError, match="broken"):
            await tasks.join()
        assert not other.done()
        over.set()
        await tasks.join()
        assert other.done()

    run(main())


def test_callers_with_the_same_key_share_one_task() -> None:
    async def main() -> None:
        shared, over, made = Shared[str, str](), asyncio.Event(), list[str]()

        async def work(key: str) -> str:
            made.append(key)
            await over.wait()
            return f"{key} done"

        callers = [asyncio.create_task(shared.get(key, lambda key=key: work(key), key)) for key in "aab"]
        await asyncio.sleep(0)
        assert ("a" in shared, "c" in shared, len(shared)) == (True, False, 2)
        over.set()
        assert await asyncio.gather(*callers) == ["a done", "a done", "b done"]
        assert (sorted(made), len(shared)) == (["a", "b"], 0)
        assert await shared.get("a", lambda: work("a"), "a") == "a done"
        assert sorted(made) == ["a", "a", "b"]

    run(main())


def test_a_caller_that_goes_away_does_not_cancel_the_task_of_the_others() -> None:
    async def main() -> None:
        shared, over = Shared[str, str](), asyncio.Event()

        async def work() -> str:
            await over.wait()
            return "done"

        first, second = (asyncio.create_task(shared.get("a", work, "a")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        over.set()
        assert await second == "done"

    run(main())


@pytest.mark.parametrize("leaves", [True, False], ids=["all callers leave", "a caller waits"])
def test_a_shared_failure_is_logged_only_when_no_caller_awaits_it(
    caplog: pytest.LogCaptureFixture, *, leaves: bool
) -> None:
    async def main() -> None:
        shared, over = Shared[str, str](), asyncio.Event()

        async def fail() -> str:
            await over.wait()
            raise ValueError("broken")

        caller = asyncio.create_task(shared.get("a", fail, "first"))
        await asyncio.sleep(0)
        if leaves:
            caller.cancel()
            await asyncio.wait([caller])
        over.set()
        await shared.settle()
        with pytest.raises(asyncio.CancelledError if leaves else ValueError):
            await caller

    run(main())
    messages = [each.getMessage() for each in caplog.records]
    assert messages == (["task failed task='first'"] if leaves else [])


def test_closing_shared_work_cancels_its_tasks_and_their_callers() -> None:
    async def main() -> None:
        shared = Shared[str, bool]()
        caller = asyncio.create_task(shared.get("a", asyncio.Event().wait, "a"))
        await asyncio.sleep(0)
        await shared.close()
        assert len(shared) == 0
        await asyncio.wait([caller])
        assert caller.cancelled()

    run(main())
