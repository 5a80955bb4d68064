"""Pass on OpenCode's questions, which it offers only on a loopback port of its own.

The companion reads the agent's stream of events, and passes each question on as if the agent had sent it. It posts the
answer to the port.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec
import psutil

from sandboxagent.core.reports import Reports
from sandboxagent.core.tasks import Tasks
from sandboxagent.protocol import methods
from sandboxagent.protocol.envelope import Object, notification, object_at, objects_at, parse, request, text_at
from sandboxagent.protocol.json_bounds import read
from sandboxagent.server.agents.dialects.dialect import METHOD, answers_in, question_params
from sandboxagent.server.agents.lines import LineSplitter

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

MAX_EVENT_BYTES = 8 << 20
USER = "opencode"
LOOPBACK = "127.0.0.1"
_EVENT = b'"question.'


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts and delays, in seconds."""

    connect: float = 15.0
    """Maximum time until the port is found and answers, once the agent has written to its stdout."""
    tries: tuple[float, ...] = (0.0, 0.2, 0.5, 1.0)
    """Delays before the tries to reach the port."""
    event: float = 60.0
    """Maximum time without any event. A live stream has a heartbeat every ten seconds."""
    post: float = 30.0
    again: float = 1.0
    """Delay before a stream that has ended is opened again."""
    cancel: float = 2.0
    """Delay before a cancelled question is rejected. The rejection ends the question's turn as if the turn had not been
    cancelled. If the turn was cancelled, that must come first, and the rejection only clears the question away."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A question that was passed on and is not answered."""

    id: str
    directory: str
    settled: bool = False
    """Whether another client has answered the question at the agent."""


