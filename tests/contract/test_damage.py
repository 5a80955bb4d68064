"""Contract, section 6: a log that was damaged on disk, and what a server does with it."""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.client import Client, Json, run
from tests.support.history import events_of
from tests.support.running import Server


async def health(client: Client) -> Json:
    return (await client.http.get("/v1/health")).json()


@pytest.mark.requirement("6.damage")
def test_a_damaged_write_ahead_log_is_reported_until_it_is_acknowledged_and_positions_go_on(tmp_path: Path) -> None:
    with Server(directory=tmp_path) as server:

        async def before() -> tuple[list[str], list[Json]]:
            async with Client(server) as client:
                sessions = [await client.new_session() for _ in range(3)]
                for session in sessions:
                    await client.prompt(session, [["flood", 20, 300]])
                assert (await health(client))["status"] == "ok"
                return sessions, await events_of(client, sessions[0])

        async def after(sessions: list[str], events: list[Json]) -> None:
            async with Client(server) as client:
                told = await health(client)
                assert told["status"] == "degraded"
                assert "damaged" in told["detail"]
                (case,) = (tmp_path / "data").glob("log.db.damaged-*")
                assert str(case) in told["detail"]
                assert {"log.db", "log.db-wal", "reason.txt"} <= {each.name for each in case.iterdir()}
                listed = [entry["sessionId"] for entry in (await client.result("session/list"))["sessions"]]
                assert set(listed) == set(sessions)
                found = await events_of(client, sessions[0])
                # Every envelope is JSON, whatever became of the rest.
                assert json.dumps(found)
                new = await client.new_session()
                assert min(event["id"] for event in await events_of(client, new)) > max(each["id"] for each in events)

                shutil.rmtree(case)
                assert (await health(client))["status"] == "ok"

        sessions, events = run(before())
        server.kill()
        wal = tmp_path / "data" / "log.db-wal"
        content = bytearray(wal.read_bytes())
        content[32 + 24 + 4096] ^= 1
        wal.write_bytes(content)
        server.start()
        run(after(sessions, events))
