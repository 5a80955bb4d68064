"""A fleet that many tests share: two nodes and two gateways, in processes of their own."""

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.client import Client, Json, run
from tests.support.nats import PROGRAM, NatsServer, nats_server
from tests.support.opening import EAGER
from tests.support.running import BOUND, Server


@dataclass
class Fleet:
    """Two nodes and two gateways."""

    nats: NatsServer
    nodes: list[Server]
    gateways: list[Server]
    roots: list[Path]
    """Of the nodes' files."""


@pytest.fixture(scope="package")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Generator[Fleet]:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not installed")
    with nats_server(tmp_path_factory.mktemp("fleet") / "nats") as nats:
        # A gateway must not need what opens a node's own port.
        nodes = [Server(token=f"of-n{place}", agents={"eager": EAGER}) for place in (1, 2)]
        for place, node in enumerate(nodes, 1):
            joining = ("--join", nats.url, "--node", f"n{place}", "--label", f"place={place}")
            node.flags = [*joining, "--fs-root", node.work]
        gateways = [Server("--join", nats.url, command="gateway") for _ in range(2)]
        with gateways[0], gateways[1], nodes[0], nodes[1]:
            yield Fleet(nats, nodes, gateways, [Path(node.work) for node in nodes])


@pytest.fixture(scope="package")
def joined(fleet: Fleet) -> None:
    """Both gateways know both nodes."""

    async def main() -> None:
        for gateway in fleet.gateways:
            client = Client(gateway)
            async with client.http:
                await until_joined(client, 2)

    run(main())


async def until_listed(gateway: Client, session_id: str) -> Json:
    """Wait for the list, which follows a moment after a session was made."""
    async with asyncio.timeout(BOUND):
        while True:
            page = await gateway.result("session/list")
            for session in page["sessions"]:
                if session["sessionId"] == session_id:
                    return session
            await asyncio.sleep(0.05)


async def until_joined(gateway: Client, count: int) -> None:
    """Wait for the nodes, which beat once they know of a gateway."""
    async with asyncio.timeout(BOUND):
        while True:
            nodes = (await gateway.http.get("/v1/nodes")).json()["nodes"]
            if len(nodes) >= count:
                return
            await asyncio.sleep(0.05)
