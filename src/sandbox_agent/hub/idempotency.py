"""Idempotency: a request that comes again under the same key gets the outcome of the first, also after a restart."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sandbox_agent.envelope import Envelope, failure
from sandbox_agent.errors import AgentTimeout, IdempotencyMismatch, LogUnavailable, OutcomeUnknown
from sandbox_agent.hub.calls import Accepted, Answer
from sandbox_agent.hub.connection import Connection
from sandbox_agent.log.log import Log

T = TypeVar("T")

MAX_KEY = 256
"""Longest key."""


class _Stage(Generic[T]):
    """What all callers of a request wait for; one that leaves takes it from no other."""

    __slots__ = ("_waiting", "result")

    def __init__(self) -> None:
        self.result: T | Exception | None = None
        self._waiting: list[asyncio.Future[T]] = []

    def settle(self, result: T | Exception) -> None:
        """Reach it; only the first time counts."""
        if self.result is not None:
            return
        self.result = result
        for future in self._waiting:
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    async def wait(self) -> T:
        if self.result is None:
            future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            return await future
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@dataclass(frozen=True, slots=True)
class _Running:
    digest: bytes
    accepted: _Stage[int]
    """Where the log has the request, once it was taken in."""
    first: _Stage[Answer]
    """The answer for the client of the first request."""
    outcome: asyncio.Task[Answer]
    """What is kept; later than `first` when the agent took too long."""


class Idempotency:
    """Requests under a key, those that run and those that are kept."""

    def __init__(self, log: Log, patience: float) -> None:
        self._log = log
        self._patience = patience
        self._running: dict[tuple[str, str], _Running] = {}

    async def accept(
        self, scope: str, key: str, envelope: Envelope, begin: Callable[[], Awaitable[Accepted]]
    ) -> Accepted:
        """Begin a request, unless it was begun before; raises IdempotencyMismatch for another body under its key."""
        digest = hashlib.sha256(envelope.line).digest()
        running = self._running.get((scope, key))
        if running is None:
            kept = self._log.outcome(scope, key)
            if kept is not None:
                return Accepted(0, _kept(envelope, key, digest, *kept))
            running = self._start(scope, key, digest, begin)
        elif running.digest != digest:
            raise IdempotencyMismatch(key)
        return Accepted(await running.accepted.wait(), self._answer(running))

    def _start(self, scope: str, key: str, digest: bytes, begin: Callable[[], Awaitable[Accepted]]) -> _Running:
        accepted: _Stage[int] = _Stage()
        first: _Stage[Answer] = _Stage()
        # A task of its own: the callers may leave before it has come to its end.
        outcome = asyncio.create_task(self._run(scope, key, digest, begin, accepted, first))
        outcome.add_done_callback(_forget_failure)
        running = self._running[scope, key] = _Running(digest, accepted, first, outcome)
        return running

    async def _answer(self, running: _Running) -> Answer:
        if not isinstance(running.first.result, Exception):
            return await running.first.wait()
        done, _ = await asyncio.wait([running.outcome], timeout=self._patience)
        if not done:
            raise AgentTimeout(f"the request under this Idempotency-Key still runs after {self._patience:g} s more")
        return running.outcome.result()

    async def _run(
        self,
        scope: str,
        key: str,
        digest: bytes,
        begin: Callable[[], Awaitable[Accepted]],
        taken: _Stage[int],
        first: _Stage[Answer],
    ) -> Answer:
        answer: Answer | None = None
        try:
            # On disk before anything happens: after a crash it must be known that it was begun.
            self._log.save_outcome(scope, key, digest, None)
            await self._log.flushed()
            accepted = await begin()
            taken.settle(accepted.position)
            answer = await self._outcome(accepted.answer, first)
            self._log.save_outcome(scope, key, digest, answer.line)
            await self._log.flushed()
        except Exception as error:
            if answer is None and isinstance(error, LogUnavailable | AgentTimeout):
                # Nothing was begun, so it may be tried again under the same key.
                self._log.forget_outcome(scope, key)
            taken.settle(error)
            first.settle(error)
            raise
        finally:
            del self._running[scope, key]
        first.settle(answer)
        return answer

    @staticmethod
    async def _outcome(answer: Awaitable[Answer], first: _Stage[Answer]) -> Answer:
        try:
            return await answer
        except AgentTimeout as error:
            if error.late is None:
                raise
            first.settle(error)
            late = await error.late
            assert isinstance(late, Answer)
            return late


def _forget_failure(task: asyncio.Task[Answer]) -> None:
    """Its callers have it, unless all have left."""
    if not task.cancelled():
        task.exception()


def scope_of(connection: Connection, session_id: str | None) -> str:
    """The scope of a key: its session, or the connection when there is none."""
    if session_id is not None:
        return f"session:{session_id}"
    # Not the tag, which another connection may have after a restart; nor the id, which is a secret.
    return f"connection:{hashlib.sha256(connection.connection_id.encode()).hexdigest()}"


async def _kept(envelope: Envelope, key: str, digest: bytes, kept: bytes, response: bytes | None) -> Answer:
    if kept != digest:
        raise IdempotencyMismatch(key)
    if response is None:
        assert envelope.id is not None
        return Answer(failure(envelope.id, OutcomeUnknown()))
    return Answer(response)
