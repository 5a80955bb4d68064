"""What an operator has said of nodes: one that drains gets no new sessions, one that was forgotten gets nothing."""

from collections.abc import Callable

from sandbox_agent.bus.ports import StreamFollowing, Table, TableEntry

TABLE = "fleet"
"""The table that has these orders, each under one key."""
_DRAIN, _FORGET = "drain.", "forget."


def drain_key(node: str) -> str:
    """The key that is there while a node drains."""
    return f"{_DRAIN}{node}"


def forget_key(node: str) -> str:
    """The key that is there once a node was forgotten."""
    return f"{_FORGET}{node}"


class Orders:
    """Those that hold, kept by watching their table."""

    def __init__(self) -> None:
        self.draining: set[str] = set()
        self.forgotten: set[str] = set()
        self._watching: StreamFollowing | None = None
        self._table: Table | None = None
        self._watchers: list[Callable[[str], None]] = []

    async def start(self, table: Table) -> None:
        self._table = table
        self._watching = await table.watch(self.take)

    async def close(self) -> None:
        if self._watching is not None:
            await self._watching.close()

    def watch_forgotten(self, watcher: Callable[[str], None]) -> None:
        """Call back for each node that is forgotten."""
        self._watchers.append(watcher)

    async def fetch_forgotten(self, node: str) -> bool:
        """Whether a node is forgotten, as the table says now: it may have been invited again. Raises BusError."""
        if self._table is None:
            return node in self.forgotten
        return await self._table.get(forget_key(node)) is not None

    def take(self, entry: TableEntry) -> None:
        """Note an order that was given or taken back."""
        for prefix, nodes in ((_DRAIN, self.draining), (_FORGET, self.forgotten)):
            if entry.key.startswith(prefix):
                node = entry.key.removeprefix(prefix)
                if entry.value is None:
                    nodes.discard(node)
                    continue
                nodes.add(node)
                for watcher in self._watchers if prefix == _FORGET else ():
                    watcher(node)
