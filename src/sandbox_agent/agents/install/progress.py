"""The progress of an install: the newest state, and a way to wait for a newer one."""

import asyncio

from msgspec import UNSET

from sandbox_agent.wire.agents import Progress, Stage


class Job:
    """One install under way. Readers that are slow miss states, never the newest."""

    def __init__(self) -> None:
        self.progress = Progress("waiting", "waiting for its turn")
        self._changed = asyncio.Event()

    def tell(self, stage: Stage, message: str, bytes: int | None = None, total: int | None = None) -> None:
        self.progress = Progress(stage, message, UNSET if bytes is None else bytes, UNSET if total is None else total)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def changed(self) -> None:
        """Wait until `progress` is another one."""
        await self._changed.wait()
