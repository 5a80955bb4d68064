"""Idempotency: a request that comes again under the same key gets the outcome of the first, also after a restart."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Generic, TypeVar

from msgspec import Struct

from sandbox_agent.envelope import Envelope, failure
from sandbox_agent.errors import AgentTimeout, IdempotencyMismatch, LogUnavailable, OutcomeUnknown
from sandbox_agent.hub.calls import Accepted, Answer, Waiter
from sandbox_agent.hub.connections import Connection
from sandbox_agent.log.log import Log
from sandbox_agent.tasks import Tasks

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


class _Running(Struct, frozen=True):
    digest: bytes
    accepted: _Stage[int]
    """Where the log has the request, once it was taken in."""
    first: _Stage[Answer]
    """The answer for the client of the first request."""
    outcome: _Stage[Answer]
    """What is kept; later than `first` when the agent took too long."""

    def settle(self, result: Answer | Exception) -> None:
        """It is over."""
        if isinstance(result, Exception):
            self.accepted.settle(result)
        self.first.settle(result)
        self.outcome.settle(result)


class _Passed:
    """A request under a key that is passed on at once, and needs no task: what comes next is called back."""

    __slots__ = ("_answer", "_begin", "_is_done", "_name", "_on_accepted", "_requests", "_start", "_waiter", "running")

    def __init__(
        self,
        requests: "Idempotency",
        name: tuple[str, str],
        digest: bytes,
        start: Callable[[Waiter], int | None],
        begin: Callable[[], Awaitable[Accepted]],
        waiter: Waiter,
        on_accepted: Callable[[int], None] | None,
    ) -> None:
        self.running = _Running(digest, _Stage(), _Stage(), _Stage())
        self._requests = requests
        self._name = name
        self._start = start
        self._begin = begin
        self._waiter = waiter
        self._on_accepted = on_accepted
        self._answer: Answer | None = None
        self._is_done = False

    def on_begun(self, failure: Exception | None) -> None:
        """It is on disk that it was begun."""
        if failure is not None:
            self._fail(failure)
            return
        try:
            position = self._start(self)
            if position is None:
                # What it needs is gone since.
                self._requests.go_on_slowly(self._name, self.running, self._begin, self._waiter, self._on_accepted)
                return
        except Exception as error:
            self._fail(error)
            return
        self.running.accepted.settle(position)
        if self._on_accepted is not None:
            self._on_accepted(position)

    def done(self) -> bool:
        return self._is_done

    def set_result(self, answer: Answer, /) -> None:
        """The agent has answered."""
        self._is_done = True
        self._answer = answer
        self._requests.log.save_outcome(*self._name, self.running.digest, answer.line)
        self._requests.log.when_flushed(self._on_kept)

    def set_exception(self, error: Exception, /) -> None:
        self._is_done = True
        if isinstance(error, AgentTimeout) and error.late is not None:
            self.running.first.settle(error)
            self._waiter.set_exception(error)
            error.late.add_done_callback(self._answer_late)
        else:
            self._fail(error)

    def _answer_late(self, late: asyncio.Future[object]) -> None:
        if late.cancelled():
            return
        answer = late.result()
        assert isinstance(answer, Answer)
        self.set_result(answer)

    def _on_kept(self, failure: Exception | None) -> None:
        if failure is not None:
            self._fail(failure)
            return
        assert self._answer is not None
        self._requests.forget(self._name)
        is_late = self.running.first.result is not None
        self.running.settle(self._answer)
        if not is_late:
            self._waiter.set_result(self._answer)

    def _fail(self, error: Exception) -> None:
        self._is_done = True
        if self._answer is None and isinstance(error, LogUnavailable | AgentTimeout):
            # Nothing was begun, so it may be tried again under the same key.
            self._requests.log.forget_outcome(*self._name)
        self._requests.forget(self._name)
        is_late = self.running.first.result is not None
        self.running.settle(error)
        if not is_late:
            self._waiter.set_exception(error)


class Idempotency:
    """Requests under a key, those that run and those that are kept."""

    def __init__(self, log: Log, patience: float) -> None:
        self.log = log
        self._patience = patience
        self._running: dict[tuple[str, str], _Running] = {}
        self._tasks = Tasks()

    async def accept(
        self, scope: str, key: str, envelope: Envelope, begin: Callable[[], Awaitable[Accepted]]
    ) -> Accepted:
        """Begin a request, unless it was begun before; raises IdempotencyMismatch for another body under its key."""
        digest = hashlib.sha256(envelope.line).digest()
        name, kept = (scope, key), None
        if name not in self._running and not self.log.is_new(*name):
            kept = await self.log.outcome(*name)
        # Another caller may have begun it meanwhile.
        running = self._running.get(name)
        if running is None:
            if kept is not None:
                begun_with, response = kept
                if begun_with != digest:
                    raise IdempotencyMismatch(key)
                return Accepted(0, _repeat_outcome(envelope, response))
            running = self._running[name] = _Running(digest, _Stage(), _Stage(), _Stage())
            # A task of its own: the callers may leave before it has come to its end.
            self._run(self._begin(name, running, begin))
        elif running.digest != digest:
            raise IdempotencyMismatch(key)
        return Accepted(await running.accepted.wait(), self._answer(running))

    def pass_on(
        self,
        scope: str,
        key: str,
        envelope: Envelope,
        start: Callable[[Waiter], int | None],
        begin: Callable[[], Awaitable[Accepted]],
        waiter: Waiter,
        on_accepted: Callable[[int], None] | None = None,
    ) -> bool:
        """Begin a request without a task; False when it may have been begun before.

        `start` passes it on, once it is on disk that it was begun, and returns where its record is; when that is no
        longer possible, `begin` does. `on_accepted` learns of that position.
        """
        name = scope, key
        if name in self._running or not self.log.is_new(*name):
            return False
        passed = _Passed(self, name, hashlib.sha256(envelope.line).digest(), start, begin, waiter, on_accepted)
        self._running[name] = passed.running
        # On disk before anything happens: after a crash it must be known that it was begun.
        self.log.save_outcome(scope, key, passed.running.digest, None)
        self.log.when_flushed(passed.on_begun)
        return True

    def forget(self, name: tuple[str, str]) -> None:
        """It does not run any more."""
        del self._running[name]

    def go_on_slowly(
        self,
        name: tuple[str, str],
        running: _Running,
        begin: Callable[[], Awaitable[Accepted]],
        waiter: Waiter,
        on_accepted: Callable[[int], None] | None,
    ) -> None:
        """Let a task do what is left of a request that was begun."""
        self._run(self._finish(name, running, begin))
        self._run(_hand_over(running, waiter, on_accepted))

    async def _answer(self, running: _Running) -> Answer:
        first = running.first.result
        if not isinstance(first, Exception):
            return await running.first.wait()
        try:
            async with asyncio.timeout(self._patience):
                return await running.outcome.wait()
        except TimeoutError:
            error = AgentTimeout(f"the request under this Idempotency-Key still runs after {self._patience:g} s more")
            error.late = first.late if isinstance(first, AgentTimeout) else None
            raise error from None

    def _run(self, work: Coroutine[object, object, None]) -> None:
        self._tasks.run(work, "request under a key")

    async def _begin(self, name: tuple[str, str], running: _Running, begin: Callable[[], Awaitable[Accepted]]) -> None:
        try:
            # On disk before anything happens: after a crash it must be known that it was begun.
            self.log.save_outcome(*name, running.digest, None)
            await self.log.flushed()
        except Exception as error:
            self.log.forget_outcome(*name)
            self.forget(name)
            running.settle(error)
        else:
            await self._finish(name, running, begin)

    async def _finish(self, name: tuple[str, str], running: _Running, begin: Callable[[], Awaitable[Accepted]]) -> None:
        """Its callers have what fails, unless all have left."""
        answer: Answer | None = None
        try:
            accepted = await begin()
            running.accepted.settle(accepted.position)
            answer = await self._outcome(accepted.answer, running.first)
            self.log.save_outcome(*name, running.digest, answer.line)
            await self.log.flushed()
        except Exception as error:
            if answer is None and isinstance(error, LogUnavailable | AgentTimeout):
                # Nothing was begun, so it may be tried again under the same key.
                self.log.forget_outcome(*name)
            self.forget(name)
            running.settle(error)
        except BaseException:
            self.forget(name)
            raise
        else:
            self.forget(name)
            running.settle(answer)

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


async def _hand_over(running: _Running, waiter: Waiter, on_accepted: Callable[[int], None] | None) -> None:
    try:
        position = await running.accepted.wait()
        if on_accepted is not None:
            on_accepted(position)
        answer = await running.first.wait()
    except Exception as error:
        waiter.set_exception(error)
    else:
        waiter.set_result(answer)


def scope_of(connection: Connection, session_id: str | None) -> str:
    """The scope of a key: its session, or the connection when there is none."""
    if session_id is not None:
        return f"session:{session_id}"
    # Not the tag, which another connection may have after a restart; nor the id, which is a secret.
    return f"connection:{hashlib.sha256(connection.connection_id.encode()).hexdigest()}"


async def _repeat_outcome(envelope: Envelope, response: bytes | None) -> Answer:
    if response is None:
        assert envelope.id is not None
        return Answer(failure(envelope.id, OutcomeUnknown()))
    return Answer(response)
