"""Choose the node on which a session opens, and probe whether a node's run is still alive.

The choice is pure, but for the one among equals. A run of a node is asked: a copy of a node's disk knows all that the
node knew; and a node that was frozen or cut off keeps its lease for a while.
"""

import asyncio
import random
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from sandboxagent.fleet.bus import subjects
from sandboxagent.fleet.bus.interface import Bus, BusError
from sandboxagent.fleet.messages import Lease, Probe
from sandboxagent.protocol.envelope import META, Object, object_at, text_at
from sandboxagent.protocol.errors import InvalidParams, NoNode


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """What a client says about the node that it wants."""

    agent: str | None = None
    node: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def read(cls, params: Object, agent: str | None) -> "PlacementRequest":
        """From `_meta["sandboxagent.dev"]` of `initialize` or `session/new`. Raises InvalidParams."""
        ours = object_at(params, "_meta", META)
        labels = object_at(ours, "labels")
        if "labels" in ours and (not labels or not all(isinstance(value, str) for value in labels.values())):
            raise InvalidParams("labels must be an object of strings, with one label at least", labels=ours["labels"])
        if "node" in ours and not isinstance(ours["node"], str):
            raise InvalidParams("node must be the name of a node", node=ours["node"])
        wanted = {name: str(value) for name, value in labels.items()}
        return cls(text_at(ours, "agent") or agent, text_at(ours, "node"), wanted)

    @property
    def is_particular(self) -> bool:
        """Whether not every node will do."""
        return self.node is not None or bool(self.labels)


def place(
    leases: Mapping[str, Lease],
    closed: Mapping[str, str],
    request: PlacementRequest,
    choose: random.Random,
    silent: Collection[str] = (),
) -> str:
    """Of two random nodes that fit, the one with fewer running turns. Raises NoNode.

    `closed` are those that get no new sessions, with the reason. Nodes that have the agent come first; when there is
    none, any other may install it, or say why it does not. One that is `silent` is chosen when there is no other.
    """
    fitting = [lease for lease in leases.values() if _fits(lease, request) and lease.node not in closed]
    if not fitting:
        raise NoNode(_describe(request, closed) if leases else "no node is there")
    having = [lease for lease in fitting if request.agent is None or request.agent in lease.agents]
    best = having or fitting
    return _least_busy([lease for lease in best if lease.node not in silent] or best, choose).node


def _fits(lease: Lease, request: PlacementRequest) -> bool:
    if request.node is not None and lease.node != request.node:
        return False
    if request.agent is not None and lease.allowed is not None and request.agent not in lease.allowed:
        return False
    return all(lease.labels.get(name) == value for name, value in request.labels.items())


def _least_busy(leases: Sequence[Lease], choose: random.Random) -> Lease:
    return min(choose.sample(leases, min(2, len(leases))), key=lambda lease: lease.running)


def _describe(request: PlacementRequest, closed: Mapping[str, str]) -> str:
    if request.node is not None and request.node in closed:
        return f"the node {request.node} {closed[request.node]}: it takes no new sessions"
    wanted = [f"called {request.node}"] if request.node is not None else []
    wanted += [f"with the label {name}={value}" for name, value in sorted(request.labels.items())]
    which = f" that is {' and '.join(wanted)}" if wanted else ""
    return f"no node is there{which}, or none of them takes new sessions of this agent"


PROBE_TIMEOUT = 0.5
"""Seconds in which a run of a node answers. The one that waits has one second in all."""
ANSWER_TIMEOUT = 1.0
"""Seconds in which a node answers that is to have a new session."""


class Presence:
    """Asks nodes, from one gateway."""

    def __init__(self, gateway: str, bus: Bus) -> None:
        self._gateway = gateway
        self._bus = bus

    async def is_there(self, node: str, nonce: str) -> bool:
        """False when that run has left the bus. One that does not answer may be frozen: it counts as there."""
        return await self._probe(node, nonce, PROBE_TIMEOUT) is not False

    async def answers(self, node: str, nonce: str) -> bool:
        """Whether it can be asked for something right now."""
        return await self._probe(node, nonce, ANSWER_TIMEOUT) is True

    async def _probe(self, node: str, nonce: str, patience: float) -> bool | None:
        """Whether that run has heard it; None when nothing is known."""
        id = secrets.token_urlsafe(16)
        back = subjects.flow_to_gateway(node, self._gateway, id)
        heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def take(_: str, body: bytes) -> None:
            # When nothing hears it, the bus itself sends an empty message.
            if not heard.done():
                heard.set_result(bool(body))

        try:
            stop = await self._bus.hear(back, take)
        except BusError:
            return None
        try:
            probe = msgspec.msgpack.encode(Probe(self._gateway, id))
            async with asyncio.timeout(patience):
                await self._bus.publish(subjects.run_of_node(node, nonce), probe, back)
                return await heard
        except (BusError, TimeoutError):
            return None
        finally:
            with suppress(BusError):
                await stop()
