"""The names of HTTP headers that are ours, or mean something of their own here."""

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


def raw(name: str) -> bytes:
    """A header's name as ASGI has it."""
    return name.lower().encode()
