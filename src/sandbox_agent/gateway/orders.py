"""What an operator has said of nodes: one that drains gets no new sessions, one that was forgotten gets nothing."""

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

    async def start(self, table: Table) -> None:
        self._watching = await table.watch(self.take)

    async def close(self) -> None:
        if self._watching is not None:
            await self._watching.close()

    def take(self, entry: TableEntry) -> None:
        """Note an order that was given or taken back."""
        for prefix, nodes in ((_DRAIN, self.draining), (_FORGET, self.forgotten)):
            if entry.key.startswith(prefix):
                node = entry.key.removeprefix(prefix)
                if entry.value is None:
                    nodes.discard(node)
                else:
                    nodes.add(node)
