"""The example of docs/architecture.md: a limit on turns for each session, and the turns that are over, counted."""

import sys
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from sandboxagent.protocol.envelope import Envelope, Object, success
from sandboxagent.protocol.errors import BadRequest
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.agents.process import AgentProcess, Exit
from sandboxagent.server.capability import Capability, ServerCore
from sandboxagent.server.http.asgi import App, Receive, Scope, Send, json_headers, respond
from sandboxagent.server.http.auth import Access
from sandboxagent.server.log.event import Chunk
from sandboxagent.server.sessions.connection import Connection
from sandboxagent.server.sessions.dispatch import Method
from sandboxagent.server.sessions.reply import Answer
from sandboxagent.server.sessions.session import Prompt, Session

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from sandboxagent.server.http.views import Endpoint


MANY = 3
"""Number of turns from which it says that something is wrong."""


class Turns(msgspec.Struct):
    """The answer of `GET /v1/turns`."""

    ended: int
    """Turns that are over, since the server started."""
    logged: int
    """The same, as its reader of the log has counted them."""
    processes: int
    """Processes of agents that were started."""
    exits: int
    """Those that have exited."""


class TurnLimit(Capability):
    name = "turn limit"
    access = Access("/turns")

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self._ended = 0
        self._logged = 0
        self._processes = 0
        self._exits = 0

    # What it brings

    def app(self) -> App:
        async def page(scope: Scope, receive: Receive, send: Send) -> None:
            body = msgspec.json.encode({"modules": [name for name in sys.modules if name.startswith("sandboxagent")]})
            await respond(send, 200, json_headers(body), body)

        return page

    def endpoints(self) -> "Sequence[Endpoint]":
        from sandboxagent.server.http.views import Endpoint, json_response

        async def show(request: "Request") -> "Response":
            return json_response(Turns(self._ended, self._logged, self._processes, self._exits))

        return [Endpoint("GET", "/v1/turns", show, "How many turns are over.", Turns)]

    def methods(self) -> Mapping[str, Method]:
        async def count(connection: Connection, envelope: Envelope) -> Answer:
            assert envelope.id is not None
            return Answer(success(envelope.id, {"ended": self._ended}))

        return {"_sandboxagent/turns/count": count}

    def notifications(self) -> Sequence[str]:
        return ("_sandboxagent/turns/limit",)

    def run(self) -> Coroutine[object, None, None]:
        return self._read_log()

    async def _read_log(self) -> None:
        """From a position of its own: here it begins anew with the server."""
        async for item in self._core.hub.log.reader(after=0):
            if isinstance(item, Chunk):
                self._logged += sum(b'"state":"ended"' in line for line in item.lines)

    def trouble(self) -> str | None:
        return "too many turns" if self._ended >= MANY else None

    # What it hears

    def turn_ended(self, session: Session, turn_id: str, end: Object) -> None:
        self._ended += 1

    def process_started(self, process: AgentProcess) -> None:
        self._processes += 1

    def process_exited(self, process: AgentProcess, exit: Exit) -> None:
        self._exits += 1

    # What it refuses

    def before_session(self, connection: Connection, envelope: Envelope) -> Awaitable[None] | None:
        if envelope.params().get("cwd") == "/":
            raise BadRequest("no session in /")
        return None

    def before_prompt(self, session: Session, prompt: Prompt) -> Awaitable[None] | None:
        if b"too dear" in prompt.line:
            raise BadRequest("this turn is too dear")
        return None

    def before_process(self, agent: Agent, environment: Mapping[str, str]) -> Awaitable[None] | None:
        if agent.id == "forbidden":
            raise BadRequest("this agent is not allowed here")
        return None
