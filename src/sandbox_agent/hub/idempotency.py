"""Idempotency: a request that comes again under the same key gets the outcome of the first, also after a restart."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sandbox_agent.envelope import Envelope, failure
from sandbox_agent.errors import AgentTimeout, IdempotencyMismatch, LogUnavailable, OutcomeUnknown
from sandbox_agent.hub.calls import Accepted, Answer
from sandbox_agent.hub.connection import Connection
from sandbox_agent.log.log import Log

MAX_KEY = 256
"""Longest key."""


@dataclass(frozen=True, slots=True)
class _Running:
    digest: bytes
    accepted: asyncio.Future[int]
    """Where the log has the request, once it was taken in."""
    first: asyncio.Future[Answer]
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
        return Accepted(await asyncio.shield(running.accepted), self._answer(running))

    def _start(self, scope: str, key: str, digest: bytes, begin: Callable[[], Awaitable[Accepted]]) -> _Running:
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[int] = loop.create_future()
        first: asyncio.Future[Answer] = loop.create_future()
        outcome = asyncio.create_task(self._run(scope, key, digest, begin, accepted, first))
        for future in (accepted, first, outcome):
            # The callers may have left before it failed.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._running[scope, key] = _Running(digest, accepted, first, outcome)
        return self._running[scope, key]

    async def _answer(self, running: _Running) -> Answer:
        if not running.first.done():
            return await asyncio.shield(running.first)
        if running.first.exception() is None:
            return running.first.result()
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
        taken: asyncio.Future[int],
        first: asyncio.Future[Answer],
    ) -> Answer:
        answer: Answer | None = None
        try:
            # On disk before anything happens: after a crash it must be known that it was begun.
            self._log.save_outcome(scope, key, digest, None)
            await self._log.flushed()
            accepted = await begin()
            taken.set_result(accepted.position)
            answer = await self._outcome(accepted.answer, first)
            self._log.save_outcome(scope, key, digest, answer.line)
            await self._log.flushed()
        except Exception as error:
            if answer is None and isinstance(error, LogUnavailable | AgentTimeout):
                # Nothing was begun, so it may be tried again under the same key.
                self._log.forget_outcome(scope, key)
            for future in (taken, first):
                if not future.done():
                    future.set_exception(error)
            raise
        finally:
            del self._running[scope, key]
        if not first.done():
            first.set_result(answer)
        return answer

    @staticmethod
    async def _outcome(answer: Awaitable[Answer], first: asyncio.Future[Answer]) -> Answer:
        try:
            return await answer
        except AgentTimeout as error:
            if error.late is None:
                raise
            first.set_exception(error)
            late = await error.late
            assert isinstance(late, Answer)
            return late


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
