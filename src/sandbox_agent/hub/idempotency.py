"""Idempotency: a request that comes again under the same key gets the outcome of the first, also after a restart."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sandbox_agent.envelope import Envelope, failure
from sandbox_agent.errors import AgentTimeout, IdempotencyMismatch, LogUnavailable, OutcomeUnknown
from sandbox_agent.hub.calls import Answer
from sandbox_agent.hub.connection import Connection
from sandbox_agent.log.log import Log


@dataclass(frozen=True, slots=True)
class _Running:
    digest: bytes
    first: asyncio.Future[Answer]
    """What the first request's client is told."""
    outcome: asyncio.Task[Answer]
    """What is kept; later than `first` when the agent took too long."""


class Idempotency:
    """Requests under a key, those that run and those that are kept."""

    def __init__(self, log: Log, patience: float) -> None:
        self._log = log
        self._patience = patience
        self._running: dict[tuple[str, str], _Running] = {}

    async def once(self, scope: str, key: str, envelope: Envelope, run: Callable[[], Awaitable[Answer]]) -> Answer:
        """Run a request, unless it ran before; raises IdempotencyMismatch for another body under the same key."""
        digest = hashlib.sha256(envelope.line).digest()
        if (scope, key) not in self._running:
            kept = await self._log.outcome(scope, key)
            # Another request under the same key may have begun while we looked.
            if kept is not None and (scope, key) not in self._running:
                return _kept(envelope, key, digest, *kept)
        running = self._running.get((scope, key))
        if running is None:
            return await self._start(scope, key, digest, run)
        if running.digest != digest:
            raise IdempotencyMismatch(key)
        if not running.first.done():
            return await asyncio.shield(running.first)
        return await self._wait(running)

    async def _start(self, scope: str, key: str, digest: bytes, run: Callable[[], Awaitable[Answer]]) -> Answer:
        first: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        outcome = asyncio.create_task(self._run(scope, key, digest, run, first))
        # Its failure is told through `first`; nobody else may come to ask for it.
        outcome.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._running[scope, key] = _Running(digest, first, outcome)
        return await asyncio.shield(first)

    async def _wait(self, running: _Running) -> Answer:
        done, _ = await asyncio.wait([running.outcome], timeout=self._patience)
        if not done:
            raise AgentTimeout(f"the request under this Idempotency-Key still runs after {self._patience:g} s more")
        return running.outcome.result()

    async def _run(
        self,
        scope: str,
        key: str,
        digest: bytes,
        run: Callable[[], Awaitable[Answer]],
        first: asyncio.Future[Answer],
    ) -> Answer:
        answer: Answer | None = None
        try:
            # On disk before anything happens: after a crash it must be known that it was begun.
            self._log.save_outcome(scope, key, digest, None)
            await self._log.flushed()
            answer = await self._answer(run, first)
            self._log.save_outcome(scope, key, digest, answer.line)
            await self._log.flushed()
        except Exception as error:
            if answer is None and isinstance(error, LogUnavailable | AgentTimeout):
                # Nothing was begun, so it may be tried again under the same key.
                self._log.forget_outcome(scope, key)
            if not first.done():
                first.set_exception(error)
            raise
        finally:
            del self._running[scope, key]
        if not first.done():
            first.set_result(answer)
        return answer

    @staticmethod
    async def _answer(run: Callable[[], Awaitable[Answer]], first: asyncio.Future[Answer]) -> Answer:
        try:
            return await run()
        except AgentTimeout as error:
            if error.late is None:
                raise
            first.set_exception(error)
            late = await error.late
            assert isinstance(late, Answer)
            return late


def scope_of(connection: Connection, session_id: str | None) -> str:
    """Keys are a session's own; without one, a connection's."""
    if session_id is not None:
        return f"session:{session_id}"
    # Not the tag, which another connection may have after a restart; nor the id, which is a secret.
    return f"connection:{hashlib.sha256(connection.connection_id.encode()).hexdigest()}"


def _kept(envelope: Envelope, key: str, digest: bytes, kept: bytes, response: bytes | None) -> Answer:
    if kept != digest:
        raise IdempotencyMismatch(key)
    if response is None:
        assert envelope.id is not None
        return Answer(failure(envelope.id, OutcomeUnknown()))
    return Answer(response)
