"""A fleet on this machine whose parts can be killed, frozen and cut off, one at a time."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sandboxagent.cli.fleet.keys import NatsAddress
from sandboxagent.cli.fleet.local import LocalFleet, find_places
from sandboxagent.fleet.bus.interface import BusError
from sandboxagent.fleet.bus.jetstream_api import Json, StreamFacts, call_api, describe
from sandboxagent.fleet.bus.nats import NatsBus, connect
from tests.chaos import hostile
from tests.chaos.relay import Wire
from tests.support.client import Client
from tests.support.running import BOUND, scripted

STREAMS = ("EV", "KV_nodes", "KV_sess", "KV_conns", "KV_keys", "KV_fleet", "KV_owners", "KV_usage")
"""Of a fleet; the first has the events."""
SETTINGS = {
    # Streams are never silent for long, so that readers can tell a session that is quiet from a gateway that is dead.
    "SANDBOX_AGENT_HEARTBEAT": "1s",
    # So little that a hostile node fills it.
    "SANDBOX_AGENT_LOG_MAX_BYTES": "128MiB",
}
"""Of all parts, in their environment."""
_LEADS = re.compile(r"new (?:JetStream cluster )?metadata leader(?:: ([^/]+)/)?")


@dataclass(frozen=True)
class Endpoint:
    """Where a client goes."""

    name: str
    url: str
    token: str
    work: str


class Parts:
    """Three NATS servers, and gateways and nodes that reach them by wires of their own."""

    def __init__(self, directory: Path) -> None:
        self.fleet = LocalFleet(directory / "fleet")
        self.work = directory / "work"
        self._wires: list[Wire] = []
        self._places: list[NatsAddress] = []
        self._bus: NatsBus | None = None

    async def start(self, gateways: int, nodes: Sequence[str]) -> None:
        self.work.mkdir()
        await asyncio.to_thread(self.fleet.prepare, [*nodes, hostile.NAME])
        self._places = find_places(3)
        routes = {place.name: await self._wire(place.route, place.name) for place in self._places}
        for place in self._places:
            others = [
                NatsAddress(other.name, other.port, routes[other.name])
                for other in self._places
                if other.name != place.name
            ]
            # So that no part learns of a way around the wires.
            around = {"no_advertise": True, "advertise": f"127.0.0.1:{routes[place.name]}"}
            self.fleet.start_server(place, others, **around)
        names = [f"gateway-{number}" for number in range(1, gateways + 1)]
        await asyncio.gather(*(self._start_gateway(name) for name in names[:1]))
        starts = [self._start_gateway(name) for name in names[1:]] + [self._start_node(name) for name in nodes]
        await asyncio.gather(*starts)
        self._bus = await connect(self.urls, "gw.chaos.in", "chaos", self.fleet.directory.gateway_key)

    async def stop(self) -> None:
        if self._bus is not None:
            await self._bus.close()
        for name in (*self.servers, *self.fleet.urls):
            self.fleet.signal(name, signal.SIGCONT)
        for wire in self._wires:
            await wire.close()
        await asyncio.to_thread(self.fleet.stop)

    @property
    def urls(self) -> list[str]:
        """The way to NATS without a wire."""
        return [f"nats://127.0.0.1:{place.port}" for place in self._places]

    @property
    def servers(self) -> list[str]:
        return [place.name for place in self._places]

    def endpoint(self, name: str) -> Endpoint:
        return Endpoint(name, self.fleet.urls[name], self.fleet.token, str(self.work))

    # What happens to a part

    async def kill(self, name: str) -> None:
        await asyncio.to_thread(self.fleet.kill, name)

    async def start_again(self, name: str) -> None:
        await asyncio.to_thread(self.fleet.start_again, name)

    async def freeze(self, name: str) -> None:
        self.fleet.signal(name, signal.SIGSTOP)

    async def thaw(self, name: str) -> None:
        self.fleet.signal(name, signal.SIGCONT)

    async def cut(self, name: str) -> None:
        for wire in self._wires:
            await wire.cut(name)

    async def mend(self, name: str) -> None:
        for wire in self._wires:
            await wire.mend(name)

    # What the servers say

    async def joined(self) -> None:
        """Wait until every gateway has NATS, and knows every node."""
        for name in [name for name in self.fleet.urls if name.startswith("gateway")]:
            client = Client(self.endpoint(name))
            async with client.http, asyncio.timeout(BOUND):
                while True:
                    health = (await client.http.get("/v1/health")).json()
                    nodes = {each["node"] for each in (await client.http.get("/v1/nodes")).json()["nodes"]}
                    if health["status"] == "ok" and nodes >= set(self.fleet.nodes):
                        break
                    await asyncio.sleep(0.1)

    async def leader(self) -> str:
        """The server that takes the appends of all events."""
        return (await self._settled())[0].leader

    async def follower(self) -> str:
        """A server that leads nothing: what it leads goes to the leader of all events first."""
        leader = await self.leader()
        follower = next(name for name in self.servers if name not in (leader, self._leader_of_servers()))
        while mine := [each for each in await self._settled() if each.leader == follower]:
            for each in mine:
                wish: Json = {"placement": {"preferred": leader}}
                with suppress(BusError):
                    await call_api(self._reached(), f"STREAM.LEADER.STEPDOWN.{each.name}", wish)
        return follower

    def _leader_of_servers(self) -> str:
        """The one that decides where streams and their readers are, by the newest of what the servers say of it."""
        found = [
            (line.split()[1:3], _LEADS.search(line), name)
            for name in self.servers
            for line in (self.fleet.logs / f"{name}.log").read_text().splitlines()
        ]
        _, newest, name = max(((when, each, name) for when, each, name in found if each), key=lambda each: each[0])
        assert newest is not None
        return newest[1] or name

    def _reached(self) -> NatsBus:
        assert self._bus is not None
        return self._bus

    async def _settled(self) -> list[StreamFacts]:
        """Wait until every server has everything: two that are away at once are another case."""
        async with asyncio.timeout(3 * BOUND):
            while True:
                try:
                    found = [await describe(self._reached(), name) for name in STREAMS]
                except BusError:
                    found = []
                if found and all(each.leader and not each.behind and each.servers == 3 for each in found):
                    return found
                await asyncio.sleep(0.2)

    async def _start_gateway(self, name: str) -> None:
        await asyncio.to_thread(self.fleet.start_gateway, name, await self._ways(name), 3)

    async def _start_node(self, name: str) -> None:
        config = self.fleet.config_of(name)
        config.mkdir(parents=True)
        (config / "agents.toml").write_text(f"[agents.scripted]\n{scripted()}\n")
        await asyncio.to_thread(self.fleet.start_node, name, await self._ways(name))

    async def _ways(self, name: str) -> list[str]:
        """A wire of its own to each server."""
        return [f"nats://127.0.0.1:{await self._wire(place.port, place.name, name)}" for place in self._places]

    async def _wire(self, target: int, to: str, origin: str = "") -> int:
        wire = Wire(to, origin)
        self._wires.append(wire)
        return await wire.open(target)


@asynccontextmanager
async def parts(directory: Path, gateways: int = 2, nodes: int = 3) -> AsyncGenerator[Parts]:
    """All of it, gone with the block."""
    made = Parts(directory)
    before = {name: os.environ.get(name) for name in SETTINGS}
    os.environ.update(SETTINGS)
    try:
        await made.start(gateways, [f"node-{number}" for number in range(1, nodes + 1)])
        yield made
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        await made.stop()
