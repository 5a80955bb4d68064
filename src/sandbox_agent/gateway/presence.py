"""Whether the run of a node that holds its lease is still there, and answers.

A copy of a node's disk knows all that the node knew; and a node that was frozen or cut off keeps its lease for a while.
"""

import asyncio
import secrets
from contextlib import suppress

import msgspec

from sandbox_agent.bus import subjects
from sandbox_agent.bus.ports import Bus, BusError
from sandbox_agent.wire.fleet import Knock

PATIENCE = 0.5
"""Seconds in which a run of a node answers. The one that waits has one second in all."""
ANSWERS = 1.0
"""Seconds in which a node answers that is to have a new session."""


class Presence:
    """Asks nodes, from one gateway."""

    def __init__(self, gateway: str, bus: Bus) -> None:
        self._gateway = gateway
        self._bus = bus

    async def is_there(self, node: str, nonce: str) -> bool:
        """False when that run has left the bus. One that does not answer may be frozen: it counts as there."""
        return await self._knock(node, nonce, PATIENCE) is not False

    async def answers(self, node: str, nonce: str) -> bool:
        """Whether it can be asked for something right now."""
        return await self._knock(node, nonce, ANSWERS) is True

    async def _knock(self, node: str, nonce: str, patience: float) -> bool | None:
        """Whether that run has heard it; None when nothing is known."""
        id = secrets.token_urlsafe(16)
        back = subjects.flow_to_gateway(node, self._gateway, id)
        heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def take(_: str, body: bytes) -> None:
            # When nothing hears it, the bus itself sends an empty message.
            if not heard.done():
                heard.set_result(bool(body))

        try:
            stop = await self._bus.hear(back, take)
        except BusError:
            return None
        try:
            knock = msgspec.msgpack.encode(Knock(self._gateway, id))
            async with asyncio.timeout(patience):
                await self._bus.publish(subjects.run_of_node(node, nonce), knock, back)
                return await heard
        except (BusError, TimeoutError):
            return None
        finally:
            with suppress(BusError):
                await stop()
