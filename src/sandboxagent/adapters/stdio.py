"""Exchange JSON-RPC on stdin and stdout for the project's own agents, one object on each line.

This module does not know ACP.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from sandboxagent.core.tasks import Tasks

MAX_LINE_BYTES = 128 * 1024 * 1024
"""Maximum bytes of a line: twice what a client may send in one line."""

DRAIN_TIMEOUT = 0.1
"""Seconds that the other side has, at the end of input, to read the remaining output."""

INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32600, -32601, -32602, -32603
REQUEST_CANCELLED = -32800
CANCEL_REQUEST = "$/cancel_request"

Object = dict[str, object]
Method = Callable[[Object], Awaitable[Object]]
"""A handler of requests. It gets the params, and returns the result or raises RpcError."""
Notification = Callable[[Object], None]

logger = logging.getLogger(__name__)


class RpcError(Exception):
    """A JSON-RPC error, sent to the other side or received from it."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class Peer:
    """The connection with the other side: it answers requests from there, and sends requests to it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        # With a limit of zero, `drain` returns when the pipe has accepted everything, so an exit loses nothing.
        writer.transport.set_write_buffer_limits(high=0)
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Object]] = {}
        self._tasks = Tasks()
        self._requests: dict[object, asyncio.Task[None]] = {}
        """Tasks of the requests under way, by id."""
        self._ended = False

    @classmethod
    async def on_stdio(cls) -> "Peer":
        """Return the connection with the program that started this one."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
        return cls(reader, asyncio.StreamWriter(transport, protocol, None, loop))

    async def serve(self, methods: Mapping[str, Method], notifications: Mapping[str, Notification]) -> None:
        """Handle requests and notifications until the end of input."""
        while (envelope := await self._receive()) is not None:
            if "method" not in envelope:
                self._settle(envelope)
                continue
            # Handle notifications in tasks, too. Tasks begin in order, so a cancel comes after its prompt.
            handled = self._handle(envelope, methods, {CANCEL_REQUEST: self._cancel, **notifications})
            task = self._tasks.run(handled, "envelope")
            if isinstance(id := envelope.get("id"), str | int):
                self._requests[id] = task
                task.add_done_callback(lambda _, id=id: self._requests.pop(id, None))
        await self._end()

    async def request(self, method: str, params: Object) -> Object:
        """Send a request, and return its result. Raises RpcError."""
        id = next(self._ids)
        future = self._waiting[id] = asyncio.get_running_loop().create_future()
        try:
            await self._send({"id": id, "method": method, "params": params})
            return await future
        finally:
            self._waiting.pop(id, None)

    async def notify(self, method: str, params: Object) -> None:
        """Send a notification. It waits while the other side does not read."""
        await self._send({"method": method, "params": params})

    async def _handle(
        self, envelope: Object, methods: Mapping[str, Method], notifications: Mapping[str, Notification]
    ) -> None:
        name, params = str(envelope["method"]), envelope.get("params")
        given = cast("Object", params) if isinstance(params, dict) else {}
        if "id" not in envelope:
            if name in notifications:
                notifications[name](given)
            return
        answer: Object = {"id": envelope["id"]}
        try:
            answer["result"] = await methods.get(name, _refuse(name))(given)
        except RpcError as error:
            facts = {} if error.data is None else {"data": error.data}
            answer["error"] = {"code": error.code, "message": str(error), **facts}
        except asyncio.CancelledError:
            if self._ended:
                raise
            answer["error"] = {"code": REQUEST_CANCELLED, "message": "Request cancelled"}
        except Exception:
            logger.exception("method failed method=%s", name)
            answer["error"] = {"code": INTERNAL_ERROR, "message": "Internal error"}
        try:
            await self._send(answer)
        except ConnectionError as error:
            logger.info("answer lost reason=%s", error)

    def _settle(self, envelope: Object) -> None:
        id = envelope.get("id")
        future = self._waiting.get(id) if isinstance(id, int) else None
        if future is None or future.done():
            return
        error, result = envelope.get("error"), envelope.get("result")
        if isinstance(error, dict):
            facts = cast("Object", error)
            code = facts.get("code")
            refusal = RpcError(code if isinstance(code, int) else INTERNAL_ERROR, str(facts.get("message")))
            future.set_exception(refusal)
        else:
            future.set_result(cast("Object", result) if isinstance(result, dict) else {})

    def _cancel(self, params: Object) -> None:
        id = params.get("requestId")
        if isinstance(id, str | int) and (task := self._requests.get(id)):
            task.cancel()

    async def _end(self) -> None:
        """Wait a short time for running requests and for unread output. What is left then is lost."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT):
                await self._tasks.settle()
        self._ended = True
        await self._tasks.close()
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(DRAIN_TIMEOUT):
                await self._writer.drain()
        if not self._writer.is_closing():
            self._writer.transport.abort()

    async def _receive(self) -> Object | None:
        """Return the next envelope; None at the end of input."""
        while True:
            try:
                line = await self._reader.readline()
            except ValueError:
                logger.warning("line skipped reason=over_limit limit=%d", MAX_LINE_BYTES)
                continue
            if not line:
                return None
            envelope = None if line.isspace() else _parsed(line)
            if envelope is not None:
                return envelope

    async def _send(self, members: Object) -> None:
        if self._ended:
            return
        if self._writer.is_closing():
            raise ConnectionError("stdout is closed")
        self._writer.write(json.dumps({"jsonrpc": "2.0", **members}, separators=(",", ":")).encode() + b"\n")
        await self._writer.drain()


def _refuse(name: str) -> Method:
    async def refuse(_: Object) -> Object:
        raise RpcError(METHOD_NOT_FOUND, "Method not found", {"method": name})

    return refuse


def _parsed(line: bytes) -> Object | None:
    try:
        parsed: object = json.loads(line)
    except (ValueError, RecursionError):
        logger.warning("line skipped reason=not_json bytes=%d", len(line))
        return None
    if not isinstance(parsed, dict):
        logger.warning("line skipped reason=not_an_object bytes=%d", len(line))
        return None
    return cast("Object", parsed)
