"""JSON-RPC over /v1/rpc: requests and their responses by POST, everything else that comes in by one stream of events.

Whatever breaks is mended here: the stream goes on by `Last-Event-ID`, requests are repeated under their key, and a
connection that the server no longer knows is opened anew. Knows nothing of sessions, and answers nothing.
"""

import asyncio
import itertools
import logging
import random
import secrets
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass

import msgspec

from sandbox_agent.client.api import EVENT_STREAM, FIRST_PAUSE, LONGEST_PAUSE, Api, is_passing, read_events, retry
from sandbox_agent.client.errors import ClientError, ConnectionLost, RequestError, ServerProblem
from sandbox_agent.client.incoming import Arrival, RequestId, StreamOrder, decode
from sandbox_agent.client.light_httpx import httpx
from sandbox_agent.envelope import Object, object_at, text_at
from sandbox_agent.errors import AlreadyAnswered, LogUnavailable, NobodyAsked, UnknownConnection, WrongAnswer
from sandbox_agent.wire import headers as names
from sandbox_agent.wire import methods

logger = logging.getLogger(__name__)

PATH = "/v1/rpc"

LASTING = 5.0
"""Seconds after which a request that breaks was one that the server had, while the stream is there."""
GOODBYE = 5.0
"""Seconds that a client which is closed waits for a server that does not say goodbye."""
SILENCE = 60.0
"""Seconds without a sign of life after which a stream is taken for dead; the server sends one every 15."""

READS = frozenset(
    {
        methods.LIST,
        methods.ATTACH,
        methods.DETACH,
        methods.EVENTS,
        methods.GET_SESSION,
        methods.LIST_SESSIONS,
        methods.LIST_MODELS,
        methods.PENDING,
        methods.LIST_AGENTS,
    }
)
"""Requests that may be made any number of times: they need no key."""

INTERNAL_ERROR = -32603
"""JSON-RPC's code for an error that has none."""

_LATE = frozenset({AlreadyAnswered.slug, NobodyAsked.slug})


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


