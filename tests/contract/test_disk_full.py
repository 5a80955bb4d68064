"""The disk of the data directory is full: nothing is promised that cannot be kept, and it mends itself."""

import asyncio
import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.client import Client, Json, run
from tests.support.filing import Filing, problem
from tests.support.running import BOUND, Server
from tests.support.small_disk import mounted

SIZE = 12 << 20
"""Bytes of the small disk: more than the log's write-ahead file grows to."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A directory for a server whose `data` is a small file system of its own."""
    with mounted(tmp_path / "data", f"size={SIZE}"):
        yield tmp_path


def fill(data: Path) -> Path:
    """Take all the space that is left; gives the file that has it."""
    ballast = data / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return ballast


async def health_becomes(client: Client, status: str) -> Json:
    async with asyncio.timeout(BOUND):
        while True:
            health = (await client.http.get("/v1/health")).json()
            if health["status"] == status:
                return health
            await asyncio.sleep(0.02)


async def texts_of(client: Client, session: str) -> list[str]:
    """The texts of all prompts in the log."""
    texts: list[str] = []
    after = 0
    while True:
        page = await client.result("_sandboxagent/session/events", {"sessionId": session, "after": after})
        envelopes = [event["envelope"] for event in page["events"]]
        prompts = [one["params"]["prompt"] for one in envelopes if one.get("method") == "session/prompt"]
        texts += [json.loads(prompt[0]["text"])[0][1] for prompt in prompts]
        if page["next"] is None:
            return texts
        after = page["next"]


@pytest.mark.requirement("6.disk-full")
def test_full_disk_refuses_prompts_with_507_and_loses_nothing_acknowledged(small_disk: Path) -> None:
    acknowledged: list[str] = []

    def body(client: Client, session: str, text: str) -> Json:
        # The agent writes to stderr as well: its log file is on the same disk.
        params = client.prompt_params(session, [["say", text], ["stderr", "x" * 5000], ["flood", 10, 3000]])
        return {"jsonrpc": "2.0", "id": text, "method": "session/prompt", "params": params}

    with Server(directory=small_disk) as server:

        async def until_full_and_back() -> str:
            async with Client(server) as client:
                assert (await client.http.get("/v1/health")).json()["status"] == "ok"
                session = await client.new_session()
                ballast = fill(small_disk / "data")
                refused = None
                for number in range(200):
                    text = f"prompt {number}"
                    async with asyncio.timeout(BOUND):
                        response = await client.post(body(client, session, text))
                    if response.status_code != 200:
                        refused = response
                        break
                    acknowledged.append(text)
                assert refused is not None
                assert refused.status_code == 507
                assert refused.headers["Content-Type"] == "application/problem+json"
                assert refused.json()["type"] == "urn:sandbox-agent:error:log-unavailable"

                health = await health_becomes(client, "degraded")
                assert "log" in health["detail"]
                again = await client.post(body(client, session, "refused while full"))
                assert again.status_code == 507
                later = await client.post(body(client, session, "refused as well"), Prefer="respond-async")
                assert later.status_code == 507
                new = {
                    "jsonrpc": "2.0",
                    "id": 1,
                    "method": "session/new",
                    "params": {"cwd": server.work, "mcpServers": []},
                }
                assert (await client.post(new)).status_code == 507
                # What needs no room goes on.
                assert (await client.result("session/list"))["sessions"][0]["sessionId"] == session
                assert (await client.result("x/echo", {"a": 1}))["params"] == {"a": 1}

                ballast.unlink()
                health = await health_becomes(client, "ok")
                assert "detail" not in health
                response = await client.post(body(client, session, "after"))
                assert response.status_code == 200
                acknowledged.append("after")
                other = await client.new_session()
                assert (await client.post(body(client, other, "elsewhere"))).status_code == 200
                await check(client, session)
                return session

        async def check(client: Client, session: str) -> None:
            texts = await texts_of(client, session)
            assert len(texts) == len(set(texts))
            assert [text for text in texts if text in acknowledged] == acknowledged
            assert "refused while full" not in texts
            assert "refused as well" not in texts

        async def after(session: str) -> None:
            async with Client(server) as client:
                await check(client, session)
                assert (await client.post(body(client, session, "after a restart"))).status_code == 200

        session = run(until_full_and_back())
        server.kill()
        server.start()
        run(after(session))


@pytest.mark.requirement("13.disk-full")
def test_a_file_for_which_there_is_no_room_is_a_507_that_leaves_the_old_one(small_disk: Path) -> None:
    data = small_disk / "data"
    with Server("--no-persist", "--fs-root", str(data), directory=small_disk) as server:
        files = Filing(server, data)
        assert files.put("file", b"old").status_code == 200
        ballast = fill(data)
        for path in ("file", "new", "folder/new"):
            refused = files.put(path, b"x" * (4 << 20))
            assert problem(refused) == (507, "no-room")
            assert refused.json()["errno"] == "ENOSPC"
        assert (data / "file").read_text() == "old"
        assert [name for name in os.listdir(data) if name.startswith(".sandbox-agent")] == []
        ballast.unlink()
        assert files.put("file", b"x" * (4 << 20)).status_code == 200
