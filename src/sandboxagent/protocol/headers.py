"""Name the HTTP headers that are ours or mean something here, and our WebSocket subprotocols."""

CONNECTION_ID = "X-ACP-Connection-Id"
"""Which connection a request belongs to; the answer to the first `initialize` names it."""
ACP_CONNECTION_ID = "Acp-Connection-Id"
"""The same on `/acp`, as the transport of ACP calls it."""
ACP_SESSION_ID = "Acp-Session-Id"
"""On `/acp`: which session a message or a stream belongs to."""
LAST_EVENT = "X-ACP-Last-Event-Id"
"""Of an answer: the last event meant for this connection before it."""
RESUME_AFTER = "Last-Event-ID"
"""Of a stream: go on after this event."""
IDEMPOTENCY_KEY = "Idempotency-Key"
"""The same key and body again give the first outcome again."""
OPENCODE_DIRECTORY = "X-Opencode-Directory"
"""On `/opencode`: the directory that a request is about, percent-encoded."""
PREFER = "Prefer"
PREFERENCE_APPLIED = "Preference-Applied"
RESPOND_ASYNC = "respond-async"
"""What `Prefer` may ask for: 202 at once, the response comes on the stream."""

WITH_IDS = "sandboxagent.v1"
"""A frame from the server is the event's id, a line break and the envelope."""
PLAIN = "acp"
"""A frame is an envelope, as without any subprotocol. For browsers, which must be given one of those they offer."""
BEARER = "sandboxagent.bearer."
"""Before the token in base64url: a browser cannot set headers."""


def raw(name: str) -> bytes:
    """A header's name as ASGI has it."""
    return name.lower().encode()
