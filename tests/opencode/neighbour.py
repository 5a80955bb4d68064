"""Another client of the same server, which knows nothing of OpenCode: the Python SDK, in a thread of its own."""

from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from sandboxagent import PermissionRequest, SandboxAgent, Session, text_of
from tests.support.running import BOUND, Server, eventually

T = TypeVar("T")


class Neighbour:
    """It has one session, of the mock agent."""

    def __init__(self, portal: BlockingPortal, client: SandboxAgent, session: Session) -> None:
        self._portal, self._client, self._session = portal, client, session

    def prompts(self, text: str) -> "Future[str]":
        """Send a prompt, and go on; it gives what the agent says."""

        async def said() -> str:
            return "".join([text_of(item) or "" async for item in self._session.prompt(text)])

        return self._portal.start_task_soon(said)

    def hears(self, text: str) -> str:
        """What the agent says to a prompt."""
        return self.prompts(text).result(BOUND)

    def is_asked(self) -> PermissionRequest:
        """Wait for a request for permission."""
        eventually(self._asked, "a request for permission")
        (request,) = self._asked()
        assert isinstance(request, PermissionRequest)
        return request

    def is_asked_nothing(self) -> None:
        """Wait until nothing is open here."""
        eventually(lambda: not self._asked(), "the end of a request")

    def allows(self, request: PermissionRequest) -> None:
        self._call(lambda: self._client.reply_permission(request.id, "allow_once"))

    def _asked(self) -> list[object]:
        return list(self._portal.call(self._client.requests))

    def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        return self._portal.call(work)


@contextmanager
def neighbour(server: Server, **options: str) -> Generator[Neighbour]:
    """One that is connected, with a new session in the server's folder."""
    connecting = SandboxAgent.connect(server.url, server.token, reconnect_timeout=BOUND)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(connecting) as client:
        session = portal.call(lambda: client.sessions.create("mock", cwd=server.work, **options))
        yield Neighbour(portal, client, session)
