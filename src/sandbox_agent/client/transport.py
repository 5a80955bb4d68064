"""ACP over /v1/rpc, as upstream's connection wants it: envelopes out by POST, envelopes in by one stream of events.

Whatever breaks is mended here: the stream goes on by `Last-Event-ID`, requests are repeated under their key, and a
connection that the server no longer knows is opened anew. Knows nothing of sessions, and answers nothing.
"""

import asyncio
import json
import logging
import random
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

import httpx
import msgspec
from httpx_sse import ServerSentEvent

from sandbox_agent.client.api import Api
from sandbox_agent.client.errors import ClientError, ConnectionLost, ServerProblem
from sandbox_agent.client.sse import EVENT_STREAM, events
from sandbox_agent.envelope import Object, text_at

logger = logging.getLogger(__name__)

PATH = "/v1/rpc"
CONNECTION = "X-ACP-Connection-Id"
LAST_EVENT = "X-ACP-Last-Event-Id"

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two tries to reach the server again."""
SILENCE = 60.0
"""Seconds without a sign of life after which a stream is taken for dead; the server sends one every 15."""

HOLD = 10.0
"""Seconds that an answer waits for the stream to bring what came before it."""

READS = frozenset(
    {
        "session/list",
        "_sandboxagent/session/attach",
        "_sandboxagent/session/detach",
        "_sandboxagent/session/events",
        "_sandboxagent/session/get",
        "_sandboxagent/session/list",
        "_sandboxagent/session/list_models",
        "_sandboxagent/session/pending",
        "_sandboxagent/agent/list",
    }
)
"""Requests that may be made any number of times: they need no key."""

_LATE = frozenset({"already-answered", "nobody-asked"})
_GONE = frozenset({"unknown-connection", "shutting-down"})


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


ARRIVAL: ContextVar[Arrival] = ContextVar("arrival")
"""The envelope that is being handled: upstream's handlers are told neither its id nor where it came from."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the transport tells whoever made it."""

    renewed: Callable[[], Coroutine[None, None, None]]
    """The server knows nothing of the old connection: what hung on it has to be set up again."""
    missed: Callable[[], None]
    """The stream may not have brought everything up to here; the log has it."""
    answered: Callable[[RequestId, ServerProblem | None], None]
    """An answer to an agent's request is on its way no more: it is settled; or does not fit, and the request is open."""
    heard: Callable[[Arrival], bool]
    """An envelope has arrived: told in their order, and before upstream acts on it; True when that need not."""
    sent: Callable[[Object], None]
    """An envelope was sent."""


