"""The network between a page and a server, which tests cut while the page is at work."""

from collections.abc import Generator
from contextlib import contextmanager

from anyio.from_thread import BlockingPortal, start_blocking_portal

from tests.support.cutting import Proxy, proxy


class Network:
    """A cutting proxy in a thread of its own; `url` is where the page goes."""

    def __init__(self, portal: BlockingPortal, passing: Proxy) -> None:
        self._portal, self._passing = portal, passing
        self.url = passing.url

    def cut(self) -> None:
        """Break every connection there is."""
        self._portal.call(self._passing.cut)

    def down(self) -> None:
        """Break every connection, and those that are tried, until it is up again."""
        self._passing.refusing = True
        self.cut()

    def up(self) -> None:
        self._passing.refusing = False

    def lead_to(self, url: str) -> None:
        """Lead new connections there."""
        self._passing.target = url

    def tried_again(self, times: int = 1) -> None:
        """Wait until the page has tried to connect, this many times from now."""
        self._portal.call(self._passing.reconnected, self._passing.connections + times - 1)


@contextmanager
def network(target: str) -> Generator[Network]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(proxy(target)) as passing:
        yield Network(portal, passing)
