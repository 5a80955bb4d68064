"""Waiting for an unreachable server: for how long, and which failures count."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sandbox_agent.client.errors import ClientError, ConnectionLost, ForeignAnswer, ServerProblem
from sandbox_agent.errors import ShuttingDown, UnknownConnection

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two tries to reach the server again."""

_UNREACHED = frozenset({502, 503, 504})
"""What a proxy answers in place of a server that it cannot reach."""


async def retry(call: Callable[[], Awaitable[T]], seconds: float) -> T:
    """The result of a call that is safe to repeat. Raises the last failure after so many seconds."""
    clock = asyncio.get_running_loop().time
    until, pause = clock() + seconds, FIRST_PAUSE
    while True:
        try:
            return await call()
        except ClientError as error:
            if not is_passing(error) or clock() > until:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def is_passing(error: ClientError) -> bool:
    """Whether the failure may be temporary."""
    match error:
        case ConnectionLost():
            return True
        case ForeignAnswer(status=status):
            return status in _UNREACHED
        case ServerProblem(slug=slug):
            return slug in (UnknownConnection.slug, ShuttingDown.slug)
        case _:
            return False
