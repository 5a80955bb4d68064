"""Choose the node on which a session opens, and probe whether a node's run is still alive.

The choice is pure, except for the random choice among equal nodes. A run of a node is probed for two reasons: a copy of
a node's disk knows everything that the node knew, and a frozen or cut-off node keeps its lease for a while.
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
    """A client's requirements for the node of a session."""

    agent: str | None = None
    node: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def read(cls, params: Object, agent: str | None) -> "PlacementRequest":
        """Read the requirements from `_meta["sandboxagent.dev"]` of the params. Raises InvalidParams."""
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
        """Whether the client requires certain nodes."""
        return self.node is not None or bool(self.labels)


def place(
    leases: Mapping[str, Lease],
    closed: Mapping[str, str],
    request: PlacementRequest,
    choose: random.Random,
    silent: Collection[str] = (),
) -> str:
    """Choose two random nodes that fit, and return the one with fewer running turns. Raises NoNode.

    `closed` are the nodes that get no new sessions, with the reasons. Nodes that have the agent come first. Without
    any, another node may install the agent, or explain why it does not. A `silent` node is chosen only if there is no
    other.
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
"""Seconds for a run of a node to answer a probe. The node that waits for the result waits one second in all."""
ANSWER_TIMEOUT = 1.0
"""Seconds for a node to answer before it gets a new session."""


class NodeProbe:
    """Probes nodes from one gateway."""

    def __init__(self, gateway: str, bus: Bus) -> None:
        self._gateway = gateway
        self._bus = bus

    async def is_there(self, node: str, nonce: str) -> bool:
        """Return False if a run has left the bus. A run that does not answer may be frozen, and counts as alive."""
        return await self._probe(node, nonce, PROBE_TIMEOUT) is not False

    async def answers(self, node: str, nonce: str) -> bool:
        """Return whether a run answers at the moment."""
        return await self._probe(node, nonce, ANSWER_TIMEOUT) is True

    async def _probe(self, node: str, nonce: str, timeout: float) -> bool | None:
        """Return whether a run has received a probe; None if this is unknown."""
        id = secrets.token_urlsafe(16)
        back = subjects.flow_to_gateway(node, self._gateway, id)
        heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def take(_: str, body: bytes) -> None:
            # If nobody subscribes to the subject, the bus itself sends an empty message.
            if not heard.done():
                heard.set_result(bool(body))

        try:
            stop = await self._bus.subscribe(back, take)
        except BusError:
            return None
        try:
            probe = msgspec.msgpack.encode(Probe(self._gateway, id))
            async with asyncio.timeout(timeout):
                await self._bus.publish(subjects.run_of_node(node, nonce), probe, back)
                return await heard
        except (BusError, TimeoutError):
            return None
        finally:
            with suppress(BusError):
                await stop()
