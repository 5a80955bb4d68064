"""Errors as RFC 9457 problem documents."""

import msgspec

from sandbox_agent.errors import URN, MethodNotAllowed, SandboxAgentError, Unauthorized
from sandbox_agent.file_errors import RangeNotSatisfiable
from sandbox_agent.http.asgi import Send, respond

MEDIA_TYPE = "application/problem+json"


def document(error: SandboxAgentError) -> bytes:
    """The body of a problem."""
    problem = {
        "type": URN + error.slug,
        "title": error.title,
        "status": error.status,
        "detail": str(error),
    }
    # What people look for comes first; a fact never takes the place of it.
    return msgspec.json.encode(problem | {name: value for name, value in error.fields.items() if name not in problem})


def headers(error: SandboxAgentError, body: bytes) -> list[tuple[bytes, bytes]]:
    """The headers of a problem, those included that its status demands."""
    found = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if isinstance(error, Unauthorized):
        found.append((b"www-authenticate", b'Bearer realm="sandbox-agent"'))
    if isinstance(error, MethodNotAllowed):
        found.append((b"allow", str(error.fields["allow"]).encode()))
    if isinstance(error, RangeNotSatisfiable):
        found.append((b"content-range", f"bytes */{error.fields['size']}".encode()))
    return found


async def send_problem(send: Send, error: SandboxAgentError) -> None:
    """Answer with a problem."""
    body = document(error)
    await respond(send, error.status, headers(error, body), body)
