"""Represent the outcome of one request: first accepted, then answered, with callbacks for both.

A reply needs an event loop only if code awaits it.
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
"""Failures of the exchange, not of the method. They become an HTTP status."""

logger = logging.getLogger(__name__)


class Answer(Struct, frozen=True):
    """A response for a client."""

    line: bytes
    commit: int = 0
    """Log position that must be on disk before the client may read the response."""
    session_opened: Callable[[], None] | None = None
    """Releases the updates of a new session."""

    def release_updates(self) -> None:
        """Release the updates of a new session, if this answer names one.

        The code that sends the response calls this after the response is sent, or cannot be sent.
        """
        if self.session_opened is not None:
            self.session_opened()


NO_RESPONSE = Answer(b"")
"""The result of an envelope whose reply brings no response."""


class Reply(Struct, eq=False):
    """The outcome of one envelope. It is accepted once and settled once; later calls are ignored."""

    _asked: Envelope | None = None
    """The request, if known. Then a failure of its method becomes an error response, else it stays an exception."""
    position: int | None = None
    """Log position of the request's record. The client may learn that it was accepted once that is on disk."""
    result: Answer | Exception | None = None
    """The answer. An exception is a failure of the exchange, which has no response."""
    _on_accepted: tuple[Callable[[int | Exception], None], ...] = ()
    _on_answered: tuple[Callable[[Answer | Exception], None], ...] = ()

    def accept(self, position: int) -> None:
        """Mark the request as accepted; `position` is that of its record in the log."""
        if self.position is None and self.result is None:
            self.position = position
            if self._on_accepted:
                callbacks, self._on_accepted = self._on_accepted, ()
                _tell(callbacks, position)

    def accept_as(self, taken: int | Exception) -> None:
        """Mark the request as accepted like another reply to the same request; ignore a failure."""
        if not isinstance(taken, Exception):
            self.accept(taken)

    def set_result(self, answer: Answer) -> None:
        """Settle the reply with an answer. It also counts as accepted."""
        if self.result is not None:
            return
        if self.position is None:
            # An answered request counts as accepted.
            self.accept(answer.commit)
        self.result = answer
        callbacks, self._on_answered = self._on_answered, ()
        # `_tell`, inlined for speed: this runs for every message.
        for callback in callbacks:
            try:
                callback(answer)
            except Exception:
                logger.exception(_FAILED)

    def set_done(self) -> None:
        """Settle the reply without a response: there is none, or another part of the server sends it."""
        self.set_result(NO_RESPONSE)

    def set_exception(self, error: Exception) -> None:
        """Settle the reply with a failure; a failure of the method becomes an error response if possible."""
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
        """Call back with the position, or with the failure of a request that was never accepted."""
        taken = self.position if self.position is not None else self.result
        if taken is None:
            self._on_accepted += (callback,)
        else:
            # A request that was never accepted has a failure, not an answer.
            assert not isinstance(taken, Answer)
            _tell((callback,), taken)

    def when_answered(self, callback: Callable[[Answer | Exception], None]) -> None:
        """Call back with the answer, or with a failure of the exchange."""
        if self.result is None:
            self._on_answered += (callback,)
        else:
            _tell((callback,), self.result)

    def follow(self, other: "Reply") -> None:
        """Take over the outcome of another reply."""
        other.when_accepted(self.accept_as)
        other.when_answered(self._settle_too)

    async def accepted(self) -> int:
        """Wait until the request is accepted, and return its position. Raises its failure if it never is."""
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
    """Call all callbacks. One that raises affects neither the others nor the caller."""
    for callback in callbacks:
        try:
            callback(value)
        except Exception:
            logger.exception(_FAILED)


def as_answerable(error: Exception, method: str) -> SandboxAgentError:
    """Return the error that a client may read. An unforeseen exception is logged, and becomes InternalError."""
    if isinstance(error, SandboxAgentError):
        return error
    logger.error("request failed method=%s", method, exc_info=error)
    return InternalError()
