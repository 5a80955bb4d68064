"""Commands of an earlier program and of the other product of this name, and what took the place of each."""

from collections.abc import Sequence

_SESSION = "sandbox-agent run AGENT"
_TALK = "sandbox-agent attach SESSION"
_LOG = "sandbox-agent sessions events SESSION"
_RAW = "sandbox-agent api v1 rpc"

REMOVED: dict[tuple[str, ...], str] = {
    ("install-agent",): "sandbox-agent agents install AGENT",
    ("credentials", "extract"): "sandbox-agent credentials check, which prints no values",
    ("credentials", "extract-env"): "sandbox-agent credentials check, which prints no values",
    ("api", "agents"): "sandbox-agent agents list, or sandbox-agent api v1 agents for another server",
    ("api", "agents", "install"): "sandbox-agent agents install AGENT, or sandbox-agent api v1 agents install AGENT",
    ("api", "agents", "report"): "sandbox-agent agents show AGENT",
    ("api", "agents", "modes"): "sandbox-agent agents show AGENT --models",
    ("api", "agents", "models"): "sandbox-agent agents show AGENT --models",
    ("api", "sessions"): "sandbox-agent sessions",
    ("api", "sessions", "list"): "sandbox-agent sessions list",
    ("api", "sessions", "create"): _SESSION,
    ("api", "sessions", "send-message"): _TALK,
    ("api", "sessions", "send-message-stream"): _TALK,
    ("api", "sessions", "terminate"): "sandbox-agent sessions terminate SESSION",
    ("api", "sessions", "events"): _LOG,
    ("api", "sessions", "get-messages"): _LOG,
    ("api", "sessions", "events-sse"): _LOG,
    ("api", "sessions", "reply-question"): _TALK,
    ("api", "sessions", "reject-question"): _TALK,
    ("api", "sessions", "reply-permission"): _TALK,
    ("api", "fs"): "sandbox-agent fs",
    ("api", "acp"): f"sandbox-agent run AGENT, or {_RAW} for envelopes",
}
"""By their words."""


def find_successor(words: Sequence[str]) -> str | None:
    """What to call instead of a command line; None when there was no such command."""
    for length in range(len(words), 0, -1):
        if (found := REMOVED.get(tuple(words[:length]))) is not None:
            return found
    return None
