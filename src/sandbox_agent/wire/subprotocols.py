"""The subprotocols of our WebSockets."""

WITH_IDS = "sandboxagent.v1"
"""A frame from the server is the event's id, a line break and the envelope."""
PLAIN = "acp"
"""A frame is an envelope, as without any subprotocol. For browsers, which must be given one of those they offer."""
BEARER = "sandboxagent.bearer."
"""Before the token in base64url: a browser cannot set headers."""
