"""How far the fleet's stream has come with each node, by the node's own positions. Pure, but for futures."""

import asyncio
from collections.abc import Mapping

from sandbox_agent.log.wire import ownership


class Progress:
    """Of all nodes, as one gateway knows it."""

    def __init__(self) -> None:
        self._kept: dict[str, int] = {}
        """Node → the last of its own positions that is known to be in the stream."""
        self._come: dict[str, int] = {}
        """Node → the last one up to which everything has come by that is followed here."""
        self._awaited: dict[str, dict[asyncio.Future[None], int]] = {}
        """Node → those who wait for it, and for which of its positions."""
        self._runs: dict[str, str] = {}
        """Node → the nonce of its run."""

    def kept(self, node: str, position: int) -> "asyncio.Future[None]":
        """Done when the stream has what a node had said up to a position of its own, as far as it is followed here.

        To be cancelled when it is not wanted any more: what a node says of its positions is not trusted.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._kept.get(node, 0) >= position:
            future.set_result(None)
        else:
            self._awaited.setdefault(node, {})[future] = position
            future.add_done_callback(lambda _: self._forget_awaited(node, future))
        return future

    def has_come(self, node: str, position: int) -> bool:
        """Whether all that has also come by here."""
        return self._come.get(node, 0) >= position

    def begin_run(self, node: str, nonce: str) -> None:
        """A node is there. In another run its positions may begin anew: it may have lost its disk."""
        if self._runs.get(node) != nonce:
            self._runs[node] = nonce
            self._kept.pop(node, None)
            self._come.pop(node, None)

    def note(self, headers: Mapping[str, str], *, came: bool) -> None:
        """The stream has a record of a node; it `came` if the reader has brought it, behind all others before it."""
        owner = ownership(headers)
        if came:
            self._come[owner.node] = max(owner.last, self._come.get(owner.node, 0))
        if owner.last <= self._kept.get(owner.node, 0):
            return
        self._kept[owner.node] = owner.last
        for future, position in self._awaited.get(owner.node, {}).items():
            if position <= owner.last and not future.done():
                future.set_result(None)

    def _forget_awaited(self, node: str, future: "asyncio.Future[None]") -> None:
        awaited = self._awaited[node]
        del awaited[future]
        if not awaited:
            del self._awaited[node]
