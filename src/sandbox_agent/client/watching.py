"""Changes of files on the server, as they happen. Goes on when the connection breaks, and says what may be missing."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from http import HTTPStatus

from msgspec import Struct

from sandbox_agent.client.api import Api, Params
from sandbox_agent.client.errors import ClientError, ConnectionLost, ServerProblem
from sandbox_agent.client.sse import EVENT_STREAM, events

PATIENCE = 30.0
"""Seconds for which a server that cannot be reached is tried again."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

_PASSING = {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
_OVERFLOW = "overflow"


class Change(Struct, rename="camel", kw_only=True, frozen=True):
    """What became of a path."""

    kind: str
    """`added`, `modified`, `deleted`; or `overflow`: there were too many changes to report, so scan this path again."""
    path: str


class _Changes(Struct):
    changes: list[Change]


class _Ended(Struct):
    reason: str


class Watch(AsyncIterator[Change]):
    """The changes, from the first step on; with `async with`, from the beginning of the block.

    A connection that breaks is made again, followed by an `overflow`. It ends when what is watched is gone.
    """

    def __init__(self, api: Api, path: str, params: Params, *, patience: float = PATIENCE) -> None:
        self.path = path
        self.ended: str | None = None
        """Why no more changes come: `gone` (it was deleted or moved), or `exhausted` (the kernel watches no more)."""
        self._api = api
        self._params = params
        self._patience = patience
        self._changes = self._run()

    async def __aenter__(self) -> "Watch":
        await anext(self._changes)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __anext__(self) -> Change:
        while (change := await anext(self._changes)) is None:
            pass
        return change

    async def close(self) -> None:
        """End it now instead of when it is garbage-collected."""
        await self._changes.aclose()

    async def _run(self) -> AsyncGenerator[Change | None]:
        """The changes; None when the server has begun to watch."""
        clock = asyncio.get_running_loop().time
        begun, lost_at, pause = False, None, _FIRST_PAUSE
        while True:
            failure: ClientError = ConnectionLost(f"{self._api.url} stopped and does not watch {self.path} any more")
            try:
                async with aclosing(self._watched()) as changes:
                    async for change in changes:
                        yield Change(kind=_OVERFLOW, path=self.path) if change is None and begun else change
                        begun, lost_at, pause = True, None, _FIRST_PAUSE
            except ClientError as error:
                if not begun or not _may_pass(error):
                    raise
                failure = error
            if self.ended is not None:
                return
            lost_at = clock() if lost_at is None else lost_at
            if clock() - lost_at > self._patience:
                raise failure
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all come at once
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _watched(self) -> AsyncGenerator[Change | None]:
        """The same, over one connection."""
        headers = {"Accept": EVENT_STREAM}
        async with (
            self._api.stream("GET", "/v1/fs/watch", params=self._params, headers=headers) as response,
            aclosing(events(response)) as told,
        ):
            yield None
            async for event in told:
                data = event.data.encode()
                match event.event:
                    case "changes":
                        for change in self._api.parsed(response, data, _Changes).changes:
                            yield change
                    case "overflow":
                        yield Change(kind=_OVERFLOW, path=self.path)
                    case "ended":
                        reason = self._api.parsed(response, data, _Ended).reason
                        self.ended = None if reason == "stopping" else reason
                        return
                    case _:
                        pass  # Of a newer server.


def _may_pass(error: ClientError) -> bool:
    return isinstance(error, ConnectionLost) or (isinstance(error, ServerProblem) and error.status in _PASSING)
