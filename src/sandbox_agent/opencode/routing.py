"""Tables of routes: which handler answers which method and path."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

Handler = Callable[[Request], Awaitable[Response]]
Table = list[tuple[str, str, Handler]]


@dataclass(slots=True)
class Routes:
    """A table that is being written."""

    table: Table = field(default_factory=list[tuple[str, str, Handler]])

    def add(self, method: str, path: str, handler: Handler) -> None:
        self.table.append((method, path, handler))
