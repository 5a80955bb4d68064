"""A gateway without NATS: it says so at once, goes on by itself, and ends when its credentials are no longer good."""

import asyncio
import signal
from pathlib import Path

import pytest

from sandboxagent.cli.fleet.keys import FleetDirectory
from tests.support.client import Client, Json, run
from tests.support.nats import PROGRAM, NatsServer, nats_server
from tests.support.running import BOUND, Server

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not installed")


async def health_that_says(client: Client, word: str) -> Json:
    async with asyncio.timeout(BOUND):
        while True:
            health = (await client.http.get("/v1/health")).json()
            if word in health["detail"]:
                return health
            await asyncio.sleep(0.05)


async def refused(client: Client) -> Json:
    """The problem that a request gets when the gateway no longer waits for NATS."""
    async with asyncio.timeout(BOUND):
        while True:
            answer = await client.post({"jsonrpc": "2.0", "id": 1, "method": "session/list", "params": {}})
            if answer.status_code != 200:
                return answer.json()
            await asyncio.sleep(0.05)


def test_gateway_without_nats_refuses_at_once_and_without_its_key_ends(tmp_path: Path) -> None:
    keys = FleetDirectory(tmp_path / "fleet")
    keys.init()

    async def lose_nats(nats: NatsServer, gateway: Server) -> None:
        # Without a node it is good for reading, which is enough here.
        async with Client(gateway) as client:
            nats.kill()
            assert (await health_that_says(client, "NATS"))["status"] == "degraded"
            problem = await refused(client)
            assert (problem["status"], problem["type"].rpartition(":")[2]) == (503, "fleet-unreachable")
            assert "NATS" in problem["detail"]
            assert "--join" in problem["detail"]
            files = await client.http.get("/v1/fs/file", params={"path": "x"})
            assert files.json()["type"] == problem["type"]
            for path in ("/v1/sessions", "/v1/nodes"):
                assert (await client.http.get(path)).status_code == 200, "what it knew last"
            nats.restart()
            await health_that_says(client, "no node")
            assert (await client.result("session/list")) == {"sessions": []}

    with nats_server(tmp_path / "nats", keep=True, authorization=keys.authorization()) as nats:
        joining = ("--join", nats.url, "--creds", str(keys.gateway_key))
        gateway = Server(*joining, command="gateway", directory=tmp_path / "gateway")
        gateway.start()
        try:
            run(lose_nats(nats, gateway))
            nats.configure(authorization={"users": [{"user": "another", "password": "x"}]})
            nats.process.send_signal(signal.SIGHUP)
            assert gateway.process.wait(timeout=BOUND) != 0
        finally:
            gateway.kill()
        assert str(keys.gateway_key) in gateway.stderr
        assert "Traceback" not in gateway.stderr
        before = len(gateway.stderr)
        # What it says at its next start is the same: no gateway runs without the fleet.
        with pytest.raises(AssertionError):
            gateway.start()
        assert gateway.process.wait(timeout=BOUND) != 0
        gateway.kill()
        assert str(keys.gateway_key) in gateway.stderr[before:]
