"""HTTP/2 through real proxies: streams side by side on one connection, with TLS and without. Contract, section 14."""

import json
import ssl
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from sandboxagent.server.agents.install.tools import bundled_node
from tests.proxies.fronts import Front, Missing, front
from tests.support.acp import Socket
from tests.support.client import run
from tests.support.running import BOUND, TOKEN, Server

DRIVER = Path(__file__).resolve().parent / "streams.mjs"


@pytest.fixture(scope="module")
def served() -> Generator[Server]:
    with Server("--default-agent", "scripted") as running:
        yield running


@pytest.fixture(scope="module", params=["caddy", "nginx"])
def before(
    request: pytest.FixtureRequest, served: Server, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Front]:
    directory = tmp_path_factory.mktemp(request.param)
    try:
        with front(request.param, served.url, directory) as running:
            yield running
    except Missing as why:
        pytest.skip(str(why))


@pytest.mark.requirement("14.http2")
@pytest.mark.parametrize("way", ["h2c", "h2"])
def test_streams_on_one_connection_do_not_starve_each_other(before: Front, served: Server, way: str) -> None:
    url = before.h2c if way == "h2c" else before.h2
    node = str(bundled_node().program)
    done = subprocess.run(
        [node, str(DRIVER), url, TOKEN, served.work], capture_output=True, text=True, timeout=2 * BOUND
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)

    assert told["protocol"] == way
    assert told["meanwhile"] == 0, "the first stream was not read while the others came to their ends"
    assert told["numbers"] == [[*range(200)], [*range(300)], [*range(300)]]
    assert told["ordered"] == 202


@pytest.mark.requirement("14.http2")
def test_a_websocket_passes_beside_it(before: Front, served: Server) -> None:
    async def main() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        async with connect(
            before.h2.replace("https", "wss") + "/acp",
            ssl=context,
            additional_headers={"Authorization": f"Bearer {TOKEN}"},
            compression=None,
            proxy=None,
            open_timeout=BOUND,
        ) as raw:
            socket = Socket(raw)
            assert "result" in await socket.initialize()
            session = await socket.session(served.work)
            assert (await socket.prompt(session, [["flood", 300, 100]]))["result"]["stopReason"] == "end_turn"

    run(main())
