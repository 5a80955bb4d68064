"""Speak JSON-RPC over `/v1/rpc` by POST and a stream or by a WebSocket, and reconnect after cuts.

After a cut, the stream continues after the last event, and requests are repeated under their idempotency keys. If the
server has forgotten the connection, another one is opened. If no WebSocket can be opened, HTTP is used. Envelopes are
made from methods and params, or are passed on unchanged. The module knows no sessions, and answers no requests.
"""

import asyncio
import itertools
import logging
import random
import secrets
from contextlib import aclosing, nullcontext, suppress
from functools import partial

import msgspec

from sandboxagent.client.api import (
    EVENT_STREAM,
    FIRST_RETRY_INTERVAL,
    MAX_RETRY_INTERVAL,
    Api,
    is_temporary,
    read_events,
    retry,
)
from sandboxagent.client.errors import ClientError, ConnectionLost, RequestError, ServerProblem, foreign
from sandboxagent.client.http import Response
from sandboxagent.client.incoming import HOLD_TIMEOUT, Arrival, Hooks, RequestId, StreamOrder, decode
from sandboxagent.client.websocket import ClientSocket, Expected, Outbox, Outgoing, SocketReply, find_obstacle
from sandboxagent.core.tasks import Tasks
from sandboxagent.protocol import headers as names
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import Envelope, Object, object_at, text_at
from sandboxagent.protocol.errors import (
    AlreadyAnswered,
    LogUnavailable,
    NobodyAsked,
    NodeUnreachable,
    UnknownConnection,
    WrongAnswer,
)
from sandboxagent.protocol.methods import READS

logger = logging.getLogger(__name__)

PATH = "/v1/rpc"

LASTING_TIMEOUT = 5.0
"""Seconds after which a request that breaks, while the stream is open, counts as received by the server."""
MAX_ANSWER_INTERVAL = 30.0
"""Maximum number of seconds between two attempts to deliver an answer. A node may be away for days."""
CLOSE_TIMEOUT = 5.0
"""Seconds that a closing client waits for the server to confirm the end of the connection."""
SILENCE_TIMEOUT = 60.0
"""Seconds without any data after which a socket counts as dead. The server sends data at least every 15 seconds."""
AGENT_START = 5
"""Factor by which the start of an agent may take longer than a socket may be silent."""
SOCKET_RETRY_INTERVAL = 30.0
"""Seconds after which the client tries a WebSocket again, if one worked before and HTTP is in use."""

INTERNAL_ERROR = -32603
"""JSON-RPC's code for an error that names none."""

ACCEPTED = 202

_LATE = frozenset({AlreadyAnswered.slug, NobodyAsked.slug})
_STILL_OPEN = frozenset({LogUnavailable.slug, NodeUnreachable.slug})
"""Refusals of an answer that may be accepted later."""


