"""How far an install is, for whoever wants to know: the newest state, and a way to wait for a newer one."""

import asyncio
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

Stage = Literal["waiting", "resolving", "fetching", "unpacking", "verifying", "done"]


class Progress(Struct, rename="camel", frozen=True):
    """One state of an install."""

    stage: Stage
    message: str
    """What is being done, for people."""
    bytes: int | UnsetType = UNSET
    """Fetched so far."""
    total_bytes: int | UnsetType = UNSET
    """To be fetched, where that is known."""


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
