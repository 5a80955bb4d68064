"""Answer a request that repeats an idempotency key with the first outcome, also after a restart."""

import asyncio
import hashlib
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from sandboxagent.core.tasks import Tasks
from sandboxagent.protocol.envelope import Envelope, failure
from sandboxagent.protocol.errors import AgentTimeout, IdempotencyMismatch, LogUnavailable, OutcomeUnknown
from sandboxagent.server.log.log import Log
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.reply import Answer, Reply

MAX_KEY = 256
"""Maximum characters of a key."""


class _Running(Struct, eq=False):
    """A request under a key, until its outcome is on disk."""

    name: tuple[str, str]
    """The request's scope and key."""
    digest: bytes
    first: Reply
    """The reply to the first request, and to requests that repeat it meanwhile."""
    outcome: Reply
    """The reply that is stored. It differs from `first`, and is settled later, if the agent takes too long."""


class Idempotency:
    """Requests under keys: those that run, and those whose outcomes are stored."""

    def __init__(self, log: Log, timeout: float) -> None:
        self._log = log
        self._timeout = timeout
        self._running: dict[tuple[str, str], _Running] = {}
        self._tasks = Tasks()

    def start(self, scope: str, key: str, envelope: Envelope, reply: Reply, begin: Callable[[Reply], None]) -> None:
        """Begin a request, after a record of it is on disk. A repeated request gets the first outcome.

        Raises IdempotencyMismatch if the key was used for another body.
        """
        name, digest = (scope, key), envelope.digest()
        running = self._running.get(name)
        if running is not None:
            self._repeat(running, digest, reply)
        elif self._log.is_new(*name):
            self._begin(name, digest, envelope, reply, begin)
        else:
            self._tasks.run(self._look_up(name, digest, envelope, reply, begin), "look up an idempotency key")

    async def _look_up(
        self, name: tuple[str, str], digest: bytes, envelope: Envelope, reply: Reply, begin: Callable[[Reply], None]
    ) -> None:
        try:
            kept = await self._log.outcome(*name)
            # Another request may have begun it meanwhile.
            running = self._running.get(name)
            if running is not None:
                self._repeat(running, digest, reply)
            elif kept is None:
                self._begin(name, digest, envelope, reply, begin)
            else:
                _check_digest(name, digest, kept[0])
                reply.set_result(_kept_answer(envelope, kept[1]))
        except Exception as error:
            reply.set_exception(error)

    def _begin(
        self, name: tuple[str, str], digest: bytes, envelope: Envelope, reply: Reply, begin: Callable[[Reply], None]
    ) -> None:
        running = self._running[name] = _Running(name, digest, reply, reply)
        try:
            # The record is on disk before the request has effects, so that it is known after a crash.
            self._log.save_outcome(*name, digest, None)
            self._log.when_flushed(partial(self._on_begun, running, envelope, begin))
        except Exception as error:
            self._forget_begun(running, error)

    def _on_begun(
        self, running: _Running, envelope: Envelope, begin: Callable[[Reply], None], failure: Exception | None
    ) -> None:
        if failure is not None:
            self._forget_begun(running, failure)
            return
        own = Reply(envelope)
        own.when_accepted(running.first.accept_as)
        own.when_answered(partial(self._on_answered, running))
        try:
            begin(own)
        except Exception as error:
            own.set_exception(error)

    def _on_answered(self, running: _Running, result: Answer | Exception) -> None:
        if isinstance(result, Answer):
            on_kept = partial(self._on_kept, running, result)
            try:
                self._log.save_outcome(*running.name, running.digest, result.line)
                self._log.when_flushed(on_kept)
            except Exception as error:
                on_kept(error)
        elif isinstance(result, AgentTimeout) and isinstance(result.late, Reply):
            running.outcome = Reply()
            running.first.set_exception(result)
            result.late.when_answered(partial(self._on_answered, running))
        elif isinstance(result, LogUnavailable | AgentTimeout):
            self._forget_begun(running, result)
        else:
            self._fail(running, result)

    def _on_kept(self, running: _Running, answer: Answer, failure: Exception | None) -> None:
        del self._running[running.name]
        if failure is None:
            running.outcome.set_result(answer)
        else:
            running.outcome.set_exception(failure)
            answer.release_updates()

    def _forget_begun(self, running: _Running, error: Exception) -> None:
        """Fail a request that was not begun, and forget its key, so that a client may try again under it."""
        self._log.forget_outcome(*running.name)
        self._fail(running, error)

    def _fail(self, running: _Running, error: Exception) -> None:
        del self._running[running.name]
        running.outcome.set_exception(error)

    def _repeat(self, running: _Running, digest: bytes, reply: Reply) -> None:
        _check_digest(running.name, digest, running.digest)
        failure = running.first.result
        if not isinstance(failure, AgentTimeout):
            reply.follow(running.first)
            return
        if running.first.position is not None:
            reply.accept(running.first.position)
        self._tasks.run(self._wait_again(running, failure, reply), "wait for a late answer")

    async def _wait_again(self, running: _Running, failure: AgentTimeout, reply: Reply) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                reply.set_result(await running.outcome)
        except TimeoutError:
            error = AgentTimeout(f"the request under this Idempotency-Key still runs after {self._timeout:g} s more")
            error.late = failure.late
            reply.set_exception(error)
        except Exception as error:
            reply.set_exception(error)


def scope_of(connection: Connection, session_id: str | None) -> str:
    """Return the scope of a key: its session, or the connection if there is none."""
    if session_id is not None:
        return f"session:{session_id}"
    # The tag would not do: another connection may get it after a restart. The id is a secret, so it is hashed.
    return f"connection:{hashlib.sha256(connection.connection_id.encode()).hexdigest()}"


def _check_digest(name: tuple[str, str], digest: bytes, first: bytes) -> None:
    if digest != first:
        raise IdempotencyMismatch(name[1])


def _kept_answer(envelope: Envelope, response: bytes | None) -> Answer:
    if response is None:
        assert envelope.id is not None
        return Answer(failure(envelope.id, OutcomeUnknown()))
    return Answer(response)
