"""The way of a message through the server, from a client's bytes to the agent and back, with nothing else around it.

HTTP's protocol, the guard, the hub and the log on disk are real; the client's sockets and the agent's pipe are not,
so that CPU time is the server's own. The agent answers a request at once, and a prompt after one update.
"""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from sandboxagent.core.threads import Pool
from sandboxagent.server.http.deliver import Delivery
from sandboxagent.server.http.duplex import WebSocketTransport
from sandboxagent.server.http.ports import HubClients
from sandboxagent.server.http.rpc import Rpc
from sandboxagent.server.http.stream import StreamLimits, Streams
from sandboxagent.server.log.database import Database
from sandboxagent.server.log.event import Chunk, Direction, session_channel
from sandboxagent.server.log.journal import Group
from sandboxagent.server.sessions.connection import Connection
from tests.support.in_process import PretendedSocket, PretendedTransport, Site, head
from tests.support.world import World, world

MAX_BODY = 1 << 20
_ID = re.compile(rb'"id": ?(\d+)')
_SESSION = re.compile(rb'"sessionId": ?("[^"]*")')
_UPDATE = (
    b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":%b,"update":{"sessionUpdate":'
    b'"agent_message_chunk","content":{"type":"text","text":"' + b"x" * 120 + b'"}}}}\n'
)
_RESULT = b'{"jsonrpc":"2.0","id":%b,"result":{"stopReason":"end_turn"}}\n'


class Heard(PretendedTransport):
    """A socket whose other side only notes that something has come."""

    def __init__(self) -> None:
        super().__init__()
        self.news: asyncio.Future[None] | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written = [bytes(data)]
        if self.news is not None and not self.news.done():
            self.news.set_result(None)


class Client:
    """A client with a connection, a session and a stream of its own."""

    def __init__(self, site: Site, connection: Connection, session: str) -> None:
        self.connection_id = connection.connection_id
        self._connection = f"X-ACP-Connection-Id: {connection.connection_id}"
        self.session = session
        self._site = site
        self._id = 0
        self._is_cut = False
        self._post, self._stream = PretendedSocket(site, Heard()), PretendedSocket(site, Heard())
        self._stream.protocol.data_received(head("GET /v1/rpc", self._connection, "Accept: text/event-stream"))

    @property
    def heard(self) -> bytes:
        """What was written last to its stream."""
        return self._stream.written

    def connect_again(self) -> None:
        """Send requests on another socket from now on."""
        self._post = PretendedSocket(self._site, Heard())

    def cut_after_head(self) -> None:
        """Send heads and bodies apart from now on."""
        self._is_cut = True

    async def request(self, method: str, params: str, *headers: str) -> bytes:
        """Send a request, and wait for its response."""
        self._id += 1
        members = f'"sessionId":"{self.session}",{params}'
        body = f'{{"jsonrpc":"2.0","id":{self._id},"method":"{method}","params":{{{members}}}}}'.encode()
        length = f"Content-Length: {len(body)}"
        more = (self._connection, "Content-Type: application/json", length, *headers)
        return await self._exchange(head("POST /v1/rpc", *more), body)

    async def _exchange(self, before: bytes, body: bytes) -> bytes:
        transport: Any = self._post.transport
        transport.news = asyncio.get_running_loop().create_future()
        if self._is_cut:
            self._post.protocol.data_received(before)
            self._post.protocol.data_received(body)
        else:
            self._post.protocol.data_received(before + body)
        await transport.news
        return transport.written[0]

    async def send(self, envelope: str) -> bytes:
        """Send a notification or an answer, and wait for the answer to the POST."""
        more = (self._connection, "Content-Type: application/json", f"Content-Length: {len(envelope)}")
        return await self._exchange(head("POST /v1/rpc", *more), envelope.encode())

    async def take_turn(self, *headers: str) -> bytes:
        return await self.request("session/prompt", '"prompt":[{"type":"text","text":"hello"}]', *headers)


class MessagePath:
    """Such a server, with some clients."""

    def __init__(self, world: World, clients: int) -> None:
        site = self.site = Site()
        hub_clients = HubClients(world.hub)
        parts = (hub_clients, world.requests, Streams(world.log, StreamLimits()))
        delivery = Delivery(hub_clients, world.requests, 1000)
        lines = Pool("lines", 1)
        self.rpc = rpc = Rpc(*parts, delivery, WebSocketTransport(*parts, delivery, lines, MAX_BODY), lines, MAX_BODY)
        site.reached.handle = rpc
        site.take_envelopes(rpc)
        self._world = world
        self._keys = count()
        self._database = Database(None)
        self._position = 0
        pipe: Any = world.process
        pipe.send = self._answer
        self.clients: list[Client] = []
        self._connections: list[Connection] = []
        for number in range(clients):
            session = world.add_session(f"s{number}")
            connection = world.connect()
            world.hub.attach(connection, session)
            self._connections.append(connection)
            self.clients.append(Client(site, connection, session.id))

    def next_key(self) -> str:
        """A header with an idempotency key of its own."""
        return f"Idempotency-Key: key-{next(self._keys)}"

    def update(self, session: str) -> None:
        """The agent says something."""
        self._world.agent_events.receive(self._world.running, _UPDATE % f'"{session}"'.encode())

    def ask(self, session: str) -> str:
        """The agent asks for a permission; return the id that clients know."""
        return self._world.asks(next(self._keys), sessionId=session, options=[{"optionId": "y", "kind": "allow_once"}])

    def write_group(self) -> None:
        """Write a group of the log as a turn makes it, to a database in memory."""
        at = self._position = self._position + 5
        line = _UPDATE % b'"s0"'
        channels = ("", session_channel("s0"), session_channel("s0"), "", session_channel("s0"))
        chunks = [
            Chunk(at + number, [line], Direction.FROM_AGENT, "s0", channel, 1.0)
            for number, channel in enumerate(channels)
        ]
        self._database.write(Group(chunks, {"s0": line}))

    def close_connections(self) -> None:
        for connection in self._connections:
            self._world.hub.close_connection(connection, "this is the end")

    async def close(self) -> None:
        """End all streams, so that none is left when the event loop ends."""
        self.close_connections()
        await self.site.settle()

    def _answer(self, line: bytes) -> None:
        id, session = _ID.search(line), _SESSION.search(line)
        if b'"method"' not in line or id is None:
            # An answer or a notification: the agent says nothing.
            return
        assert session is not None
        blob = _RESULT % id[1]
        if b'"session/prompt"' in line:
            blob = _UPDATE % session[1] + blob
        asyncio.get_running_loop().call_soon(self._world.agent_events.receive, self._world.running, blob)


@asynccontextmanager
async def message_path(folder: Path, clients: int = 1) -> AsyncGenerator[MessagePath]:
    async with world(folder / "log.db") as one:
        path = MessagePath(one, clients)
        yield path
        await path.close()
