"""Define every failure that the SDK has a name for.

SandboxAgentError           what you catch to catch them all: it has `slug`, `message` and `fields`
└── ClientError             what the SDK raises
    ├── RequestError        a method failed, at the server or at the agent: a JSON-RPC error with code, message and data
    ├── ServerProblem       the server refuses, and says why
    │   └── ForeignAnswer   something answers that is no sandbox-agent, a proxy for example
    ├── ConnectionLost      the server cannot be reached, or went away and the outcome is unknown
    ├── StartFailed         an embedded server did not start
    ├── LocalFileFailed     a file of this machine cannot be read or written
    └── InvalidCall         the call itself is wrong: nothing was sent
"""

from collections.abc import Mapping
from typing import cast

import msgspec

from sandboxagent.protocol.envelope import Object
from sandboxagent.protocol.errors import URN, SandboxAgentError
from sandboxagent.protocol.json_bounds import read_answer

_ABOUT_ITSELF = frozenset({"type", "title", "status", "detail"})
_EXCERPT = 200


class ClientError(SandboxAgentError):
    """What the SDK raises; all have a `slug`, a `message` and `fields`."""

    slug, title = "client-error", "Client Error"


class RequestError(ClientError):
    """A method failed, at the server or at the agent: a JSON-RPC error, with the members of `data` as `fields`."""

    title = "Request Failed"

    def __init__(self, code: int, message: str, data: object = None) -> None:
        facts = dict(cast("Object", data)) if isinstance(data, dict) else {}
        slug = facts.pop("type", None)
        super().__init__(message, **facts)
        self.slug = slug if isinstance(slug, str) else "request-failed"
        """The name of an error of the server, else `request-failed`."""
        self.code = code
        """JSON-RPC's code, such as -32602 for params that are wrong."""
        self.data: object = data
        """The facts as they came."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.message, self.data)


class ServerProblem(ClientError):
    """The server refuses, with an RFC 9457 document. docs/errors.md has every slug."""

    def __init__(
        self, slug: str, title: str, status: int, detail: str, fields: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(f"{title}: {detail}" if detail else title, **(fields or {}))
        self.slug = slug
        """Its name, such as `file-not-found`: stable, for programs."""
        self.title = title
        """The same for people."""
        self.status = status
        """The HTTP status."""
        self.detail = detail
        """What is wrong, and what to do."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.slug, self.title, self.status, self.detail, self.fields)


class ForeignAnswer(ServerProblem):
    """The answer is not from sandbox-agent but from a proxy or another program; `status` is its HTTP status."""


class ConnectionLost(ClientError):
    """The server cannot be reached, or went away before it had answered."""

    slug, title = "connection-lost", "Connection Lost"

    def __init__(self, sentence: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(sentence, outcomeUnknown=outcome_unknown)
        self.outcome_unknown = outcome_unknown
        """Whether the server may have done what it was asked: False when the request certainly did not reach it."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.args, {"outcome_unknown": self.outcome_unknown, "fields": self.fields}


class StartFailed(ClientError):
    """An embedded server did not start; `stderr` is the end of what it said."""

    slug, title = "start-failed", "Start Failed"

    def __init__(self, sentence: str, stderr: str = "") -> None:
        super().__init__(f"{sentence}\n{stderr.rstrip()}" if stderr.strip() else sentence, stderr=stderr)
        self.sentence = sentence
        self.stderr = stderr
        """The end of its stderr, for people."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.sentence, self.stderr)


class LocalFileFailed(ClientError, OSError):
    """A file of this machine cannot be read or written; an `OSError`, too."""

    slug, title = "local-file-failed", "Local File Failed"

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error), path=error.filename, errno=error.errno)
        self.errno, self.strerror, self.filename = error.errno, error.strerror, error.filename

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (OSError(self.errno, self.strerror, self.filename),)


class InvalidCall(ClientError, ValueError):
    """The call itself is wrong, so nothing was sent: an argument, or what was done before; a `ValueError`, too."""

    slug, title = "invalid-call", "Invalid Call"


def problem(document: bytes) -> ServerProblem | None:
    """The problem that a document describes; None if it is not one of sandbox-agent's."""
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
    return ServerProblem(kind.removeprefix(URN), title, status, detail if isinstance(detail, str) else "", fields)


def foreign(url: str, status: int, content_type: str, body: bytes) -> ForeignAnswer:
    """The problem that an answer is not sandbox-agent's at all, with the beginning of what it is."""
    kind = content_type or "no content type"
    text = " ".join(body[: 4 * _EXCERPT].decode(errors="replace").split())[:_EXCERPT]
    return ForeignAnswer(
        "foreign-answer",
        "Foreign Answer",
        status,
        f"{url} does not answer like sandbox-agent: status {status}, {kind}" + (f", {text!r}" if text else ""),
        {"url": url, "contentType": content_type, "excerpt": text},
    )
