"""The common POST /v1/rpc without a task, a queue or a framework: a request that is put to a running agent as it is.

Half of what a POST costs is the way from the socket to the handler and back. Whatever is not plainly the common case
is left to the ordinary way; nothing is decided here that is not decided there in the same words.
"""

from sandbox_agent.envelope import parse
from sandbox_agent.errors import SandboxAgentError
from sandbox_agent.http.asgi import Scope, by_name, header
from sandbox_agent.http.guard import Guard
from sandbox_agent.http.negotiate import JSON, check_accept, check_json
from sandbox_agent.hub.calls import Answer, Continuation
from sandbox_agent.hub.connection import Connection
from sandbox_agent.hub.from_client import FromClient
from sandbox_agent.hub.hub import Hub

LONGEST_BODY = 64 << 10
_UNCOMMON = frozenset({b"origin", b"prefer", b"idempotency-key", b"expect", b"transfer-encoding"})


class Shortcut:
    """Decides whether a request takes the short way, and takes it."""

    def __init__(self, guard: Guard, hub: Hub, from_client: FromClient, max_body: int) -> None:
        self._max_body = min(max_body, LONGEST_BODY)
        self._guard = guard
        self._hub = hub
        self._from_client = from_client

    def admit(self, scope: Scope) -> Connection | None:
        """The connection of a request that may take the short way, as far as its headers tell."""
        headers = scope["headers_by_name"] = by_name(scope["headers"])
        length = headers.get(b"content-length", b"")
        if not _UNCOMMON.isdisjoint(headers) or not length.isdigit() or len(length) > 5 or int(length) > self._max_body:
            return None
        if headers.get(b"connection", b"keep-alive").lower() != b"keep-alive":
            return None
        try:
            self._guard.check(scope)
            check_json(header(scope, b"content-type"))
            check_accept(header(scope, b"accept"), JSON)
        except SandboxAgentError:
            return None
        return self._hub.find_connection(headers.get(b"x-acp-connection-id", b"").decode("latin-1"))

    def begin(self, connection: Connection, body: bytes, then: Continuation) -> bool:
        """Put it to the agent; False when it has to go the ordinary way after all."""
        try:
            begun = self._from_client.begin(connection, parse(body), then)
        except Exception:
            # Whatever it is, the ordinary way comes to it again, and says so; an exception here would be the parser's.
            return False
        if begun:
            connection.used_at = self._hub.monotonic()
            connection.busy += 1
        return begun

    def end(self, connection: Connection) -> None:
        """It was answered, or nobody waits for it."""
        connection.used_at = self._hub.monotonic()
        connection.busy -= 1

    def keep(self, connection: Connection, answer: Answer) -> None:
        """The client has gone: the answer goes to its stream."""
        self._hub.tell_connection(connection, answer.line)