class OpenCode:
    """The companion of one process."""

    def __init__(self, ports: Callable[[int], list[int]] | None = None, timeouts: Timeouts | None = None) -> None:
        """Create the companion. `ports` returns the ports that a process listens on."""
        self._ports = ports or listening_ports
        self._timeouts = timeouts or Timeouts()
        self._auth = (USER, "")
        self._client: httpx.AsyncClient | None = None
        self._events: httpx.Response | None = None
        self._say: Callable[[bytes], None] = lambda _: None
        self._open: dict[bytes, _Open] = {}
        self._tasks = Tasks()
        self._bad_events = Reports(time.monotonic, _report_bad_events)

    def prepare(self, environment: Mapping[str, str]) -> dict[str, str]:
        user = environment.get("OPENCODE_SERVER_USERNAME", USER)
        self._auth = (user, environment.get("OPENCODE_SERVER_PASSWORD", ""))
        return {"OPENCODE_ENABLE_QUESTION_TOOL": "1", **environment}

    async def connect(self, pid: int) -> bool:
        try:
            async with asyncio.timeout(self._timeouts.connect):
                for delay in self._timeouts.tries:
                    await asyncio.sleep(delay)
                    if await self._reach(pid):
                        return True
        except (TimeoutError, psutil.Error, OSError) as error:
            logger.info("an agent's port was not reached reason=%s", type(error).__name__)
        return False

    async def _reach(self, pid: int) -> bool:
        """Open the stream of events at the port that has one. Return False if none has."""
        import httpx

        for port in await asyncio.to_thread(self._ports, pid):
            client = httpx.AsyncClient(
                base_url=f"http://{LOOPBACK}:{port}",
                auth=self._auth,
                timeout=httpx.Timeout(self._timeouts.post, read=self._timeouts.event),
                trust_env=False,
                # Plain HTTP, so no certificates are loaded.
                verify=SSLContext(PROTOCOL_TLS_CLIENT),
            )
            self._client = client
            try:
                self._events = await self._stream(client)
            except httpx.HTTPError:
                await client.aclose()
            else:
                return True
        return False

    @staticmethod
    async def _stream(client: "httpx.AsyncClient") -> "httpx.Response":
        wanted = client.build_request("GET", "/global/event", headers={"Accept-Encoding": "identity"})
        response = await client.send(wanted, stream=True)
        try:
            response.raise_for_status()
        except BaseException:
            await response.aclose()
            raise
        return response

    def start(self, say: Callable[[bytes], None]) -> None:
        self._say = say
        self._do(self._watch())

    def stop(self) -> None:
        self._tasks.cancel()
        self._bad_events.forget(self._auth[0])
        if self._client is not None:
            self._client, client = None, self._client
            self._do(client.aclose())

    def _do(self, work: Coroutine[object, object, None]) -> None:
        self._tasks.run(work, "questions of opencode")

    # Questions

    async def _watch(self) -> None:
        """Read events until the process ends."""
        import httpx

        while self._client is not None:
            with suppress(httpx.HTTPError):
                events = self._events or await self._stream(self._client)
                self._events = None
                lines = LineSplitter(MAX_EVENT_BYTES)
                try:
                    async for piece in events.aiter_bytes():
                        self._read(lines.feed(piece))
                finally:
                    await events.aclose()
            logger.info("stream of an agent's questions ended, is opened again")
            await asyncio.sleep(self._timeouts.again)

    def _read(self, blob: bytes) -> None:
        if _EVENT not in blob:
            return
        for line in blob.split(b"\n"):
            # Most events are about single words of the output. They are not decoded.
            if _EVENT in line and line.startswith(b"data:"):
                try:
                    self._event(object_at(read(line[5:], object)))
                except (msgspec.DecodeError, UnicodeDecodeError):
                    self._bad_events.note(self._auth[0], what=f"bytes={len(line)}")

    def _event(self, event: Object) -> None:
        kind, facts = text_at(event, "payload", "type"), object_at(event, "payload", "properties")
        match kind:
            case "question.asked":
                self._ask(text_at(event, "directory") or "", facts)
            case "question.replied" | "question.rejected":
                self._withdraw(text_at(facts, "requestID") or "")
            case _:
                pass

    def _ask(self, directory: str, facts: Object) -> None:
        question, session = text_at(facts, "id"), text_at(facts, "sessionID")
        if question is None or session is None:
            return
        id = msgspec.json.encode(question)
        self._open[id] = _Open(question, directory)
        call = text_at(facts, "tool", "callID")
        params = question_params(session, question, objects_at(facts, "questions"), call, "multiple")
        self._say(request(id, METHOD, params))

    def _withdraw(self, question: str) -> None:
        """Withdraw a question that another client has answered at the agent.

        Our own answers have closed theirs before.
        """
        id = msgspec.json.encode(question)
        asked = self._open.get(id)
        if asked is not None:
            self._open[id] = _Open(asked.id, asked.directory, settled=True)
            self._say(notification(methods.CANCEL_REQUEST, {"requestId": question}))
            self._open.pop(id, None)

    # Answers

    def answer(self, line: bytes) -> bool:
        answered = parse(line)
        asked = self._open.pop(answered.id or b"", None)
        if asked is None:
            return False
        if not asked.settled:
            self._do(self._give(asked, answered.result()))
        return True

    async def _give(self, asked: _Open, result: Object) -> None:
        answers = answers_in(result)
        if result.get("status") == "cancelled":
            await asyncio.sleep(self._timeouts.cancel)
        if answers is None or not await self._post(asked, "reply", {"answers": answers}):
            # In any other case, reject the question: the agent must not wait forever.
            await self._post(asked, "reject", {})

    async def _post(self, asked: _Open, what: str, body: Object) -> bool:
        import httpx

        if self._client is None:
            return False
        # Each folder has its own questions. In a query, the agent does not understand every spelling of a folder's
        # name.
        folder = {"X-OpenCode-Directory": quote(asked.directory)}
        try:
            response = await self._client.post(f"/question/{asked.id}/{what}", headers=folder, json=body)
        except httpx.HTTPError as error:
            logger.warning("answer not delivered to an agent's port reason=%s", type(error).__name__)
            return False
        return response.is_success


def _report_bad_events(user: str, count: int, newest: str) -> None:
    logger.warning("events of an agent are no JSON user=%s events=%d %s", user, count, newest)


def listening_ports(pid: int) -> list[int]:
    """Return the loopback ports on which a process or its descendants listen."""
    process = psutil.Process(pid)
    found: list[int] = []
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            found += [
                each.laddr.port
                for each in one.net_connections("tcp4")
                if each.status == psutil.CONN_LISTEN and each.laddr.ip == LOOPBACK
            ]
    return found
