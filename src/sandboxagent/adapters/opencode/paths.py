"""Say which paths OpenCode's programs call."""

from sandboxagent.server.http.auth import Access

PREFIX = "/opencode"
HEALTH = "/global/health"
"""Beside the prefix, because OpenCode's web page drops the path of a server."""
ACCESS = Access(PREFIX, HEALTH, passwords=True)


def is_opencode(path: str) -> bool:
    """Whether a path is one of them."""
    return ACCESS.has(path)
