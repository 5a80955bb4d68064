"""Capabilities with faults: each fails, or never returns, where a server calls it."""

import asyncio
from collections.abc import Coroutine

from sandboxagent.server.capability import Capability


class FailsToWork(Capability):
    name = "fails to work"

    def run(self) -> Coroutine[object, None, None]:
        async def work() -> None:
            raise RuntimeError("no work today")

        return work()


class FailsToStop(Capability):
    name = "fails to stop"

    def stop(self) -> None:
        raise RuntimeError("no stop today")


class FailsToClose(Capability):
    name = "fails to close"

    async def close(self) -> None:
        raise RuntimeError("no close today")


class NeverCloses(Capability):
    name = "never closes"

    async def close(self) -> None:
        await asyncio.Event().wait()


class FailsToCheckItself(Capability):
    name = "fails to check itself"

    def trouble(self) -> str | None:
        raise RuntimeError("no check today")
