"""What has arrived from the server: envelopes, the ids of agents' requests, and answers after what came before them."""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import msgspec

from sandbox_agent.client.errors import ServerProblem
from sandbox_agent.envelope import Object


class Arrival(NamedTuple):
    """An envelope from the server, the position that it has on the stream, and its size."""

    envelope: Object
    position: int | None
    size: int
    generation: int
    """Which of the client's connections it came on, one after another."""


class RequestId(NamedTuple):
    """What an agent's request is called: ids are those of one connection, the next may use them for something else."""

    generation: int
    text: str
    """The id as it is written: `1`, `1.0` and `"1"` are three."""

    @classmethod
    def of(cls, arrival: Arrival, id: object) -> "RequestId":
        return cls(arrival.generation, msgspec.json.encode(id).decode())


def decode(data: str | bytes) -> Object:
    """An envelope; raises ValueError when it is none."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Half a surrogate pair, from a program that cuts strings: other parsers accept it as JSON.
        found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("not an envelope")  # noqa: TRY004 - what is sent is wrong, not who calls
    return cast("Object", found)


@dataclass(frozen=True, slots=True)
class Hooks:
    """The callbacks of a transport."""

    lost: Callable[[], None]
    """The server knew nothing of the connection, and there is another: what hung on it has to be set up again."""
    missed: Callable[[], None]
    """The stream may not have brought everything up to here; the log has it."""
    answered: Callable[[RequestId, ServerProblem | None], None]
    """An answer to an agent's request is under way no more; or it does not fit, and the request is open still."""
    received: Callable[[Arrival], None]
    """An envelope has arrived: called in the order of the log, for a response after all that came before it."""
    sent: Callable[[Object], None]
    """An envelope was sent."""


logger = logging.getLogger(__name__)

HOLD = 10.0
"""Seconds that an answer waits for the stream to bring what came before it."""


class StreamOrder:
    """How far the stream of a connection is, and the calls that wait for more of it."""

    def __init__(self, patience: float) -> None:
        self._hold = min(HOLD, patience)
        self.position = 0
        """The newest position that the server has told this connection of."""
        self._brought = 0
        """Up to where the stream has nothing more to bring."""
        self._stalled = False
        """The stream has been silent for too long: do not wait for it until it brings something."""
        self._waiting: dict[asyncio.Future[None], int] = {}

    def brought(self, position: int) -> None:
        """The stream is that far."""
        self._stalled = False
        self._brought = max(self._brought, position)
        self.position = max(self.position, position)
        for future in [future for future, wanted in self._waiting.items() if wanted <= position]:
            _wake(future)

    async def after(self, last: int) -> bool:
        """Wait until the stream has brought this event; False when it stays away."""
        self.position = max(self.position, last)
        if self._brought >= last:
            return True
        if self._stalled:
            return False
        brought: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[brought] = last
        try:
            async with asyncio.timeout(self._hold):
                await brought
        except TimeoutError:
            logger.warning("the stream stays away; going by the log")
            self._stalled = True
        finally:
            self._waiting.pop(brought, None)
        return not self._stalled

    def begin(self) -> None:
        """There is another connection, with a stream of its own."""
        self.position, self._brought, self._stalled = 0, 0, False

    def release(self) -> None:
        """The stream is gone: release everything that waits for it."""
        for future in self._waiting:
            _wake(future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
