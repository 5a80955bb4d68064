"""What a request says of files: its query, byte for byte, and the path that it means."""

from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.requests import Request

from sandbox_agent.errors import BadRequest, SandboxAgentError, SessionNotFound
from sandbox_agent.file_errors import (
    BadPath,
    FileConflict,
    FileForbidden,
    FileNotFound,
    FileProblem,
    OutsideRoots,
    RootReplaced,
)
from sandbox_agent.host.paths.roots import Roots, encode_name
from sandbox_agent.hub.hub import Hub

PATH = "Absolute, or relative to the session's directory, or else to the server's root directory."
SESSION = "The session, by id or alias, whose directory a relative path is relative to."
PROBLEMS: tuple[type[SandboxAgentError], ...] = (
    *(BadPath, OutsideRoots, FileForbidden, FileNotFound, SessionNotFound, FileConflict, RootReplaced, FileProblem),
)
"""What any path can meet."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Knows the roots and the sessions."""

    roots: Roots
    hub: Hub

    def read_path(self, request: Request, name: str = "path") -> str:
        """The absolute path in a query. Raises BadRequest, BadPath or SessionNotFound."""
        query = read_query(request)
        if name not in query:
            raise BadRequest(f"the query needs {name}", parameter=name)
        return self.absolute(query[name], query.get("sessionId"))

    def absolute(self, path: str, session_id: str | None) -> str:
        """The absolute path that a client means. Raises BadPath or SessionNotFound."""
        if not path:
            raise BadPath(path, "a path has at least one character")
        if session_id is None:
            return self.roots.absolute(path)
        session = self.hub.find_session(session_id)
        if session is None:
            raise SessionNotFound(encode_name(session_id))
        return self.roots.absolute(path, session.facts.cwd)


def read_query(request: Request) -> dict[str, str]:
    """The query; bytes that are not UTF-8 are kept. Raises BadRequest when a name is there twice."""
    text = request.scope["query_string"].decode("ascii", "surrogateescape")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape", max_num_fields=100)
    except ValueError:
        raise BadRequest("the query has too many parameters") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadRequest("the query has a parameter twice")
    return found


def read_switch(query: dict[str, str], name: str, *, default: bool = False) -> bool:
    """A parameter that is `true` or `false`. Raises BadRequest."""
    if name not in query:
        return default
    value = query[name]
    if value not in ("true", "false"):
        raise BadRequest(f"{name} is true or false", parameter=name)
    return value == "true"