class Transport:
    """A client's connection to the server, which is opened again whenever the server forgets it."""

    def __init__(
        self, api: Api, hooks: Hooks, timeout: float, silence: float = SILENCE_TIMEOUT, *, websocket: bool = False
    ) -> None:
        self._api = api
        self._hooks = hooks
        self._timeout = timeout
        self._silence = silence
        self._wants_socket = websocket
        """Whether to try to open a WebSocket."""
        self._upgrades = False
        """Whether a WebSocket was open before."""
        self._socket: ClientSocket | None = None
        self._outbox = Outbox(timeout)
        self._wanted = asyncio.Event()
        """Set when a request waits for a WebSocket."""
        self._expected = Expected()
        self._ids = itertools.count()
        self._initialize: bytes | None = None
        self._id: str | None = None
        self.generation = 0
        """Number of connections opened so far."""
        self._opening = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._tasks = Tasks()
        self._seen: int | None = None
        """Position of the last event received on this connection's stream."""
        self._listening = False
        """Whether a stream over HTTP is open."""
        self._was_there = False
        """Whether a stream was open since the last check."""
        self._there = asyncio.Event()
        """Set while a stream is open."""
        self._posting = asyncio.Lock()
        """Held while an envelope whose order matters is sent by POST."""
        self.stream_order = StreamOrder(min(HOLD_TIMEOUT, timeout))
        self._closed = False
        self._failure: ConnectionLost | None = None
        """Why the server is gone for good."""
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it is pointless to wait for the server."""

    # JSON-RPC

    async def open(self, params: Object) -> None:
        """Open the connection with the params of `initialize`. The same params are sent whenever it is opened again.

        Raises:
            RequestError: the agent refused to be initialized.
            ServerProblem: the server refuses.
            ConnectionLost: the server cannot be reached.
        """
        id = next(self._ids)
        response = await self.introduce(self._written({"id": id, "method": methods.INITIALIZE, "params": params}))
        self._result(self._reply_in(response), id, self.generation)

    async def request(self, method: str, params: Object) -> object:
        """Send a request, and return its result after all events before its response have been received.

        Raises:
            RequestError: the method failed.
            ServerProblem: the server refuses.
            ConnectionLost: there is no response.
        """
        id = next(self._ids)
        body = self._written({"id": id, "method": method, "params": params})
        outgoing = _outgoing_request(body, method, text_at(params, "sessionId"))
        reply, generation = await self._send(outgoing, id)
        # An old connection delivers no more events, and readers of the log put its pages in order themselves.
        if generation == self.generation and method != methods.EVENTS:
            in_order = await self.stream_order.after(reply.last_event)
            if not in_order:
                self._hooks.missed()
        return self._result(reply, id, generation)

    async def notify(self, method: str, params: Object) -> None:
        """Send a notification. Raises the errors of `request`."""
        await self.send_unanswered(self._written({"method": method, "params": params}))

    async def answer(self, id: RequestId, outcome: Object) -> None:
        """Answer an agent's request with a `result` or an `error`, and repeat this until the server has the answer.

        The agent does not send its request again, so the answer must not get lost. If the answer does not fit, the hook
        `answered` reports it.
        """
        body = self._written({"id": msgspec.json.decode(id.text), **outcome})
        wrong = None
        try:
            wrong = await self.deliver(id, body)
        finally:
            self._hooks.answered(id, wrong)

    async def reply(self, id: RequestId, result: Object) -> None:
        """Answer an agent's request once. Raises ServerProblem if the request is settled or the answer does not fit."""
        body = self._written({"id": msgspec.json.decode(id.text), "result": result})
        await self.send_unanswered(body, id.generation)

    # Unchanged envelopes: the hook `received` gets everything that arrives, including responses

    async def introduce(self, line: bytes) -> Response:
        """Open the connection with this `initialize`, and return the response.

        The same line is sent whenever the connection is opened again.

        Raises the errors of `open`.
        """
        self._initialize = line
        return await self._open(0)

    def adopt(self, id: str, after: int | None) -> None:
        """Use a connection that is already open, from the event after `after` on. It cannot be opened again here."""
        self._id, self._seen = id, after
        self.generation += 1
        self.stream_order = StreamOrder()
        self.stream_order.brought(after or 0)
        self._follow_anew()

    async def ready(self) -> None:
        """Wait until the stream is open."""
        await self._there.wait()

    async def forward(self, request: Envelope) -> None:
        """Send a request unchanged, and wait until its response has been received. Raises the errors of `request`."""
        outgoing = _outgoing_request(request.line, request.method, request.session_id)
        outgoing.silent = outgoing.in_order = True
        reply, generation = await self._send(outgoing, msgspec.json.decode(request.id or b"null"))
        await self._arrive(reply, generation)

    async def send_line(self, line: bytes) -> None:
        """Send any envelope by POST, until the server has it. Raises the errors of `request`."""
        ack_id = secrets.token_urlsafe(16)
        reply, generation = await self._post(Outgoing(line, ack_id=ack_id, silent=True, in_order=True))
        if reply.envelope is not None:
            await self._arrive(reply, generation)

    async def send_unanswered(self, line: bytes, only_on: int | None = None, *, in_order: bool = False) -> None:
        """Send an envelope that has no response, until the server has it. Raises the errors of `request`."""
        ack_id = secrets.token_urlsafe(16)
        await self._send(Outgoing(line, ack_id=ack_id, only_on=only_on, in_order=in_order), ack_id)

    async def deliver(self, id: RequestId, line: bytes) -> ServerProblem | None:
        """Send an answer to an agent's request, and repeat this until the server has it.

        The agent does not send its request again, so the answer must not get lost. If the answer does not fit, return
        the server's problem.
        """
        pause = FIRST_RETRY_INTERVAL
        while True:
            try:
                await self.send_unanswered(line, id.generation)
            except ServerProblem as problem:
                if problem.slug not in _STILL_OPEN:
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
            pause = min(2 * pause, MAX_ANSWER_INTERVAL)

    async def close(self) -> None:
        """Close the connection. Sessions and their turns continue."""
        if self._closed:
            return
        self._closed = True
        self._let_go(ConnectionLost("this client was closed before the server had answered", outcome_unknown=True))
        said_goodbye = self._socket is not None
        if self._socket is not None:
            await self._socket.close(goodbye=True)
        await self._tasks.close()
        if self._id is not None and self._initialize is not None and not said_goodbye:
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await self._api.request("DELETE", PATH, headers={names.CONNECTION_ID: self._id})

    def fail(self, failure: ConnectionLost) -> None:
        """Fail every pending wait, because the server is gone for good."""
        self._failure = failure
        if self._following is not None:
            self._following.cancel()
        self._let_go(failure)

    def _let_go(self, failure: ConnectionLost) -> None:
        self.stream_order.release()
        self._outbox.close(failure)
        self._expected.fail(failure)
        if not self._over.done():
            self._over.set_result(None)

    # Sending

    def _written(self, members: Object) -> bytes:
        envelope: Object = {"jsonrpc": "2.0", **members}
        body = msgspec.json.encode(envelope)
        self._hooks.sent(envelope)
        return body

    def _result(self, reply: SocketReply, id: int, generation: int) -> object:
        envelope = reply.envelope
        if envelope is None or "method" in envelope or type(envelope.get("id")) is not int or envelope["id"] != id:
            raise foreign(self._api.url, 200, "application/json", msgspec.json.encode(envelope))
        if not reply.on_stream:
            self._hooks.received(Arrival(envelope, None, reply.data, generation))
        return _outcome(envelope)

    async def _arrive(self, reply: SocketReply, generation: int) -> None:
        """Pass on a response that the stream does not deliver, after all events before it."""
        if not reply.on_stream and reply.envelope is not None:
            await self.stream_order.after(reply.last_event)
            self._hooks.received(Arrival(reply.envelope, None, reply.data, generation))

    async def _call(self, id: str, method: str, params: Object) -> Object:
        """Send a request on a connection that nothing else uses yet, and return its result."""
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params})
        reply = await self._try(id, Outgoing(body))
        return object_at(_outcome(reply.envelope or {}))

    async def _send(self, outgoing: Outgoing, awaited: object) -> tuple[SocketReply, int]:
        """Send an envelope until there is an answer, and return it with the number of its connection.

        The stream may deliver the answer under the id `awaited`.

        Raises:
            ServerProblem: the server refuses.
            ConnectionLost: there is no answer for too long.
        """
        with self._expected.expecting(outgoing, awaited):
            while self._wants_socket and not self._listening and not outgoing.by_post:
                self._usable(outgoing)
                # Start the next attempt to open a socket at once, because its pause may take seconds.
                self._wanted.set()
                reply = await self._outbox.send(outgoing)
                if reply is not None:
                    return reply, self.generation
            return await self._post(outgoing)

    async def _post(self, outgoing: Outgoing) -> tuple[SocketReply, int]:
        """Send an envelope by POST until there is an answer. Return and raise as `_send` does."""
        clock = asyncio.get_running_loop().time
        failing_since, pause, renewed = clock(), FIRST_RETRY_INTERVAL, False
        while True:
            id = self._usable(outgoing)
            tried_at, generation = clock(), self.generation
            try:
                return await self._try(id, outgoing), generation
            except ClientError as error:
                if not self._may_pass(error):
                    raise
                lost = error
            if not _is_unknown(lost):
                outgoing.sent_on = generation if _may_have_happened(lost) else outgoing.sent_on
            else:
                try:
                    await self._renew(generation)
                except ClientError as error:
                    if not is_temporary(error):
                        raise
                    lost = error
                else:
                    # Repeat at once only the first time: a server may forget each new connection immediately.
                    renewed, again = True, renewed
                    if not again:
                        continue
            # Only time without a reachable server counts, because a request may have waited for hours.
            if self._was_reached(lost, clock() - tried_at):
                failing_since = clock()
            if self._failure or self._closed or clock() - failing_since > self._timeout:
                raise self._failure or lost
            await asyncio.wait([self._over], timeout=pause)
            pause = min(2 * pause, MAX_RETRY_INTERVAL)

    def _may_pass(self, error: ClientError) -> bool:
        """Return whether a retry may help. A connection that was not opened here cannot be opened again."""
        return is_temporary(error) and (self._initialize is not None or not _is_unknown(error))

    def _was_reached(self, lost: ClientError, lasted: float) -> bool:
        """Return whether the server was reachable although an attempt was cut off.

        Some proxies cut every request that waits for a while.
        """
        in_passing = self._listening and _may_have_happened(lost) and lasted > min(LASTING_TIMEOUT, self._timeout / 2)
        return in_passing or lasted > self._timeout

    def _usable(self, outgoing: Outgoing) -> str:
        """Return the id of the connection. Raises ConnectionLost if there is none, or the envelope needs another."""
        if self._failure is not None:
            raise self._failure
        if self._closed or self._id is None:
            raise ConnectionLost("this client is closed")
        obstacle = find_obstacle(outgoing, self.generation)
        if obstacle is not None:
            raise obstacle
        return self._id

    async def _try(self, id: str, outgoing: Outgoing) -> SocketReply:
        headers = {names.CONNECTION_ID: id, "Content-Type": "application/json"}
        if outgoing.key is not None:
            headers[names.IDEMPOTENCY_KEY] = outgoing.key
        if outgoing.silent:
            # An answer may take hours. After a long silence it must come on the stream, whose data shows that the
            # server is alive.
            headers[names.PREFER] = names.RESPOND_ASYNC
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with self._posting if outgoing.in_order else nullcontext():
                response = await self._api.request(
                    "POST", PATH, content=outgoing.body, headers=headers, silence=self._silence
                )
        except ConnectionLost:
            outgoing.silent = outgoing.silent or clock() - began >= self._silence
            raise
        if outgoing.ack_id is not None and not response.content:
            return SocketReply(None, b"", 0, on_stream=False)
        return await self._expected.promised(outgoing) if response.status_code == ACCEPTED else self._reply_in(response)

    def _reply_in(self, response: Response) -> SocketReply:
        try:
            envelope = decode(response.content)
        except (ValueError, RecursionError) as error:
            raise self._api.foreign(response, response.content) from error
        return SocketReply(envelope, response.content, _last_event(response), on_stream=False)

    # The connection

    async def _renew(self, generation: int) -> None:
        if generation == self.generation:
            logger.info("the server no longer knows the connection; opening another url=%s", self._api.url)
            async with self._opening:
                # Another task may have opened it meanwhile.
                if generation == self.generation:
                    await self._open(generation)

    async def _open(self, generation: int) -> Response:
        """Open a connection, the first one or a replacement."""
        # A replacement is opened without retries here, because its caller retries and limits the time.
        response = await retry(self._introduce, self._timeout if generation == 0 else 0)
        id = response.headers.get(names.CONNECTION_ID)
        if id is None:
            raise self._api.foreign(response, response.content)
        if generation != 0:
            await self._hooks.reopening(partial(self._call, id))
        if self._closed:
            raise ConnectionLost("this client is closed")
        self._id, self._seen = id, None
        self.generation += 1
        self.stream_order.begin()
        if generation != 0:
            # Before calls that wait for the old stream continue, readers must know that they find missing events in the
            # log.
            self._hooks.lost()
            self.stream_order.release()
            self._expected.fail(ConnectionLost("the server went away before it had answered", outcome_unknown=True))
        self.stream_order.brought(_last_event(response))
        self._follow_anew()
        return response

    async def _introduce(self) -> Response:
        headers = {"Content-Type": "application/json"}
        silence = AGENT_START * self._silence
        return await self._api.request("POST", PATH, content=self._initialize, headers=headers, silence=silence)

    # The stream

    def _follow_anew(self) -> None:
        """Read this connection's stream, and stop reading an older one."""
        if self._following is not None and self._following is asyncio.current_task():
            return
        if self._following is not None:
            self._following.cancel()
        self._following = self._tasks.run(self._follow(), "sandbox-agent stream")

    async def _follow(self) -> None:
        clock = asyncio.get_running_loop().time
        pause, renewed, there_at = FIRST_RETRY_INTERVAL, False, clock()
        while True:
            generation, seen = self.generation, self._seen
            failure: ClientError | None = None
            self._wanted.clear()
            try:
                await self._listen()
            except ClientError as error:
                failure = await self._refused(error, generation)
            except Exception:
                logger.exception("the stream cannot be read")
            away = 0.0 if self._was_there else clock() - there_at
            if self._was_there:
                self._was_there, there_at = False, clock()
            if away > self._timeout:
                self._expected.fail(ConnectionLost(f"{self._api.url} cannot be reached", outcome_unknown=True))
            if generation == self.generation:
                self._hooks.interrupted(failure, away)
            if generation == self.generation and seen != self._seen:
                pause, renewed = FIRST_RETRY_INTERVAL, False
            elif generation != self.generation and not renewed:
                renewed = True
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause * random.uniform(0.5, 1)):  # noqa: S311 - clients do not return all at once
                        await self._wanted.wait()
                pause = min(2 * pause, MAX_RETRY_INTERVAL)

    async def _refused(self, error: ClientError, generation: int) -> ClientError:
        """Handle a failure of the stream, and return the failure that remains.

        If the server has forgotten the connection, it is opened again.
        """
        if self._may_pass(error) and _is_unknown(error):
            try:
                await self._renew(generation)
            except ClientError as failure:
                error = failure
        if is_temporary(error):
            logger.info("the stream broke, going on after=%s reason=%s", self._seen, error)
        else:
            logger.warning("the stream is refused reason=%s", error)
            # A reader gets the same error when it reads the log.
            self._hooks.missed()
        return error

    async def _listen(self) -> None:
        """Read events until the stream ends. Raises the reason if it was cut off."""
        if not self._wants_socket or not await self._listen_by_socket():
            await self._listen_by_stream()

    async def _listen_by_socket(self) -> bool:
        """Read events by a WebSocket until it ends. Return False if none can be opened."""
        assert self._id is not None
        place = f"{PATH}?after={self._seen}" if self._seen is not None else PATH
        opening = self._api.open_socket(place, {names.CONNECTION_ID: self._id}, self._silence)
        socket, generation = await opening, self.generation
        if socket is None:
            return False
        self._upgrades = True
        self._note_open()
        self._socket = socket
        self._outbox.opened(socket.write, generation)
        try:
            async for event in socket.events():
                if event is not None and generation == self.generation:
                    self._receive(*event)
        finally:
            self._socket = None
            self._there.clear()
            self._outbox.gone(too_large=socket.was_too_large)
            await socket.close(goodbye=self._closed)
        return True

    async def _listen_by_stream(self) -> None:
        assert self._id is not None
        headers = {names.CONNECTION_ID: self._id, "Accept": EVENT_STREAM}
        if self._seen is not None:
            headers[names.RESUME_AFTER] = str(self._seen)
        async with (
            self._api.stream("GET", PATH, headers=headers, silence=self._silence) as response,
            aclosing(read_events(response)) as stream,
        ):
            self._listening = True
            self._note_open()
            self._outbox.hand_over()
            if self._wants_socket and not self._upgrades:
                self._wants_socket = False
                logger.warning("no WebSocket gets through, perhaps because of a proxy; going on over HTTP")
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(SOCKET_RETRY_INTERVAL if self._wants_socket else None):
                        async for event in stream:
                            if not event.id.isdecimal():
                                raise self._api.foreign(response, event.data.encode())
                            self._receive(int(event.id), event.data)
            finally:
                self._listening = False
                self._there.clear()

    def _note_open(self) -> None:
        self._was_there = True
        self._there.set()
        logger.info("the stream is open url=%s", self._api.url)

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
            if not self._expected.bring(envelope, data, position):
                self._hooks.received(Arrival(envelope, position, data, self.generation))
        self.stream_order.brought(position)


def _is_unknown(error: ClientError) -> bool:
    return isinstance(error, ServerProblem) and error.slug == UnknownConnection.slug


def _may_have_happened(error: ClientError) -> bool:
    return not isinstance(error, ConnectionLost) or error.outcome_unknown


def _last_event(response: Response) -> int:
    value = response.headers.get(names.LAST_EVENT, "")
    return int(value) if value.isdecimal() else 0


def _outgoing_request(body: bytes, method: str, session_id: str | None) -> Outgoing:
    """Return a request that can be sent, with an idempotency key.

    Under its key a request can be repeated for as long as the connection or the session exists. Requests that only read
    need no key.
    """
    key = None if method in READS else secrets.token_urlsafe(16)
    return Outgoing(body, key, repeatable_elsewhere=method in READS or session_id is not None)


def _outcome(envelope: Object) -> object:
    """Return the result in a response. Raises RequestError if the response is an error."""
    if envelope.get("error") is None:
        return envelope.get("result")
    error = object_at(envelope, "error")
    code, message = error.get("code"), error.get("message")
    raise RequestError(
        code if isinstance(code, int) else INTERNAL_ERROR,
        message if isinstance(message, str) else "Error",
        error.get("data"),
    )
