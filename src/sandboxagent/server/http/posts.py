"""Hold a POST that carries an envelope, from its checked head until it is answered."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from sandboxagent.protocol.errors import BodyTooLarge, SandboxAgentError
from sandboxagent.server.http.asgi import STATUS_LINE, Headers, Response, problem_document, problem_headers


class PostHead(Struct, frozen=True):
    """What a head that was checked says; it holds for every request that repeats the head."""

    take: Callable[["Post"], None]
    """Takes a request when its body is whole. Does not raise: what goes wrong is the answer."""
    most: int
    """Bytes that a body may have."""
    more: Headers = ()
    """Headers of every answer."""
    refusal: Response | None = None
    """The answer to a request that may not be made. Not the error: that refers to what was on the stack."""


class HttpSocket(Protocol):
    """The socket that a POST came on."""

    def is_gone(self) -> bool:
        """Whether its client has left."""
        ...

    def reply(self, head: bytes, body: bytes, *, keep_alive: bool) -> bool:
        """Whether the answer goes out."""
        ...


class Post(Struct, eq=False, weakref=True):
    """One of them, until it is answered."""

    _line: HttpSocket | None
    head: PostHead
    key: bytes | None = None
    """The idempotency key."""
    keep_alive: bool = True
    _begun: bytearray | bytes = b""
    """What came of the body so far; pieces may be tiny, and are not kept apart."""
    body: bytes = b""
    """When it is whole."""
    more_body: bool = True
    disconnected: bool = False
    """Its socket is gone, or has become something else."""
    response_complete: bool = False

    @property
    def response_started(self) -> bool:
        return self.response_complete

    def begin(self, length: int | None) -> None:
        """Refuse at once what needs no body to be refused."""
        if self.head.refusal is not None:
            self.reply(self.head.refusal)
        elif length is not None and length > self.head.most:
            self.refuse(BodyTooLarge(self.head.most))

    def take_body(self, part: bytes) -> None:
        """A part of the body has come."""
        if self.response_complete:
            return
        if self.body:
            self._begun, self.body = bytearray(self.body), b""
        if self._begun:
            self._begun += part
        else:
            # Most bodies come whole.
            self.body = part
        if len(self.body or self._begun) > self.head.most:
            self.refuse(BodyTooLarge(self.head.most))

    def end_body(self) -> None:
        """The body is whole: the request is taken."""
        self.more_body = False
        if not self.response_complete:
            if self._begun:
                self.body, self._begun = bytes(self._begun), b""
            self.head.take(self)

    def disconnect(self) -> None:
        """Nothing more comes from the client, and nothing more is sent."""
        self.disconnected = True

    def is_gone(self) -> bool:
        return self._line is None or self._line.is_gone()

    def detach(self) -> None:
        """Its socket is gone."""
        self._line = None

    def reply(self, reply: Response) -> None:
        """Answer it. A client that has left gets nothing."""
        self.respond(b"".join([STATUS_LINE[reply.status], *_lines(reply.headers)]), reply.body)

    def refuse(self, error: SandboxAgentError) -> None:
        self.reply(make_problem(error))

    def respond(self, head: bytes, body: bytes) -> bool:
        """The same, for a head that is written already, without its end. False when the client has left."""
        self.response_complete = True
        # The socket keeps this object until the next request.
        self.body = self._begun = b""
        if self._line is None or self.disconnected:
            return False
        if self.head.more:
            head = b"".join((head, *_lines(self.head.more)))
        return self._line.reply(head, body, keep_alive=self.keep_alive)


class FlowEnd(HttpSocket, Protocol):
    """The flow that a POST of a gateway came by: its answer may go out in two parts."""

    def begin(self, head: bytes, body: bytes) -> None: ...

    def end(self, rest: bytes) -> None: ...


class GatewayPost(Post, eq=False, weakref=True, kw_only=True):
    """A POST of a gateway, which takes an answer early: before the fleet's stream has what the answer speaks of."""

    flow: FlowEnd

    def respond_early(self, head: bytes, body: bytes) -> None:
        """Answer it, for a head without its end; `end` says what becomes of the answer."""
        self.response_complete = True
        self.body = b""
        self.flow.begin(head, body)

    def end(self, rest: bytes) -> None:
        """The stream has what the answer speaks of; or `rest` is the problem that keeps it from getting there."""
        self.flow.end(rest)


def read_head(head: bytes) -> tuple[int, Headers]:
    """The status and the headers of an answer, from the head that `HttpSocket.reply` is given."""
    status, *lines = head.split(b"\r\n")[:-1]
    parts = (line.partition(b": ") for line in lines)
    return int(status.split(b" ", 2)[1]), [(name, value) for name, _, value in parts]


def make_problem(error: SandboxAgentError) -> Response:
    """The answer that is an error."""
    body = problem_document(error)
    return Response(error.status, problem_headers(error, body), body)


def _lines(headers: Headers) -> list[bytes]:
    return [b"%b: %b\r\n" % pair for pair in headers]
