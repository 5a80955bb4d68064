"""A connection to a server, for a command that needs ACP: open it, ask, listen, close it."""

import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import httpx
from httpx_sse import ServerSentEvent
from msgspec import Raw, Struct

from sandbox_agent import __version__
from sandbox_agent.cli.remote import EVENT_STREAM, JSON, Refused, Remote, events, is_stream
from sandbox_agent.envelope import META, Object, list_at, object_at, request, text_at

ID = "X-ACP-Connection-Id"
POSITION = "X-ACP-Last-Event-Id"
MOCK = "mock"
BREAKS = 5
"""How often in a row a stream may break without anything having come."""
CLOSING = 2.0
"""Seconds that closing may take: a user may wait for it who has just said stop."""
_PAUSE = 0.2


class _Response(Struct):
    result: Raw = Raw(b"null")
    error: Object | None = None


class Connection:
    """One that is open. Every method may raise Refused."""

    def __init__(self, remote: Remote, id: str) -> None:
        self._remote = remote
        self._asked = 0
        self.id = id

    def named(self) -> AbstractContextManager[None]:
        """What breaks in the block is a Refused."""
        return self._remote.named()

    def ask(self, method: str, params: Object) -> bytes:
        """The JSON of a request's result; an error is a Refused."""
        self._asked += 1
        response = self.post(request(b"%d" % self._asked, method, params))
        answer = self._remote.decoded(response, _Response)
        if answer.error is not None:
            raise refusal(answer.error)
        return bytes(answer.result)

    def post(self, envelope: bytes, *, later: bool = False) -> httpx.Response:
        """Send an envelope as it is; with `later`, the response to a request comes on the stream."""
        headers = {ID: self.id, "Content-Type": JSON} | ({"Prefer": "respond-async"} if later else {})
        return self._remote.request("POST", "/v1/rpc", content=envelope, headers=headers)

    def position(self) -> int:
        """The number of the last event that was meant for this connection."""
        # Any answer says it: of a session that is not there, too.
        response = self.post(request(b"0", "_sandboxagent/session/get", {"sessionId": ""}))
        return int(response.headers.get(POSITION, "0"))

    def stream(self, after: int | None = None) -> Iterator[ServerSentEvent]:
        """What comes, until the server ends it. When the socket breaks, it goes on after the last event."""
        breaks = 0
        while True:
            headers = {ID: self.id, "Accept": EVENT_STREAM}
            headers |= {} if after is None else {"Last-Event-ID": str(after)}
            try:
                with self._remote.stream("GET", "/v1/rpc", headers=headers) as response:
                    if not is_stream(response):
                        raise Refused(f"{self._remote.server.url} does not answer with a stream of events")
                    for event in events(response):
                        breaks = 0
                        after = int(event.id) if event.id.isdigit() else after
                        yield event
            except (httpx.ReadError, httpx.RemoteProtocolError):
                # A reader that was too slow is cut off, and may go on.
                breaks += 1
                if breaks > BREAKS:
                    raise
                time.sleep(_PAUSE * (breaks - 1))
            else:
                return

    def close(self) -> None:
        """Tell the server, if it still listens; it would find out by itself."""
        with suppress(Refused, httpx.HTTPError):
            self._remote.request("DELETE", "/v1/rpc", headers={ID: self.id}, silence=CLOSING)


def opening(agent: str) -> bytes:
    """The envelope that opens a connection with this agent. What an agent asks is then told as it asks."""
    ours = {META: {"questions": True}}
    return request(
        b"0",
        "initialize",
        {
            "protocolVersion": 1,
            "clientInfo": {"name": "sandbox-agent", "version": __version__},
            "clientCapabilities": {"elicitation": {"form": {}, "url": {}}, "_meta": ours},
            "_meta": {META: {"agent": agent}},
        },
    )


def opened(remote: Remote, envelope: bytes) -> tuple[Connection, bytes]:
    """Open a connection by an `initialize`; gives it, and the response."""
    response = remote.request("POST", "/v1/rpc", content=envelope, headers={"Content-Type": JSON})
    return Connection(remote, response.headers.get(ID, "")), response.content


@contextmanager
def connected(remote: Remote, agent: str) -> Generator[Connection]:
    """A connection for the time of the block, to ask about sessions of this agent.

    Which agent it is opened with does not matter then, so that one is taken that runs: to look at a session must not
    install its agent, nor fail when that does not start any more.
    """
    connection, _ = opened(remote, opening(_ready(remote, agent)))
    try:
        yield connection
    finally:
        connection.close()


def _ready(remote: Remote, wanted: str) -> str:
    agents = list_at(remote.json("GET", "/v1/health", Object), "agents")
    running = {text_at(each, "agent") for each in agents if object_at(each).get("running")}
    installed = {text_at(each, "agent") for each in agents if object_at(each).get("installed")}
    if wanted in running:
        return wanted
    others = sorted(each for each in running if each)
    return others[0] if others else MOCK if MOCK in installed else wanted


def refusal(error: Object) -> Refused:
    """What a JSON-RPC error says."""
    lines = [str(line) for name in ("head", "tail") for line in list_at(error, "data", "stderr", name)]
    stderr = text_at(error, "data", "stderr") or "\n".join(lines)
    return Refused(
        text_at(error, "message") or f"error {error.get('code')}",
        slug=text_at(error, "data", "type") or "",
        stderr=stderr,
    )
