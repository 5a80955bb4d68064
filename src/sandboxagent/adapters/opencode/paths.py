"""Define the paths that OpenCode's programs call."""

from sandboxagent.server.http.auth import Access

PREFIX = "/opencode"
HEALTH = "/global/health"
"""A path outside of the prefix, because OpenCode's web page drops the path of a server's address."""
ACCESS = Access(PREFIX, HEALTH, passwords=True)


def is_opencode(path: str) -> bool:
    """Return whether OpenCode's programs call a path."""
    return ACCESS.has(path)
