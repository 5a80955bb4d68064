"""Represent what becomes of one request: first accepted, then answered, with callbacks for both.

Needs no event loop, unless somebody awaits it.
"""

import asyncio
import logging
from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar

from msgspec import Struct

from sandboxagent.protocol.envelope import Envelope, failure
from sandboxagent.protocol.errors import (
    AgentTimeout,
    IdempotencyMismatch,
    InternalError,
    LogUnavailable,
    SandboxAgentError,
    ShuttingDown,
)

T = TypeVar("T")

_FAILED = "a callback of a reply failed"
_OF_THE_EXCHANGE = (AgentTimeout, LogUnavailable, ShuttingDown, IdempotencyMismatch)
"""Failures that are not the method's: these become an HTTP status."""

logger = logging.getLogger(__name__)


class Answer(Struct, frozen=True):
    """A response for a client."""

    line: bytes
    commit: int = 0
    """Position that has to be on disk before the client may read this."""
    session_opened: Callable[[], None] | None = None
    """Of a response that names a new session. Its writer calls this once it has gone out: then the session's updates
    follow."""


class AnsweredOnStream(Exception):
    """The response comes on the client's stream by itself: nothing is left to do for the request."""


class Reply(Struct, eq=False):
    """Each of both happens once; what comes later is ignored."""

    _asked: Envelope | None = None
    """Of a request that is given, a failure of the method is an answer; else it stays an exception."""
    position: int | None = None
    """Where its record is: once that is on disk, the client may learn that the request was accepted."""
    result: Answer | Exception | None = None
    """An exception is a failure of the exchange: no response was made."""
    _on_accepted: tuple[Callable[[int | Exception], None], ...] = ()
    _on_answered: tuple[Callable[[Answer | Exception], None], ...] = ()

    def accept(self, position: int) -> None:
        """The request was taken, and the record of that is at this position."""
        if self.position is None and self.result is None:
            self.position = position
            if self._on_accepted:
                callbacks, self._on_accepted = self._on_accepted, ()
                _tell(callbacks, position)

    def accept_as(self, taken: int | Exception) -> None:
        """Another one was taken, or never was: this is the same request."""
        if not isinstance(taken, Exception):
            self.accept(taken)

    def set_result(self, answer: Answer) -> None:
        """It is answered."""
        if self.result is not None:
            return
        if self.position is None:
            # One that is answered at once was taken, too.
            self.accept(answer.commit)
        self.result = answer
        callbacks, self._on_answered = self._on_answered, ()
        # Spelled out, and not `_tell`: this runs for every message.
        for callback in callbacks:
            try:
                callback(answer)
            except Exception:
                logger.exception(_FAILED)

    def set_exception(self, error: Exception) -> None:
        """It has failed."""
        if self.result is not None:
            return
        asked = self._asked
        if asked is not None and asked.id is not None and not isinstance(error, _OF_THE_EXCHANGE):
            self.set_result(Answer(failure(asked.id, as_answerable(error, asked.method))))
            return
        self.result = error
        if self.position is None:
            callbacks, self._on_accepted = self._on_accepted, ()
            _tell(callbacks, error)
        waiting, self._on_answered = self._on_answered, ()
        _tell(waiting, error)

    def when_accepted(self, callback: Callable[[int | Exception], None]) -> None:
        """Call back with the position, or with the failure of a request that was never taken."""
        taken = self.position if self.position is not None else self.result
        if taken is None:
            self._on_accepted += (callback,)
        else:
            # Of one that was never taken there is no answer.
            assert not isinstance(taken, Answer)
            _tell((callback,), taken)

    def when_answered(self, callback: Callable[[Answer | Exception], None]) -> None:
        """Call back with the answer, or with a failure of the exchange."""
        if self.result is None:
            self._on_answered += (callback,)
        else:
            _tell((callback,), self.result)

    def follow(self, other: "Reply") -> None:
        """Have the outcome of another one."""
        other.when_accepted(self.accept_as)
        other.when_answered(self._settle_too)

    async def accepted(self) -> int:
        """Wait until it is taken; raises the failure of one that never was."""
        if self.position is None and self.result is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_accepted(partial(_wake, future))
            await future
        if self.position is None:
            assert isinstance(self.result, Exception)
            raise self.result
        return self.position

    def __await__(self) -> Generator[object, None, Answer]:
        if self.result is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_answered(partial(_wake, future))
            yield from future
        assert self.result is not None
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def _settle_too(self, result: Answer | Exception) -> None:
        if isinstance(result, Answer):
            self.set_result(result)
        else:
            self.set_exception(result)


def _wake(future: "asyncio.Future[None]", _: object) -> None:
    if not future.done():
        future.set_result(None)


def _tell(callbacks: tuple[Callable[[T], object], ...], value: T) -> None:
    """One that raises keeps nothing from the others, nor from the code that settles."""
    for callback in callbacks:
        try:
            callback(value)
        except Exception:
            logger.exception(_FAILED)


def as_answerable(error: Exception, method: str) -> SandboxAgentError:
    """What a client may read of a failure; one that is none of ours is reported, and is `internal` to clients."""
    if isinstance(error, SandboxAgentError):
        return error
    logger.error("request failed method=%s", method, exc_info=error)
    return InternalError()
