"""Name the HTTP headers and the WebSocket subprotocols that the server defines or reads."""

CONNECTION_ID = "X-ACP-Connection-Id"
"""The id of the connection that a request belongs to. The answer to the first `initialize` carries it."""
ACP_CONNECTION_ID = "Acp-Connection-Id"
"""On `/acp`: the id of the connection, under the name that ACP's HTTP transport gives the header."""
ACP_SESSION_ID = "Acp-Session-Id"
"""On `/acp`: the session that a message or a stream belongs to."""
LAST_EVENT = "X-ACP-Last-Event-Id"
"""In a response: the position of the last event that this connection was meant to get before the response."""
RESUME_AFTER = "Last-Event-ID"
"""In a request for a stream: the position of the event after which the stream continues."""
IDEMPOTENCY_KEY = "Idempotency-Key"
"""A key that makes a request repeatable: the same key with the same body gives the first outcome again."""
OPENCODE_DIRECTORY = "X-Opencode-Directory"
"""On `/opencode`: the directory that a request is about, percent-encoded."""
PREFER = "Prefer"
PREFERENCE_APPLIED = "Preference-Applied"
RESPOND_ASYNC = "respond-async"
"""A value of `Prefer`: answer 202 at once, and send the response on the stream."""

WITH_IDS = "sandboxagent.v1"
"""Subprotocol in which a frame from the server is the event's id, a line break and the envelope."""
PLAIN = "acp"
"""Subprotocol in which a frame is an envelope, as without any subprotocol. Browsers need it: the server must choose one
of the subprotocols that a browser offers."""
BEARER = "sandboxagent.bearer."
"""Prefix of the subprotocol that carries the token in base64url, because a browser cannot set headers."""


def raw(name: str) -> bytes:
    """Return a header's name as ASGI spells it: in lower case, as bytes."""
    return name.lower().encode()
