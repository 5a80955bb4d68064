"""Convert errors to the shapes that OpenCode's programs know."""

from typing import NoReturn

from sandboxagent.protocol.envelope import Object, at, text_at
from sandboxagent.protocol.errors import SandboxAgentError

AUTH_REQUIRED = -32000
"""ACP's code for an agent that has no credentials."""
_NAMES = {400: "BadRequest", 404: "NotFoundError", 409: "SessionBusyError", 413: "BadRequest"}


class BridgeError(SandboxAgentError):
    """An error with the status and body of OpenCode's API, whose programs know no slugs."""

    slug, title = "opencode-refused", "Refused"

    def __init__(self, status: int, message: str, body: Object | None = None) -> None:
        super().__init__(message)
        self.status = status
        name = _NAMES.get(status, "UnknownError")
        self.body: Object = {"name": name, "data": {"message": message}} if body is None else body


def refuse_session(id: str) -> NoReturn:
    """Raise the error for an unknown session."""
    raise BridgeError(404, f"Session not found: {id}")


def refuse_message(id: str) -> NoReturn:
    """Raise the error for an unknown message."""
    raise BridgeError(404, f"Message not found: {id}")


def refuse_request(kind: str, id: str) -> NoReturn:
    """Raise the error for a permission or a question that is not open."""
    message = f"{kind} request not found: {id}"
    raise BridgeError(404, message, {"_tag": f"{kind}NotFoundError", "requestID": id, "message": message})


def refuse_other_agent() -> NoReturn:
    """Raise the error for a model of another agent after the first prompt."""
    message = (
        "OpenCode compatibility currently does not support changing the model after creating a session. "
        "Export with /export and load in to a new session."
    )
    body: Object = {"name": "BadRequest", "data": {"message": message}, "errors": [{"message": message}]}
    raise BridgeError(400, message, body)


def refuse_unsupported(what: str) -> NoReturn:
    """Raise the error for a feature of OpenCode that ACP does not have."""
    raise BridgeError(400, f"{what} is not supported: ACP has no method for it")


def translate(error: SandboxAgentError) -> BridgeError:
    """Convert an error of the server, which keeps its status."""
    if isinstance(error, BridgeError):
        return error
    return BridgeError(error.status if error.status >= 400 else 400, str(error))


def describe_failure(ended: Object, provider_id: str) -> Object:
    """Return the error of a message whose turn failed or was cancelled. `ended` is the params of the turn's end."""
    if ended.get("error") is None:
        return {"name": "MessageAbortedError", "data": {"message": "The turn was cancelled."}}
    message = text_at(ended, "error", "message") or "the agent failed"
    if at(ended, "error", "code") == AUTH_REQUIRED:
        return {"name": "ProviderAuthError", "data": {"providerID": provider_id, "message": message}}
    return {"name": "UnknownError", "data": {"message": message}}
