"""Define every failure that the SDK has a name for.

SandboxAgentError           base of all errors, with `slug`, `message` and `fields`: catch it to catch all of them
└── ClientError             an error that the SDK raises
    ├── RequestError        a method failed, at the server or at the agent: a JSON-RPC error with code, message and data
    ├── ServerProblem       the server refuses the request, and says why
    │   ├── AlreadyAnswered a request of an agent is settled, and the error says by whom
    │   └── ForeignAnswer   the response is not from sandbox-agent, but from a proxy for example
    ├── ConnectionLost      the server cannot be reached, or the connection broke and the outcome is unknown
    │   └── TlsFailed       TLS failed: the server's certificate has expired, for example
    ├── StartFailed         a private server did not start
    ├── LocalFileFailed     a file of this machine cannot be read or written
    └── InvalidCall         the call itself is wrong: nothing was sent
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import msgspec

from sandboxagent.protocol import errors
from sandboxagent.protocol.envelope import Object
from sandboxagent.protocol.errors import URN, SandboxAgentError
from sandboxagent.protocol.json_bounds import read_answer

if TYPE_CHECKING:
    from sandboxagent.client.updates import Decision

_ABOUT_ITSELF = frozenset({"type", "title", "status", "detail"})
_EXCERPT = 200


class ClientError(SandboxAgentError):
    """Base of the errors that the SDK raises. All have a `slug`, a `message` and `fields`."""

    slug, title = "client-error", "Client Error"


class RequestError(ClientError):
    """A method failed, at the server or at the agent. The JSON-RPC error's `data` is also in `fields`."""

    title = "Request Failed"

    def __init__(self, code: int, message: str, data: object = None) -> None:
        facts = dict(cast("Object", data)) if isinstance(data, dict) else {}
        slug = facts.pop("type", None)
        """The slug of the server's error, or `request-failed` if the error has none."""
        super().__init__(message, **facts)
        self.slug = slug if isinstance(slug, str) else "request-failed"
        """The name of an error of the server, else `request-failed`."""
        self.code = code
        """JSON-RPC error code, such as -32602 for invalid params."""
        self.data: object = data
        """The `data` of the JSON-RPC error, unchanged."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.message, self.data)


class ServerProblem(ClientError):
    """The server refuses a request, with an RFC 9457 document. docs/errors.md lists every slug."""

    def __init__(
        self, slug: str, title: str, status: int, detail: str, fields: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(f"{title}: {detail}" if detail else title, **(fields or {}))
        self.slug = slug
        """Stable name of the error for programs, such as `file-not-found`."""
        self.title = title
        """Name of the error for people."""
        self.status = status
        """HTTP status of the response."""
        self.detail = detail
        """Explanation for people: what is wrong, and what to do."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.slug, self.title, self.status, self.detail, self.fields)


class AlreadyAnswered(ServerProblem):
    """A request of an agent is settled: another answer came first, or it was withdrawn."""

    def __init__(self, detail: str, fields: Object | None = None, decision: "Decision | None" = None) -> None:
        super().__init__(errors.AlreadyAnswered.slug, errors.AlreadyAnswered.title, 409, detail, fields)
        outcome = self.fields.get("outcome")
        self.outcome = outcome if isinstance(outcome, str) else ""
        """Outcome of the request: `answered`, `rejected` or `cancelled`; empty if the server does not say."""
        self.decision = decision
        """Who or what decided, and how, if the session's log has it."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.detail, self.fields, self.decision)


class ForeignAnswer(ServerProblem):
    """A response that is not from sandbox-agent, but from a proxy or another program. `status` is its HTTP status."""


class ConnectionLost(ClientError):
    """The server cannot be reached, or the connection broke before the server answered."""

    slug, title = "connection-lost", "Connection Lost"

    def __init__(self, sentence: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(sentence, outcomeUnknown=outcome_unknown)
        self.outcome_unknown = outcome_unknown
        """Whether the server may have executed the request. False if the request certainly did not reach the server."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.args, {"outcome_unknown": self.outcome_unknown, "fields": self.fields}


class TlsFailed(ConnectionLost):
    """TLS to the server failed, so nothing was sent. The message says why, such as a certificate that has expired."""

    slug, title = "tls-failed", "TLS Failed"


class StartFailed(ClientError):
    """A private server did not start."""

    slug, title = "start-failed", "Start Failed"

    def __init__(self, sentence: str, stderr: str = "") -> None:
        super().__init__(f"{sentence}\n{stderr.rstrip()}" if stderr.strip() else sentence, stderr=stderr)
        self.sentence = sentence
        """The message without the server's output."""
        self.stderr = stderr
        """The end of the server's output on stderr, for people."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.sentence, self.stderr)


class LocalFileFailed(ClientError, OSError):
    """A file of this machine cannot be read or written. The error is also an `OSError`."""

    slug, title = "local-file-failed", "Local File Failed"

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error), path=error.filename, errno=error.errno)
        self.errno, self.strerror, self.filename = error.errno, error.strerror, error.filename

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (OSError(self.errno, self.strerror, self.filename),)


class InvalidCall(ClientError, ValueError):
    """An argument or the order of calls is wrong, so nothing was sent. The error is also a `ValueError`."""

    slug, title = "invalid-call", "Invalid Call"


def problem(document: bytes) -> ServerProblem | None:
    """Parse a problem document. Return None if it is not one of sandbox-agent's."""
    try:
        decoded = read_answer(document, object)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not isinstance(decoded, dict):
        return None
    members = cast("Object", decoded)
    kind, status, title = members.get("type"), members.get("status"), members.get("title")
    if not (isinstance(kind, str) and kind.startswith(URN) and isinstance(status, int) and isinstance(title, str)):
        return None
    detail = members.get("detail")
    fields = {name: value for name, value in members.items() if name not in _ABOUT_ITSELF}
    slug, words = kind.removeprefix(URN), detail if isinstance(detail, str) else ""
    if slug == errors.AlreadyAnswered.slug:
        return AlreadyAnswered(words, fields)
    return ServerProblem(slug, title, status, words, fields)


def foreign(url: str, status: int, content_type: str, body: bytes) -> ForeignAnswer:
    """Return the error for a response that is not from sandbox-agent, with the beginning of its body."""
    kind = content_type or "no content type"
    text = " ".join(body[: 4 * _EXCERPT].decode(errors="replace").split())[:_EXCERPT]
    return ForeignAnswer(
        "foreign-answer",
        "Foreign Answer",
        status,
        f"{url} does not answer like sandbox-agent: status {status}, {kind}" + (f", {text!r}" if text else ""),
        {"url": url, "contentType": content_type, "excerpt": text},
    )
