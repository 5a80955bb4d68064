"""The model server: HTTP on loopback, on a thread and a loop of its own, for as long as a block of `with` lasts."""

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count

import uvicorn

from tests.support.model import amp, anthropic, chat, gemini, responses
from tests.support.model.api import Api, Request
from tests.support.model.gate import BOUND, Gate
from tests.support.model.script import Fail, Json, Part, Say, Script, Step, find, gates_of, step_of

APIS: Sequence[Api] = (anthropic, responses, chat, gemini, amp)

Receive = Callable[[], Awaitable[Json]]
Send = Callable[[Json], Awaitable[None]]


class ModelServer:
    """Answers agents from scripts, and keeps what they asked."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        """Everything that was asked, also on the side, and also of paths that are not served."""
        self.errors: list[BaseException] = []
        """What went wrong in here; the block must not end with any."""
        self._scripts: dict[str, Script] = {}
        self._numbers = count(1)
        self._names = count(1)
        self._changed = asyncio.Condition()
        self._loop = asyncio.new_event_loop()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        """Without a slash at its end; what comes after it is the API's own."""
        # h11, because it also hands on what is meant for a proxy.
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            http="h11",
            lifespan="off",
            ws="none",
            log_config=None,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="model server", daemon=True)

    @property
    def strays(self) -> list[str]:
        """What was not meant for us, when we stood in for a proxy: a method and a host each."""
        own = self.url.removeprefix("http://")
        asked = [(request.method, request.headers.get("host", "")) for request in self.requests]
        return [f"{method} {host}" for method, host in asked if host != own]

    def script(self, *steps: Step) -> Script:
        """A new script, known from now on by its marker."""
        script = Script(f"script-{next(self._names)}", steps)
        self._scripts[script.name] = script
        return script

    def gate(self) -> Gate:
        return Gate(self._loop)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something is true of requests; looked at whenever one of them comes or ends."""

        async def waited() -> None:
            async with self._changed:
                await self._changed.wait_for(condition)

        waiting = asyncio.run_coroutine_threadsafe(waited(), self._loop)
        await asyncio.wait_for(asyncio.wrap_future(waiting), BOUND)

    def __enter__(self) -> "ModelServer":
        # Connections are taken from now on, and answered as soon as the thread runs.
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(BOUND)
        assert not self._thread.is_alive(), "the model server does not end"
        self._socket.close()
        assert self.errors == []

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._server.serve(sockets=[self._socket]))

    async def _app(self, scope: Json, receive: Receive, send: Send) -> None:
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]}
        body = await _read(receive)
        request = Request(next(self._numbers), scope["method"], scope["path"], headers, body)
        self.requests.append(request)
        answering = asyncio.create_task(self._answer(request, send))
        leaving = asyncio.create_task(_left(receive))
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        request.state = "answered" if answering.done() else "abandoned"
        for task in (answering, leaving):
            task.cancel()
        error, _ = await asyncio.gather(answering, leaving, return_exceptions=True)
        await self._tell()
        if isinstance(error, Exception):
            self.errors.append(error)
            raise error

    async def _answer(self, request: Request, send: Send) -> None:
        api = next((api for api in APIS if api.serves(request.path)), None)
        if api is None or request.method != "POST":
            return await _send_json(send, 404, {"error": {"type": "not_found_error", "message": request.path}})
        other = api.other(request)
        if other is not None:
            return await _send_json(send, 200, other)
        request.conversation = api.conversation(request)
        step = self._step(request)
        await self._tell()
        if isinstance(step, Fail):
            return await _send_json(send, step.status, api.failure(step))
        if api.streams(request):
            return await _send_frames(send, api.frames(request, step))
        for gate in gates_of(step):
            await gate.hold()
        return await _send_json(send, 200, api.whole(request, step))

    def _step(self, request: Request) -> list[Part] | Fail:
        assert request.conversation is not None
        if request.conversation.side_answer is not None:
            return [Say(request.conversation.side_answer)]
        found = find(request.conversation, self._scripts)
        if found is None:
            return [Say("No script was asked for.")]
        script, number = found
        script.requests.append(request)
        return step_of(script, number)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def _read(receive: Receive) -> Json:
    """The body of a request as JSON, or nothing where there is none."""
    data, more = b"", True
    while more:
        event = await receive()
        data += event.get("body", b"")
        more = event.get("more_body", False)
    return json.loads(data) if data else {}


async def _left(receive: Receive) -> None:
    """Wait until the other side hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_json(send: Send, status: int, body: Json) -> None:
    # Agents try again when a server fails; told not to, they report it at once.
    await _send_head(send, status, "application/json", (b"x-should-retry", b"false"))
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


async def _send_frames(send: Send, frames: Iterator[str | Gate]) -> None:
    await _send_head(send, 200, "text/event-stream; charset=utf-8")
    for item in frames:
        if isinstance(item, Gate):
            await item.hold()
        else:
            await send({"type": "http.response.body", "body": item.encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _send_head(send: Send, status: int, content_type: str, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", content_type.encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
