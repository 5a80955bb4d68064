"""Define the paths that OpenCode's programs call, and find the directory that a request is about."""

from urllib.parse import parse_qsl, unquote

from sandboxagent.protocol.headers import OPENCODE_DIRECTORY, raw
from sandboxagent.server.http.asgi import Scope, header
from sandboxagent.server.http.auth import Access

DIRECTORY = raw(OPENCODE_DIRECTORY)
PREFIX = "/opencode"
HEALTH = "/global/health"
"""A path outside of the prefix, because OpenCode's web page drops the path of a server's address."""


def read_query(scope: Scope) -> dict[str, str]:
    """Return the parameters of the query. A repeated parameter has its last value. Raises ValueError."""
    return dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=100))


def find_directory(scope: Scope) -> str | None:
    """Return the directory that a request names; None if it names none. Raises ValueError if the query is invalid."""
    given = read_query(scope).get("directory")
    if not given:
        value = header(scope, DIRECTORY)
        given = None if value is None else unquote(value.decode("latin-1"), errors="surrogateescape")
    return given or None


ACCESS = Access(PREFIX, HEALTH, passwords=True, headers=(OPENCODE_DIRECTORY,), find_directory=find_directory)
