"""Serve connections of clients at gateways, which their gateways introduce to this node.

A remote connection is a connection without a stream at this node. Its own events go into the fleet's stream. Only
requests from the fleet get here, after the gateway's guard.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import Raw

from sandboxagent.fleet.bus.subjects import is_tag
from sandboxagent.fleet.messages import Introduction, IntroductionReply, Opened
from sandboxagent.protocol.envelope import META, parse, text_at
from sandboxagent.protocol.errors import BadRequest, MethodNotAllowed
from sandboxagent.protocol.json_bounds import read
from sandboxagent.server.http.asgi import App, Receive, Scope, Send, json_headers, respond
from sandboxagent.server.http.body import ClientDisconnected, read_body
from sandboxagent.server.sessions.hub import Hub
from sandboxagent.server.sessions.requests import Requests

T = TypeVar("T")

PATH = "/fleet/guests"
OPENED = "/fleet/opened"


@dataclass(frozen=True, slots=True)
class RemoteConnections:
    """`POST /fleet/guests` makes a remote connection known. A gateway may repeat it."""

    node: str
    hub: Hub
    requests: Requests
    max_body: int

    @property
    def routes(self) -> Mapping[str, App]:
        """The routes for gateways alone, by path."""
        return {PATH: self, OPENED: self.session_opened}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            asked = await self._read(scope, receive, Introduction)
        except ClientDisconnected:
            return
        if not is_tag(asked.tag):
            raise BadRequest("the tag of a remote connection must be one that a gateway makes")
        body = msgspec.json.encode(await self._introduce(asked))
        await respond(send, 200, json_headers(body), body)

    async def session_opened(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle `POST /fleet/opened`: a gateway has delivered the response with a new session."""
        try:
            said = await self._read(scope, receive, Opened)
        except ClientDisconnected:
            return
        self.hub.held_updates.release(said.session_id)
        await respond(send, 204, [])

    async def _read(self, scope: Scope, receive: Receive, kind: type[T]) -> T:
        if scope["method"] != "POST":
            raise MethodNotAllowed(scope["method"], scope["path"], "POST")
        try:
            return read(await read_body(scope, receive, self.max_body), kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f"not what gateways send: {error}") from error

    async def _introduce(self, asked: Introduction) -> IntroductionReply:
        envelope = parse(bytes(asked.initialize))
        params = envelope.params()
        agent, greeting = asked.agent or text_at(params, "_meta", META, "agent") or "", Raw(b"null")
        if asked.greet:
            running, answer = await self.requests.greet(envelope, asked.agent)
            agent, greeting = running.agent.id, Raw(answer.line)
        connection = self.hub.connections.find(asked.connection_id)
        known = connection is not None
        if connection is None:
            connection = self.hub.connections.open(agent, params, asked.connection_id, asked.tag)
        connection.used_at = self.hub.monotonic()
        return IntroductionReply(known, connection.agent, greeting)