class Transport:
    """One client's way to the server, which lives as long as the client wants it to."""

    def __init__(self, api: Api, hooks: Hooks, patience: float) -> None:
        self._api = api
        self._hooks = hooks
        self._patience = patience
        self._ids = itertools.count()
        self._initialize: bytes | None = None
        self._id: str | None = None
        self.generation = 0
        """How many connections there have been."""
        self._opening = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen: int | None = None
        """The last event of this connection's stream."""
        self._listening = False
        """Whether the stream is there."""
        self.stream_order = StreamOrder(patience)
        self._closed = False
        self._failure: ConnectionLost | None = None
        """Why the server is gone."""
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when there is no longer any point in waiting for the server."""

    # JSON-RPC

    async def open(self, params: Object) -> None:
        """Open the connection with the params of `initialize`; the same are sent whenever it is opened anew.

        Raises:
            RequestError: the agent did not want to be initialized.
            ServerProblem: the server refuses.
            ConnectionLost: it cannot be reached.
        """
        id = next(self._ids)
        self._initialize = self._written({"id": id, "method": methods.INITIALIZE, "params": params})
        response = await self._open(0)
        self._result(response, id, self.generation)

    async def request(self, method: str, params: Object) -> object:
        """The result of a request, once everything that came before its response has been received.

        Raises:
            RequestError: the method failed.
            ServerProblem: the server refuses.
            ConnectionLost: there is no answer.
        """
        id = next(self._ids)
        body = self._written({"id": id, "method": method, "params": params})
        # Under its key a request can be repeated, for as long as the connection or the session is there.
        key = None if method in READS else secrets.token_urlsafe(16)
        scoped = method in READS or text_at(params, "sessionId") is not None
        response, generation = await self._post(body, key, repeatable_elsewhere=scoped)
        # An old connection brings nothing more, and readers of the log put its pages in order themselves.
        if generation == self.generation and method != methods.EVENTS:
            in_order = await self.stream_order.after(_last_event(response))
            if not in_order:
                self._hooks.missed()
        return self._result(response, id, generation)

    async def notify(self, method: str, params: Object) -> None:
        """Send a notification. Raises as `request` does."""
        await self._post(self._written({"method": method, "params": params}), None)

    async def answer(self, id: RequestId, outcome: Object) -> None:
        """Answer a request of an agent with a `result` or an `error`, however long it takes.

        The agent does not ask again. If the answer does not fit, the hook `answered` reports it.
        """
        body = self._written({"id": msgspec.json.decode(id.text), **outcome})
        wrong = None
        try:
            wrong = await self._deliver(id, body)
        finally:
            self._hooks.answered(id, wrong)

    async def reply(self, id: RequestId, result: Object) -> None:
        """Answer a request of an agent; raises ServerProblem when it is too late, or does not fit."""
        body = self._written({"id": msgspec.json.decode(id.text), "result": result})
        await self._post(body, None, only_on=id.generation)

    async def close(self) -> None:
        """Close the connection; sessions and their turns continue."""
        if self._closed:
            return
        self._closed = True
        self._let_go()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._id is not None:
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(GOODBYE):
                    await self._api.request("DELETE", PATH, headers={names.CONNECTION_ID: self._id})

    def give_up(self, failure: ConnectionLost) -> None:
        """The server is gone for good: fail every pending wait."""
        self._failure = failure
        if self._following is not None:
            self._following.cancel()
        self._let_go()

    def _let_go(self) -> None:
        self.stream_order.release()
        if not self._over.done():
            self._over.set_result(None)

    # Sending

    def _written(self, members: Object) -> bytes:
        envelope: Object = {"jsonrpc": "2.0", **members}
        body = msgspec.json.encode(envelope)
        self._hooks.sent(envelope)
        return body

    def _result(self, response: httpx.Response, id: int, generation: int) -> object:
        envelope = self._envelope(response)
        if "method" in envelope or type(envelope.get("id")) is not int or envelope["id"] != id:
            raise self._api.foreign(response, response.content)
        self._hooks.received(Arrival(envelope, None, len(response.content), generation))
        if envelope.get("error") is None:
            return envelope.get("result")
        error = object_at(envelope, "error")
        code, message = error.get("code"), error.get("message")
        raise RequestError(
            code if isinstance(code, int) else INTERNAL_ERROR,
            message if isinstance(message, str) else "Error",
            error.get("data"),
        )

    async def _deliver(self, id: RequestId, body: bytes) -> ServerProblem | None:
        """Give an answer, however long it takes: it will not be asked for again. What is wrong with it, if it is."""
        pause = FIRST_PAUSE
        while True:
            try:
                await self._post(body, None, only_on=id.generation)
            except ServerProblem as problem:
                if problem.slug != LogUnavailable.slug:
                    if problem.slug not in {*_LATE, WrongAnswer.slug}:
                        logger.error("an answer is refused problem=%s", problem)
                    return problem if problem.slug == WrongAnswer.slug else None
                reason: ClientError = problem
            except ConnectionLost as lost:
                if self._closed or self._failure is not None or id.generation != self.generation:
                    return None
                reason = lost
            else:
                return None
            logger.warning("an answer cannot be given yet, trying again reason=%s", reason)
            await asyncio.wait([self._over], timeout=pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _post(
        self, body: bytes, key: str | None, *, repeatable_elsewhere: bool = True, only_on: int | None = None
    ) -> tuple[httpx.Response, int]:
        """POST until there is an answer, and on which connection. What is `only_on` one is not sent on another.

        Raises:
            ServerProblem: the server refuses.
            ConnectionLost: there is no answer for too long.
        """
        clock = asyncio.get_running_loop().time
        failing_since, pause, sent_on, renewed = clock(), FIRST_PAUSE, 0, False
        while True:
            id = self._usable(only_on)
            if sent_on not in (0, self.generation) and not repeatable_elsewhere:
                raise ConnectionLost("the server went away before it had answered", outcome_unknown=True)
            tried_at, generation = clock(), self.generation
            try:
                return await self._try(id, body, key), generation
            except ClientError as error:
                if not is_passing(error):
                    raise
                lost = error
            if not _is_unknown(lost):
                sent_on = generation if _may_have_happened(lost) else sent_on
            else:
                try:
                    await self._renew(generation)
                except ClientError as error:
                    if not is_passing(error):
                        raise
                    lost = error
                else:
                    # A server that forgets each connection at once is not asked without a pause.
                    renewed, again = True, renewed
                    if not again:
                        continue
            # A request may have been waiting for hours: only the time the server is unreachable counts.
            if self._was_reached(lost, clock() - tried_at):
                failing_since = clock()
            if self._failure or self._closed or clock() - failing_since > self._patience:
                raise self._failure or lost
            await asyncio.wait([self._over], timeout=pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _was_reached(self, lost: ClientError, lasted: float) -> bool:
        """Whether the server was there though a try was cut off: some proxies cut whatever waits for a while."""
        in_passing = self._listening and _may_have_happened(lost) and lasted > min(LASTING, self._patience / 2)
        return in_passing or lasted > self._patience

    def _usable(self, only_on: int | None) -> str:
        """The id of the connection. Raises ConnectionLost when there is none, or another one than is wanted."""
        if self._failure is not None:
            raise self._failure
        if self._closed or self._id is None:
            raise ConnectionLost("this client is closed")
        if only_on not in (None, self.generation):
            raise ConnectionLost("the connection that was asked is gone; what is still open is asked anew")
        return self._id

    async def _try(self, id: str, body: bytes, key: str | None) -> httpx.Response:
        headers = {names.CONNECTION_ID: id, "Content-Type": "application/json"}
        if key is not None:
            headers[names.IDEMPOTENCY_KEY] = key
        return await self._api.request("POST", PATH, content=body, headers=headers)

    def _envelope(self, response: httpx.Response) -> Object:
        try:
            return decode(response.content)
        except (ValueError, RecursionError) as error:
            raise self._api.foreign(response, response.content) from error

    # The connection

    async def _renew(self, generation: int) -> None:
        if generation == self.generation:
            logger.info("the server no longer knows the connection; opening another url=%s", self._api.url)
            async with self._opening:
                # Unless it was opened anew meanwhile.
                if generation == self.generation:
                    await self._open(generation)

    async def _open(self, generation: int) -> httpx.Response:
        """Open a connection, the first or the next."""
        # Who opens it anew waits already, and knows for how long.
        response = await retry(self._introduce, self._patience if generation == 0 else 0)
        id = response.headers.get(names.CONNECTION_ID)
        if id is None:
            raise self._api.foreign(response, response.content)
        if self._closed:
            raise ConnectionLost("this client is closed")
        self._id, self._seen = id, None
        self.generation += 1
        self.stream_order.begin()
        if generation != 0:
            # Before those who wait for the old stream go on: what it did not bring is in the log.
            self._hooks.lost()
            self.stream_order.release()
        self.stream_order.brought(_last_event(response))
        self._follow_anew()
        return response

    async def _introduce(self) -> httpx.Response:
        headers = {"Content-Type": "application/json"}
        return await self._api.request("POST", PATH, content=self._initialize, headers=headers)

    # The stream

    def _follow_anew(self) -> None:
        """Read this connection's stream, and stop reading an older one."""
        if self._following is not None and self._following is asyncio.current_task():
            return
        if self._following is not None:
            self._following.cancel()
        self._following = asyncio.create_task(self._follow(), name="sandbox-agent stream")
        self._tasks.add(self._following)
        self._following.add_done_callback(self._tasks.discard)

    async def _follow(self) -> None:
        pause, renewed = FIRST_PAUSE, False
        while True:
            generation, seen = self.generation, self._seen
            try:
                await self._listen()
            except ClientError as error:
                await self._refused(error, generation)
            except Exception:
                logger.exception("the stream cannot be read")
            if generation == self.generation and seen != self._seen:
                pause, renewed = FIRST_PAUSE, False
            elif generation != self.generation and not renewed:
                renewed = True
            else:
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all come at once
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _refused(self, error: ClientError, generation: int) -> None:
        if _is_unknown(error):
            try:
                await self._renew(generation)
            except ClientError as failure:
                error = failure
        if is_passing(error):
            logger.info("the stream broke, going on after=%s reason=%s", self._seen, error)
        else:
            logger.warning("the stream is refused reason=%s", error)
            # A reader learns why when it requests the log.
            self._hooks.missed()

    async def _listen(self) -> None:
        assert self._id is not None
        headers = {names.CONNECTION_ID: self._id, "Accept": EVENT_STREAM}
        if self._seen is not None:
            headers[names.RESUME_AFTER] = str(self._seen)
        async with (
            self._api.stream("GET", PATH, headers=headers, silence=SILENCE) as response,
            aclosing(read_events(response)) as stream,
        ):
            self._listening = True
            try:
                async for event in stream:
                    if not event.id.isdecimal():
                        raise self._api.foreign(response, event.data.encode())
                    self._receive(int(event.id), event.data)
            finally:
                self._listening = False

    def _receive(self, position: int, data: str) -> None:
        if self._seen is not None and position <= self._seen:
            return
        self._seen = position
        try:
            envelope = decode(data)
        except (ValueError, RecursionError):
            logger.exception("an event cannot be read position=%d", position)
            self._hooks.missed()
        else:
            self._hooks.received(Arrival(envelope, position, len(data), self.generation))
        self.stream_order.brought(position)


def _is_unknown(error: ClientError) -> bool:
    return isinstance(error, ServerProblem) and error.slug == UnknownConnection.slug


def _may_have_happened(error: ClientError) -> bool:
    return not isinstance(error, ConnectionLost) or error.outcome_unknown


def _last_event(response: httpx.Response) -> int:
    value = response.headers.get(names.LAST_EVENT, "")
    return int(value) if value.isdecimal() else 0
