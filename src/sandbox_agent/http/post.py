"""A POST on the short way: its head is known, and its body is whole. Stands where uvicorn has a cycle of ASGI."""

from typing import Protocol

from sandbox_agent.errors import SandboxAgentError
from sandbox_agent.http.asgi import Reply, problem_document, problem_headers
from sandbox_agent.http.light_uvicorn import STATUS_LINE


class PostSocket(Protocol):
    """The socket that a POST came on."""

    def is_gone(self) -> bool:
        """Whether its client has left."""
        ...

    def reply(self, head: bytes, body: bytes, *, keep_alive: bool) -> None: ...


class _NoBodyToCome:
    """Nothing waits for more of a body that is whole."""

    def set(self) -> None: ...


class Post:
    """One of them, until it is answered."""

    __slots__ = ("_line", "body", "disconnected", "keep_alive", "key", "response_complete")

    response_started = False
    more_body = False
    message_event = _NoBodyToCome()

    def __init__(self, line: PostSocket, body: bytes, key: bytes | None) -> None:
        self._line: PostSocket | None = line
        self.body = body
        self.key = key
        self.keep_alive = True
        self.disconnected = False
        """Its socket is gone, or has become something else."""
        self.response_complete = False

    def is_gone(self) -> bool:
        return self._line is None or self._line.is_gone()

    def lose_line(self) -> None:
        """Its socket is gone."""
        self._line = None

    def reply(self, reply: Reply) -> None:
        """Answer it. A client that has left gets nothing."""
        head = [b"%b: %b\r\n" % pair for pair in reply.headers]
        self.respond(b"".join([STATUS_LINE[reply.status], *head]), reply.body)

    def refuse(self, error: SandboxAgentError) -> None:
        body = problem_document(error)
        self.reply(Reply(error.status, problem_headers(error, body), body))

    def respond(self, head: bytes, body: bytes) -> None:
        """The same, for a head that is written already, without its end."""
        self.response_complete = True
        # The socket keeps this object until the next request.
        self.body = b""
        if self._line is not None and not self.disconnected:
            self._line.reply(head, body, keep_alive=self.keep_alive)