class Transport:
    """A transport of upstream's `Connection`, which lives as long as its client wants it to."""

    def __init__(self, api: Api, hooks: Hooks, patience: float) -> None:
        self._api = api
        self._hooks = hooks
        self._patience = patience
        self._arrivals: asyncio.Queue[Arrival | None] = asyncio.Queue()
        self._initialize: bytes | None = None
        self._id: str | None = None
        self._generation = 0
        """How many connections there have been."""
        self._opening = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._seen: int | None = None
        """The last event of this connection's stream."""
        self._reached = 0
        """Up to where the stream has nothing more to bring."""
        self.position = 0
        """The newest position that the server has told of."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._closed = False
        self._failure: ConnectionLost | None = None
        """Why there is no server any more."""

    # What upstream calls

    async def send(self, message: Object) -> None:
        """Send an envelope; for a request, come back when its response can be received. Raises ClientError."""
        self._hooks.sent(message)
        body = msgspec.json.encode(message)
        if "method" not in message:
            await self._answer(message, body)
        elif "id" not in message:
            await self._post(body, None)
        elif message["method"] == "initialize":
            self._initialize = body
            await self._open(self._generation)
        else:
            await self._request(message, body)

    async def receive(self) -> Object | None:
        """The next envelope from the server; None when the transport was closed."""
        while (arrival := await self._arrivals.get()) is not None:
            # What was asked on a connection that is gone is asked anew on the next, if it is still open.
            stale = "method" in arrival.envelope and arrival.generation != self._generation
            if not self._hooks.heard(arrival) and not stale:
                ARRIVAL.set(arrival)
                return arrival.envelope
        return None

    async def close(self) -> None:
        """Close the connection; sessions and their turns go on."""
        if self._closed:
            return
        self._closed = True
        for task in (self._following, self._renewing):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        self._release()
        self._arrivals.put_nowait(None)
        if self._id is not None:
            with suppress(ClientError):
                await self._api.request("DELETE", PATH, headers={CONNECTION: self._id}, silence=5)

    def give_up(self, failure: ConnectionLost) -> None:
        """The server is gone for good: nobody need wait for it."""
        self._failure = failure
        if self._following is not None:
            self._following.cancel()
        self._release()

    async def reply(self, id: RequestId, result: Object) -> None:
        """Answer a request of an agent; raises ServerProblem when it is too late, or does not fit."""
        message: Object = {"jsonrpc": "2.0", "id": msgspec.json.decode(id.text), "result": result}
        self._hooks.sent(message)
        await self._post(msgspec.json.encode(message), None, only_on=id.generation)

    # Sending

    async def _answer(self, message: Object, body: bytes) -> None:
        id = RequestId.of(ARRIVAL.get(), message["id"])
        wrong = None
        try:
            await self._post(body, None, only_on=id.generation)
        except ServerProblem as problem:
            if problem.slug == "wrong-answer":
                wrong = problem
            elif problem.slug not in _LATE:
                raise
        finally:
            self._hooks.answered(id, wrong)

    async def _request(self, message: Object, body: bytes) -> None:
        method = str(message["method"])
        # Under its key a request can be repeated, for as long as the connection or the session is there.
        key = None if method in READS else secrets.token_urlsafe(16)
        scoped = method in READS or text_at(message.get("params"), "sessionId") is not None
        response = await self._post(body, key, repeatable_elsewhere=scoped)
        await self._caught_up(response)
        self._arrivals.put_nowait(Arrival(_decoded(response.text), None, len(response.content), self._generation))

    async def _post(
        self, body: bytes, key: str | None, *, repeatable_elsewhere: bool = True, only_on: int | None = None
    ) -> httpx.Response:
        """POST until there is an answer. Raises ServerProblem, or ConnectionLost when there is none for too long.

        What is `only_on` one connection is not sent on the next.
        """
        clock = asyncio.get_running_loop().time
        failing_since, pause, sent_on = clock(), FIRST_PAUSE, 0
        while True:
            if self._failure is not None:
                raise self._failure
            if self._closed or self._id is None:
                raise ConnectionLost("this client is closed")
            if only_on not in (None, self._generation):
                raise ConnectionLost("the connection that was asked is gone; what is still open is asked anew")
            if sent_on not in (0, self._generation) and not repeatable_elsewhere:
                raise ConnectionLost("the server went away before it had answered", outcome_unknown=True)
            tried_at, generation = clock(), self._generation
            headers = {CONNECTION: self._id, "Content-Type": "application/json"}
            if key is not None:
                headers["Idempotency-Key"] = key
            try:
                return await self._api.request("POST", PATH, content=body, headers=headers)
            except ServerProblem as problem:
                if problem.slug not in _GONE:
                    raise
                lost: ClientError = problem
            except ConnectionLost as error:
                lost = error
            if not isinstance(lost, ConnectionLost) or lost.outcome_unknown:
                sent_on = sent_on if _is_unknown(lost) else generation
            if _is_unknown(lost):
                try:
                    await self._renew(generation)
                    continue
                except ConnectionLost as error:
                    lost = error
            # An answer may have been under way for hours: what counts is for how long nobody can be reached.
            if clock() - tried_at > self._patience:
                failing_since = clock()
            if self._failure or self._closed or clock() - failing_since > self._patience:
                raise self._failure or lost
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    # The connection

    async def _renew(self, generation: int) -> None:
        if generation == self._generation:
            logger.info("the server no longer knows the connection; opening another url=%s", self._api.url)
            await self._open(generation)

    async def _open(self, generation: int) -> None:
        """Open a connection, unless somebody has done so since `generation`."""
        async with self._opening:
            if generation != self._generation:
                return
            assert self._initialize is not None
            first = generation == 0
            headers = {"Content-Type": "application/json"}
            response = await self._api.request("POST", PATH, content=self._initialize, headers=headers)
            self._id = response.headers[CONNECTION]
            self._generation += 1
            self._seen = None
            self._release()
            self._reached = 0
            self._advance(int(response.headers.get(LAST_EVENT, 0)))
            if first:
                self._arrivals.put_nowait(
                    Arrival(_decoded(response.text), None, len(response.content), self._generation)
                )
                self._following = asyncio.create_task(self._follow(), name="sandbox-agent stream")
        if not first:
            # In a task of its own: it makes requests, and those wait for the stream that may be waiting for us.
            self._renewing = asyncio.create_task(self._hooks.renewed(), name="sandbox-agent renewal")

    # The stream

    async def _follow(self) -> None:
        pause = FIRST_PAUSE
        while True:
            generation, seen = self._generation, self._seen
            try:
                async with self._stream() as stream:
                    async for event in stream:
                        if generation != self._generation:
                            break
                        self._heard(int(event.id), event.data)
                        pause = FIRST_PAUSE
            except ServerProblem as problem:
                if problem.slug == "unknown-connection":
                    with suppress(ClientError):
                        await self._renew(generation)
                else:
                    logger.warning("the stream was refused problem=%s", problem)
            except ClientError as error:
                logger.info("the stream broke, going on after=%s reason=%s", self._seen, error)
            if generation == self._generation and seen == self._seen:
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all come at once
                pause = min(2 * pause, LONGEST_PAUSE)

    @asynccontextmanager
    async def _stream(self) -> AsyncGenerator[AsyncGenerator[ServerSentEvent]]:
        assert self._id is not None
        headers = {CONNECTION: self._id, "Accept": EVENT_STREAM}
        if self._seen is not None:
            headers["Last-Event-ID"] = str(self._seen)
        async with (
            self._api.stream("GET", PATH, headers=headers, silence=SILENCE) as response,
            aclosing(events(response)) as stream,
        ):
            yield stream

    def _heard(self, position: int, data: str) -> None:
        self._seen = position
        self._arrivals.put_nowait(Arrival(_decoded(data), position, len(data), self._generation))
        self._advance(position)

    async def _caught_up(self, response: httpx.Response) -> None:
        """Wait until the stream has brought what came before an answer: the two travel on different sockets."""
        last = int(response.headers.get(LAST_EVENT, 0))
        self.position = max(self.position, last)
        if self._reached >= last:
            return
        reached = asyncio.get_running_loop().create_future()
        self._waiting.append((last, reached))
        try:
            async with asyncio.timeout(min(HOLD, self._patience)):
                await reached
        except TimeoutError:
            logger.warning("the stream stays away; going by the log")
            self._hooks.missed()

    def _advance(self, position: int) -> None:
        self._reached = max(self._reached, position)
        self.position = max(self.position, position)
        if self._waiting:
            reached = [future for wanted, future in self._waiting if wanted <= position]
            self._waiting = [entry for entry in self._waiting if entry[0] > position]
            for future in reached:
                if not future.done():
                    future.set_result(None)

    def _release(self) -> None:
        """Nobody waits any longer for a stream that is gone."""
        for _, future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting = []


def _is_unknown(lost: ClientError) -> bool:
    return isinstance(lost, ServerProblem) and lost.slug == "unknown-connection"


def _decoded(text: str) -> Object:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        # Half a surrogate pair, of a program that cuts strings: JSON for everybody else.
        return json.loads(text)
