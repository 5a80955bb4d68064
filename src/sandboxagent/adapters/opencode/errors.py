"""Answer errors in the shapes that OpenCode's programs know."""

from typing import NoReturn

from sandboxagent.protocol.envelope import Object, at, text_at
from sandboxagent.protocol.errors import SandboxAgentError

AUTH_REQUIRED = -32000
"""ACP's code for an agent that has no credentials."""
_NAMES = {400: "BadRequest", 404: "NotFoundError", 409: "SessionBusyError", 413: "BadRequest"}


class BridgeError(Exception):
    """A request that is answered with an error of OpenCode's."""

    def __init__(self, status: int, message: str, body: Object | None = None) -> None:
        super().__init__(message)
        self.status = status
        name = _NAMES.get(status, "UnknownError")
        self.body: Object = {"name": name, "data": {"message": message}} if body is None else body


def refuse_session(id: str) -> NoReturn:
    """There is no such session."""
    raise BridgeError(404, f"Session not found: {id}")


def refuse_message(id: str) -> NoReturn:
    """There is no such message."""
    raise BridgeError(404, f"Message not found: {id}")


def refuse_request(kind: str, id: str) -> NoReturn:
    """A permission or a question that does not wait, or no longer."""
    message = f"{kind} request not found: {id}"
    raise BridgeError(404, message, {"_tag": f"{kind}NotFoundError", "requestID": id, "message": message})


def refuse_other_agent() -> NoReturn:
    """A model of another agent, after the first prompt."""
    message = (
        "OpenCode compatibility currently does not support changing the model after creating a session. "
        "Export with /export and load in to a new session."
    )
    body: Object = {"name": "BadRequest", "data": {"message": message}, "errors": [{"message": message}]}
    raise BridgeError(400, message, body)


def refuse_unsupported(what: str) -> NoReturn:
    """OpenCode has it, ACP has not."""
    raise BridgeError(400, f"{what} is not supported: agents have no way to do it over ACP")


def translate(error: SandboxAgentError) -> BridgeError:
    """A failure of ours, under its own status."""
    return BridgeError(error.status if error.status >= 400 else 400, str(error))


def describe_failure(ended: Object, provider_id: str) -> Object:
    """Why a turn has failed or was cancelled, by the params of its end, as the error of a message."""
    if ended.get("error") is None:
        return {"name": "MessageAbortedError", "data": {"message": "The turn was cancelled."}}
    message = text_at(ended, "error", "message") or "the agent failed"
    if at(ended, "error", "code") == AUTH_REQUIRED:
        return {"name": "ProviderAuthError", "data": {"providerID": provider_id, "message": message}}
    return {"name": "UnknownError", "data": {"message": message}}
