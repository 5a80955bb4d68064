"""Hold a POST that carries an envelope, from its checked head until it is answered."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from sandboxagent.protocol.errors import BodyTooLarge, SandboxAgentError
from sandboxagent.server.http.asgi import STATUS_LINE, Headers, Response, problem_document, problem_headers


class PostHead(Struct, frozen=True):
    """The result of checking the head of a POST. It holds for every request that repeats the head."""

    take: Callable[["Post"], None]
    """Function that takes a request when its body is whole. It does not raise: an error is the answer."""
    most: int
    """Maximum bytes of a body."""
    more: Headers = ()
    """Further headers of every answer."""
    refusal: Response | None = None
    """The answer to a refused request. The error itself is not kept, because it refers to objects of the stack."""


class HttpSocket(Protocol):
    """The socket on which a POST came."""

    def is_gone(self) -> bool:
        """Whether the client has left."""
        ...

    def reply(self, head: bytes, body: bytes, *, keep_alive: bool) -> bool:
        """Send an answer. Return whether it goes out."""
        ...


class Post(Struct, eq=False, weakref=True):
    """A POST with an envelope, until it is answered."""

    _line: HttpSocket | None
    head: PostHead
    key: bytes | None = None
    """The idempotency key."""
    keep_alive: bool = True
    _begun: bytearray | bytes = b""
    """The body so far, in one buffer because parts may be tiny."""
    body: bytes = b""
    """The whole body, or its only part so far."""
    more_body: bool = True
    disconnected: bool = False
    """Whether the socket is closed, or has become a WebSocket."""
    response_complete: bool = False
    request_id: bytes | None = None
    """Id of the request in the body, whose response this POST brings; None if there is no such request."""
    is_counted: bool = False
    """Whether `Connection.busy` counts this POST."""

    @property
    def response_started(self) -> bool:
        return self.response_complete

    def begin(self, length: int | None) -> None:
        """Refuse the request before its body has come, if its head or its length is reason enough."""
        if self.head.refusal is not None:
            self.reply(self.head.refusal)
        elif length is not None and length > self.head.most:
            self.refuse(BodyTooLarge(self.head.most))

    def take_body(self, part: bytes) -> None:
        """Add a received part of the body."""
        if self.response_complete:
            return
        if self.body:
            self._begun, self.body = bytearray(self.body), b""
        if self._begun:
            self._begun += part
        else:
            # Most bodies come in one part.
            self.body = part
        if len(self.body or self._begun) > self.head.most:
            self.refuse(BodyTooLarge(self.head.most))

    def end_body(self) -> None:
        """Take the request, because the body is whole."""
        self.more_body = False
        if not self.response_complete:
            if self._begun:
                self.body, self._begun = bytes(self._begun), b""
            self.head.take(self)

    def disconnect(self) -> None:
        """Note that the client is gone: nothing more comes from it, and nothing more is sent."""
        self.disconnected = True

    def is_gone(self) -> bool:
        return self._line is None or self._line.is_gone()

    def detach(self) -> None:
        """Forget the socket, because it is closed."""
        self._line = None

    def reply(self, reply: Response) -> bool:
        """Answer the request. Return False when the client has left."""
        return self.respond(b"".join([STATUS_LINE[reply.status], *_lines(reply.headers)]), reply.body)

    def refuse(self, error: SandboxAgentError) -> bool:
        """Answer with a problem. Return False when the client has left."""
        return self.reply(make_problem(error))

    def respond(self, head: bytes, body: bytes) -> bool:
        """Answer with an encoded head, without date and blank line. Return False when the client has left."""
        self.response_complete = True
        # Free the body, because the socket keeps this object until the next request.
        self.body = self._begun = b""
        if self._line is None or self.disconnected:
            return False
        if self.head.more:
            head = b"".join((head, *_lines(self.head.more)))
        return self._line.reply(head, body, keep_alive=self.keep_alive)


class FlowEnd(HttpSocket, Protocol):
    """The tunnel that a POST of a gateway came through. The answer may go out in two parts."""

    def begin(self, head: bytes, body: bytes) -> None: ...

    def end(self, rest: bytes) -> None: ...


class GatewayPost(Post, eq=False, weakref=True, kw_only=True):
    """A POST of a gateway. Its answer may go out before the fleet's stream has the events that it refers to."""

    flow: FlowEnd
    _is_answered_early: bool = False

    def respond_early(self, head: bytes, body: bytes) -> None:
        """Answer early, with an encoded head without date and blank line.

        `respond` confirms the answer later. `refuse` sends the problem that makes it invalid.
        """
        self.flow.begin(head, body)
        self._is_answered_early = True

    def respond(self, head: bytes, body: bytes) -> bool:
        return self._end(b"") if self._is_answered_early else super().respond(head, body)

    def refuse(self, error: SandboxAgentError) -> bool:
        return self._end(problem_document(error)) if self._is_answered_early else super().refuse(error)

    def _end(self, rest: bytes) -> bool:
        self.response_complete = True
        self.body = b""
        self.flow.end(rest)
        return not self.is_gone()


def read_head(head: bytes) -> tuple[int, Headers]:
    """Return the status and the headers of an encoded head, as `HttpSocket.reply` gets it."""
    status, *lines = head.split(b"\r\n")[:-1]
    parts = (line.partition(b": ") for line in lines)
    return int(status.split(b" ", 2)[1]), [(name, value) for name, _, value in parts]


def make_problem(error: SandboxAgentError) -> Response:
    """Return the answer for an error."""
    body = problem_document(error)
    return Response(error.status, problem_headers(error, body), body)


def _lines(headers: Headers) -> list[bytes]:
    return [b"%b: %b\r\n" % pair for pair in headers]
