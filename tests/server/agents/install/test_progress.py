"""How far an install is: the newest state, and a way to wait for a newer one."""

import asyncio

import msgspec

from sandboxagent.protocol.views import Progress
from sandboxagent.server.agents.install.plan import Job


def test_it_begins_with_waiting_and_has_the_newest_state() -> None:
    async def main() -> None:
        job = Job()
        assert job.progress.stage == "waiting"
        job.tell("fetching", "a")
        job.tell("fetching", "b", 5, 10)
        assert job.progress == Progress("fetching", "b", 5, 10)

    asyncio.run(main())


def test_all_who_wait_are_woken_by_the_next_state_and_only_by_that() -> None:
    async def main() -> None:
        job = Job()
        waiting = [asyncio.create_task(job.changed()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        job.tell("resolving", "x")
        await asyncio.gather(*waiting)
        late = asyncio.create_task(job.changed())
        await asyncio.sleep(0)
        assert not late.done()
        job.tell("done", "y")
        await late

    asyncio.run(main())


def test_only_what_is_known_is_on_the_wire() -> None:
    async def main() -> None:
        job = Job()
        job.tell("unpacking", "it")
        assert msgspec.json.decode(msgspec.json.encode(job.progress)) == {"stage": "unpacking", "message": "it"}
        job.tell("fetching", "it", 0)
        encoded = msgspec.json.decode(msgspec.json.encode(job.progress))
        assert encoded == {"stage": "fetching", "message": "it", "bytes": 0}
        job.tell("fetching", "it", 5, 10)
        assert msgspec.json.decode(msgspec.json.encode(job.progress))["totalBytes"] == 10

    asyncio.run(main())
